"""The products on which gemmhub-cpu is compared with other libraries, by class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"bfloat16": BF16, **{name: np.dtype(name) for name in (
    "int8", "float16", "float32", "float64", "int32", "int64",
)}}  # fmt: skip
CACHE = 256 * 2**20
"""Bytes that operands beyond the caches take together."""
SGEMM = "numpy, float32"
"""Name of the products of float32 operands, which are no contender."""
Rows = list[dict[str, Any]]
"""Rows of a result file: class, product, microseconds by library, ratio."""
_MOST_SETS = 32


@dataclass(frozen=True)
class Product:
    """One product. Operands are row-major and the result is given."""

    name: str
    """Its class."""
    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    packed: bool = False
    """Whether b is packed beforehand."""
    epilogue: str = ""
    beyond_cache: bool = False
    """Whether each call takes other operands, of :data:`CACHE` bytes together."""
    after_sgemm: bool = False
    """Whether a product of NumPy's BLAS, which is not timed, comes before each call."""

    @property
    def label(self) -> str:
        """Its sizes, and what else the call has."""
        sizes = "x".join(map(str, ((self.batch,) if self.batch > 1 else ()) + (self.m, self.n, self.k)))
        return " ".join(filter(None, (self.dtype, sizes, "packed" * self.packed, self.epilogue)))

    @property
    def flops(self) -> float:
        """Operations of the product."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def result(self) -> Any:
        """The dtype of the result."""
        return DTYPES["int32" if self.dtype == "int8" else self.dtype]

    def operands(self) -> list[tuple[Any, Any, Any]]:
        """The sets (a, b, out) that calls take in turn."""
        rng, dtype = np.random.default_rng(), DTYPES[self.dtype]
        shapes = (self.m, self.k), (self.k, self.n), (self.m, self.n)
        dtypes = dtype, dtype, self.result
        nbytes = self.batch * sum(r * c * x.itemsize for (r, c), x in zip(shapes, dtypes))
        count = min(_MOST_SETS, -(-CACHE // nbytes)) if self.beyond_cache else 1
        stack = (self.batch,) if self.batch > 1 else ()

        def drawn(shape: tuple[int, int]) -> Any:
            few = np.resize(rng.standard_normal(999_983, np.float32), (*stack, *shape))  # a prime: no row is another's
            return (few * 20 if dtype.kind == "i" else few).astype(dtype)

        first = drawn(shapes[0]), drawn(shapes[1]), np.zeros((*stack, *shapes[2]), self.result)
        return [first, *(tuple(x.copy() for x in first) for _ in range(count - 1))]  # type: ignore[list-item]


def products() -> Iterator[Product]:
    """Yield the products of every class."""
    for size in (256, 512, 1024, 2048, 4096):
        for dtype in ("int8", "bfloat16", "float16"):
            yield Product(f"{dtype} squares", dtype, size, size, size)
    for size in (256, 1024, 2048):
        for dtype in ("int8", "bfloat16", "float16"):
            yield Product(f"{dtype} squares, packed b", dtype, size, size, size, packed=True)
    for rows in (1, 4, 16, 64):
        for dtype in ("int8", "bfloat16"):
            yield Product(f"{dtype} few rows", dtype, rows, 4096, 4096)
            yield Product(f"{dtype} few rows, packed b", dtype, rows, 4096, 4096, packed=True)
    for batch in (16, 64, 256):
        for size in (32, 128):
            yield Product("bfloat16 batches", "bfloat16", size, size, size, batch)
    for epilogue in ("bias", "bias gelu_tanh", "alpha c"):
        for size in (64, 512, 1024):
            yield Product("bfloat16 epilogues", "bfloat16", size, size, size, epilogue=epilogue)
    for size in (256, 1024, 2048):
        for dtype in ("float32", "float64"):
            yield Product(f"{dtype} squares", dtype, size, size, size)
    for size in (128, 512):
        for dtype in ("int32", "int64"):
            yield Product(f"{dtype} squares", dtype, size, size, size)
    for size in (256, 1024):
        for dtype in ("int8", "bfloat16"):
            yield Product(f"{dtype} after SGEMM", dtype, size, size, size, after_sgemm=True)
    for dtype in ("int8", "bfloat16"):
        for rows in (1, 16):
            yield Product(f"{dtype} beyond the caches", dtype, rows, 4096, 4096, packed=True, beyond_cache=True)
        yield Product(f"{dtype} beyond the caches", dtype, 1024, 1024, 1024, beyond_cache=True)


def scores(rows: Rows, key: str = "ratio") -> dict[str, list[float]]:
    """Return by class the geometric mean of a column, the lowest and the highest, and the number of products."""
    values: dict[str, list[float]] = {}
    for one in rows:
        if one.get(key):
            values.setdefault(one["class"], []).append(one[key])
    return {name: [geometric_mean(x), min(x), max(x), len(x)] for name, x in values.items()}
