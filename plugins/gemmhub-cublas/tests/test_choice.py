"""Which algorithm an untuned product gets."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from math import nextafter

import numpy as np
import pytest
from fakes import Arrays, Home, operand, problem
from gemmhub_cublas import choice, corrections, facts, model
from gemmhub_cublas.choice import CHAMPIONS, MARGIN, choose, extra, size_of
from gemmhub_cublas.facts import Size
from gemmhub_cublas.forms import lowered
from gemmhub_cublas.heuristics import parse, text

LINES = (files("gemmhub_cublas") / "data" / "hopper132.jsonl").read_text(encoding="utf-8").splitlines()
RECORDS = [json.loads(line) for line in LINES]
FIRST, SECOND, THIRD = "66.20.1.0.0.1.35.0.3", "66.18.1.0.0.3.35.0.9", "66.23.1.0.1.4.35.0.3"
STRANGE = "66.9999.1.0.0.1.35.0.3"
"""Of a tile that the model was not fitted to."""
CONFIGS = [FIRST, SECOND, THIRD]


@pytest.fixture
def home():
    return Home()


@pytest.fixture
def gpu(home):
    """The double has 132 multiprocessors and is a Hopper."""
    (gpu,) = home.backend().machine.gpus
    assert (gpu.capability, gpu.sms) == ((9, 0), 132)
    return gpu


def product_of(m=512, n=256, k=128, dtype="float16", **changes):
    return problem(m, n, k, dtype, **changes)


def form(*given, **changes):
    return lowered(product_of(*given, **changes)).main


def chosen(gpu, configs=CONFIGS, **changes):
    asked = product_of(**changes)
    return choose(gpu, asked, lowered(asked).main, configs)


class Predictor:
    """A model that foretells given microseconds, by configuration; of others it knows nothing."""

    def __init__(self, microseconds):
        self.told = dict(microseconds)
        self.asked = []

    def __call__(self, asked, gpu, size, configs):
        self.asked.append((asked, gpu, size, tuple(configs)))
        return {config: self.told[config] for config in configs if config in self.told}


@pytest.fixture
def predict(monkeypatch):
    """Replace the model, and the records by none (or those given)."""

    def install(microseconds=(), records=()):
        predictor = Predictor(microseconds)
        monkeypatch.setattr(model, "estimates", predictor)
        monkeypatch.setattr(choice, "_records", lambda: dict(records))
        return predictor

    return install


# The order of the rules


FAST = {FIRST: 9.0, SECOND: 9.0, THIRD: 5.0}


def test_a_record_goes_first(gpu, predict):
    predictor = predict(FAST, {size_of(form()): SECOND})
    assert chosen(gpu) == SECOND
    assert predictor.asked == []


def test_a_record_of_the_first_choice_keeps_it(gpu, predict):
    """Whatever the model says: this was measured."""
    predict(FAST, {size_of(form()): FIRST})
    assert chosen(gpu) == FIRST


def test_a_record_needs_no_model(gpu, predict):
    predict(records={size_of(form()): SECOND})
    assert chosen(gpu) == SECOND
    assert chosen(gpu, m=8) is None


def test_a_record_of_what_is_no_candidate(gpu, predict):
    """Another version of the library may not have it: then the model is asked."""
    predict(FAST, {size_of(form()): STRANGE})
    assert chosen(gpu) == THIRD


@pytest.mark.parametrize("changes", [
    {"m": 256}, {"n": 128}, {"k": 64}, {"a": "col"}, {"b": "col"}, {"batch": (2,)},
])  # fmt: skip
def test_a_record_is_for_that_product_only(gpu, predict, changes):
    predict(records={size_of(form()): SECOND})
    assert chosen(gpu, **changes) is None


def test_both_halves_share_records(gpu, predict):
    predict(records={size_of(form()): SECOND})
    assert chosen(gpu, dtype="bfloat16") == SECOND


def test_the_model_is_asked_about_the_product(gpu, predict):
    predictor = predict(FAST)
    assert chosen(gpu, a="col", batch=(5,)) == THIRD
    asked = product_of(a="col", batch=(5,))
    assert predictor.asked == [(asked, gpu, Size(256, 512, 128, False, True, 2, 5), tuple(CONFIGS))]


@pytest.mark.parametrize(("seconds", "expected"), [
    (5.0, SECOND), (10 * (1 - MARGIN) - 1e-6, SECOND), (nextafter(10 * (1 - MARGIN), 0), SECOND),
    (10 * (1 - MARGIN), None), (nextafter(10 * (1 - MARGIN), 99), None), (10.0, None), (12.0, None),
])  # fmt: skip
def test_the_margin(gpu, predict, seconds, expected):
    """Only what should be faster by more than the margin is worth leaving the library's choice."""
    predict({FIRST: 10.0, SECOND: seconds, THIRD: 20.0})
    assert chosen(gpu) == expected


