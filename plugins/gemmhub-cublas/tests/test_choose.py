"""Algorithms and their configurations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_lt import ANY, ANY_SPLIT, OUTPUT_SPLIT, PERSISTENT, SPLIT, TENSOR
from fakes import Arrays, Home, operand, problem
from gemmhub_cublas import choose
from gemmhub_cublas.choose import Chooser, parse, text
from gemmhub_cublas.lower import lowered

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal

MIB = 2**20


@pytest.fixture
def home():
    return Home()


def chooser(home, asked):
    machine = home.backend().machine
    return Chooser(machine, 0, lowered(asked).main)


def ids(algorithms):
    return [int(x.config.split(".")[0]) for x in algorithms]


@pytest.mark.parametrize("config", ["66.29.1.0.1.1.35.0.3", "0.0.0.0.0.0.0.0.0", "5.4294967295.2.2.0.0.1.65535.65535"])
def test_round_trip(config):
    assert text(parse(config)) == config


@pytest.mark.parametrize("config", [
    "", "66", "a.b.c.d.e.f.g.h.i", "1.2.3.4.5.6.7.8", "1.2.3.4.5.6.7.8.-9", "1" + ".0" * 9, "1.0.0.0.0.0.0.65536.0",
    "1.0.0.0.0.0.0.0.²", "default",
])  # fmt: skip
def test_no_configuration(config):
    with pytest.raises(ValueError, match="is no configuration"):
        parse(config)


def test_every_proposal_has_a_name(home):
    asked = chooser(home, problem(m=64, n=64, k=512))
    proposed, status = asked.proposed(64 * MIB)
    assert status == 0
    assert len(proposed) > 3
    for algorithm in proposed:
        assert asked.named(algorithm.config) == algorithm


def test_partial_sums_in_the_result_are_never_used(home):
    asked = chooser(home, problem(m=64, n=64, k=512, dtype="float16"))
    proposed, _ = asked.proposed(64 * MIB)
    assert SPLIT in ids(proposed)
    assert OUTPUT_SPLIT not in ids(proposed)
    assert asked.named(f"{OUTPUT_SPLIT}.20.2.4.0.0.35.0.3") is None


@pytest.mark.parametrize(("k", "parts", "dtype", "covered"), [
    # 21128 = 10 * 33 * 64 + 8: ten splits of 2112 elements, which are 33 steps, leave 8 over. Observed on an H200.
    (21128, 10, "bfloat16", False), (21128, 11, "float16", False), (21128, 9, "bfloat16", True),
    (21128, 4, "bfloat16", True), (21120, 10, "bfloat16", True), (21136, 10, "bfloat16", True),
    (1088 + 16, 17, "bfloat16", False), (1024 + 8, 8, "bfloat16", True), (968, 15, "bfloat16", False),
    (968, 1, "bfloat16", True), (968, 0, "bfloat16", True), (65, 2, "bfloat16", True), (129, 2, "bfloat16", False),
    # Steps of 128 bytes.
    (129, 2, "float32", False), (97, 3, "float32", False), (97, 3, "bfloat16", True),
])  # fmt: skip
def test_splits_that_do_not_cover_k(k, parts, dtype, covered):
    """Splits that leave out the K remainder are rejected; a form and its transpose have the same K."""
    numbers = parse(f"66.10.{parts}.2.0.0.35.0.2")
    for orders in ({}, {"a": "col", "b": "col"}, {"d": "col"}):
        form = lowered(problem(16, 16, k, dtype, **orders)).main
        assert choose._keeps_the_bound(numbers, form) is covered
        assert choose._keeps_the_bound((20, *numbers[1:]), form), "other algorithms were seen to be right"


def test_such_algorithms_are_not_candidates(home, monkeypatch):
    """The fake library proposes four splits of 128 for k = 513, which is not chosen."""
    monkeypatch.setattr(choose, "HOPPER", SPLIT)
    right, wrong = (problem(m=64, n=64, k=k, dtype="float16") for k in (512, 513))
    for asked, there in ((right, True), (wrong, False)):
        proposed, _ = chooser(home, asked).proposed(64 * MIB)
        assert (SPLIT in ids(proposed)) is there
        assert (chooser(home, asked).named(f"{SPLIT}.20.4.2.0.0.35.0.3") is not None) is there


def test_workspace_limit(home):
    asked = chooser(home, problem(m=64, n=64, k=512))
    size = 4 * 64 * 64 * 4
    assert ids(asked.proposed(size)[0])[0] == SPLIT
    assert ids(asked.proposed(size - 1)[0])[0] == ANY_SPLIT
    assert PERSISTENT not in ids(asked.proposed(3)[0])


@pytest.mark.parametrize("which", ["a", "b", "out", "ld", "batch"])
def test_alignment_excludes_algorithms(home, which):
    asked = problem(m=64, n=64, k=64)
    if which == "ld":
        asked = problem(m=64, n=63, k=64)
    elif which == "batch":
        layout = replace(problem(m=64, n=64, k=64, batch=(3,)).a.layout, batch_strides=(64 * 64 + 1,))
        asked = problem(m=64, n=64, k=64, batch=(3,))
        asked = replace(asked, a=replace(asked.a, layout=layout))
    else:
        asked = replace(asked, **{which: operand("float32", 64, 64, alignment=4)})
    assert set(ids(chooser(home, asked).proposed(64 * MIB)[0])) == {ANY, ANY_SPLIT}


def test_swizzled(home):
    asked = chooser(home, problem(m=64, n=64, k=64))
    by_id = dict(zip(ids(asked.proposed(64 * MIB)[0]), asked.proposed(64 * MIB)[0]))
    assert asked.swizzled(by_id[TENSOR]).config == "66.20.1.0.1.0.35.0.3"
    assert asked.swizzled(asked.swizzled(by_id[TENSOR])) == by_id[TENSOR]
    assert asked.swizzled(by_id[PERSISTENT]) is None


def test_names_of_what_does_not_run(home):
    asked = chooser(home, problem(m=63, n=63, k=63))
    for config in ("66.20.1.0.0.0.35.0.3", "5.20.1.0.1.0.35.0.3", "99.0.1.0.0.0.0.0.0"):
        assert asked.named(config) is None


def test_candidates_begin_with_the_librarys_choice(home):
    backend = home.backend()
    asked = problem(m=64, n=64, k=64)
    found = backend.offer(asked).names
    assert found[0] == "66.20.1.0.0.0.35.0.3"
    assert "66.20.1.0.1.0.35.0.3" in found
    assert len(set(found)) == len(found)


def test_the_library_is_asked_once(home):
    """An offer asks the library twice, with the usual workspace and with more; what follows does not ask it."""
    backend = home.backend()
    asked = problem(m=64, n=64, k=64)
    offer = backend.offer(asked)
    assert "algorithm" in offer.remark(offer.first.name)
    for name in offer.names:
        backend.prepare(replace(asked), name, 64 * MIB)
    assert home.lt.calls.count("cublasLtMatmulAlgoGetHeuristic") == 2


def test_proposals_with_the_usual_workspace_come_first(home, monkeypatch):
    """Proposals that need more workspace follow, each once."""
    told = {2**25: ["a", "b"], 2**26: ["c", "b", "d"]}
    made = {name: choose.Algorithm(f"66.{20 + i}.1.0.0.0.35.0.3", b"", 0) for i, name in enumerate("abcd")}
    monkeypatch.setattr(Chooser, "proposed", lambda self, limit: ([made[name] for name in told[limit]], 0))
    monkeypatch.setattr(Chooser, "swizzled", lambda self, algorithm: None)
    assert home.backend().offer(problem(m=64, n=64, k=64)).names == tuple(made[name].config for name in "abcd")


def test_candidates_are_different(home, monkeypatch):
    """Also where two proposals have one variant."""
    made = [choose.Algorithm(f"66.20.1.0.{swizzle}.0.35.0.3", b"", 0) for swizzle in range(3)]
    monkeypatch.setattr(Chooser, "proposed", lambda self, limit: (made[1:], 0))
    monkeypatch.setattr(Chooser, "swizzled", lambda self, algorithm: made[0])
    names = home.backend().offer(problem(m=64, n=64, k=64)).names
    assert names == tuple(made[i].config for i in (1, 2, 0))


def test_large_results_have_the_proposals_only(home):
    """Very large results have proposed algorithms only: the library's check of others crashes on them."""
    backend, asked = home.backend(), problem(2**17, 2**17, 64, "float16")
    candidates = backend.offer(asked).names
    assert candidates[0] == "66.20.1.0.0.0.35.0.3"
    assert "66.20.1.0.1.0.35.0.3" not in candidates
    for candidate in candidates:
        kernel = backend.prepare(asked, candidate, 64 * MIB)
        assert candidate in kernel.description
        assert kernel.with_rows(2**17 - 1) is None
    assert isinstance(backend.prepare(asked, "66.20.1.0.1.0.35.0.3", 64 * MIB), Refusal)
    assert "cublasLtMatmulAlgoCheck" not in home.lt.calls


