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
    "half": 0.45, "odd": 0.13, "float32": 0.11, "tf32": 0.09, "few": 0.07, "batches": 0.05,
    "float8": 0.06, "int8": 0.04,
}  # fmt: skip
"""Shares of the time, by class of products."""
MOST_OPERATIONS = 1e12
_MOST_ELEMENTS = 5e8
"""Upper limit of the elements of all operands of a product."""
_ORDERS = ("nn", "nt", "nn", "nt", "tn", "tt")
"""Storage orders: most matrices a are row-major."""
_HALVES = ("bfloat16", "float16")


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
        return Product(name, half, orders, _table(rng) if number % 8 == 7 else aligned)
    if name == "odd":
        return Product(name, half, orders, _misaligned(rng, low, high, (1, 1, 2, 4)))
    if name in ("tf32", "float32"):
        if number // 2 % 4 == 3:
            return Product(name, name, orders, _misaligned(rng, low, high / 4, (1, 2)))
        return Product(name, name, orders, drawn.between(low, high, unit)(rng))
    if name == "few":
        sizes = (drawn.decode, drawn.decode, _columns, drawn.skinny, drawn.long_k)[number % 5](rng)
        return Product(name, ("bfloat16", "float16", "float32")[number // 5 % 3], orders, sizes)
    if name in ("float8", "int8"):
        return _eight_bit(rng, name, number)
    sizes = (drawn.batches, drawn.tiny_batches, drawn.batches)[number % 3](rng)
    return Product(name, ("bfloat16", "float16", "float32", "tf32")[number // 3 % 4], orders, sizes)


def _eight_bit(rng: np.random.Generator, name: str, number: int) -> Product:
    """Draw a product of 8-bit operands; that of every third number has few rows."""
    low, high = ((1e8, LARGE), (LARGE, MOST_OPERATIONS))[number % 2]
    few = Sizes(1, drawn.power(rng, 0, 6), drawn.power(rng, 9, 14, 16), drawn.power(rng, 9, 14, 16))
    sizes = few if number % 3 == 2 else drawn.between(low, high, 16)(rng)
    if name == "int8":
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


def _columns(rng: np.random.Generator) -> Sizes:
    """Draw the sizes of a matrix by a few columns."""
    batch, m, n, k = drawn.decode(rng)
    return Sizes(batch, n, m, k)


def of(row: dict[str, Any]) -> Product:
    """Return the product of a row of measure.py."""
    sizes = Sizes(row["batch"], row["m"], row["n"], row["k"])
    return Product(row["class"], row["dtype"], row["orders"], sizes, scales=row.get("scales", ""))


def row(product: Product) -> dict[str, Any]:
    """Return the facts of a product for :func:`of`."""
    facts = {"class": product.name, "dtype": product.dtype, "orders": product.orders}
    if product.scales:
        facts["scales"] = product.scales
    return {**facts, **product.sizes._asdict()}


def words(row: dict[str, Any]) -> str:
    scales = f" scaled by {row['scales']}" * ("scales" in row)
    return f"{row['dtype']}{scales} {row['orders']} {row['batch']} x {row['m']} x {row['n']} x {row['k']}"


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
