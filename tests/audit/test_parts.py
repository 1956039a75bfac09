"""The parts of an audit: claims, adapters, reduction, scripts, backends, and the product beyond 2**31 elements."""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import planted
import pytest

from gemmhub import Backend, Candidate, Kernel, Offer, Ready, Refusal
from gemmhub._audit import backends, judge, large, libraries, locate, script, shrink
from gemmhub._audit import check as check_module
from gemmhub._audit import trials as trials_module
from gemmhub._audit.backends import claims_of, implementation
from gemmhub._audit.check import check
from gemmhub._audit.implementation import Refused
from gemmhub._audit.judge import Wrong
from gemmhub._audit.trials import EFFORTS, Trial, trials
from gemmhub.backend import BASIC
from gemmhub.capability import CPU, Device
from gemmhub.errors import DependencyError, InputError
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing import Case, Claims, Implementation, audit, products
from gemmhub.testing.memory import HOST


def test_products_by_short_names():
    assert products("f16 int8->int32") == {("float16",) * 3, ("int8", "int8", "int32")}
    with pytest.raises(InputError, match="products: 'f17'"):
        products("f17")


def test_claims_are_checked():
    with pytest.raises(InputError, match="features: 'ot'"):
        Claims(planted.F32, features=frozenset({"ot"}))
    with pytest.raises(InputError, match="bits: 'row'"):
        Claims(planted.F32, bits=frozenset({"row"}))
    with pytest.raises(InputError, match="effort: 'long'"):
        audit(planted.planted("drops_nan"), effort="long")
    with pytest.raises(InputError, match="implementations: none"):
        audit()
    with pytest.raises(InputError, match="function"):
        Implementation.of(3, Claims(planted.F32))
    with pytest.raises(InputError, match=r"claims: 'f32'; allowed: Claims\. state the products"):
        Implementation.of(np.matmul, "f32")
    with pytest.raises(InputError, match="limit: 0; allowed: None, or a positive int"):
        Implementation.of(np.matmul, Claims(planted.F32), limit=0)
    with pytest.raises(InputError, match="implementations: matmul; allowed: instances of Implementation"):
        audit(np.matmul)


@pytest.mark.parametrize(("values", "text"), [
    ({"products": "f32"}, "products: 'f32'; allowed: a set"), ({"products": {"float32"}}, "products: "),
    ({"products": {("float32", "float32", "f32")}}, "products: "),
    ({"layouts": "row"}, r"layouts: 'row'; allowed: a set of names\. write frozenset\(\{'row'\}\)"),
    ({"layouts": frozenset({"rows"})}, "layouts: 'rows'; allowed: row, col"),
    ({"bits": "run"}, "bits: 'run'; allowed: a set of names"), ({"features": None}, "features: None; allowed: a set"),
    ({"precision": "fp16"}, "precision: 'fp16'; allowed: ieee, .*, None"),
    ({"takes": "c"}, "takes: 'c'; allowed: a mapping"),
    ({"takes": {"nosuch": frozenset()}}, "takes: 'nosuch'; allowed: c, bias"),
    ({"takes": {"bias": frozenset({"q"})}}, r"takes\['bias'\]: 'q'; allowed: (n, m|m, n)"),
    ({"takes": {"activation": {"tan"}}}, r"takes\['activation'\]: 'tan'; allowed: relu"),
    ({"takes": {"c": "matrix"}}, r"takes\['c'\]: 'matrix'; allowed: a set of names"),
])  # fmt: skip
def test_claims_name_what_is_allowed(values, text):
    with pytest.raises(InputError, match=text):
        Claims(**{"products": planted.F32, **values})


def test_a_function_is_passed_two_addends_alone():
    """A claim of another operand would pass untested."""
    with pytest.raises(InputError, match=r"claims\.takes: 'scale_a'; allowed: of a function c and bias"):
        Implementation.of(np.matmul, Claims(planted.F32, takes={"scale_a": frozenset({"row"})}))
    assert Claims(planted.F32, takes={"scale_a": frozenset({"row"})})


@pytest.mark.parametrize("values", [{"products": frozenset()}, {"layouts": frozenset()}])
def test_an_audit_without_a_trial_is_no_success(values):
    result = audit(Implementation.of(np.matmul, Claims(**{"products": planted.F32, **values})))
    assert not result
    assert "matmul: no trial is among its claims" in str(result)
    assert result.implementations[0].verdict == "refused"


