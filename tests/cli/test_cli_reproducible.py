"""``--reproducible``: the promise goes with every command, and tuning changes no bit that is promised."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from rowwise import Rowwise, chain, registered

import gemmhub
from gemmhub._choice import records


class Three(Rowwise):
    """Two candidates of one order, and one that adds from the other end."""

    orders: ClassVar = {"forwards": "mul.add", "likewise": "mul.add", "backwards": "add.mul"}


@pytest.fixture
def three():
    with registered(Three()) as backend:
        yield backend


def test_every_command_takes_it(run, three, rng):
    a, b = rng.standard_normal((5, 30), np.float32), rng.standard_normal((30, 4), np.float32)
    names = run.save("a.npy", a), run.save("b.npy", b)
    for promise, expected in (("batch", chain(a, b)), ("add.mul", chain(a, b, backwards=True))):
        done = run.json("matmul", *names, "--reproducible", promise, "--out", "c.npy", "--explain", "--json")
        assert done["backend"] == "rowwise"
        assert f"reproducible={promise}" in done["decision"]["problem"]
        assert np.array_equal(np.load("c.npy"), expected)
        assert "passed" in run("spot-check", *names, "c.npy", "--reproducible", promise).stdout
        words = run("explain", 5, 4, 30, "--reproducible", promise).stdout
        order = "mul.add" if promise == "batch" else promise
        assert f"rows of every size keep to the order {order}" in " ".join(words.split())
        assert "rowwise" in run("compare", 5, 4, 30, "--reproducible", promise).stdout
    assert run.json("explain", 5, 4, 30, "--reproducible", "off", "--json")["chosen"] == "numpy"


def test_a_promise_that_is_none(run):
    told = run.error("explain", 5, 4, 30, "--reproducible", "bach")
    assert "reproducible: 'bach'; allowed: None, 'run', 'batch', the name of an order" in " ".join(told.split())


def test_tuning_changes_no_bit(run, three, rng):
    a, b = rng.standard_normal((5, 30), np.float32), rng.standard_normal((30, 4), np.float32)
    names = run.save("a.npy", a), run.save("b.npy", b)

    def product():
        run("matmul", *names, "--reproducible", "batch", "--out", "c.npy")
        return np.load("c.npy")

    before = product()
    assert np.array_equal(before, chain(a, b))
    run("tune", 5, 4, 30, "--reproducible", "batch")
    written = records.read(records.path()).all
    assert {"forwards", "likewise"} <= {x.candidate for x in written if x.backend == "rowwise"}
    assert all("reproducible=batch" in x.problem for x in written)
    assert "reproducible=batch" in run("tune", "--show").stdout
    assert np.array_equal(product(), before)
    # A record of the third candidate, as a version in which it had the first order may have left it.
    problem = gemmhub.explain(a, b, reproducible="batch").problem
    records.put([records.record(problem, "rowwise", "backwards", 1e-12, three.probe())])
    gemmhub.reload()
    assert np.array_equal(product(), before)
    with gemmhub.use(tune="first"):
        assert np.array_equal(gemmhub.matmul(a, b, reproducible="batch"), before)
    assert three.calls[-1][0] in ("forwards", "likewise")
