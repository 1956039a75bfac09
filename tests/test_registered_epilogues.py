"""Epilogues that a program registers: products, refusals, names, and processes that share records."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from products import ratio

import gemmhub
from gemmhub.backend import BASIC, Offer, answer, takes_of
from gemmhub.epilogues import EPILOGUES, NUMPY
from gemmhub.errors import DTypeError, InputError, NoBackendError
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing import matrix
from gemmhub.testing.problems import problem


def softsign(x, functions):
    near = functions.clip(x, -1e30, 1e30)
    return near / (1 + abs(near))


def softsign_gradient(x, functions):
    return (1 / (1 + abs(functions.clip(x, -1e30, 1e30)))) ** 2


ARGUMENTS = {
    "gradient": softsign_gradient, "slope": 1, "evaluation": 4, "accurate": True,
    "expression": "x < -1e30f ? -1.0f : x > 1e30f ? 1.0f : x / (1.0f + fabsf(x))",
}  # fmt: skip


def register(name="own_softsign", formula=softsign, **changes):
    return gemmhub.register_epilogue(name, formula, **{**ARGUMENTS, **changes})


@pytest.fixture(autouse=True)
def _unregistered():
    """No test leaves an epilogue behind. Those of one name are equal in all tests of this file."""
    before = set(EPILOGUES)
    yield
    for name in set(EPILOGUES) - before:
        gemmhub.unregister_epilogue(name)


@pytest.mark.parametrize("gate", [None, "halves", "interleaved"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_products(gate, dtype, rng):
    name = register(f"own_softsign_{gate or 'plain'}", gate=gate)
    assert name == f"own_softsign_{gate or 'plain'}"
    for size in (4, 40, 130):
        a, b, c = (rng.standard_normal((size, size)).astype(dtype) for _ in range(3))
        for given in ({}, {"bias": c[0]}, {"alpha": 0.5, "beta": 2, "c": c}):
            for _ in range(2):
                got = gemmhub.matmul(a, b, activation=name, **given)
                assert ratio(got, a, b, activation=name, **given) <= 1
            assert gemmhub.spot_check(a, b, got, activation=name, **given)
            assert not gemmhub.spot_check(a, b, -got, activation=name, **given)
        assert ratio(gemmhub.plan(a, b, activation=name)(a, b), a, b, activation=name) <= 1
    assert gemmhub.compare(a, b, activation=name)
    assert f"epilogue={name}" in gemmhub.explain(a, b, activation=name).problem.key
    assert gemmhub.linear(a, b, activation=name).shape == (size, EPILOGUES[name].columns(size))
    assert any(case.activation == name for case in matrix())


def test_integers_and_complex_numbers_are_refused():
    register()
    for dtype in (np.int32, np.complex64):
        a = np.ones((2, 2), dtype)
        with pytest.raises(DTypeError, match="own_softsign"):
            gemmhub.matmul(a, a, activation="own_softsign")


def test_what_was_built_before_refuses_it(rng):
    asked = problem(16, 16, 16, activation=register())
    backend = NumpyBackend()
    backend.offer = lambda asked: Offer()
    backend.takes = BASIC
    refused = answer(backend, asked)
    assert (refused.reason, refused.remedy) == ("it has no activation own_softsign", "apply it to the product")
    assert takes_of(backend) is backend.takes
    backend.compiles_expressions = True
    assert answer(backend, asked) == Offer()
    assert takes_of(backend)["activation"] >= {"own_softsign", "tanh", "relu"}
    assert "swiglu" not in takes_of(backend)["activation"]
    gated = problem(16, 16, 16, activation=register("own_softsign_halves", gate="halves"))
    assert answer(backend, gated).reason == "it has no activation own_softsign_halves"
    alone = register("own_softsign_formula", expression=None)
    refused = answer(backend, problem(16, 16, 16, activation=alone))
    assert refused.reason == "it compiles the expressions of activations, and own_softsign_formula has none"
    assert refused.remedy == "register it with expression=, or apply it to the product"


def test_unregistering(rng):
    a = rng.standard_normal((5, 5))
    register()
    planned = gemmhub.plan(a, a, activation="own_softsign")
    used = gemmhub.plan(a, a, activation="own_softsign")
    used(a, a)
    pickled = pickle.dumps(used)
    for _ in range(3):
        gemmhub.matmul(a, a, activation="own_softsign")
    gemmhub.unregister_epilogue("own_softsign")
    for call in (lambda: gemmhub.matmul(a, a, activation="own_softsign"), lambda: planned(a, a)):
        with pytest.raises(InputError, match="activation: 'own_softsign'; allowed: relu, "):
            call()
    assert np.allclose(used(a, a), softsign(a @ a, NUMPY))
    with pytest.raises(InputError, match="activation: 'own_softsign'; allowed: relu, "):
        pickle.loads(pickled)(a, a)
    for name in ("own_softsign", "relu", "", None, []):
        with pytest.raises(InputError, match="allowed: none, as no epilogue is registered"):
            gemmhub.unregister_epilogue(name)
    register("own_softsign_plain", gate=None)
    with pytest.raises(InputError, match="name: 'relu'; allowed: own_softsign_plain"):
        gemmhub.unregister_epilogue("relu")
    register()  # the same again
    assert ratio(gemmhub.matmul(a, a, activation="own_softsign"), a, a, activation="own_softsign") <= 1


def test_a_name_keeps_its_meaning():
    register()
    with pytest.raises(
        InputError, match=r"which a registered epilogue has.*unregister_epilogue\('own_softsign'\) first"
    ):
        register()
    gemmhub.unregister_epilogue("own_softsign")
    others = [
        {"formula": lambda x, functions: softsign(x, functions)}, {"gradient": None}, {"slope": 2}, {"evaluation": 5},
        {"expression": None}, {"accurate": False, "evaluation": 4}, {"gate": "halves"},
    ]  # fmt: skip
    for other in others:
        with pytest.raises(InputError, match="stood for another function in this process"):
            register(**other)
        assert "own_softsign" not in EPILOGUES
    register()
    with pytest.raises(InputError, match=r"'relu', which a built-in epilogue has.*another name"):
        register("relu")
    assert EPILOGUES["relu"].formula(np.float32([-1]), NUMPY) == 0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("name", x) for x in (None, 3, "", "Mine", "my-own", "2x", "a b", "x" * 41, "x\n", "none")),
        *(("formula", x) for x in (None, "tanh", 3)), ("gradient", "tanh"), ("gradient", 1.0),
        *(("slope", x) for x in (0, -1, np.inf, np.nan, "1", None, True, [1])),
        *(("evaluation", x) for x in (-1, -0.5, np.inf, np.nan, "1", None)),
        *(("degree", x) for x in (0, 5, 1.5, True, "2", None)), *(("gate", x) for x in ("half", 2, True)),
        *(("expression", x) for x in (3, b"x", "tanhf(x)", "x +")), ("slope", 0.9), ("evaluation", 0.01),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used(argument, value):
    before = dict(EPILOGUES)
    with pytest.raises(InputError) as caught:
        register(**{"name": "not_used", argument: value})
    assert caught.value.argument == argument
    assert before == EPILOGUES


def test_one_of_many_threads_registers_a_name():
    outcomes, start = [], threading.Barrier(8)

    def attempt():
        start.wait()
        try:
            outcomes.append(register())
        except InputError as error:
            outcomes.append(error.argument)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["name"] * 7 + ["own_softsign"]


SCRIPT = """
import sys
import numpy as np
import gemmhub

