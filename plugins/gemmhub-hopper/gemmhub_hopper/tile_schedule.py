"""The tile schedule: the numbers by which tile_scheduler.cuh walks the work tiles of a product."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint32


class Divisor(ctypes.Structure):
    """Divisor of params.cuh."""

    _fields_ = (("multiplier", c_uint32), ("shift", c_uint32))


class Walk(ctypes.Structure):
    """TileSchedule of params.cuh."""

    _fields_ = (
        *((name, c_int) for name in ("pieces", "tiles_m", "tiles_n", "splits", "group", "part_blocks", "longer")),
        *((name, Divisor) for name in ("tiles", "parts", "group_tiles", "rows", "last_rows")),
    )


def walk(tiles: tuple[int, int], batch: int, group: int, k_blocks: int, splits: int, ranks: int) -> Walk:
    """``tiles``: cluster tiles of a matrix below and beside each other, of which ``group`` rows are walked together.
    ``k_blocks`` blocks of k are cut into ``splits`` parts, and each of these for the ``ranks`` blocks of a cluster that
    share k.
    """
    rows, columns = tiles
    part_blocks, longer = divmod(k_blocks, splits * ranks)
    return Walk(
        rows * columns * splits * batch, rows, columns, splits, group, part_blocks, longer,
        *map(_divisor, (rows * columns, splits, group * columns, group, rows % group or group)),
    )  # fmt: skip


def _divisor(by: int) -> Divisor:
    """The multiplier is below 2^32, as 2^shift is below twice ``by``; rounded up, it is too large by less than that."""
    shift = (by - 1).bit_length()
    return Divisor(-(-(1 << 31 + shift) // by), shift)