@pytest.mark.parametrize(("case", "feature"), [
    (Case(2, 3, 4, batch=(2,)), "batch"), (Case(2, 3, 4, alpha=2), "alpha"),
    (Case(2, 3, 4, c="out", beta=1), "c in place"),
])  # fmt: skip
def test_a_case_is_covered_by_what_it_needs(case, feature):
    takes = {"c": frozenset({"matrix"})}
    assert not Claims(planted.F32, takes=takes).covers(case)
    assert Claims(planted.F32, takes=takes, features=frozenset({feature})).covers(case)
    assert not Claims(products("f64"), takes=takes, features=frozenset({feature})).covers(case)


def test_a_case_whose_operands_do_not_span_its_batch_is_no_call():
    claims = Claims(planted.F32, features=planted.ALL)
    for a, b, spans in (("one", "missing", False), ("outer", "missing", False), ("stride0", "missing", True),
                        ("one", "full", True), ("missing", "missing", False), ("outer", "one", False)):  # fmt: skip
        assert claims.covers(Case(2, 3, 4, batch=(2, 3), a_batch=a, b_batch=b)) is spans


def test_trials_are_claimed_and_different():
    claims = Claims(products("f32 int8->int32"), frozenset({"row", "col"}))
    counts = {}
    for effort in EFFORTS:
        drawn = list(trials(claims, effort, 0)) if effort != "full" else []
        assert all(claims.covers(trial.case) for trial in drawn)
        assert len({f"{trial.kind} {trial.case}" for trial in drawn}) == len(drawn)
        counts[effort] = len(drawn)
    assert 100 < counts["quick"] < counts["normal"]
    assert list(trials(claims, "quick", 0)) == list(trials(claims, "quick", 0))


def test_a_refusal_is_no_fault():
    def refuses(a, b):
        raise NotImplementedError("no code for\nthis")

    result = audit(Implementation.of(refuses, Claims(planted.F32)))
    assert not result.faults
    assert not result.ok  # nothing was tested
    assert re.search(r"refused +refuses: NotImplementedError: no code for \(\d+ trials\)", str(result))
    (audited,) = result.implementations
    assert audited.trials == 0
    assert list(audited.refused) == ["NotImplementedError: no code for"]


def test_a_case_is_reduced_as_far_as_it_fails():
    case = Case(40, 30, 70, batch=(2, 3), alpha=0.7, c="row", beta=-1.3, bias="n", a="col_odd", offset=3)
    smallest = shrink.shrunk(case, lambda x: x.k >= 33 and x.c is not None)
    assert smallest == Case(1, 1, 33, c="row", beta=1)
    assert shrink.shrunk(case, lambda x: x == case) == case
    assert shrink.shrunk(case, lambda x: True, seconds=0.0) == case


def test_wrong_blocks_of_k_are_located():
    made = planted.planted("drops_k_remainder")
    found = locate.blocks(made, Case(8, 8, 40, seed=4))
    assert [x.wrong for x in found] == [x.low >= 32 or x.high > 32 for x in found]


@pytest.mark.parametrize("case", [
    Case(3, 4, 5, seed=1), Case(3, 4, 5, a="col_padded", b="row_odd", offset=3, seed=2),
    Case(2, 3, 4, batch=(2,), seed=3),
    Case(3, 4, 5, alpha=0.7, c="row", beta=-1.3, bias="m", seed=4), Case(3, 4, 5, bias="n", activation="relu", seed=5),
    Case(3, 4, 5, data="wide", seed=6), Case(3, 4, 5, "int8", "int8", "int32", seed=7),
    Case(3, 4, 5, "int8", "int8", "float32", alpha=0.7, bias="n", seed=13),
    Case(3, 4, 5, "int8", "int8", "int32", data="extremes", seed=8), Case(3, 4, 5, "bfloat16", "bfloat16", seed=9),
    Case(3, 4, 5, b="reversed", out="col_padded", seed=11), Case(2, 2, 3, "bool", "bool", "bool", seed=12),
], ids=str)  # fmt: skip
def test_the_script_of_a_correct_product_passes(case):
    """It has the same operands as the case, and a bound that correct code keeps; wrong code fails it."""

    def call(case):
        product = f"{case.alpha} * (a.astype(WIDE) @ b.astype(WIDE))"
        product += f" + {case.beta} * c" if case.c else ""
        product += " + bias" if case.bias else ""
        product = f"np.maximum({product}, 0)" if case.activation else product
        return f"np.copyto(out, ({product}).astype(out.dtype))" if made.writes(case) else f"({product}).astype(WANTED)"

    features = frozenset({"out"}) if case.out != "row" else frozenset()
    wide = "int64" if case.out_dtype == "int32" else "float64"
    setup = f"import ml_dtypes, numpy as np\nWANTED, WIDE = np.dtype('{case.out_dtype}'), np.{wide}"
    made = Implementation("right", Claims(products("f32"), features=features), call, setup)
    trial = Trial("product", case)
    assert check(made, trial) <= 1.0
    text = script.script(made, trial, "nothing")
    assert text is not None
    exec(compile(text, "script", "exec"), {})
    exec(compile(script.script(made, trial, "nothing", guarded=True), "script", "exec"), {})
    if case.a_dtype != "bool":
        with pytest.raises(AssertionError):
            exec(compile(text.replace("assert np", "got = got + 1\nassert np"), "script", "exec"), {})