@pytest.mark.parametrize("alignment", [2, 4, 8])
def test_products_of_slices(home, alignment):
    """No candidate needs more alignment than the operands have: each of them runs."""
    asked, backend = problem(64, 64, 64, "float16"), home.backend()
    for name in ("a", "b", "out"):
        asked = replace(asked, **{name: replace(getattr(asked, name), alignment=alignment)})
    arrays = Arrays(home, asked, offset=alignment)
    for candidate in backend.offer(asked).names:
        arrays.out[...] = 0
        assert np.array_equal(arrays.run(backend.prepare(asked, candidate, 2**26)), arrays.a @ arrays.b)
    assert home.cuda.complaints == []


def test_a_passing_failure_is_not_remembered(home):
    backend = home.backend()
    home.lt.faults["cublasLtMatmulAlgoGetHeuristic"] = 3
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        backend.offer(problem())
    home.lt.faults.clear()
    assert isinstance(backend.offer(problem()), Offer)


def test_a_smaller_limit_refuses_an_algorithm(home):
    """It is not replaced by another: gemmhub then takes the next candidate that runs."""
    backend = home.backend()
    asked = problem(m=64, n=64, k=512)
    first = backend.offer(asked).first.name
    needed = 4 * 64 * 64 * 4
    assert backend.prepare(asked, first, needed).workspace_bytes == needed
    refusal = backend.prepare(asked, first, needed - 1)
    assert refusal.reason == f"algorithm {first} needs {needed} bytes of workspace, {needed - 1} are allowed"
    assert refusal.remedy == "raise the setting workspace_mib"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (63, 64, 64), (64, 64, 512), (3, 5, 7), (4096, 4096, 512)], ids=str)
