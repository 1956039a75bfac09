"""A matrix product in Triton on mma.sync, for comparison in benchmarks/run/cuda_torch.py.

Triton multiplies by wgmma where a card has it. DISABLE_MMA_V3 in the environment makes it use the instruction of
Ampere instead, as gemmhub-cuda does; the PTX of every kernel is checked for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

os.environ["DISABLE_MMA_V3"] = "1"

import triton
import triton.language as tl

CONFIGS = (
    (128, 256, 64, 3, 8), (128, 256, 32, 4, 8), (256, 128, 64, 3, 8), (128, 128, 64, 3, 4), (128, 128, 32, 4, 4),
    (128, 128, 64, 3, 8), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (32, 64, 64, 5, 4),
    (16, 128, 64, 5, 4),
)  # fmt: skip
"""Tile along m, n and k, stages, warps."""
_INSTRUCTIONS = ("wgmma.mma_async", "mma.sync")


@triton.jit
def matmul(
    a, b, d, m, n, k, a_row, b_row, b_column, d_row,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """d = a b. a is contiguous along k, d along n. Tiles are processed in groups of rows."""
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    index, in_group = tl.program_id(0), GROUP * tiles_n
    first = index // in_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    rows = (first + index % in_group % height) * TILE_M + tl.arange(0, TILE_M)
    columns = index % in_group // height * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    # Beyond the ends rows and columns wrap around: all loads but the last along k are of whole tiles.
    at_a = a + (rows % m)[:, None] * a_row + depth[None, :]
    at_b = b + depth[:, None] * b_row + (columns % n)[None, :] * b_column
    sums = tl.zeros((TILE_M, TILE_N), tl.float32)
    for done in range(0, k, TILE_K):
        of_a = tl.load(at_a, mask=depth[None, :] < k - done, other=0.0)
        of_b = tl.load(at_b, mask=depth[:, None] < k - done, other=0.0)
        sums = tl.dot(of_a, of_b, sums)
        at_a += TILE_K
        at_b += TILE_K * b_row
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(d + rows[:, None] * d_row + columns[None, :], sums.to(d.dtype.element_ty), mask=inside)


def instructions(ptx: str) -> dict[str, int]:
    """Return the counts of tensor core instructions in a kernel."""
    return {name: len(re.findall(re.escape(name) + r"\b", ptx)) for name in _INSTRUCTIONS}


def callers() -> dict[str, tuple[Callable[[Any, Any, Any], None], dict[str, int]]]:
    """Return, by name such as "triton128x256x64x3w8", a function of tensors (a, b, out) for each of CONFIGS, with the
    counts of :func:`instructions`, which its first call fills in. That call raises RuntimeError for a kernel with
    wgmma, or without mma.sync."""
    found = {}
    for tile_m, tile_n, tile_k, stages, warps in CONFIGS:
        name, counts = f"triton{tile_m}x{tile_n}x{tile_k}x{stages}w{warps}", dict[str, int]()
        found[name] = _caller(name, (tile_m, tile_n, tile_k), stages, warps, counts), counts
    return found


def _caller(
    name: str, tile: tuple[int, int, int], stages: int, warps: int, counts: dict[str, int]
) -> Callable[[Any, Any, Any], None]:
    def call(a: Any, b: Any, out: Any) -> None:
        (m, k), n = a.shape, b.shape[1]
        grid = (triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]),)
        made = matmul[grid](
            a, b, out, m, n, k, a.stride(0), b.stride(0), b.stride(1), out.stride(0), *tile, 8,
            num_stages=stages, num_warps=warps,
        )  # fmt: skip
        if not counts:
            counts.update(instructions(made.asm["ptx"]))
            if counts["wgmma.mma_async"] or not counts["mma.sync"]:
                raise RuntimeError(f"{name} is not on mma.sync: {counts}")

    return call