def test_what_has_no_short_script():
    made = planted.planted("drops_k_remainder")
    assert script.script(made, Trial("threads", Case(2, 2, 2)), "x") is None
    assert script.script(made, Trial("product", Case(2, 2, 2, activation="gelu")), "x") is None
    assert script.script(made, Trial("product", Case(20, 20, 20, data="wide")), "x") is None


def test_a_script_that_does_not_fail_does_not_repeat():
    assert script.outcome("assert False, 'a\\nb'") == script.FAILS
    assert script.outcome("pass") == "run alone: passes"
    assert script.outcome("raise ValueError('no AssertionError')") == (
        "does not run alone: ValueError: no AssertionError"
    )
    assert script.outcome("import os; os._exit(3)") == "does not run alone: exit code 3"


def test_a_script_that_crashes_is_no_script_that_passes():
    crashes = Implementation("crashes", Claims(planted.F32), lambda case: "H(a, b)", namespace={"H": np.add, "np": np})
    fault = audit(replace(crashes, namespace={"H": lambda a, b: a @ b * 2, "np": np}), seconds=1.0).faults[0]
    assert not fault.repeated
    assert fault.alone == "does not run alone: NameError: name 'H' is not defined"
    assert f"# {fault.alone}" in str(audit(replace(crashes, limit=20), seconds=1.0))


@pytest.mark.parametrize("dtypes", ["bf16", "e4m3->bf16", "f32->bf16", "e5m2->f32"])
def test_scripts_import_the_dtypes_that_they_name(dtypes):
    """Also where the function imports them for itself alone."""
    claims = Claims(products(dtypes))
    made = Implementation.of(planted.doubles_by_imports_of_its_own, claims, limit=12)
    fault = audit(made, seconds=1.0).faults[0]
    assert fault.repeated, (fault.alone, fault.script)
    if dtypes == "f32->bf16":  # the result alone has the dtype
        fault = audit(replace(Implementation.of(planted.correct, claims), limit=12), seconds=1.0).faults[0]
        assert (fault.kind, fault.repeated) == ("shape", True), (fault.alone, fault.script)


def test_a_result_that_is_no_matrix_is_a_fault_of_shape():
    for returned, text in ((None, "None"), (3, "3"), ([1, 2], "list")):
        made = Implementation.of(lambda a, b, returned=returned: returned, Claims(planted.F32))
        result = audit(made, scripts=False, seconds=1.0)
        assert [(x.trial, x.kind) for x in result.faults] == [("product", "shape")]
        assert f"the call returned {text}; allowed: a matrix" in result.faults[0].text


class Planted(Backend):
    """A backend with one right candidate and one that drops the last element of k."""

    name = "planted"
    takes = BASIC
    layout_sensitive = True

    def probe(self):
        return Ready((CPU,), {"planted": "1"})

    def offer(self, problem):
        if problem.a.dtype != np.float32 or problem.a.dtype != problem.out.dtype or not problem.plain:
            return Refusal("it has float32 alone", "convert")
        return Offer((Candidate("right"), Candidate("wrong")))

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream):
            stop = None if candidate == "right" or a.shape[-1] < 2 else -1
            out[...] = alpha * np.matmul(a[..., :stop], b[..., :stop, :]) if alpha else 0

        return Kernel(run, candidate)


def test_every_candidate_of_a_backend_is_run():
    made = implementation("gemmhub/planted", Planted(), Planted().probe())
    result = audit(replace(made, claims=replace(made.claims, products=products("f32 f64"))), seconds=1.0)
    assert not result.ok
    fault = result.faults[0]
    assert fault.text.startswith("wrong: ")
    assert fault.script is None
    assert result.implementations[0].refused["it has float32 alone"] > 0
    assert result.implementations[0].versions == {"planted": "1"}