def test_a_candidate_without_workspace(home, sizes, dtype):
    """There is one in every offer, so that a call with workspace_mib=0 runs."""
    backend, asked = home.backend(), problem(*sizes, dtype)
    kernels = [backend.prepare(asked, name, 0) for name in backend.offer(asked).names]
    assert any(isinstance(kernel, Kernel) and kernel.workspace_bytes == 0 for kernel in kernels)


@pytest.mark.parametrize(("usual", "expected"), [("ab", "abc"), ("xa", "xa")])
def test_an_algorithm_without_workspace_is_asked_for(home, monkeypatch, usual, expected):
    """Where all proposals need workspace, the first proposal without is a candidate, too."""
    needs = {"a": 4, "b": 8, "c": 0, "d": 0, "x": 0}
    made = {x: choose.Algorithm(f"66.{20 + i}.1.0.0.0.35.0.3", b"", needs[x]) for i, x in enumerate(needs)}
    told = {2**25: usual, 2**26: usual, 0: "cd"}
    monkeypatch.setattr(Chooser, "proposed", lambda self, limit: ([made[name] for name in told[limit]], 0))
    monkeypatch.setattr(Chooser, "swizzled", lambda self, algorithm: None)
    for asked in (problem(64, 64, 64), problem(2**17, 2**17, 64)):
        backend = home.backend()
        assert backend.offer(asked).names == tuple(made[name].config for name in expected)
        monkeypatch.setattr(Chooser, "checked", lambda self, config, data: choose.Algorithm(config, b"", 0))
        assert isinstance(backend.prepare(asked, made[expected[-1]].config, 8), Kernel)


def test_a_recorded_configuration_that_was_not_proposed(home):
    """An algorithm that a tuning record names is rebuilt."""
    backend = home.backend()
    kernel = backend.prepare(problem(m=64, n=64, k=64), "66.9.1.0.1.0.35.0.3", 64 * MIB)
    assert "66.9.1.0.1.0.35.0.3" in kernel.description


@pytest.mark.parametrize("candidate", ["default", "99.20.1.0.0.0.35.0.3"])
def test_no_such_candidate(home, candidate):
    refusal = home.backend().prepare(problem(), candidate, 64 * MIB)
    assert "is no configuration" in refusal.reason or "does not run algorithm 99" in refusal.reason
    assert refusal.remedy == "leave the candidate's name out"


def test_asked_for_as_many_as_there_are():
    assert choose.WANTED >= 8
