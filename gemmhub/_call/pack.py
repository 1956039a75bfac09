"""Packing b: which backend packs it, for which products, and what that costs.

The decision for the typical product names the best backend. Of the backends with a packed form, the one with the
shortest time for the packed product packs, if that is not longer than the best backend's for b itself. Otherwise b is
copied as it is: a packed operand is never expected to be slower than b.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gemmhub import config, dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.spec.operands import SpecArrays, without_data
from gemmhub._base.geometry import DeviceView, alignment
from gemmhub._base.guard import guarded
from gemmhub._call import describe, options
from gemmhub._choice import answers, decide, pins, ranking
from gemmhub._choice.answers import Eligible
from gemmhub.array_library import ArrayLibrary
from gemmhub.backend import Backend
from gemmhub.capability import Device, Raised, Refusal
from gemmhub.config import Settings
from gemmhub.errors import AllocationError, DTypeError, InputError, NoBackendError, ShapeError
from gemmhub.layout import MatrixLayout
from gemmhub.operands import layout as layout_of
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem, Operand
from gemmhub.verdict import Decision, Verdict

_ASSUMED_RESULT = {False: np.dtype(np.float32), True: np.dtype(np.complex64)}
"""Whether an operand is complex -> the result assumed for operands (fp8) that have no natural one."""


def pack_operand(b: Any, a_dtype: Any, m: int, backend: str | None, reproducible: str | None = None) -> PackedB:
    """See :func:`gemmhub.pack`."""
    if isinstance(b, PackedB):
        raise InputError("b", "a packed operand", "an array", "it is packed already")
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise InputError("m", f"{m!r}", "a positive int")
    arrays = arrays_of(b, "b")
    if isinstance(arrays, SpecArrays):
        raise without_data()
    native = describe.operand(arrays, b, "b")
    if native.ndim != 2:
        raise ShapeError("b", f"shape {native.shape}", "(k, n)", "pack the matrices of a batch one by one")
    left = native.dtype if a_dtype is None else dtypes.as_dtype(a_dtype, "a_dtype")
    settings = _settings(backend, reproducible)
    problem = _typical(native, left, m, arrays.device, settings)
    array = native.address if isinstance(native, DeviceView) else native

    def packed(by: str | None, payload: object) -> PackedB:
        return PackedB(native.shape, native.dtype, left, by, payload, arrays.device, problem.b)

    chosen = decide.decide(problem, settings)
    answered = answers.answers(problem)
    one = settings.backend[0] if settings.forced else chosen.chosen if problem.pinned else None
    eligible = [x for x in answered if isinstance(x, Eligible) and one in (None, x.entry.name)]
    forms, refused = _forms(problem, eligible, settings)
    kept = False
    for form in forms:
        name, distribution = form.entry.name, form.entry.distribution
        if not settings.forced and _is_slower(form, eligible, chosen.chosen, settings):
            kept = True
            continue
        payload = guarded(
            lambda form=form: form.backend.pack(array, problem),  # type: ignore[misc]
            "pack()",
            f"report it to the authors of {distribution}",
        )
        if not isinstance(payload, Refusal):
            return packed(name, payload)
        if isinstance(payload, Raised) and issubclass(payload.kind, MemoryError):  # AllocationError is one
            raise AllocationError(f"packing b: {payload.reason}")
        refused.append(Verdict(name, distribution, "refused", payload.reason, payload.remedy))
    for verdict in (*refused, *answered, *chosen.verdicts):
        if isinstance(verdict, Verdict) and verdict.transient == "memory":
            raise AllocationError(f"packing b: backend {verdict.backend!r}: {verdict.reason}")
    if kept:
        return packed(None, _copy(arrays, native, problem.b.layout))
    others = tuple(v for v in chosen.verdicts if v.backend not in {r.backend for r in refused})
    raise NoBackendError(
        "no backend packs this operand",
        Decision(problem, None, "no backend has a packed form", (*refused, *others), settings.origin),
    )


def saver(b: Any, m: int, backend: str | None, reproducible: str | None = None) -> str | None:
    """The backend that multiplies ``m`` rows by b, where its own packed form of b is expected to save it time.

    Only forms of that backend count: both estimates are then of one model, and differ by what packing costs alone.
    Where the bits of rows are pinned, the form must add in the order that b itself is pinned to.
    """
    arrays = arrays_of(b, "b")
    native = describe.operand(arrays, b, "b")
    settings = _settings(backend, reproducible)
    problem = _typical(native, native.dtype, m, arrays.device, settings)
    chosen = decide.decide(problem, settings).chosen
    best = [x for x in answers.answers(problem) if isinstance(x, Eligible) and x.entry.name == chosen]
    forms, _ = _forms(problem, best, settings)
    if not forms:
        return None
    ours, theirs = _times(forms[0], best[0])
    return chosen if ours is not None and theirs is not None and ours < theirs else None


def _forms(problem: GemmProblem, eligible: list[Eligible], settings: Settings) -> tuple[list[Eligible], list[Verdict]]:
    """The backends that may pack b, with their times of the packed product, the best first; and those that have no
    packed form, with their refusals.
    """
    forms: list[Eligible] = []
    refused: list[Verdict] = []
    pinned = pins.pin(problem, settings) if problem.pinned else None
    for x in eligible:
        if getattr(x.backend.pack, "__func__", None) is Backend.pack:
            refusal = x.backend.pack(None, problem)
            assert isinstance(refusal, Refusal)
            refused.append(Verdict(x.entry.name, x.entry.distribution, "refused", refusal.reason, refusal.remedy))
            continue
        for answer in answers.answers(_by(x.entry.name, problem), None if pinned is None else pinned.order):
            if isinstance(answer, Eligible):
                forms.append(answer)
            else:
                refused.append(answer)
    return sorted(forms, key=ranking.speed), refused


def _by(backend: str, problem: GemmProblem) -> GemmProblem:
    """``problem`` with a b that ``backend`` packed, as :func:`describe.describe` describes it."""
    b = Operand(problem.b.dtype, MatrixLayout.contiguous(problem.k, problem.n), problem.b.dtype.itemsize)
    return replace(problem, b=b, packed_by=backend)


def _is_slower(form: Eligible, eligible: list[Eligible], chosen: str | None, settings: Settings) -> bool:
    """Whether the packed product is expected to take longer than b itself on the backend ``chosen`` for that, or would
    not run on the backend that the settings prefer.
    """
    best = next((x for x in eligible if x.entry.name == chosen), form)
    own = form.entry is best.entry
    if best.entry.name in settings.backend and not own:
        return True
    ours, theirs = _times(form, best)
    if ours is None or theirs is None:
        return not own
    return ours > theirs


def _times(form: Eligible, best: Eligible) -> tuple[float | None, float | None]:
    """The seconds of the packed product and of the unpacked one, both measured or both estimated."""
    if form.source == best.source:
        return form.seconds, best.seconds
    return answers.expected(form), answers.expected(best)


def _copy(arrays: ArrayLibrary, native: Any, layout: MatrixLayout) -> Any:
    """A native copy of b, complete when this returns, that no work on a stream of the caller's is ordered with."""
    if not isinstance(native, DeviceView):
        try:
            return np.copy(native, order="K")
        except MemoryError as error:
            raise AllocationError(f"packing b: {error}") from error
    device: Any = arrays
    device.synchronize()  # b may still be written on any stream
    if layout.order is None:  # several elements may share memory
        copy = device.empty(native.shape, native.dtype)
        device.copy(copy, native.owner)
    else:
        copy = device.clone(native)
    device.synchronize()
    return arrays_of(copy, "b").view(copy, "b")