def test_a_broken_contract_is_a_fault():
    class Raising(Planted):
        def prepare(self, problem, candidate, workspace_limit):
            raise ValueError("no")

    with pytest.raises(Wrong) as caught:
        check(implementation("x", Raising(), Planted().probe()), Trial("product", Case(2, 3, 4)))
    assert caught.value.kind == "contract"
    with pytest.raises(Refused):
        check(implementation("x", Planted(), Planted().probe()), Trial("product", Case(2, 3, 4, "float64", "float64")))


def test_backends_claim_what_they_take():
    assert claims_of(NumpyBackend()).bits == {"run", "rows", "threads"}
    assert claims_of(Planted()).bits == {"run"}
    assert "alias" in claims_of(None).features


def test_a_product_beyond_the_range_of_indices(monkeypatch):
    """With fewer elements: rows that are off are found, and what was not tried is counted."""
    monkeypatch.setattr(large, "_ELEMENTS", 2**20)
    refused: Counter[str] = Counter()
    right = Implementation.of(planted.correct, Claims(products("int8 f32")))
    assert large.faults(right, refused) == ()
    assert not refused

    def wraps(a, b):
        result = a @ b
        result[2**15 :] = result[: len(result) - 2**15]
        return result

    (fault,) = large.faults(Implementation.of(wraps, Claims(products("int8 f32"))), refused)
    assert "the first 32768" in fault.text
    monkeypatch.setattr(large, "_free", lambda: 0.0)
    assert large.faults(right, refused) == ()
    assert list(refused) == ["more than 2**31 elements: 0 GiB of memory are free"]


def test_gemmhub_and_numpy_have_no_fault_in_a_sample():
    """A hundred trials of each; benchmarks/results/cpu has the long runs."""
    for name in ("numpy", "gemmhub"):
        row = libraries.LIBRARIES[name]
        result = audit(replace(row.make(name, "cpu:0"), limit=150))
        assert result.ok, str(result)
        assert result.implementations[0].trials > 100


def test_versions_of_torch_without_the_driver_of_cuda(monkeypatch):
    """Windows and ROCm have no library of that name."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(libraries.ctypes, "CDLL", absent)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="a card"))
    monkeypatch.setattr(torch.version, "cuda", None)
    versions = libraries.LIBRARIES["torch-cuda"].make("torch-cuda", "cuda:0").versions()
    assert (versions["cuda"], versions["driver"], versions["card"]) == ("unknown", "unknown", "a card")


def test_every_kind_is_explained():
    assert trials_module.KINDS.keys() - {"large"} == check_module._CHECKS.keys()
    assert {kind for _, _, kind in planted.PLANTED.values()} | {"shape", "contract"} == judge.KINDS.keys()
    assert {trial for _, trial, _ in planted.PLANTED.values()} <= trials_module.KINDS.keys()


def test_memory_of_a_device_comes_from_a_plugin(monkeypatch):
    point = importlib.metadata.EntryPoint("fake", "collections:Counter", backends.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == backends.GROUP else [])
    with pytest.raises(DependencyError, match="no installed distribution has memory of musa"):
        backends._memory(Device("musa"))
    with pytest.raises(TypeError, match="int"):  # the class is called with the device's index
        backends._memory(Device("fake", 3))
    assert backends._memory(CPU) is HOST


def test_an_empty_product_of_a_backend_needs_no_kernel():
    made = implementation("x", Planted(), Planted().probe())
    assert check(made, Trial("product", Case(0, 3, 4))) == 0.0


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_scripts_of_libraries_are_short_and_pass(name):
    """Scripts of random trials pass for a correct library, and have ten lines at most where operands are dense."""
    if name == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    made = libraries.LIBRARIES[name].make(name, "cpu")
    every = list(trials(made.claims, "quick", 0))
    if name == "torch":  # it has a fault for bfloat16, and refuses some stacks with an addend
        every = [x for x in every if x.case.a_dtype != "bfloat16" and not (x.case.batch and x.case.parts)]
    chosen = np.random.default_rng().permutation(len(every))[:12]
    for trial in (every[i] for i in chosen):
        text = script.script(made, trial, "nothing")
        if text is not None:
            exec(compile(text, "script", "exec"), {})
            lines = [x for x in text.splitlines() if not x.startswith("#")]
            assert len(lines) <= (14 if "def place" in text else 10), text
