"""Random products for the benchmarks: sizes, dtypes and layouts, without a card."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from gemmhub.capability import Device
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.operands import Bias, Operands, Scale, blocks
from gemmhub.problem import GemmProblem, Operand

DEVICE = Device("cuda", 0)
FP8 = "float8_e4m3fn"
CUDA_L2 = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
"""Sizes of CUDA-L2's public table."""
LARGE = 1e10
"""Least number of operations of a large product."""
LAYERS = (1024, 2048, 4096, 5120, 7168, 8192, 11008, 14336, 28672)
"""Widths of layers of language models."""
_MOST_WEIGHTS = 3e8
"""Upper limit of the elements of a layer's matrix."""
_RESULTS = {"int8": "int32", FP8: "bfloat16", "tf32": "float32"}
_ACCUMULATORS = {"int8": "int32", "complex64": "complex64", "float64": "float64"}


class Sizes(NamedTuple):
    batch: int
    m: int
    n: int
    k: int


class Product(NamedTuple):
    """One product of a class. In ``orders``, for a and b, "n" is row-major and "t" column-major."""

    name: str
    dtype: str
    orders: str
    sizes: Sizes
    epilogue: str = ""
    scales: str = ""
    """Granularity of the scales: "tensor" for one factor an operand, "row" for one for each row of a and column of b,
    "block" for blocks of 1 x 128 of a by 128 x 128 of b; "" for no scales."""
    out: str = ""
    """The dtype of the result where it is not the usual one."""

    @property
    def result(self) -> str:
        """The dtype of the result."""
        return self.out or ("bfloat16" if self.scales else _RESULTS.get(self.dtype, self.dtype))

    @property
    def activation(self) -> str | None:
        """The activation of the epilogue; None where it has none."""
        return self.epilogue.partition("+")[2] or None

    @property
    def flops(self) -> float:
        batch, m, n, k = self.sizes
        return (8.0 if self.dtype == "complex64" else 2.0) * batch * m * n * k


Draw = Callable[[np.random.Generator], Sizes]