def test_the_fastest(gpu, predict):
    predict({FIRST: 10.0, SECOND: 9.0, THIRD: 8.0})
    assert chosen(gpu) == THIRD
    predict({FIRST: 10.0, SECOND: 8.0, THIRD: 8.0})
    assert chosen(gpu) == SECOND, "the library's order decides between equals"


def test_what_the_model_does_not_know(gpu, predict):
    """It is left out; a first choice like that stays."""
    predict({FIRST: 10.0, SECOND: 12.0, THIRD: 5.0})
    assert chosen(gpu, [FIRST, STRANGE, SECOND, STRANGE, THIRD]) == THIRD
    assert chosen(gpu, [FIRST, STRANGE]) is None
    assert chosen(gpu, [STRANGE, SECOND, THIRD]) is None


def test_a_single_candidate(gpu, predict):
    predictor = predict({FIRST: 1.0}, {size_of(form()): FIRST})
    assert chosen(gpu, [FIRST]) is None
    assert predictor.asked == []


# Where the rules hold


@pytest.mark.parametrize(("capability", "sms", "expected", "candidates"), [
    ((9, 0), 132, SECOND, CHAMPIONS), ((9, 0), 114, None, CHAMPIONS), ((9, 0), 144, None, CHAMPIONS),
    ((8, 0), 108, None, ()), ((8, 9), 132, None, ()), ((10, 0), 148, None, ()), ((12, 0), 132, None, ()),
    ((9, 1), 132, None, ()),
])  # fmt: skip
def test_cards(gpu, predict, capability, sms, expected, candidates):
    predict(FAST, {size_of(form()): SECOND})
    gpu.capability, gpu.sms = capability, sms
    assert chosen(gpu) == expected
    assert extra(gpu, form()) == candidates


@pytest.mark.parametrize(("dtype", "out", "yes"), [
    ("float16", None, True), ("bfloat16", None, True), ("float16", "float32", False), ("bfloat16", "float32", False),
    ("float32", None, False), ("float64", None, False), ("complex64", None, False), ("int8", "int32", False),
    ("float8_e4m3fn", "float16", False), ("float8_e4m3fn", "bfloat16", False),
])  # fmt: skip
def test_dtypes(gpu, predict, dtype, out, yes):
    given = {"dtype": dtype, "out": out, "b": "col"}
    asked = form(**given)
    predict(FAST, {size_of(asked): SECOND})
    assert chosen(gpu, **given) == (SECOND if yes else None)
    assert extra(gpu, asked) == (CHAMPIONS if yes else ())


def unaligned(asked, alignment, *names):
    return replace(asked, **{name: replace(getattr(asked, name), alignment=alignment) for name in names})


@pytest.mark.parametrize("name", ["a", "b", "out", "c"])
@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_alignment(gpu, predict, name, alignment):
    """Records are of operands aligned to 16 bytes, and so are the champions; the library does not check addresses."""
    given = unaligned(problem(512, 256, 128, "float16", c=operand("float16", 512, 256)), alignment, name)
    asked = lowered(given).main
    predict(FAST, {size_of(asked): SECOND})
    assert choose(gpu, given, asked, CONFIGS) == (SECOND if alignment == 16 else None)
    assert extra(gpu, asked) == (CHAMPIONS if alignment == 16 else ())