def cost(b: PackedB, call: describe.Call, decision: Decision, settings: Settings) -> str:
    """The time of a product of the packed ``b`` beside that of b itself, in words; empty where nothing can run it."""
    if b.backend is None:
        return "b is kept as it is: no packed form is expected to be faster"
    if b.operand is None or decision.chosen is None:
        return ""
    batch = call.problem.batch
    layout = replace(b.operand.layout, batch=batch, batch_strides=(0,) * len(batch))
    other = decide.decide(replace(call.problem, b=replace(b.operand, layout=layout), packed_by=None), settings)
    if other.chosen is None:
        return ""
    ours, theirs = decision[decision.chosen], other[other.chosen]
    slower = ours.seconds is not None and theirs.seconds is not None and ours.seconds > theirs.seconds
    remedy = "; b itself is faster: pass that for products of these sizes" if slower else ""
    return f"{ours.duration} by {ours.backend}; b itself {theirs.duration} by {theirs.backend}{remedy}"


def _settings(backend: str | None, reproducible: str | None) -> Settings:
    """The settings of products of the packed operand."""
    changes = {"backend": options.one_backend(backend), "reproducible": options.promise(reproducible)}
    return config.override(config.current(), "the call", **changes)


def _typical(b: Any, a_dtype: dtypes.DType, m: int, device: Device, settings: Settings) -> GemmProblem:
    """The product that the packed operand is expected in, with the layout of b."""
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
        b=Operand(b.dtype, layout_of(b, ()), alignment(b)),
        out=Operand(out, MatrixLayout.contiguous(m, n), out.itemsize),
        compute_dtype=dtypes.compute_dtype(a_dtype, b.dtype, out),
        reproducible=settings.reproducible,
        device=device,
    )
