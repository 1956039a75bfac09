"""Products with quantization scales in the layouts that cuBLASLt reads, in any memory, with the expected result."""

from __future__ import annotations

import numpy as np

from gemmhub import accuracy
from gemmhub.dtypes import as_dtype
from gemmhub.operands import OPERANDS, Operands, Product, Scale, blocks, described
from gemmhub.problem import Bias, GemmProblem, Operand
from gemmhub.testing.memory import Placed
from gemmhub.testing.operands import layout

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
GRANULARITIES = {
    "none": (None, None),
    "tensor": ("tensor", "tensor"),
    "tensor of a": ("tensor", None),
    "tensor of b": (None, "tensor"),
    "row": ("row", "column"),
    "1x128 by 128x128": ("1x128", "128x128"),
    "1x128 by 128x1": ("1x128", "128x1"),
}
"""Forms of the scales of a and b."""


def placed_scale(memory, form, size, k, b):
    """The factors of an operand of ``size`` rows or columns, in the library's layout."""
    deep, four = blocks(k), -(-blocks(k) // 4) * 4
    shape, steps = {
        "tensor": ((1, 1), (1, 1)), "row": ((size, 1), (1, 1)), "column": ((size, 1), (1, 1)),
        "1x128": ((size, deep), (1, size)), "128x1": ((size, deep), (1, size)),
        "128x128": ((blocks(size), deep), (four, 1)),
    }[form]  # fmt: skip
    nbytes = 1 + sum((x - 1) * y for x, y in zip(shape, steps))
    if b:
        shape, steps = shape[::-1], steps[::-1]
    return Placed(memory, np.dtype(np.float32), shape, steps, 0, nbytes)


class ScaledProduct:
    """One call of a kernel: a row-major and b column-major, ``d`` the order of the result."""

    def __init__(
        self, memory, m, n, k, granularity="tensor", out="bfloat16", dtypes=(E4M3, E4M3), d="row", seed=0, alpha=1,
        bias=None, activation=None, scale_out=False, amax=False, c=False,
    ):  # fmt: skip
        self.memory, self.alpha, self.activation, self.c = memory, alpha, activation, c
        a, b, result = map(as_dtype, (*dtypes, out))
        self.narrow = result.itemsize == 1
        strides = (n, 1) if d == "row" else (1, m)
        self.a = Placed(memory, a, (m, k), (k, 1), 0, m * k)
        self.b = Placed(memory, b, (k, n), (1, k), 0, n * k)
        self.out = Placed(memory, result, (m, n), strides, 0, m * n)
        self.others = {}
        for name, form, size in zip(("scale_a", "scale_b"), GRANULARITIES[granularity], (m, n)):
            if form is not None:
                self.others[name] = placed_scale(memory, form, size, k, name == "scale_b")
        for name in [name for name, there in (("scale_out", scale_out), ("amax", amax)) if there]:
            self.others[name] = Placed(memory, np.dtype(np.float32), (1,), (1,), 0, 1)
        if bias:
            axis = "n" if d == "row" else "m"
            self.others["bias"] = Placed(memory, as_dtype(bias), (n if axis == "n" else m,), (1,), 0, max(m, n))
        if c:
            dtype = as_dtype("bfloat16") if self.narrow else result
            self.others["c"] = Placed(memory, dtype, (m, n), strides, 0, m * n)
        float32 = np.dtype(np.float32)
        product = Product(m, n, k, (), 2, 2, (m, n), result, float32)
        found = {
            name: Scale(None) if name in ("scale_out", "amax") else described(name, x.values, product)[1]
            for name, x in self.others.items()
            if name in ("scale_a", "scale_b", "scale_out", "amax")
        }
        if bias:
            found["bias"] = Bias(as_dtype(bias), axis)
        if c:
            found["c"] = self._operand(self.others["c"])
        self.problem = GemmProblem(
            m=m, n=n, k=k, a=self._operand(self.a), b=self._operand(self.b), out=self._operand(self.out),
            compute_dtype=float32, operands=Operands(found), alpha_is_one=alpha == 1, activation=activation,
            device=memory.device,
        )  # fmt: skip
        self.fill(seed)

    def _operand(self, placed):
        return Operand(placed.dtype, layout(placed.values, ()), placed.alignment)

    def fill(self, seed):
        """Draw new operands; factors of several magnitudes and signs, which differ everywhere."""
        rng = np.random.default_rng(seed)
        for x in (self.a, self.b):
            x.fill(rng.standard_normal(x.shape).astype(x.dtype), None)
        for name, x in self.others.items():
            values = rng.standard_normal(x.shape)
            if name in ("scale_a", "scale_b"):
                values = np.ldexp(rng.uniform(1, 2, x.shape), rng.integers(-4, 3, x.shape))
                values *= rng.choice((-1, 1), x.shape)
            x.fill(np.full(1, 1e30) if name == "amax" else 0.37 * np.ones(1) if name == "scale_out" else values, None)
        self.out.fill(None, None)

    def launch(self, run, stream=None):
        """Call ``run``, and do not wait."""
        stream = self.memory.stream if stream is None else stream
        others = {name: self.others[name].array for name in OPERANDS if name in self.others}
        run(self.a.array, self.b.array, self.out.array, self.alpha, 2 if self.c else 0, stream, **others)

    def run(self, run):
        """Call ``run``, and wait."""
        self.memory.synchronize()
        self.launch(run)
        self.memory.synchronize()

    def worst(self):
        """The largest error of what was written, over its bound."""
        got = self.out.read()[0]
        given = {name: x.values for name, x in self.others.items() if name != "amax"}
        want = accuracy.reference(
            self.a.values, self.b.values, model=accuracy.problem_model(self.problem), alpha=self.alpha,
            beta=2 if self.c else 0, activation=self.activation, out_dtype=got.dtype, amax="amax" in self.others,
            **given,
        )  # fmt: skip
        ratios = [np.max(want.ratio(got))]
        if want.amax is not None:
            ratios.append(np.max(want.amax.ratio(self.others["amax"].read()[0].reshape(want.amax.value.shape))))
        return float(max(ratios))