@pytest.mark.parametrize(("changes", "size"), [
    ({}, Size(4, 3, 5, False, False)),
    ({"d": "col"}, Size(3, 4, 5, True, True)),
    ({"a": "col", "b": "col", "d": "col"}, Size(3, 4, 5, False, False)),
    ({"a": "col"}, Size(4, 3, 5, False, True)),
    ({"b": "col"}, Size(4, 3, 5, True, False)),
    ({"a": "col", "b": "col"}, Size(4, 3, 5, True, True)),
    ({"batch": (7,)}, Size(4, 3, 5, False, False, 2, 7)),
    ({"batch": (2, 3), "b": "col"}, Size(4, 3, 5, True, False, 2, 6)),
])  # fmt: skip
def test_sizes(changes, size):
    """As the library sees the product: column-major, a and b exchanged where the result is not."""
    assert size_of(form(3, 4, 5, **changes)) == size


# What is shipped


@pytest.fixture
def nothing_shipped(monkeypatch):
    for module, function in ((choice, choice._records), (facts, facts.tables)):
        monkeypatch.setattr(module, function.__name__, function.__wrapped__)
    monkeypatch.setattr(choice, "_RECORDS", "nowhere")
    monkeypatch.setattr(facts, "DATA", "nowhere")


def test_no_data(gpu, home, nothing_shipped):
    """The library's choice stays, and is a candidate's place ahead of the champions."""
    assert choice._records() == {}
    assert chosen(gpu) is None
    assert home.backend().candidates(problem(512, 256, 128, "float16"))[0] == "66.20.1.0.0.0.35.0.3"


def test_the_shipped_data_are_found():
    assert len(choice._records()) > 2000
    assert corrections.net() is not None


def test_every_shipped_record():
    tables = facts.tables()
    assert len(RECORDS) == len(LINES)
    for line, x in zip(LINES, RECORDS):
        assert x.keys() == {"m", "n", "k", "trans_a", "trans_b", "config", "first", "gain"}, line
        assert all(type(x[name]) is int and x[name] > 0 for name in "mnk"), line
        assert type(x["trans_a"]) is type(x["trans_b"]) is bool, line
        assert 1 <= x["gain"] < 10, line
        for config in (x["config"], x["first"]):
            numbers = parse(config)
            assert text(numbers) == config, line
            assert numbers[3] in (0, 2), f"partial sums in the result's type: {line}"
            assert tables.knows(config), line
        assert x["config"] != x["first"] or x["gain"] == 1, line


def product(x):
    return x["m"], x["n"], x["k"], x["trans_a"], x["trans_b"]


def test_no_product_is_shipped_twice():
    twice = [key for key, count in Counter(map(product, RECORDS)).items() if count > 1]
    assert twice == []


def test_shipped_records_are_chosen(gpu):
    """For the very product, where the library has the algorithm."""
    changed = 0
    for x in {product(x): x for x in RECORDS}.values():
        m, n, k, trans_a, trans_b = product(x)
        asked = problem(m, n, k, "bfloat16", a="row" if trans_a else "col", b="row" if trans_b else "col", d="col")
        form_of = lowered(asked).main
        if size_of(form_of) != Size(m, n, k, trans_a, trans_b):
            assert 1 in (m, n, k), "of vectors, another reading may be the better one"
            continue
        changed += x["config"] != x["first"]
        configs = dict.fromkeys([x["first"], *CHAMPIONS, x["config"]])
        assert choose(gpu, asked, form_of, list(configs)) == x["config"]
    assert changed > 1000


