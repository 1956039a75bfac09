"""Calls of the kernels with a workspace of the test's own: ``Call`` of gemm.h, as bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from gemmhub_cpu import native_engine
from gemmhub_cpu.native_engine import Packed, Prepared
from gemmhub_cpu.units import Unit

Array = Any

_CALL = struct.Struct("=37q2d")
_NO_MATRIX = (0, 0, 0, 0)


def _matrix(x: Array) -> tuple[int, int, int, int]:
    return x.ctypes.data, *x.strides, native_engine._DTYPES[x.dtype.name]


def _strip(x: Array | None, out: Array) -> tuple[int, int, int]:
    return (0, 0, 0) if x is None else (x.ctypes.data, *np.broadcast_to(x, out.shape).strides)


def described(
    unit: Unit, a: Array, b: Array | Packed, out: Array, *, c: Array | None = None, bias: Array | None = None,
    scale_a: Array | None = None, scale_b: Array | None = None, scale_out: Array | None = None,
    activation: str | None = None, alpha: float = 1.0, beta: float = 0.0, workspace: tuple[int, int] = (0, 0),
    threads: int = 2, pinned: bool = False, symmetric: bool = False,
) -> bytes:  # fmt: skip
    """The bytes of ``Call``. ``bias`` and scales are float32 and broadcast to out; ``workspace`` (address, bytes)."""
    (m, k), n = a.shape, out.shape[1]
    right, address = (_NO_MATRIX, b.address) if isinstance(b, Packed) else (_matrix(b), 0)
    return _CALL.pack(
        unit.index, threads, m, n, k, *_matrix(a), *right, address, *_matrix(out),
        *(_NO_MATRIX if c is None else _matrix(c)),
        *(word for x in (bias, scale_a, scale_b) for word in _strip(x, out)),
        0 if scale_out is None else scale_out.ctypes.data, native_engine.ACTIVATIONS[activation],
        pinned, symmetric, *workspace, alpha, beta,
    )  # fmt: skip


def packed(library: Any, unit: Unit, b: Array, memory: Array | None = None) -> Packed:
    """``b`` packed for ``unit``, into ``memory`` where that is passed."""
    prepared = Prepared(unit, 0, b.dtype, b.dtype, np.dtype(np.float32))
    return Packed(library, prepared, unit.columns, b, memory)
