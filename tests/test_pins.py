"""Rows of every size keep to one backend and one order of sums, before and after tuning."""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pytest

import gemmhub
from gemmhub._choice import records
from gemmhub.backend import BASIC, Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Ready, Refusal
from gemmhub.errors import NoBackendError


class Rowwise(Backend):
    """Candidates by name: each makes an error of its own, as another order of sums would."""

    takes: ClassVar = {**BASIC, "reproducible": frozenset({"run", "batch"})}
    layout_sensitive = False
    by_bucket = True

    def __init__(self, name, seconds, **orders):
        """``seconds``: a function of m. ``orders``: the order that each candidate states."""
        self.name, self.seconds, self.orders = name, seconds, orders

    def probe(self):
        return Ready((CPU,), {self.name: "1"})

    def offer(self, problem):
        return Offer([Candidate(x, self.seconds(problem.m), order=order) for x, order in self.orders.items()])

    def prepare(self, problem, candidate, workspace_limit):
        ulps = ["only", "split", "whole"].index(candidate)

        def run(a, b, out, alpha, beta, stream, **operands):
            out[...] = np.float32(4) * (1 + ulps * np.finfo(np.float32).eps)

        return Kernel(run, candidate)


@contextmanager
def registered(*backends):
    for backend in backends:
        gemmhub.register(backend)
    yield
    for backend in backends:
        gemmhub.unregister(backend.name)


@pytest.fixture
def two():
    """Backends of which one is faster up to 100 rows; the other states two orders."""
    few = Rowwise("few", lambda m: 1e-9 if m <= 100 else 1e-7, only="chain.k8")
    many = Rowwise("many", lambda m: 1e-8, split="chain.k16/s2", whole="chain.k16")
    with registered(few, many):
        yield few, many


def product(m, **options):
    a, b = np.ones((m, 4), np.float32), np.ones((4, 5), np.float32)
    return gemmhub.explain(a, b, **options), gemmhub.matmul(a, b, **options)[0, 0]


def test_rows_of_every_size_keep_to_one_backend_and_order(two):
    assert [product(m)[0].chosen for m in (3, 3000)] == ["few", "many"]
    results = set()
    for m in (3, 100, 101, 3000, 1):
        decision, value = product(m, reproducible="batch")
        assert decision.chosen == "many"
        assert decision["many"].order == "chain.k16/s2"
        assert decision.why == "rows of every size keep to the order chain.k16/s2"
        assert decision["few"].status == "eligible"
        assert decision["few"].reason == "rows of every size keep to many and its order chain.k16/s2"
        results.add(value)
    assert len(results) == 1


@pytest.mark.parametrize(("order", "backend"), [("chain.k8", "few"), ("chain.k16", "many"), ("chain.k16/s2", "many")])
def test_an_order_by_name(two, order, backend):
    for m in (3, 3000):
        decision, _ = product(m, reproducible=order)
        assert (decision.chosen, decision[backend].order) == (backend, order)
        with gemmhub.use(reproducible=order):
            assert product(m)[0].chosen == backend


def test_an_order_that_nobody_offers(two):
    with pytest.raises(NoBackendError) as caught:
        product(3, reproducible="chain.k32")
    words = str(caught.value)
    assert "none of its candidates adds in the order 'chain.k32'" in words
    assert "'chain.k16' or 'chain.k16/s2' is what it states" in words


def test_a_forced_or_preferred_backend_decides_the_order(two, monkeypatch):
    assert product(3000, reproducible="batch", backend="few")[0]["few"].order == "chain.k8"
    with pytest.raises(NoBackendError, match=r"chain\.k16"):
        product(3, reproducible="chain.k16", backend="few")
    monkeypatch.setenv("GEMMHUB_BACKEND", "few,many")
    gemmhub.reload()
    assert product(3000, reproducible="batch")[0].chosen == "few"


def test_records_of_other_candidates_change_no_bit(two):
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    before = product(3, reproducible="batch")[1]
    gemmhub.tune(a, b, reproducible="batch")
    problem = gemmhub.explain(a, b, reproducible="batch").problem
    ready = two[1].probe()
    records.put(
        [records.record(problem, "many", "whole", 1e-12, ready), records.record(problem, "few", "only", 1e-12, ready)]
    )
    gemmhub.reload()
    decision, after = product(3, reproducible="batch")
    assert (decision.chosen, decision["many"].order, after) == ("many", "chain.k16/s2", before)
    with gemmhub.use(tune="first"):
        assert product(5, reproducible="batch")[1] == before


