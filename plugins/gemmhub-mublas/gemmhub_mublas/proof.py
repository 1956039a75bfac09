"""Proves each function of a library right before it gets a user's product.

This happens once for each device, function, dtypes and epilogue: first by the small products of
:mod:`gemmhub_musa.selftest` in all storage orders, then by one with everything at once (:mod:`gemmhub_musa.proof`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from gemmhub_musa import proof, selftest

from gemmhub.backend import Kernel, Run
from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.kit import locks
from gemmhub.problem import GemmProblem
from gemmhub_mublas.probe import BlasDevices

_Sizes = tuple[int, int, int]
_SIZES = 5, 3, 8
_WIDE = 16
_WIDE_SIZES = 32, 16, 48
"""m, n, k; the wide ones for 8-bit operands, which some libraries take in multiples of 16 only."""
_ROOM = 2**20
"""Bytes that a proof may need on the device."""


class _Candidate(Hashable, Protocol):
    @property
    def batched(self) -> bool:
        """Whether it multiplies a batch in one call."""


C = TypeVar("C", bound=_Candidate)
D = TypeVar("D", bound=BlasDevices)


class Proofs(Generic[D, C]):
    """Candidates of a library that were proven right, or wrong, on a device."""

    def __init__(self, library: str, kernel: Callable[[D, GemmProblem, C], Run | Refusal]) -> None:
        """``kernel`` prepares a problem for a candidate, proven or not, on these devices or a child process's."""
        self._library = library
        self._kernel = kernel
        self._outcomes: dict[Hashable, int | Refusal] = {}
        self._lock = locks.lock()

    def of(self, devices: D, problem: GemmProblem, candidate: C) -> Refusal | None:
        """Return None where ``candidate`` is right for such problems, else a refusal; proven at the first call.

        Raises AllocationError, CallError or MusaError where the device's state prevents a proof.
        """
        key = (
            problem.device.index, candidate, problem.a.dtype, problem.b.dtype, problem.out.dtype, problem.precision,
            problem.activation, problem.bias and problem.bias.dtype,
        )  # fmt: skip
        with self._lock:
            outcome = self._outcomes.get(key)
            if outcome is None:
                what = f"{self._library}'s {candidate} for {problem.a.dtype} to {problem.out.dtype}"

                def there(devices: D) -> Refusal | None:
                    found = self._prove(devices, problem, candidate)
                    return found if isinstance(found, Refusal) else None

                outcome = devices.first(f"{what} on {problem.device}", key, there)
                if outcome is None:
                    outcome = self._prove(devices, problem, candidate)
                self._outcomes[key] = outcome
        if isinstance(outcome, Refusal):
            return outcome
        sizes = problem.m, problem.n, problem.k
        if any(size % outcome for size in sizes):
            return Refusal(
                f"{self._library} has {problem.a.dtype} products for sizes that are multiples of {outcome} only, not "
                f"{'x'.join(map(str, sizes))}",
                "pad the operands with zeros",
            )
        return None

    def _prove(self, devices: D, problem: GemmProblem, candidate: C) -> int | Refusal:
        """Return the number that sizes must be multiples of, or a refusal."""
        index, runtime = problem.device.index, devices.runtime
        with runtime.device(index):
            runtime.free(runtime.malloc(_ROOM))
            devices.handles.reserve(index)
        failures: list[KernelError] = []
        refusal = self._tried(devices, problem, candidate, selftest.SIZES, _SIZES, failures)
        if refusal is None:
            return 1
        if not failures:
            return refusal
        if (
            problem.a.dtype.itemsize == 1
            and self._tried(devices, problem, candidate, _WIDE_SIZES, _WIDE_SIZES, failures) is None
        ):
            return _WIDE
        # The library refused the product; it did not compute a wrong one.
        types = "{} by {} with a result of {}".format(*(x.dtype for x in (problem.a, problem.b, problem.out)))
        return Refusal(
            f"{candidate} does not run {types} on this device, as a small product shows: {failures[0].message}",
            "use another backend, or other dtypes (cards before mp_22 have no 16-bit products, before mp_31 no fp8)",
            refusal.traceback,
        )

    def _tried(
        self,
        devices: D,
        problem: GemmProblem,
        candidate: C,
        plain: _Sizes,
        full: _Sizes,
        failures: list[KernelError],
    ) -> Refusal | None:
        """Return None where all products are right. The library's own refusals are appended to ``failures``."""

        def prepare(asked: GemmProblem) -> Kernel | Refusal:
            run = self._kernel(devices, asked, candidate)
            if isinstance(run, Refusal):
                return run
            plain_run = run

            def watched(*arguments: Any, **operands: Any) -> None:
                try:
                    plain_run(*arguments, **operands)
                except KernelError as error:
                    failures.append(error)
                    raise

            return Kernel(watched, str(candidate))

        index, out = problem.device.index, problem.out.dtype.name
        refusal = selftest.check(prepare, devices.runtime, index, problem.a.dtype.name, out, plain)
        if refusal is not None:
            return refusal
        asked = replace(proof.everything(problem, *full, batched=candidate.batched, alignment=16), alpha_is_one=True)
        exact = asked.a.dtype.kind not in "fc" or asked.a.dtype.itemsize < 4
        try:
            kernel = prepare(asked)
            return kernel if isinstance(kernel, Refusal) else proof.compare(devices.runtime, asked, kernel, exact=exact)
        except Exception as error:  # any failure of the library's first call
            reason = f"the first product with everything ({asked.key}) failed: {type(error).__name__}: {error}"
            return Refusal(reason, selftest.REMEDY, repr(error))
