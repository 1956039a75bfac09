"""The last part of ``gemmhub doctor musa --report``: the conformance kit's cases and a benchmark, on this card."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from gemmhub._choice.registry import registry
from gemmhub.backend import Backend
from gemmhub.capability import Refusal
from gemmhub.cli.doctor_report import Finding
from gemmhub.testing import Unrepresentable, check, matrix, taken
from gemmhub_musa import array, testing

_STEP = 40
"""Number of a backend's cases of which one is run."""
_SECONDS = 120.0
"""Time after which no further case of a backend is begun: some backends compile a kernel for each."""
_FAILURES = 3
"""Cases that fail before a backend's others are left out: after a fault all of them fail."""
_SIZES = tuple(2**power for power in range(8, 14))
"""m, n and k of the benchmark."""
_LONG = 0.05
"""Seconds of a call after which no larger product is timed."""
_DTYPES = ("float16", "float32")
_ROUNDS = 7


def findings() -> Iterator[Finding]:
    """See :mod:`gemmhub.cli.doctor_report`."""
    for entry in registry():
        answer = entry.get()
        if "musa" in entry.device_types and not isinstance(answer, Refusal):
            yield from _cases(answer[0])
            for dtype in _DTYPES:
                yield from _speed(answer[0], dtype)


def _cases(backend: Backend) -> Iterator[Finding]:
    """Yield a finding for each case that fails, and one with the number of those that are right."""
    memory, end = testing.MusaMemory(), time.monotonic() + _SECONDS
    right = refused = failed = 0
    worst = 0.0
    for case in taken(matrix(), backend.takes)[::_STEP]:
        if failed == _FAILURES or time.monotonic() > end:
            break
        try:
            outcome = check(backend, case, memory)
        except Unrepresentable:
            continue
        except Exception as error:  # the report goes on, whatever fails
            failed += 1
            text = (str(error) or type(error).__name__).strip().splitlines()[-1].strip()
            yield Finding("conformance", f"{backend.name} {case}", text, False, str(error))
            continue
        right, refused = right + outcome.accepted, refused + (not outcome.accepted)
        worst = max(worst, outcome.worst)
    text = f"{right} cases right, {refused} refused, {failed} failed; the worst error is {worst:.3g} of its bound"
    yield Finding("conformance", backend.name, text, not failed if right or failed else None)


def _speed(backend: Backend, dtype: str) -> Iterator[Finding]:
    """Yield a finding for each size, until a product takes long."""
    for size in _SIZES:
        item = f"{backend.name} {dtype} {size}x{size}x{size}"
        try:
            seconds, name = _timed(backend, dtype, size)
        except Exception as error:  # the report goes on, whatever fails
            yield Finding("speed", item, f"{type(error).__name__}: {error}", False)
            return
        if not seconds:
            yield Finding("speed", item, f"refused: {name}")
            return
        rate = 2 * size**3 / seconds / 1e12
        yield Finding("speed", item, f"{seconds * 1e3:.4g} ms, {rate:.4g} TFLOPS, by {name}")
        if seconds > _LONG:
            return


def _timed(backend: Backend, dtype: str, size: int) -> tuple[float, str]:
    """Return the median seconds of a product, by events, and the candidate's name; 0 and the reason where refused."""
    asked = testing.problem(size, size, size, dtype)
    offer = backend.offer(asked)
    if isinstance(offer, Refusal):
        return 0.0, offer.reason
    kernel = backend.prepare(asked, offer.first.name, offer.workspace)
    if isinstance(kernel, Refusal):
        return 0.0, kernel.reason
    arrays, rng = array.arrays(0), np.random.default_rng()
    a, b, out = (arrays.from_host(rng.random((size, size), np.float32).astype(dtype)) for _ in range(3))
    start, end, samples = array.Event(arrays), array.Event(arrays), []
    for _ in range(_ROUNDS):
        start.record()
        kernel.run(a.data.ptr, b.data.ptr, out.data.ptr, 1, 0, arrays.current_stream())
        end.record()
        end.synchronize()
        samples.append(arrays.runtime.event_elapsed(start.handle, end.handle) / 1e3)
    return max(median(samples), 1e-9), offer.first.name
