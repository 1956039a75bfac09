"""One product for a kernel on the emulator: operands in memory, the launch, and the comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import emulated
import numpy as np
from gemmhub_cuda.launch import Params
from gemmhub_cuda.variants import batch as batches
from gemmhub_cuda.variants.form import FORMATS, Form
from gemmhub_cuda.variants.variant import Shape, Variant
from gemmhub_nvidia.scales import Scales

from gemmhub.accuracy import error_model, reference
from gemmhub.dtypes import as_dtype

CANARY = 0x5A
SCALES = {
    None: (0, False), "tensor": (0, False), "each": (1, False), "blocks": (128, False), "each x 128": (1, True),
    "blocks x 128": (128, True), "tensor x 128": (0, True),
}  # fmt: skip
"""Quantization scales: rows (columns) that share one, 0 for all; and whether there is one for each 128 along K."""
FLOAT32 = as_dtype("float32")


@dataclass(frozen=True)
class Product:
    """A problem for a given tile shape; a is (m, k), b (k, n)."""

    shape: Shape
    m: int
    n: int
    k: int
    a: str = "k"
    """The contiguous dimension of a, "k" or "m"; of b "k" or "n"."""
    b: str = "k"
    aligned: tuple[int, int] = (16, 16)
    """The alignment of rows of a and of b in bytes, and no more; as in Form, MN-major rows also end at it."""
    dtype: str = "bfloat16"
    out: str = "float32"
    splits: int = 1
    split_k: bool = False
    """Whether the variant has split-K, even with one split."""
    batch: int = 1
    shared: str = ""
    """Operands, of "ab", that are the same in the whole batch."""
    scaled: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    bias: str | None = None
    bias_type: str = "float32"
    activation: str | None = None
    group: int = 2
    d_offset: int = 0
    """Offset of d's address in elements from an alignment of 16 bytes."""
    d_pad: int = 0
    """Elements between the rows of d."""
    ctas: int = 1
    """CTAs of a launch of the kernel for batches."""
    b_dtype: str = ""
    """The dtype of b, where it is not that of a."""
    scales: tuple[str | None, str | None] = (None, None)
    """Granularities of the quantization scales of a and b, of :data:`SCALES`."""

    def __post_init__(self):
        along_m, along_n = self.m if self.a == "m" else 8, self.n if self.b == "n" else 8
        size = as_dtype(self.dtype).itemsize
        along_m, along_n = (x if x != 8 else 16 for x in (along_m, along_n))
        assert size * along_m % self.aligned[0] == 0
        assert size * along_n % self.aligned[1] == 0

    @property
    def variant(self) -> Variant:
        kind = self.dtype
        if kind in FORMATS:
            kind = f"{FORMATS[kind]}.{FORMATS[self.b_dtype or kind]}"
        use = "blocks" if any(SCALES[x][1] for x in self.scales) else "results" if any(self.scales) else None
        form = Form(
            self.a == "m", self.b == "n", *self.aligned, kind, self.out, self.scaled, self.beta != 0, self.bias,
            self.bias_type, self.activation, use,
        )  # fmt: skip
        return self.shape.variant(form, self.split_k or self.splits > 1)

    @property
    def grid(self) -> tuple[int, int, int]:
        if isinstance(self.shape, batches.Shape):
            return self.ctas, 1, 1
        return -(-self.m // self.shape.m) * -(-self.n // self.shape.n) * self.splits, 1, self.batch

    def __str__(self):
        words = [self.shape.name, f"{self.m}x{self.n}x{self.k}", self.a + self.b, self.dtype, self.out]
        words += [f"aligned{self.aligned[0]},{self.aligned[1]}"] if self.aligned != (16, 16) else []
        flags = {
            f"splits{self.splits}": self.splits > 1, f"batch{self.batch}{self.shared}": self.batch > 1,
            f"alpha{self.alpha}": self.scaled, "c": self.beta, f"bias_{self.bias}": self.bias,
            self.activation: self.activation, f"group{self.group}": self.group != 2,
            f"d+{self.d_offset}+{self.d_pad}": self.d_offset or self.d_pad, f"ctas{self.ctas}": self.ctas != 1,
            self.b_dtype: self.b_dtype, "scales-{}-{}".format(*self.scales): any(self.scales),
        }  # fmt: skip
        return "-".join(words + [str(name) for name, used in flags.items() if used])


def placed(x, aligned):
    """The matrices of a stack in memory where nothing but ``aligned`` bytes is aligned: (array, ld, step).

    The array is one-dimensional, from the first element to the last; what is between rows is NaN, or 0x55.
    """
    batch, rows, columns = x.shape
    per = aligned // x.itemsize
    odd = per if aligned < 16 else 0  # a row begins at an odd multiple of the alignment
    ld = -(-columns // (2 * per)) * 2 * per + (odd or 2 * per)
    buffer = np.full(batch * rows * ld + 64, 0x55 if x.dtype.kind == "i" else np.nan, x.dtype)
    start = (-buffer.ctypes.data % 16) // x.itemsize + odd
    buffer[start : start + x.size // columns * ld].reshape(batch, rows, ld)[:, :, :columns] = x
    end = start + (batch * rows - 1) * ld + columns
    return buffer[start:end], ld, rows * ld


def factors(rng, kind, size, k, batch):
    """Scales of that granularity for an operand with ``size`` rows (columns), each matrix its own: (batch, size, k)."""
    if kind is None:
        return None
    shared, deep = SCALES[kind]
    shape = batch, -(-size // shared) if shared else 1, -(-k // 128) if deep else 1
    return np.exp2(rng.uniform(-3, 3, shape)).astype(np.float32)


def parameter(kind, x):
    """The parameter of the kernel for scales of that granularity."""
    if kind is None:
        return Scales()
    shared, deep = SCALES[kind]
    step, depth = x.shape[2] if shared else 0, 1 if deep else 0
    return Scales(x.ctypes.data, step, depth, x[0].size, 7 if shared == 128 else 0)


@dataclass
class Exact:
    """A result that has to be met exactly."""

    values: np.ndarray

    def ratio(self, result):
        return np.where(result == self.values, 0.0, np.inf)


@dataclass
class Launch:
    """A product's operands; each call computes it once more."""

    product: Product
    seed: int = 0
    changes: tuple = ()
    """Of the kernel's files."""
    values: dict = field(default_factory=dict)

    def __post_init__(self):
        p, rng = self.product, np.random.default_rng(self.seed)
        dtype, out = as_dtype(p.dtype), as_dtype(p.out)

        def draw(kind, *size):
            if kind.kind == "i":
                return rng.integers(-128, 128, size).astype(kind)
            return rng.standard_normal(size).astype(kind)

        a = draw(dtype, 1 if "a" in p.shared else p.batch, p.m, p.k)
        b = draw(as_dtype(p.b_dtype or p.dtype), 1 if "b" in p.shared else p.batch, p.k, p.n)
        self.scale_a, self.scale_b = (
            factors(rng, kind, size, p.k, p.batch) for kind, size in zip(p.scales, (p.m, p.n))
        )
        c = draw(out, p.batch, p.m, p.n) if p.beta else None
        bias = draw(as_dtype(p.bias_type), p.n if p.bias == "n" else p.m) if p.bias else None
        self.set(a, b, c, bias)

    def set(self, a, b, c, bias):
        self.values = {"a": a, "b": b, "c": c, "bias": bias}
        p = self.product
        if p.k == 0:  # an address of something
            a, b = np.zeros((a.shape[0], p.m, 1), a.dtype), np.zeros((b.shape[0], 1, p.n), b.dtype)
        across_a = a.swapaxes(1, 2) if p.a == "m" else a
        across_b = b.swapaxes(1, 2) if p.b == "k" else b
        self.a = placed(across_a, p.aligned[0])
        self.b = placed(across_b, p.aligned[1])
        self.c = placed(c, c.itemsize) if c is not None else None
        self.bias = bias

    @property
    def reference(self):
        p, v = self.product, self.values
        if v["a"].dtype.kind == "i":
            return Exact(np.matmul(v["a"].astype(np.int64), v["b"].astype(np.int64)).astype(np.int32))
        model = error_model(v["a"].dtype, v["b"].dtype, as_dtype(p.out), FLOAT32)
        bias = v["bias"][:, None] if p.bias == "m" else v["bias"]
        scale_a, scale_b = self.scale_a, self.scale_b
        return reference(
            v["a"], v["b"], model=model, alpha=p.alpha, beta=p.beta, c=v["c"], bias=bias, activation=p.activation,
            out_dtype=as_dtype(p.out), scale_a=scale_a, scale_b=None if scale_b is None else scale_b.swapaxes(1, 2),
        )  # fmt: skip

    def __call__(self, seed=0, count=False):
        """(the result of shape (batch, m, n), the emulator's report); nothing outside the result is written."""
        p, shape = self.product, self.product.shape
        out = as_dtype(p.out)
        tiles_m, tiles_n = -(-p.m // shape.m), -(-p.n // shape.n)
        tiles, d_ld = tiles_m * tiles_n * p.batch, p.n + p.d_pad
        partials = np.full((tiles * p.splits + 1) * shape.partial_bytes // 4, np.nan, np.float32)
        counters = np.zeros(tiles, np.uint32)
        d = np.full(p.batch * p.m * d_ld * out.itemsize + 64, CANARY, np.uint8)
        start = -d.ctypes.data % 16 + p.d_offset * out.itemsize
        params = Params(
            m=p.m, n=p.n, k=p.k, splits=p.splits, tiles_m=tiles_m, tiles_n=tiles_n, group=p.group, batch=p.batch,
            alpha=p.alpha, beta=p.beta, a=self.a[0].ctypes.data, b=self.b[0].ctypes.data,
            c=self.c[0].ctypes.data if self.c else 0,
            d=d.ctypes.data + start, bias=self.bias.ctypes.data if p.bias else 0,
            partials=partials.ctypes.data + -partials.ctypes.data % 16, counters=counters.ctypes.data,
            a_ld=self.a[1], b_ld=self.b[1], c_ld=self.c[1] if self.c else 0, d_ld=d_ld,
            a_batch=0 if "a" in p.shared else self.a[2], b_batch=0 if "b" in p.shared else self.b[2],
            c_batch=self.c[2] if self.c else 0, d_batch=p.m * d_ld,
            row_scales=parameter(p.scales[0], self.scale_a), column_scales=parameter(p.scales[1], self.scale_b),
        )  # fmt: skip
        read = [self.a[0], self.b[0], *([self.c[0]] if self.c else []), *([self.bias] if p.bias else [])]
        read += [x for x in (self.scale_a, self.scale_b) if x is not None]
        variant = p.variant
        report = emulated.run(
            variant.main, variant.macros, params, p.grid, variant.threads,
            variant.shared_bytes, read, [d, partials, counters], seed, count, self.changes,
        )  # fmt: skip
        assert not counters.any(), "the counters are not 0 again"
        rows = d[start : start + p.batch * p.m * d_ld * out.itemsize].copy().view(out).reshape(p.batch, p.m, d_ld)
        result = rows[:, :, : p.n].copy()
        rows[:, :, : p.n].view(np.uint8)[:] = CANARY
        d[start : start + rows.nbytes] = rows.view(np.uint8).ravel()
        assert (d == CANARY).all(), "something beside the result is written"
        return result, report

    def check(self, seed=0):
        """Run, and compare with the exact product."""
        ratio = self.reference.ratio(self(seed)[0])
        assert (ratio <= 1).all(), f"{(ratio > 1).sum()} wrong, the first at {np.argwhere(~(ratio <= 1))[0]}"

    def check_interleavings(self, count=8):
        """Check the results of several interleavings of threads."""
        for seed in range(count):
            self.check(seed)

    def conflicts(self, least):
        """Bank conflicts by line of the kernel, of which at least so many access shared memory."""
        _, report = self(count=True)
        assert len(report.requests) >= least
        return {line: count for line, count in report.conflicts.items() if count}