factor = float(sys.argv[1])
name = gemmhub.register_epilogue(
    "mine", lambda x, functions: factor * functions.tanh(x), slope=factor, evaluation=8, accurate=True
)
a, b = np.random.default_rng().standard_normal((2, 70, 70), dtype=np.float32)
if factor == 1:
    gemmhub.tune(a, b, activation=name)
found = gemmhub.explain(a, b, activation=name)
assert found.chosen, found
assert np.allclose(gemmhub.matmul(a, b, activation=name), factor * np.tanh(a @ b), atol=1e-4)
print(open(sys.argv[2]).read())
"""


def test_a_record_of_another_function_of_the_name_is_harmless(tmp_path, monkeypatch):
    """Records hold the name of an epilogue: they choose among what computes the function of this process."""
    records = tmp_path / "records.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(records))
    for factor in ("1", "2"):
        command = [sys.executable, "-c", SCRIPT, factor, str(records)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "epilogue=mine" in ran.stdout


def test_a_backend_that_was_asked_for_refuses_it(monkeypatch):
    register()
    a = np.ones((2, 2), np.float32)
    monkeypatch.setattr(NumpyBackend, "takes", BASIC)
    gemmhub.reload()
    with pytest.raises(NoBackendError, match="it has no activation own_softsign"):
        gemmhub.matmul(a, a, activation="own_softsign", backend="numpy")
