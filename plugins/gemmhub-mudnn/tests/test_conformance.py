"""The backend against gemmhub's promises, on the simulated home."""

from __future__ import annotations

import pytest
from gemmhub_mudnn.backend import MudnnBackend
from gemmhub_mudnn.lower import DTYPES
from gemmhub_musa import runtime
from gemmhub_musa.testing import MusaMemory

from conftest import GENERATION
from gemmhub.capability import Absent
from gemmhub.testing import ConformanceSuite
from gemmhub.testing.cases import matrix


def _chosen():
    """All cases with muDNN's dtypes, and one of each other combination."""
    seen = set()
    for case in matrix():
        dtypes = (case.a_dtype, case.b_dtype, case.out_dtype)
        if set(dtypes) <= set(DTYPES) or dtypes not in seen:
            seen.add(dtypes)
            yield case


BACKEND = MudnnBackend()
"""One for the process: what is proven stays proven."""


class TestOnHome(ConformanceSuite):
    backend = staticmethod(lambda: BACKEND)
    memory = MusaMemory()
    # The code is the same in every generation: fewer will do where only headers and libraries differ.
    cases = tuple(_chosen())[:: 1 if GENERATION in ("4.3", "installed") else 4]
    random_problems = 30 if GENERATION in ("4.3", "installed") else 8

    @pytest.fixture(autouse=True)
    def _leaves_no_error_behind(self):
        yield
        machine = runtime.machine()
        assert isinstance(machine, Absent) or machine.runtime.clear_error() == ""


@pytest.mark.skipif(GENERATION == "installed", reason="says what the simulated library does")
def test_refusals_for_lack_of_a_kind_are_listed():
    """Every kind of product that the stub library has is right; the missing one is refused before."""
    assert len(BACKEND._proven) > 30
    assert [str(kind) for (_, kind), refusal in BACKEND._proven.items() if refusal is not None] == []
    tested = {types: refusal is None for types, refusal in BACKEND._tested.items()}
    assert tested.pop((0, "bfloat16", "float32"), False) is False
    assert all(tested.values())
