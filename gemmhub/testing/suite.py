"""The conformance kit as a pytest class, the only module of gemmhub that imports pytest."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest

from gemmhub.backend import Backend, Offer, answer, takes_of
from gemmhub.capability import CPU, Absent, Ready
from gemmhub.testing.allocations import check_allocations, large, observes
from gemmhub.testing.answers import honest
from gemmhub.testing.case import Case, taken
from gemmhub.testing.cases import draw, matrix
from gemmhub.testing.check import check
from gemmhub.testing.descriptions import check_description
from gemmhub.testing.grouped_check import check_groups
from gemmhub.testing.groups import GroupedCase, grouped_cases
from gemmhub.testing.memory import HOST, Memory, Unrepresentable
from gemmhub.testing.operands import Operands

SEED_VARIABLE = "GEMMHUB_TESTING_SEED"
_DRAWS = 30


@cache
def _probed(make: Callable[[], Backend]) -> tuple[Backend, Ready | Absent]:
    """The backend and its probe, once a process, as in gemmhub itself."""
    backend = make()
    return backend, backend.probe()


@cache
def _fresh_seed() -> int:
    text = os.environ.get(SEED_VARIABLE)
    return int(text) if text else int(np.random.SeedSequence().generate_state(1)[0])


class ConformanceSuite:
    """Tests of every promise of :mod:`gemmhub.backend`. Subclass it and name the backend::

        class TestMyBackend(ConformanceSuite):
            backend = MyBackend

    The tests skip where ``probe`` returns Absent. A case that the backend refuses with a reason and a remedy passes.
    """

    backend: ClassVar[Callable[[], Backend]]
    """Class of the backend, or a ``staticmethod`` that returns an instance."""
    memory: ClassVar[Memory] = HOST
    """Memory of the operands; backends for devices set a subclass of Memory."""
    cases: ClassVar[Sequence[Case]] = matrix()
    """The fixed problems. Where ``backend`` is a class, those with what it does not take are left out, but for one of
    each form, which it must refuse."""
    grouped: ClassVar[Sequence[GroupedCase]] = grouped_cases()
    """The fixed grouped problems, where ``memory`` is that of a device. Those with what ``backend`` does not take are
    left out, as of ``cases``."""
    random_problems: ClassVar[int] = 60
    """Number of random problems in each run, besides ``cases``."""
    seed: ClassVar[int | None] = None
    """Seed of the random problems; None for the environment's GEMMHUB_TESTING_SEED, or a new one in each run."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        made = type(self).backend
        # A function that makes the backend has none.
        takes = takes_of(made) if isinstance(made, type) else getattr(made, "takes", None)
        on_device = self.memory.device != CPU
        every: dict[str, Sequence[Any]] = {
            "case": self.cases, "large_case": large() if observes(self.memory) else (),
            "grouped_case": self.grouped if on_device else (),
        }  # fmt: skip
        for name, cases in every.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, cases if takes is None else taken(cases, takes), ids=str)
        if "draw_index" in metafunc.fixturenames:
            metafunc.parametrize("draw_index", range(self.random_problems))

    def _backend(self) -> Backend:
        backend, probed = _probed(type(self).backend)
        if isinstance(probed, Absent):
            pytest.skip(f"{backend.name}: {probed.reason} ({probed.remedy})")
        return backend

    def test_probe(self) -> None:
        """The name is valid; the answer is Ready with this memory's device, or Absent with a reason and a remedy."""
        backend, probed = _probed(type(self).backend)
        assert isinstance(backend.name, str) and backend.name == backend.name.lower() != "", (  # noqa: PT018
            f"name is {backend.name!r}, not a lower-case word"
        )
        if isinstance(probed, Absent):
            honest(probed, "probe()")
        self._backend()
        assert isinstance(probed, Ready), f"probe() returned {probed!r}, neither Ready nor Absent"
        assert self.memory.device in probed.devices, f"probe() lists {probed.devices}, not {self.memory.device}"
        texts: list[Any] = [x for pair in probed.versions.items() for x in pair]
        assert all(isinstance(x, str) for x in (*texts, *probed.features)), "versions and features are strings"

    def test_description(self) -> None:
        """The description of an installed plugin names this backend, its contract and its type of device."""
        backend, _ = _probed(type(self).backend)
        if not check_description(backend, self.memory.device):
            pytest.skip(f"no installed plugin has the class of {backend.name}")

    def test_accepts_something(self) -> None:
        """Some case is accepted: a backend that refuses every case would pass all other tests."""
        backend = self._backend()
        for case in self.cases:
            try:
                problem = Operands(case, self.memory).problem
            except Unrepresentable:
                continue
            if not problem.empty and isinstance(answer(backend, problem), Offer):
                return
        pytest.fail(f"{backend.name} refuses every case of the matrix")

    def test_case(self, case: Case) -> None:
        """One case of the fixed matrix passes."""
        backend = self._backend()
        try:
            check(backend, case, self.memory)
        except Unrepresentable as why:
            pytest.skip(str(why))

    def test_allocations(self, large_case: Case) -> None:
        """A call allocates no more than the declared workspace and copies, where the memory observes that."""
        backend = self._backend()
        try:
            check_allocations(backend, large_case, self.memory)
        except Unrepresentable as why:
            pytest.skip(str(why))

    def test_groups(self, grouped_case: GroupedCase) -> None:
        """One case of the fixed grouped problems passes."""
        backend = self._backend()
        try:
            check_groups(backend, grouped_case, self.memory)
        except Unrepresentable as why:
            pytest.skip(str(why))

    def test_random(self, draw_index: int) -> None:
        """Random problems pass, until the backend has accepted one."""
        backend = self._backend()
        seed = _fresh_seed() if self.seed is None else self.seed
        rng = np.random.default_rng((seed, draw_index))
        for _ in range(_DRAWS):
            case = draw(rng, takes_of(backend))
            try:
                accepted = check(backend, case, self.memory).accepted
            except Unrepresentable:
                continue
            except AssertionError as error:
                raise AssertionError(f"{SEED_VARIABLE}={seed}, draw {draw_index}\n{error}") from error.__cause__
            if accepted:
                return
