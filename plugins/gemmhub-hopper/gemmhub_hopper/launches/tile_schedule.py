"""The tile schedule: the numbers from which kernels/tile_scheduler.cuh computes the order of work tiles."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint32


class Divisor(ctypes.Structure):
    """``Divisor`` of kernels/params.cuh."""

    _fields_ = (("multiplier", c_uint32), ("shift", c_uint32))


class TileSchedule(ctypes.Structure):
    """``TileSchedule`` of kernels/params.cuh."""

    _fields_ = (
        *((name, c_int) for name in ("work_tiles", "matrix_tiles", "tiles_m", "tiles_n", "splits", "group")),
        *((name, c_int) for name in ("k_blocks_per_split", "longer_splits")),
        *((name, Divisor) for name in ("tiles", "splits_divisor", "group_tiles", "rows", "last_rows")),
    )


def schedule(
    tiles: tuple[int, int], batch: int, group: int, k_blocks: int, splits: int, cluster_k: int,
    computed: int | None = None,
) -> TileSchedule:  # fmt: skip
    """Return the schedule of ``batch`` matrices with ``tiles`` (rows, columns) of cluster tiles each.

    ``group`` rows of cluster tiles are scheduled together. ``k_blocks`` blocks of K are divided among ``splits`` of
    split-K, and each split among the ``cluster_k`` CTAs of a cluster that share K. ``computed``: the tiles of a matrix
    that are computed, where these are not all.
    """
    rows, columns = tiles
    computed = computed or rows * columns
    k_blocks_per_split, longer_splits = divmod(k_blocks, splits * cluster_k)
    return TileSchedule(
        computed * splits * batch, computed, rows, columns, splits, group, k_blocks_per_split, longer_splits,
        *map(_divisor, (computed, splits, group * columns, group, rows % group or group)),
    )  # fmt: skip


def _divisor(by: int) -> Divisor:
    """Return a division by ``by`` as factors (Granlund and Montgomery, 1994).

    The multiplier is below 2^32, as 2^shift is below twice ``by``; rounding it up adds less than that.
    """
    shift = (by - 1).bit_length()
    return Divisor(-(-(1 << 31 + shift) // by), shift)