def power(rng: np.random.Generator, low: float, high: float, unit: int = 1) -> int:
    """Draw a multiple of ``unit`` between two powers of 2, log-uniformly."""
    return max(unit, int(2 ** rng.uniform(low, high)) // unit * unit)


def between(low: float, high: float, unit: int, largest: float = 13.5) -> Draw:
    """Return a function that draws three sizes whose product has ``low`` to ``high`` operations."""

    def draw(rng: np.random.Generator) -> Sizes:
        while True:
            m, n, k = (power(rng, 6, largest, unit) for _ in range(3))
            if low <= 2.0 * m * n * k < high:
                return Sizes(1, m, n, k)

    return draw


def odd(low: float, high: float) -> Draw:
    """Return a function that draws sizes of which at least one is odd."""

    def draw(rng: np.random.Generator) -> Sizes:
        while True:
            _, m, n, k = between(low, high, 1)(rng)
            if m % 2 or n % 2 or k % 2:
                return Sizes(1, m, n, k)

    return draw


def decode(rng: np.random.Generator) -> Sizes:
    return Sizes(1, int(rng.choice((1, 1, 2, 4, 8, 16))), power(rng, 11, 14.5, 16), power(rng, 11, 14, 16))


def skinny(rng: np.random.Generator) -> Sizes:
    return Sizes(1, power(rng, 16, 20, 8), power(rng, 4, 7, 8), power(rng, 4, 8, 8))


def long_k(rng: np.random.Generator) -> Sizes:
    return Sizes(1, power(rng, 6, 9, 8), power(rng, 6, 9, 8), power(rng, 14, 18, 8))


def one_side(rng: np.random.Generator) -> Sizes:
    """Draw sizes of which one, whichever, is about 150 to 1000, and the others larger."""
    sides = power(rng, 7.2, 10, 8), power(rng, 10, 14, 8), power(rng, 10, 14, 8)
    return Sizes(1, *(int(size) for size in rng.permutation(sides)))


def layer_rows(rng: np.random.Generator) -> Sizes:
    """Draw some rows, up to 1024 and of any number, of a layer of a language model."""
    while True:
        n, k = (int(size) for size in rng.choice(LAYERS, 2))
        if n * k <= _MOST_WEIGHTS:
            return Sizes(1, power(rng, 5, 10), n, k)


def small_k(rng: np.random.Generator) -> Sizes:
    return Sizes(1, power(rng, 8, 13.5, 8), power(rng, 8, 13.5, 8), power(rng, 3, 7.6, 8))


def few_columns(rng: np.random.Generator) -> Sizes:
    """Draw the sizes of a matrix with long rows by few columns."""
    while True:
        m, n, k = power(rng, 7, 15, 8), int(rng.choice((1, 2, 4, 8, 16, 24, 32, 64, 96))), power(rng, 12, 17, 8)
        if m * k <= _MOST_WEIGHTS:
            return Sizes(1, m, n, k)


def huge_k(rng: np.random.Generator) -> Sizes:
    """Draw sizes of a tiny result with a K of 10^5 to 4 * 10^6."""
    m, n = (int(side) for side in rng.choice((1, 8, 16, 24, 32, 48, 64), 2))
    return Sizes(1, m, n, power(rng, 17, 22, 8))


def short_k_bytes(rng: np.random.Generator) -> Sizes:
    """Draw sizes of 8-bit products with K below 1024."""
    return Sizes(1, power(rng, 8, 13.5, 16), power(rng, 8, 13.5, 16), power(rng, 5, 10, 16))


def batches(rng: np.random.Generator) -> Sizes:
    while True:
        sizes = Sizes(power(rng, 1, 12), *(power(rng, 6, 10, 8) for _ in range(3)))
        if sizes.batch * sum((sizes.m * sizes.k, sizes.k * sizes.n, sizes.m * sizes.n)) < 2**30:
            return sizes


def tiny_batches(rng: np.random.Generator) -> Sizes:
    size = int(rng.choice((16, 16, 24, 32, 48, 64)))
    return Sizes(power(rng, 10, min(16.6, 28 - 2 * math.log2(size))), size, size, size)


def classes() -> Iterator[tuple[str, str, tuple[str, ...], Draw, str]]:
    """Yield the classes: (name, dtype, orders, sizes, epilogue)."""
    both, turned = ("nn", "nt"), ("tn", "tt")
    large, small = between(LARGE, 2e12, 8), between(1e7, LARGE, 8)
    for dtype in ("bfloat16", "float16", "tf32", "float32"):
        yield f"{dtype} large", dtype, both, large, ""
        yield f"{dtype} small", dtype, both, small, ""
    for dtype in ("bfloat16", "float16", "tf32", "float32"):
        yield f"{dtype} odd large", dtype, (*both, *turned), odd(LARGE, 5e11), ""
        yield f"{dtype} odd small", dtype, (*both, *turned), odd(1e7, LARGE), ""
    for dtype in ("bfloat16", "float32"):
        yield f"{dtype} tn, tt large", dtype, turned, large, ""
        yield f"{dtype} tn, tt small", dtype, turned, small, ""
        yield f"{dtype} decode", dtype, both, decode, ""
        yield f"{dtype} skinny", dtype, both, skinny, ""
        yield f"{dtype} long k", dtype, both, long_k, ""
        yield f"{dtype} batches", dtype, both, batches, ""
        yield f"{dtype} tiny batches", dtype, ("nn",), tiny_batches, ""
        yield f"{dtype} one side", dtype, both, one_side, ""
        yield f"{dtype} rows of layers", dtype, ("nt", "nn"), layer_rows, ""
        yield f"{dtype} small k", dtype, both, small_k, ""
        yield f"{dtype} few columns", dtype, both, few_columns, ""
        yield f"{dtype} huge k", dtype, both, huge_k, ""
    yield "float16 small k", "float16", both, small_k, ""
    for dtype in ("float64", "complex64"):
        yield dtype, dtype, both, between(1e7, 2e11, 8), ""
    yield "int8", "int8", ("nt",), between(1e8, 2e12, 16), ""
    yield "int8 small k", "int8", ("nt",), short_k_bytes, ""
    yield "fp8", FP8, ("nt",), between(1e8, 2e12, 16), ""
    for epilogue in ("bias", "bias+relu", "bias+gelu_tanh", "beta c"):
        yield f"bfloat16 {epilogue}", "bfloat16", both, between(1e8, 1e12, 8), epilogue
        yield f"bfloat16 rows of layers, {epilogue}", "bfloat16", ("nt", "nn"), layer_rows, epilogue


def cuda_l2() -> Iterator[Sizes]:
    """Yield the 1000 products of CUDA-L2's public table: every combination of :data:`CUDA_L2`."""
    for m, n, k in product(CUDA_L2, repeat=3):
        yield Sizes(1, m, n, k)


def problem(drawn: Product) -> GemmProblem:
    """Return the problem of a product, with operands at addresses that are multiples of 256 bytes."""
    count, m, n, k = drawn.sizes
    batch = (count,) if count > 1 else ()
    dtype = as_dtype("float32" if drawn.dtype == "tf32" else drawn.dtype)
    a, b = (
        Operand(dtype, MatrixLayout.contiguous(*shape, batch, "col" if letter == "t" else "row"), 256)
        for shape, letter in zip(((m, k), (k, n)), drawn.orders)
    )
    compute = "float32" if drawn.scales else _ACCUMULATORS.get(drawn.dtype, "float32")
    out = Operand(as_dtype(drawn.result), MatrixLayout.contiguous(m, n, batch), 256)
    return GemmProblem(
        m, n, k, a, b, out, as_dtype(compute), batch, operands=Operands({**_scales(drawn), **_added(drawn, out)}),
        activation=drawn.activation, precision="tf32" if drawn.dtype == "tf32" else "ieee", device=DEVICE,
    )  # fmt: skip


def _added(drawn: Product, out: Operand) -> dict[str, Bias | Operand]:
    """Return what the epilogue adds: a bias of the columns, or c."""
    if drawn.epilogue == "beta c":
        return {"c": out}
    return {"bias": Bias(out.dtype, "n")} if drawn.epilogue else {}


def _scales(drawn: Product) -> dict[str, Scale]:
    """Return the scales of a product, in the layouts of cuBLASLt."""
    if not drawn.scales:
        return {}
    deep = padded(blocks(drawn.sizes.k))
    of_a, of_b = {
        "tensor": (Scale(None), Scale(None)), "row": (Scale("m"), Scale("n")),
        "block": (Scale("m", 1, True, drawn.sizes.m), Scale("n blocks", deep, True, 1)),
    }[drawn.scales]  # fmt: skip
    return {"scale_a": of_a, "scale_b": of_b}


def padded(count: int) -> int:
    """Return the blocks of K that cuBLASLt has room for in scales of 128 x 128, where there are ``count``."""
    return -(-count // 4) * 4