def test_a_new_backend_is_asked(two):
    assert product(3, reproducible="batch")[0].chosen == "many"
    with registered(Rowwise("better", lambda m: 1e-10, only="chain.k2")):
        assert product(3, reproducible="batch")[0].chosen == "better"
    assert product(3, reproducible="batch")[0].chosen == "many"


def test_backends_that_promise_nothing_are_refused(two):
    class Silent(Rowwise):
        takes = BASIC

    with registered(Silent("silent", lambda m: 1e-12, only="chain.k1")):
        decision, _ = product(3, reproducible="batch")
        assert decision["silent"].status == "refused"
        assert "does not promise the bits of rows" in decision["silent"].reason
        assert product(3, reproducible="run")[0].chosen == "silent"


def test_records_state_the_promise(two):
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    gemmhub.tune(a, b, reproducible="batch")
    assert all("reproducible=batch" in x.problem for x in records.read(records.path()).all)


def test_numpy_states_an_order_of_integers_alone():
    x = np.ones((3, 4), np.int64)
    assert gemmhub.explain(x, x.T, reproducible="batch")["numpy"].order == "exact"
    with pytest.raises(NoBackendError, match="none of its candidates adds in an order that it states"):
        gemmhub.matmul(x.astype(float), x.T.astype(float), reproducible="batch", backend="numpy")


def test_only_the_pinned_backend_packs():
    b = np.ones((4, 5), np.float32)
    with registered(Rowwise("few", lambda m: 1e-12, only="chain.k8")):
        with pytest.raises(NoBackendError, match="few has no packed form"):
            gemmhub.pack(b, reproducible="batch")
        by_numpy = gemmhub.pack(b, backend="numpy")
        with pytest.raises(NoBackendError, match="states"):
            gemmhub.matmul(np.ones((3, 4), np.float32), by_numpy, reproducible="batch")


@pytest.mark.parametrize("empty", [((0, 4), (4, 5)), ((3, 0), (0, 5)), ((3, 4), (4, 0))])
def test_a_product_without_sums_decides_no_other(two, empty):
    gemmhub.matmul(*(np.ones(shape, np.float32) for shape in empty), reproducible="batch")
    gemmhub.matmul(*(np.ones(shape, np.float32) for shape in empty), reproducible="no.such")
    for m in (3, 3000):
        decision, value = product(m, reproducible="batch")
        assert decision.chosen == "many"
        assert value == product(1, reproducible="chain.k16/s2")[1]
    with pytest.raises(NoBackendError):
        product(3, reproducible="no.such")


def test_a_backend_that_does_not_take_an_operand_is_not_chosen(two):
    class Plain(Rowwise):
        takes: ClassVar = {"reproducible": frozenset({"run", "batch"})}

    bias = np.ones(5, np.float32)
    with registered(Plain("plain", lambda m: 1e-12, only="chain.k1")):
        assert product(3, reproducible="batch")[0].chosen == "plain"
        assert product(3, reproducible="batch", bias=bias)[0].chosen == "many"


def test_nothing_is_pinned_while_a_backend_is_short_of_memory(two, monkeypatch):
    best = Rowwise("best", lambda m: 1e-12, only="chain.k1")
    with registered(best):
        with monkeypatch.context() as patch:
            patch.setattr(best, "seconds", lambda m: (_ for _ in ()).throw(MemoryError()))
            with pytest.raises((NoBackendError, gemmhub.AllocationError)):
                product(3, reproducible="batch")
        assert product(3, reproducible="batch")[0].chosen == "best"


def test_backends_that_refuse_the_canonical_product_are_not_chosen():
    class Small(Rowwise):
        def offer(self, problem):
            return Refusal("it is too large", "multiply less") if problem.k > 100 else super().offer(problem)

    with registered(Small("x", lambda m: 1e-9, only="chain.k1")), pytest.raises(NoBackendError, match="no order"):
        product(3, reproducible="batch")


def test_candidates_of_other_orders_are_not_tuned(two):
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    tuned = gemmhub.tune(a, b, reproducible="batch")
    assert {(row.backend, row.candidate) for row in tuned.rows} == {("many", "split")}
