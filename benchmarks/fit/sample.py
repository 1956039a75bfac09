"""Random products for the fit of corrections, and the files of their times, without a card."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib import drawn
from benchmarks.lib.drawn import CUDA_L2, FP8, LARGE, Product, Sizes
from benchmarks.lib.drawn import DEVICE as DEVICE
from benchmarks.lib.drawn import problem as problem

SHARES = {
    "half": 0.27, "odd": 0.09, "float32": 0.12, "tf32": 0.07, "tf32_odd": 0.04, "few": 0.06, "narrow": 0.14,
    "batches": 0.06, "float8": 0.06, "int8": 0.05, "complex": 0.04,
}  # fmt: skip
"""Shares of the time, by class of products."""
MOST_OPERATIONS = 1e12
_MOST_ELEMENTS = 5e8
"""Upper limit of the elements of all operands of a product."""
_ORDERS = ("nn", "nt", "nn", "nt", "tn", "tt")
"""Storage orders: most matrices a are row-major."""
_HALVES = ("bfloat16", "float16")
_NARROW = (drawn.one_side, drawn.layer_rows, drawn.small_k, drawn.few_columns, drawn.huge_k)
_EPILOGUES = ("", "bias", "", "bias+relu", "", "bias+gelu_tanh")
"""Epilogues of 16-bit products in turn; each compiles kernels of its own."""


_OPTIONS = ("epilogue", "scales", "out")
"""Attributes of a product that rows have where they are not empty."""


def draw(seed: int, name: str, number: int) -> Product:
    """Return the product of a class with this number, always the same."""
    rng = np.random.default_rng((seed, zlib.crc32(name.encode()), number))
    while True:
        product = _drawn(rng, name, number)
        batch, m, n, k = product.sizes
        if product.flops <= MOST_OPERATIONS and batch * (m * k + k * n + m * n) <= _MOST_ELEMENTS:
            return product


def _drawn(rng: np.random.Generator, name: str, number: int) -> Product:
    low, high = ((1e7, LARGE), (LARGE, MOST_OPERATIONS))[number % 2]
    orders, half = str(rng.choice(_ORDERS)), _HALVES[number // 2 % 2]
    unit = int(rng.choice((8, 8, 16, 64, 128)))
    if name == "half":
        aligned = drawn.between(low, high, unit, 14.0)(rng)
        out = "float32" if number % 16 == 5 else ""
        return Product(name, half, orders, _table(rng) if number % 8 == 7 else aligned, out=out)
    if name == "odd":
        return Product(name, half, orders, _misaligned(rng, low, high, (1, 1, 2, 4)))
    if name in ("tf32", "float32"):
        if number // 2 % 4 == 3:
            return Product(name, name, orders, _misaligned(rng, low, high / 4, (1, 2)))
        return Product(name, name, orders, drawn.between(low, high, unit)(rng))
    if name == "tf32_odd":
        return Product(name, "tf32", orders, _odd_rows(rng, number, orders, low, high / 4))
    if name == "few":
        sizes = (drawn.decode, drawn.decode, _columns, drawn.skinny, drawn.long_k)[number % 5](rng)
        return Product(name, ("bfloat16", "float16", "float32")[number // 5 % 3], orders, sizes)
    if name == "narrow":
        return _narrow(rng, number, orders)
    if name == "complex":
        return Product(name, "complex64", orders, drawn.between(low, high / 4, unit)(rng))
    if name in ("float8", "int8"):
        return _eight_bit(rng, name, number)
    sizes = (drawn.batches, drawn.tiny_batches, drawn.batches)[number % 3](rng)
    dtype = ("bfloat16", "float16", "float32", "tf32", "int8")[number // 3 % 5]
    return Product(name, dtype, "nt" if dtype == "int8" else orders, sizes)


def _narrow(rng: np.random.Generator, number: int, orders: str) -> Product:
    """Draw a product with a side, or sides, much shorter than the others; of 16 bits also with an epilogue."""
    which, dtype = number % len(_NARROW), ("bfloat16", "float32", "float16", "bfloat16", "tf32")[number // 5 % 5]
    fused = which < 2 and dtype == "bfloat16"
    epilogue = _EPILOGUES[number // 50 % len(_EPILOGUES)] if fused else ""
    return Product("narrow", dtype, orders, _NARROW[which](rng), epilogue)


def _eight_bit(rng: np.random.Generator, name: str, number: int) -> Product:
    """Draw a product of 8-bit operands; that of every third number has few rows."""
    low, high = ((1e8, LARGE), (LARGE, MOST_OPERATIONS))[number % 2]
    few = Sizes(1, drawn.power(rng, 0, 6), drawn.power(rng, 9, 14, 16), drawn.power(rng, 9, 14, 16))
    sizes = few if number % 3 == 2 else drawn.between(low, high, 16)(rng)
    if name == "int8":
        sizes = drawn.short_k_bytes(rng) if number % 3 == 0 else sizes
        return Product(name, "int8", "nt", sizes, scales=("", "", "row")[number // 3 % 3])
    return Product(name, FP8, "nt", sizes, scales=("tensor", "block", "row", "block")[number // 3 % 4])


def _table(rng: np.random.Generator) -> Sizes:
    """Draw sizes of CUDA-L2's table, which one aligned 16-bit product in eight has."""
    m, n, k = (int(size) for size in rng.choice(CUDA_L2, 3))
    return Sizes(1, m, n, k)


