"""The parameters of the pre-pass, kernels/prepass.cu, which copies or splits operands."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_uint64
from typing import Any

from gemmhub_hopper.lowering.operands import OperandAccess
from gemmhub_hopper.variants.config import Form
from gemmhub_hopper.variants.tensor_map import Stored

THREADS = 256
"""Threads of a CTA."""
_TILE_FAST, _TILE_SLOW = 128, 32
"""Elements of a CTA's tile along the operand's smaller and larger stride."""


class Job(ctypes.Structure):
    """``Job`` of prepass.cu: one operand."""

    _fields_ = (
        *((name, c_uint64) for name in ("source", "to", "marks")),
        *((name, c_int64) for name in ("from_fast", "from_slow", "from_batch", "to_ld", "to_plane")),
        *((name, c_int) for name in (
            "fast", "slow", "wide_fast", "wide_slow", "tiles_fast", "tiles_slow", "transposed", "vector", "rows_slow",
            "source_format",
        )),
    )  # fmt: skip


class Parameters(ctypes.Structure):
    """``PrepassParams`` of prepass.cu."""

    _fields_ = (
        ("first_tiles", c_int),
        ("jobs", Job * 2),
        ("a_marks", c_uint64),
        ("b_marks", c_uint64),
        ("kept", c_int),
        ("first_is", c_int),
        ("tiles", c_int),
        ("limit", c_int),
        ("spans", c_int * 2),
        ("marked_groups", c_int * 2),
    )


class Arguments(ctypes.Structure):
    """The arguments of the kernel."""

    _fields_ = (("p", Parameters),)


def fill(job: Any, access: OperandAccess, form: Form, copy: Stored, k: int) -> int:
    """Fill ``job``, without its addresses, for a copy of ``k`` elements along K; return the number of its CTAs.

    ``copy``, the layout of the copy, may have more elements along K: they become 0.
    """
    along, deep, batch = access.strides
    rows_slow = abs(deep) <= abs(along) if min(k, access.rows) > 1 else k > 1
    fast, slow = (k, access.rows) if rows_slow else (access.rows, k)
    from_fast, from_slow = (deep, along) if rows_slow else (along, deep)
    transposed = rows_slow == access.mn_major
    wide_fast, wide_slow = (copy.outer, copy.inner) if transposed else (copy.inner, copy.outer)
    four, size = 4 * access.size, access.copied_size(form)
    steps = access.alignment, from_slow * access.size, batch * access.size
    vector = from_fast == 1 and not any(x % four for x in steps)
    tiles_fast, tiles_slow = -(-wide_fast // _TILE_FAST), -(-wide_slow // _TILE_SLOW)
    for name, value in {
        "from_fast": from_fast, "from_slow": from_slow, "from_batch": batch, "to_ld": copy.ld // size,
        "to_plane": copy.stride // size, "fast": fast, "slow": slow, "wide_fast": wide_fast,
        "wide_slow": wide_slow, "tiles_fast": tiles_fast, "tiles_slow": tiles_slow, "transposed": transposed,
        "vector": vector, "rows_slow": rows_slow, "source_format": access.source_format,
    }.items():  # fmt: skip
        setattr(job, name, value)
    return tiles_fast * tiles_slow * access.count
