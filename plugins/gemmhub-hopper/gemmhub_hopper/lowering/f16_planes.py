"""The parameters of kernels/f16_prepass.cu, which splits float32 into scaled float16 planes."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_uint64
from math import sqrt
from typing import Any

from gemmhub_hopper.lowering.operands import REAL, OperandAccess
from gemmhub_hopper.variants.tensor_map import Stored

FEWEST_K = 64
"""Elements along K from which on the error bound of float32 has room for this scheme (docs/float32.md)."""
FEWEST_ROWS = 32
"""Rows and columns of a result from which on an operand may be split in registers: fewer are bound by reading it."""
THREADS = 256
"""Threads of a CTA."""
GROUP_K = 128
"""Elements along K that share a scale, and those of a CTA's tile."""
ONLY_REJECTED, BY_TILES = 1, 2
"""Bits of ``redo`` of kernels/params.cuh: a product by bfloat16 planes of what float16 planes reject; by tiles."""
GROUP_ROWS = 128
"""Rows of a, or columns of b, that share their marks (kernels/split_planes.cuh)."""
_MARKED_GROUPS = 2044
"""Words of the marks of groups: more groups share them."""
_TILE_ROWS = 64
"""Rows of a CTA's tile."""
_OVERHANG = 256
"""Rows behind the last one whose scales a tile may read."""
_LINE = 256
"""Alignment of the scales, in bytes."""
_QUAD = 16
"""Bytes of four elements, which a thread loads at once."""


class Job(ctypes.Structure):
    """``F16Job`` of f16_prepass.cu: one operand."""

    _fields_ = (
        *((name, c_uint64) for name in ("source", "to", "marks", "scales")),
        *((name, c_int64) for name in ("from_row", "from_k", "from_batch", "to_ld", "to_plane")),
        *((name, c_int) for name in (
            "rows", "k", "wide_k", "tiles_rows", "tiles_k", "scale_pitch", "mn_major", "along_k", "source_format",
            "quads",
        )),
    )  # fmt: skip


class Parameters(ctypes.Structure):
    """``F16PrepassParams`` of f16_prepass.cu."""

    _fields_ = (
        ("jobs", Job * 2),
        ("first_tiles", c_int),
        ("residual", c_float),
        ("share", c_float),
        ("half_limit", c_int),
    )


class Arguments(ctypes.Structure):
    """The arguments of the kernel."""

    _fields_ = (("p", Parameters),)


def parameters(k: int) -> Parameters:
    """Return the parameters for products with ``k`` elements along K in all, without jobs.

    ``residual`` bounds what planes lose of an element, ``share`` the second plane, both relative to the element.
    """
    residual, share = _limits(k)
    return Parameters(residual=residual, share=share, half_limit=small_limit(k) // 2)


def _limits(k: int) -> tuple[float, float]:
    return max(2.0**-23, k * 2.0**-29), max(2.0**-11, sqrt(k) * 2.0**-13.5)


def min_scaled(k: int) -> float:
    """Return the magnitude of a scaled element from which on planes hold it accurately, with ``k`` elements along K.

    Below 2^-14, planes lose at most 2^-37, and the second one is at most 2^-25 (docs/float32.md).
    """
    residual, share = _limits(k)
    return min(2.0**-14, max(2.0**-37 / residual, 2.0**-25 / share))


def small_limit(k: int) -> int:
    """Return how far both smallest elements together may be below float16's normal numbers, in powers of two."""
    return max(1, k // FEWEST_K).bit_length() - 1


def marked_groups(access: OperandAccess) -> int:
    """Return the words of marks that an operand's groups of rows have (kernels/split_planes.cuh)."""
    return min(-(-access.rows // GROUP_ROWS) * access.count, _MARKED_GROUPS)


def fill(job: Any, access: OperandAccess, planes: Stored, mn_major: bool, k: int) -> int:
    """Fill ``job``, without its addresses, for ``k`` elements along K; return the number of its CTAs.

    ``planes`` is their layout, contiguous along M (N) where ``mn_major``.
    """
    along, deep, batch = access.strides
    tiles_rows, tiles_k = -(-access.rows // _TILE_ROWS), groups(k)
    for name, value in {
        "from_row": along, "from_k": deep, "from_batch": batch, "to_ld": planes.ld // 2, "to_plane": planes.stride // 2,
        "rows": access.rows, "k": k, "wide_k": planes.outer if mn_major else planes.inner, "tiles_rows": tiles_rows,
        "tiles_k": tiles_k, "scale_pitch": scale_pitch(access.rows), "mn_major": mn_major,
        "along_k": abs(deep) <= abs(along), "source_format": access.source_format, "quads": _quads(access, mn_major),
    }.items():  # fmt: skip
        setattr(job, name, value)
    return tiles_rows * tiles_k * access.count


def _quads(access: OperandAccess, mn_major: bool) -> bool:
    """Return whether elements are contiguous in the direction of their planes, from multiples of 16 bytes on."""
    along, deep, batch = access.strides
    near, far = (along, deep) if mn_major else (deep, along)
    aligned = access.alignment % _QUAD == 0 and not any(4 * stride % _QUAD for stride in (far, batch))
    return access.source_format == REAL and near == 1 and aligned


def groups(k: int) -> int:
    """Return the scale groups of ``k`` elements along K."""
    return -(-k // GROUP_K)


def scale_pitch(rows: int) -> int:
    """Return the distance of the scales of one group to those of the next one, in elements."""
    return -(-(rows + _OVERHANG) // 64) * 64


def scales_offset(planes: Stored) -> int:
    """Return the offset in bytes of the scales from the planes that they belong to."""
    return -(-planes.count * planes.stride // _LINE) * _LINE


def nbytes(rows: int, k: int, count: int, planes: Stored) -> int:
    """Return the bytes of the planes and scales of ``count`` matrices."""
    return scales_offset(planes) + 4 * count * groups(k) * scale_pitch(rows)
