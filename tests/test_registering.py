"""Backends that a process registers as objects."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub import Absent, Backend, Candidate, Device, GemmhubError, InputError, Kernel, Offer, Ready
from gemmhub.backend import CONTRACT


class Toy(Backend):
    """Multiplies by NumPy, and counts.

    (The first line is its summary.)
    """

    name = "toy"

    def __init__(self, answer=None, seconds=1e-9):
        self.answer = answer or Ready((Device(),), {"toy": "7"})
        self.seconds, self.probes, self.calls = seconds, 0, 0

    def probe(self):
        self.probes += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def offer(self, problem):
        return Offer((Candidate(seconds=self.seconds),))

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream):
            self.calls += 1
            np.multiply(np.matmul(a, b), alpha, out=out)

        return Kernel(run, "NumPy")


class Worse(Toy):
    name = "Toy "


class Nameless(Toy):
    name = 7


@pytest.fixture
def register():
    """``gemmhub.register``; what it added is removed afterwards."""
    added = []

    def put(backend, **options):
        gemmhub.register(backend, **options)
        added.append(backend.name)
        return backend

    yield put
    for name in added:
        if name in gemmhub.backends():
            gemmhub.unregister(name)


@pytest.fixture
def ones():
    return np.ones((4, 4), np.float32)


def status(name="toy"):
    return gemmhub.backends().get(name)


def test_every_function_uses_it_and_forgets_what_was_decided_before(register, ones):
    for _ in range(2):
        gemmhub.matmul(ones, ones)
    toy = register(Toy())
    gemmhub.matmul(ones, ones)
    gemmhub.matmul(ones, ones)
    assert toy.calls == 2
    assert gemmhub.explain(ones, ones).chosen == "toy"
    gemmhub.plan(ones, ones)(ones, ones)
    assert "toy" in {row.backend for row in gemmhub.compare(ones, ones).rows}
    assert toy.calls > 3
    assert "toy" in {row.backend for row in gemmhub.tune(ones, ones).rows}
    with gemmhub.use(backend="toy"):
        assert np.array_equal(gemmhub.matmul(ones, ones), ones @ ones)
    assert (status().state, status().summary) == ("ready", "Multiplies by NumPy, and counts.")
    assert status().versions == {"toy": "7"}
    assert toy.probes == 1


def test_one_that_is_removed_is_not_called_again(register, ones):
    toy = register(Toy())
    gemmhub.matmul(ones, ones)
    gemmhub.unregister("toy")
    calls = toy.calls
    gemmhub.matmul(ones, ones)
    assert toy.calls == calls
    assert status() is None
    with pytest.raises(InputError, match="no backend is called 'toy'"):
        gemmhub.matmul(ones, ones, backend="toy")
    register(Toy())  # its name is free again
    assert status().state == "ready"


def test_it_survives_reload_and_is_probed_again(register, ones):
    toy = register(Toy())
    assert gemmhub.explain(ones, ones).chosen == "toy"
    gemmhub.reload()
    assert gemmhub.explain(ones, ones).chosen == "toy"
    assert toy.probes == 2
    gemmhub.unregister("toy")
    gemmhub.reload()
    assert status() is None


def test_a_failure_of_its_predecessor_is_forgotten(register, ones):
    broken = register(Toy())
    broken.prepare = None  # raises TypeError
    assert gemmhub.matmul(ones, ones) is not None
    assert gemmhub.explain(ones, ones)["toy"].status == "failed"
    gemmhub.unregister("toy")
    register(Toy())
    assert gemmhub.explain(ones, ones).chosen == "toy"


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (Toy, "the class Toy; allowed: an instance"),
        (np.matmul, "a ufunc; allowed: an instance"),
        (Worse(), "'Toy ' is not a lower-case name"),
        (Nameless(), "a Nameless whose name is 7"),
    ],
)
def test_what_cannot_be_registered(backend, words):
    before = list(gemmhub.backends())
    with pytest.raises(InputError, match=words):
        gemmhub.register(backend)
    assert list(gemmhub.backends()) == before


def test_a_name_that_is_taken(register):
    register(Toy())
    with pytest.raises(InputError, match=r"the name 'toy'.*unregister\('toy'\) first"):
        gemmhub.register(Toy())
    built_in = Toy()
    built_in.name = "numpy"
    with pytest.raises(InputError, match=r"the name 'numpy', which a backend of gemmhub has.*another name"):
        gemmhub.register(built_in)
    assert [x.name for x in gemmhub.backends().rows].count("toy") == 1


@pytest.mark.parametrize("contract", [CONTRACT - 1, CONTRACT + 1, "2", True])
def test_another_contract(contract):
    with pytest.raises(GemmhubError, match="contract"):
        gemmhub.register(Toy(), contract=contract)
    assert status() is None


@pytest.mark.parametrize("name", ["numpy", "nothing"])
def test_what_was_not_registered_is_not_removed(name):
    with pytest.raises(InputError, match=f"'{name}'; allowed: none.*GEMMHUB_DISABLE"):
        gemmhub.unregister(name)


@pytest.mark.parametrize(
    ("answer", "state"), [(Absent("no card", "buy one"), "absent"), (ValueError("no card"), "failed")]
)
def test_one_that_cannot_run_is_listed_with_the_reason(register, ones, answer, state):
    register(Toy(answer))
    assert status().state == state
    assert "no card" in gemmhub.explain(ones, ones)["toy"].reason
    assert gemmhub.explain(ones, ones).chosen != "toy"


def test_its_probe_names_its_devices(register, ones):
    register(Toy(Ready((Device("cuda", 0), Device("cuda", 1)))))
    assert "toy" not in {verdict.backend for verdict in gemmhub.explain(ones, ones).verdicts}
    with pytest.raises(gemmhub.NoBackendError, match=r"it is for cuda|it runs on cuda:0, cuda:1"):
        gemmhub.matmul(ones, ones, backend="toy")


def test_a_plugin_that_comes_later_with_its_name_is_refused(register, monkeypatch):
    from gemmhub._choice import registry

    register(Toy())
    gemmhub.reload()
    described = registry.Registry().add(
        gemmhub.BackendDescription("toy", Toy, "a plugin's", contract=2), "toy", "gemmhub-toy"
    )
    assert "is taken by" in described.get().reason


@pytest.mark.parametrize("takes", [{"bais": None}, {"bias": "n"}, {"bias": 3}])
def test_a_backend_that_takes_no_operand_is_refused(takes):
    """A name that is misspelt would be refused at each call, and a string is no set of forms."""

    class Misstated(Toy):
        pass

    Misstated.takes = takes
    with pytest.raises(InputError, match="takes"):
        gemmhub.register(Misstated())
    assert "toy" not in gemmhub.backends()
