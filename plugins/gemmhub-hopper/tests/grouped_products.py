"""Grouped products on a fake device or a card: operands with NaN wherever nothing may be read, and exact results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from gemmhub_hopper.candidates.candidate import runnable
from gemmhub_hopper.candidates.grouped import GroupedChoice
from gemmhub_hopper.lowering import groups
from gemmhub_hopper.variants.config import Shape
from problems import problem

from gemmhub.dtypes import as_dtype
from gemmhub.epilogues import EPILOGUES, columns
from gemmhub.operands import Scale
from gemmhub.problem import Bias, Groups
from gemmhub.scale_layouts import spread

LIMIT = 2**30


@dataclass(frozen=True)
class GroupedProduct:
    """A grouped problem for a tile shape and a lowering."""

    shape: Shape
    ends: tuple[int, ...]
    """As the kernel gets them, which may be out of order or beyond the operand."""
    extent: int
    """Elements of the divided dimension."""
    across: int
    """Elements of the other side of the result; rows where k is divided."""
    k: int
    """Elements along k; columns where that is divided."""
    divides: str = "m"
    swapped: bool = False
    a: str = "row"
    b: str = "row"
    d: str = "row"
    dtype: str = "bfloat16"
    """That of a and b; "tf32" is float32 with that precision."""
    out: str | None = None
    registers: bool = False
    """Whether the kernel's a goes through registers, of those that need not."""
    alpha: float = 1
    beta: float = 0
    """The factor of c; 0 for no c."""
    c_is_out: bool = False
    """Whether c is the result's memory."""
    bias: str | None = None
    """ "n", "batch n" or "m"."""
    activation: str | None = None

    def __str__(self):
        words = [self.choice.name, self.divides, f"{self.extent}x{self.across}x{self.k}"]
        words += [self.a[0] + self.b[0] + self.d[0], str(len(self.ends)), self.dtype]
        return "-".join([*words, *filter(None, (self.out, self.beta and "c", self.bias, self.activation))])

    @property
    def sizes(self):
        """m, n and k of the arrays."""
        extent, across, k = self.extent, self.across, self.k
        return {"m": (extent, across, k), "n": (across, extent, k), "k": (across, k, extent)}[self.divides]

    @cached_property
    def problem(self):
        dtype, precision = ("float32", "tf32") if self.dtype == "tf32" else (self.dtype, None)
        asked = problem(
            *self.sizes, dtype, self.out, (), self.a, self.b, self.d, groups=Groups(len(self.ends), self.divides),
            activation=self.activation, alpha_is_one=self.alpha == 1,
        )  # fmt: skip
        asked = replace(asked, precision=precision or asked.precision)
        asked = asked.having(c=asked.out) if self.beta else asked
        if self.bias is None:
            return asked
        strides = (self.sizes[1],) if self.bias.startswith("batch") else ()
        return asked.having(bias=Bias(as_dtype("float32"), self.bias[-1], 1, strides))

    @cached_property
    def unchecked(self):
        """The candidate, which may not run."""
        lowerings = groups.lowerings(self.problem)
        assert isinstance(lowerings, tuple), lowerings
        asked = self.swapped, self.registers or self.dtype == "float32"
        lowering = next(x for x in lowerings if (x.swapped, x.form.registers_a) == asked)
        return GroupedChoice(lowering, self.shape, 1)

    @property
    def choice(self):
        passes = runnable(self.unchecked, LIMIT)
        assert not isinstance(passes, str), passes
        return self.unchecked

    @property
    def spans(self):
        """The begin and end of each group, whatever the ends are."""
        ends = np.minimum(np.maximum.accumulate(np.maximum(self.ends, 0)), self.extent)
        return list(zip([0, *ends[:-1].tolist()], ends.tolist()))

    def data(self, seed):
        """(a, b, bias): small integers, and NaN in rows (columns) that no group has."""
        rng, count, asked = np.random.default_rng(seed), len(self.ends), self.problem
        m, n, k = self.sizes
        batch = asked.groups.batch
        shapes = (*batch("a"), m, k), (*batch("b"), k, n)
        a, b = (rng.integers(-3, 4, shape).astype(asked.a.dtype) for shape in shapes)
        last = self.spans[-1][1]
        if a.dtype == np.int8:
            return a, b, None
        if self.divides == "m":
            a[last:] = np.nan
        else:
            b[(slice(last, None), slice(None))[:: -1 if self.divides == "n" else 1]] = np.nan
        if self.divides == "k":
            a[:, last:] = np.nan
        bias = None
        if self.bias:
            shape = (count, n) if self.bias.startswith("batch") else (n if self.bias == "n" else m,)
            bias = rng.integers(-3, 4, shape).astype(np.float32)
        return a, b, bias

    def addend(self, seed):
        """c: small integers, and NaN in rows (columns) that no group has; None where there is none."""
        if not self.beta:
            return None
        (m, n, _), last = self.sizes, self.spans[-1][1]
        c = np.random.default_rng(seed).integers(-3, 4, (*self.problem.groups.batch("out"), m, n))
        c = c.astype(self.problem.out.dtype)
        if self.divides != "k":
            c[(slice(last, None), slice(None))[:: -1 if self.divides == "n" else 1]] = np.nan
        return c

    def scales(self):
        """The quantization scales by their names."""
        return {}

    def exact(self, a, b, bias, c=None):
        """The result in float64."""
        a, b = a.astype(np.float64), b.astype(np.float64)
        factors = self.scales()
        if factors:
            a, b = a * spread(factors["scale_a"], a.shape), b * spread(factors["scale_b"], b.shape)
        m, n, _ = self.sizes
        result = np.zeros((*self.problem.groups.batch("out"), m, columns(self.activation, n)))
        for group, (begin, end) in enumerate(self.spans):
            span, every = slice(begin, end), slice(None)
            if self.divides == "m":
                rows, left, right = (span, every), a[span], b[group]
            elif self.divides == "n":
                rows, left, right = (every, span), a[group], b[:, span]
            else:
                rows, left, right = (group, every), a[:, span], b[span]
            value = self.alpha * (left @ right)
            if c is not None:
                value = value + self.beta * c[rows].astype(np.float64)
            if bias is not None:
                own = bias[group] if bias.ndim == 2 else bias
                if self.bias == "m":
                    own = own[begin:end, None] if self.divides == "m" else own[:, None]
                elif self.divides == "n":
                    own = own[begin:end]
                value = value + own
            result[rows] = EPILOGUES[self.activation](value) if self.activation else value
        return result

    def wrong(self, result, exact):
        """Which elements of ``result`` are."""
        value = result.astype(np.float64)
        if self.activation and EPILOGUES[self.activation].evaluation:
            unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[result.dtype.name]
            return ~(np.abs(value - exact) <= unit * np.abs(exact) + 1e-5)
        return ~(value == exact.astype(result.dtype).astype(np.float64))

    def with_ends(self, ends):
        """The same product with other groups."""
        return replace(self, ends=tuple(ends))


