"""Fields of a problem that came after contract 1: a backend that does not name one never computes without it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

import gemmhub
from gemmhub import Backend, BackendDescription, Device, GemmProblem, Kernel, Offer, Ready
from gemmhub._call import describe
from gemmhub._call.options import EXTRA
from gemmhub._choice import decide, registry
from gemmhub.problem import added
from gemmhub.testing.problems import problem


@dataclass(frozen=True)
class Grouped(GemmProblem):
    """A problem with a field that does not exist yet."""

    groups: Any = field(default=None, metadata=added("group offsets"))


def grouped(groups=None):
    plain = problem(16, 16, 16)
    return Grouped(**{x.name: getattr(plain, x.name) for x in fields(plain)}, groups=groups)


class Anything(Backend):
    """A backend that knows no field that came later: it runs whatever it is asked about."""

    name = "anything"

    def probe(self):
        return Ready((Device(),))

    def offer(self, problem):
        return Offer()

    def prepare(self, problem, candidate, workspace_limit):
        return Kernel(lambda *_: None, "nothing")


class Taking(Anything):
    name = "taking"
    takes = frozenset({"groups"})


@pytest.fixture(autouse=True)
def backends():
    for kind in (Anything, Taking):
        description = BackendDescription(kind.name, kind, "for tests", contract=2)
        registry.registry().add(description, kind.name, f"gemmhub-{kind.name}")
    yield
    gemmhub.reload()


def test_a_backend_is_not_asked_about_what_it_does_not_take():
    asked = grouped((0, 8, 16))
    decision = decide.decide(asked, gemmhub.config.current())
    assert decision.chosen == "taking"
    for name in ("anything", "numpy"):
        refused = decision[name]
        assert (refused.status, refused.reason) == ("refused", "it has no group offsets")
        assert refused.remedy == "leave groups= out, or choose a backend that has group offsets"


def test_a_field_that_is_not_set_changes_nothing():
    plain, asked = problem(16, 16, 16), grouped()
    assert asked.plain
    assert not asked.demands
    assert asked.key == plain.key
    assert decide.decide(asked, gemmhub.config.current())["anything"].status == "able"


def test_a_field_that_is_set_is_another_problem():
    asked = grouped((0, 8, 16))
    assert not asked.plain
    assert asked.demands == {"groups": "group offsets"}
    assert asked.key == f"{problem(16, 16, 16).key} groups=(0, 8, 16)"


def test_every_extra_operand_is_described_by_a_field():
    listed = {x.name for x in fields(GemmProblem) if "what" in x.metadata}
    assert set(EXTRA) == set(describe.EXTRA) <= listed