def test_the_shipped_model_near_its_margin(gpu, monkeypatch):
    """Products that were not measured: what is chosen is what the model says, never a predicted loss."""
    monkeypatch.setattr(choice, "_records", dict)
    changed = 0
    configs = [FIRST, *(x for x in CHAMPIONS if x != FIRST)]
    for m, n, k in np.random.default_rng(1).integers(1, 600, (20, 3)).tolist():
        asked = product_of(8 * m, 8 * n, 16 * k)
        found = lowered(asked).main
        told = model.estimates(asked, gpu, size_of(found), configs)
        assert set(told) == set(configs)
        best = min(told, key=told.get)
        taken = choose(gpu, asked, found, configs)
        assert taken == (best if told[best] < (1 - MARGIN) * told[FIRST] else None)
        changed += taken is not None
    assert changed > 0


# Champions


def test_champions():
    assert len(set(CHAMPIONS)) == len(CHAMPIONS)
    tables = facts.tables()
    for config in CHAMPIONS:
        assert text(parse(config)) == config
        assert parse(config)[0] == 66
        assert parse(config)[3] in (0, 2)
        assert tables.knows(config)


RUNNABLE = [x for x in CHAMPIONS if parse(x)[2] == 1]
"""Those that the double takes for algorithm 66: without a split of k."""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_champions_are_candidates(home, dtype):
    """After the library's proposals, those that run; each once; and they compute."""
    asked, backend = problem(64, 64, 64, dtype), home.backend()
    candidates = list(backend.candidates(asked))
    assert len(RUNNABLE) > 10
    assert set(candidates) >= set(RUNNABLE)
    assert not set(candidates) & (set(CHAMPIONS) - set(RUNNABLE))
    assert len(set(candidates)) == len(candidates)
    assert "66.20.1.0.1.0.35.0.3" in candidates, "the library's, with thread blocks swizzled"
    arrays = Arrays(home, asked)
    kernel = backend.prepare(asked, RUNNABLE[-1], 2**26)
    assert RUNNABLE[-1] in kernel.description
    expected = arrays.a.astype(np.float32) @ arrays.b.astype(np.float32)
    assert np.array_equal(arrays.run(kernel).astype(np.float32), expected.astype(arrays.out.dtype).astype(np.float32))
    assert home.cuda.complaints == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_champions_are_no_candidates(home, dtype):
    asked = problem(64, 64, 64, dtype, out="int32" if dtype == "int8" else None, b="col")
    assert not set(home.backend().candidates(asked)) & set(CHAMPIONS)


def test_what_is_chosen_comes_first(home, predict):
    """The other candidates keep their order; and the choice is what an untuned product runs."""
    asked = problem(64, 64, 64, "float16")
    predict()
    before = list(home.backend().candidates(asked))
    assert before[0] == "66.20.1.0.0.0.35.0.3"
    chosen = RUNNABLE[3]
    predict(records={size_of(lowered(asked).main): chosen})
    after = list(home.backend().candidates(asked))
    assert after == [chosen, *(x for x in before if x != chosen)]


def test_large_results_have_the_proposals_only(home, predict):
    """The library's check of other algorithms was seen to crash on them."""
    predict()
    candidates = home.backend().candidates(problem(2**17, 2**17, 64, "float16"))
    assert not set(candidates) & set(CHAMPIONS)
    assert "66.20.1.0.1.0.35.0.3" not in candidates
    assert "cublasLtMatmulAlgoCheck" not in home.lt.calls


@pytest.mark.parametrize("alignment", [2, 4, 8])
def test_products_of_slices(home, predict, alignment):
    """No candidate asks for more alignment than the operands have: each of them runs."""
    aligned = problem(64, 64, 64, "float16")
    predict(records={size_of(lowered(aligned).main): RUNNABLE[0]})
    asked, backend = unaligned(aligned, alignment, "a", "b", "out"), home.backend()
    arrays = Arrays(home, asked, offset=alignment)
    for candidate in backend.candidates(asked):
        arrays.out[...] = 0
        assert np.array_equal(arrays.run(backend.prepare(asked, candidate, 2**26)), arrays.a @ arrays.b)
    assert home.cuda.complaints == []
