"""Packing b: which backend packs it, and for which products."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub import config, dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._base.geometry import DeviceView, alignment
from gemmhub._base.guard import guarded
from gemmhub._call import describe, options
from gemmhub._choice import decide
from gemmhub.capability import Device, Raised, Refusal
from gemmhub.errors import AllocationError, DTypeError, InputError, NoBackendError, ShapeError
from gemmhub.layout import MatrixLayout
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem, Operand
from gemmhub.verdict import Decision, Verdict

_ASSUMED_RESULT = {False: np.dtype(np.float32), True: np.dtype(np.complex64)}
"""Whether an operand is complex -> the result assumed for operands (fp8) that have no natural one."""


def pack_operand(b: Any, a_dtype: Any, m: int, backend: str | None) -> PackedB:
    """See :func:`gemmhub.pack`."""
    if isinstance(b, PackedB):
        raise InputError("b", "a packed operand", "an array", "it is packed already")
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise InputError("m", f"{m!r}", "a positive int")
    arrays = arrays_of(b, "b")
    native = describe.operand(arrays, b, "b")
    if native.ndim != 2:
        raise ShapeError("b", f"shape {native.shape}", "(k, n)", "pack the matrices of a batch one by one")
    left = native.dtype if a_dtype is None else dtypes.as_dtype(a_dtype, "a_dtype")
    settings = config.override(config.current(), "the call", backend=options.one_backend(backend))
    problem = _typical(native, left, m, arrays.device)
    given = native.address if isinstance(native, DeviceView) else native
    chosen = decide.decide(problem, settings)
    refused: list[Verdict] = []
    asked = decide.answers(problem)
    for able in asked:
        if isinstance(able, Verdict) or (settings.forced and able.entry.name != settings.backend[0]):
            continue
        payload = guarded(
            lambda able=able: able.backend.pack(given, problem),  # type: ignore[misc]
            "pack()",
            f"report it to the authors of {able.entry.distribution}",
        )
        if not isinstance(payload, Refusal):
            k, n = native.shape
            return PackedB((k, n), native.dtype, left, able.entry.name, payload, arrays.device)
        if isinstance(payload, Raised) and issubclass(payload.kind, MemoryError):  # AllocationError is one
            raise AllocationError(f"packing b: {payload.reason}")
        refused.append(Verdict(able.entry.name, able.entry.distribution, "refused", payload.reason, payload.remedy))
    for verdict in asked:
        if isinstance(verdict, Verdict) and verdict.passing == "memory":
            raise AllocationError(f"packing b: backend {verdict.backend!r}: {verdict.reason}")
    others = tuple(v for v in chosen.verdicts if v.backend not in {r.backend for r in refused})
    raise NoBackendError(
        "no backend packs this operand",
        Decision(problem, None, "no backend has a packed form", (*refused, *others), settings.origin),
    )


def _typical(b: Any, a_dtype: dtypes.DType, m: int, device: Device) -> GemmProblem:
    """The product that the packed operand is expected in. On devices it has the layout of ``b``."""
    k, n = b.shape
    try:
        out = dtypes.result_dtype(a_dtype, b.dtype)
    except DTypeError:
        out = dtypes.output_dtype(a_dtype, b.dtype, _ASSUMED_RESULT["c" in a_dtype.kind + b.dtype.kind])
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a=Operand(a_dtype, MatrixLayout.contiguous(m, k), a_dtype.itemsize),
        b=(
            Operand(b.dtype, describe.layout(b, ()), alignment(b))
            if isinstance(b, DeviceView)
            else Operand(b.dtype, MatrixLayout.contiguous(k, n), b.dtype.itemsize)
        ),
        out=Operand(out, MatrixLayout.contiguous(m, n), out.itemsize),
        compute_dtype=dtypes.compute_dtype(a_dtype, b.dtype, out),
        device=device,
    )