@dataclass(frozen=True)
class ScaledGroups(GroupedProduct):
    """8-bit operands, contiguous along k, with scales that are powers of two; those of a stack differ by groups."""

    b: str = "col"
    dtype: str = "float8_e4m3fn"
    out: str | None = "bfloat16"
    granularity: str | None = None
    """None, "rows" (of a, and of each column of b) or "blocks" (1 x 128 of a, 128 x 128 of b)."""

    def __str__(self):
        return "-".join(filter(None, (super().__str__(), self.granularity)))

    @cached_property
    def problem(self):
        asked, factors = super().problem, self.scales()
        if not factors:
            return asked
        blocks = self.granularity == "blocks"
        steps = {name: [s // 4 for s in x.strides] for name, x in factors.items()}
        a, b = steps["scale_a"], steps["scale_b"]
        return asked.having(
            scale_a=Scale("m", a[-2], blocks, a[-1] if blocks else 0, tuple(a[:-2])),
            scale_b=Scale("n blocks" if blocks else "n", b[-1], blocks, b[-2] if blocks else 0, tuple(b[:-2])),
        )

    def scales(self):
        if self.granularity is None:
            return {}
        rng, of, (m, n, k) = np.random.default_rng(7), Groups(len(self.ends), self.divides), self.sizes
        shapes = {"rows": ((m, 1), (1, n)), "blocks": ((m, -(-k // 128)), (-(-k // 128), -(-n // 128)))}
        drawn = (
            np.ldexp(np.float32(1), rng.integers(-1, 2, (*of.batch(name), *shape)))
            for name, shape in zip("ab", shapes[self.granularity])
        )
        return dict(zip(("scale_a", "scale_b"), drawn))