def _misaligned(rng: np.random.Generator, low: float, high: float, units: tuple[int, ...]) -> Sizes:
    """Draw sizes of which one to three are not multiples of 8."""
    while True:
        _, *sizes = drawn.between(low, high, int(rng.choice(units)))(rng)
        kept = rng.random(3) < 0.3
        m, n, k = (size // 8 * 8 if keep else size for size, keep in zip(sizes, kept))
        if m % 8 or n % 8 or k % 8:
            return Sizes(1, m, n, k)


def _odd_rows(rng: np.random.Generator, number: int, orders: str, low: float, high: float) -> Sizes:
    """Draw sizes for which the rows of an operand in these orders are not multiples of 4 elements.

    Those of every third number have a short side, m or n.
    """
    while True:
        if number % 3 == 2:
            m, n = (int(side) for side in rng.permutation((drawn.power(rng, 10, 13.5), drawn.power(rng, 4, 7.5))))
            sizes = Sizes(1, m, n, drawn.power(rng, 8, 13.5))
        else:
            sizes = _misaligned(rng, low, high, (1, 1, 2))
        _, m, n, k = sizes
        if (m if orders[0] == "t" else k) % 4 or (k if orders[1] == "t" else n) % 4:
            return sizes


def _columns(rng: np.random.Generator) -> Sizes:
    """Draw the sizes of a matrix by a few columns."""
    batch, m, n, k = drawn.decode(rng)
    return Sizes(batch, n, m, k)


def of(row: dict[str, Any]) -> Product:
    """Return the product of a row of measure.py."""
    sizes = Sizes(row["batch"], row["m"], row["n"], row["k"])
    return Product(row["class"], row["dtype"], row["orders"], sizes, **{name: row.get(name, "") for name in _OPTIONS})


def row(product: Product) -> dict[str, Any]:
    """Return the facts of a product for :func:`of`."""
    facts = {"class": product.name, "dtype": product.dtype, "orders": product.orders}
    options = {name: value for name in _OPTIONS if (value := getattr(product, name))}
    return {**facts, **options, **product.sizes._asdict()}


def words(row: dict[str, Any]) -> str:
    options = "".join(f" {name} {row[name]}" for name in _OPTIONS if name in row)
    return f"{row['dtype']}{options} {row['orders']} {row['batch']} x {row['m']} x {row['n']} x {row['k']}"


def read(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a file; a truncated last line is ignored."""
    rows = []
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{file}: a line is truncated after {len(rows)} rows")
    return rows


def numbers(folder: Path) -> dict[str, int]:
    """Return the number of the next product to draw, after the highest in ``folder``, for each class."""
    return {name: 1 + max((row["number"] for row in read(folder / f"{name}.jsonl")), default=-1) for name in SHARES}
