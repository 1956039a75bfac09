"""compare(): one product on every backend, with each result checked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub._choice import registry, suggestions
from gemmhub.errors import DTypeError, InputError, ShapeError
from plugins import GOOD, Site, add


@pytest.fixture
def operands(rng):
    return rng.standard_normal((60, 50), np.float32), rng.standard_normal((50, 40), np.float32)


def off_by_one(a, b, out, candidate):
    out[..., 7, 11] += 1


def test_all_right(operands, tmp_path, monkeypatch):
    Site(tmp_path / "site", monkeypatch).install("gemmhub-example-good", GOOD)
    result = gemmhub.compare(*operands)
    assert result
    assert result.deviating == ()
    found = {row.backend: row for row in result.rows}
    assert {"numpy", "example"} <= found.keys()
    assert all(row.ok and row.ratio <= 1 and row.remark == "" for row in result.rows)
    assert found["numpy"].difference == 0.0
    assert 0 <= found["example"].difference < 1e-3
    assert str(result).splitlines()[-1] == "deviating  none"


@pytest.mark.parametrize("first", [True, False])
def test_one_wrong_element_is_found(operands, first):
    """Also where the wrong backend comes before every right one."""
    add(Scripted("wrong", run=off_by_one))
    add(Scripted("right"))
    names = ["wrong", "numpy", "right"] if first else ["numpy", "right", "wrong"]
    result = gemmhub.compare(*operands, backends=names)
    assert not result
    assert result.deviating == ("wrong",)
    assert [row.backend for row in result.rows] == names
    row = {row.backend: row for row in result.rows}["wrong"]
    assert row.ratio > 1
    assert "(7, 11)" in row.remark
    assert math.isnan(row.difference) if first else row.difference == pytest.approx(1, abs=1e-4)
    assert {row.backend: row.difference for row in result.rows}["right"] == 0.0
    text = str(result)
    assert text.splitlines()[-1] == "deviating  wrong"
    assert text.count("failed") == 1
    assert (row.status, row.wrong, result.wrong) == ("failed", True, True)


@pytest.mark.parametrize("m", [5, 300])
def test_large_and_batched_products(rng, m):
    add(Scripted("wrong", run=lambda a, b, out, candidate: out.__setitem__((1, -1, -1), 1e4)))
    a, b = rng.standard_normal((2, m, 200), np.float32), rng.standard_normal((200, 100), np.float32)
    assert gemmhub.compare(a, b).deviating == ("wrong",)


def test_a_backend_that_raises_deviates(operands):
    add(Scripted("raising", run=RuntimeError("illegal address")))
    add(Scripted("unprepared", prepare=OSError("no compiler\nline 2 of its output")))
    result = gemmhub.compare(*operands)
    assert set(result.deviating) == {"raising", "unprepared"}
    remarks = {row.backend: row.remark for row in result.rows}
    assert "RuntimeError: illegal address" in remarks["raising"]
    assert "OSError: no compiler" in remarks["unprepared"]
    assert {row.backend: row.status for row in result.rows} == {
        "numpy": "passed", "raising": "failed", "unprepared": "failed",
    }  # fmt: skip
    text = str(result)
    assert not result.wrong
    assert "nan" not in text
    assert text.count("failed ") == 2
    assert "line 2" in remarks["unprepared"]
    assert "line 2" not in str(result)


def test_an_epilogue_is_checked_too(rng):
    def prepare(problem, candidate, limit):
        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            out[...] = alpha * (a @ b) + beta * c  # forgets the bias

        return gemmhub.Kernel(run, "forgetful")

    add(Scripted("forgetful", refusal=None, prepare=prepare))
    a, b = rng.standard_normal((6, 5), np.float32), rng.standard_normal((5, 4), np.float32)
    c = rng.standard_normal((6, 4), np.float32)
    for bias in (np.ones(4, np.float32), np.ones((6, 1), np.float32)):
        result = gemmhub.compare(a, b, alpha=2, c=c, beta=3, bias=bias)
        assert result.deviating == ("forgetful",)
        assert {row.backend: row.remark for row in result.rows}["numpy"] == ""
    assert gemmhub.compare(a, b, alpha=2, c=c, beta=3)


@pytest.mark.parametrize(("activation", "remark"), [(None, "(150, 7)"), ("silu", "(150, ")])
def test_a_row_without_its_scale_is_found_in_a_large_product(activation, remark, rng):
    """Sums find one element of it; with an activation the columns that are recomputed find the row."""

    def prepare(problem, candidate, limit):
        def run(a, b, out, alpha, beta, stream, bias, scale_a):
            options = {"bias": bias, "activation": activation, "backend": "numpy"}
            out[...] = gemmhub.matmul(a, b, scale_a=scale_a, **options)
            wrong = np.s_[150, 7] if activation is None else np.s_[150]
            out[wrong] = gemmhub.matmul(a, b, **options)[wrong]

        return gemmhub.Kernel(run, "forgetful")

    forgetful = Scripted("forgetful", refusal=None, prepare=prepare)
    forgetful.takes = dict.fromkeys(("scale_a", "bias", "activation"))
    add(forgetful)
    a, b = rng.standard_normal((300, 100), np.float32), rng.standard_normal((100, 200), np.float32)
    options = {"bias": np.ones(200, np.float32), "scale_a": np.full(300, 3, np.float32), "activation": activation}
    result = gemmhub.compare(a, b, backends=["numpy", "forgetful"], **options)
    assert result.deviating == ("forgetful",)
    assert remark in result.rows[1].remark


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "int8", "int32"])
def test_every_dtype_can_be_compared(rng, dtype):
    a = rng.integers(-9, 9, (6, 5)).astype(dtype)
    b = rng.integers(-9, 9, (5, 4)).astype(dtype)
    add(Scripted("wrong", run=lambda a, b, out, candidate: out.fill(99)))
    result = gemmhub.compare(a, b)
    assert result.deviating == ("wrong",)
    assert result.rows[0].difference == 0


@pytest.mark.parametrize("alpha", [0, 1])
def test_logical_products_with_an_epilogue(alpha):
    a = b = np.eye(6, dtype=bool)
    c = ~a
    add(Scripted("product", refusal=None))  # it leaves the rest of the epilogue away
    for options in ({"c": c, "beta": 1}, {"bias": c[0]}, {"c": c, "beta": 1, "bias": c[:, :1]}, {"c": c, "beta": 0}):
        result = gemmhub.compare(a, b, alpha=alpha, **options)
        assert "numpy" not in result.deviating, options
        assert ("product" in result.deviating) == (alpha == 0 or options.get("beta", 1) == 1)
        assert gemmhub.tune(a, b, alpha=alpha, **options, backend="numpy").best.backend == "numpy"


def test_empty_products_and_vectors(rng):
    a, b = rng.standard_normal((3, 4), np.float32), rng.standard_normal((4, 2), np.float32)
    for given in ((a[:0], b), (a[:, :0], b[:0]), (a[0], b), (a[0], b[:, 0]), (a, b[:, 0])):
        assert gemmhub.compare(*given)


def test_a_packed_operand_goes_to_its_packer_only(operands):
    a, b = operands
    packed = gemmhub.pack(b, backend="numpy")
    add(Scripted("other"))
    result = gemmhub.compare(a, packed)
    assert [row.backend for row in result.rows] == ["numpy"]
    assert result


def test_a_named_backend_that_cannot_has_a_row_with_its_reason(operands):
    add(Scripted("picky", refusal=gemmhub.Refusal("k must be a multiple of 64", "pad k")))
    with pytest.raises(InputError, match="'picky' cannot: k must be a multiple of 64; pad k") as caught:
        gemmhub.compare(*operands, backends=["numpy", "picky"])
    assert caught.value.argument == "backends"
    assert caught.value.allowed == "numpy"
    with pytest.raises(InputError, match="'nobody' cannot: no backend is called 'nobody'"):
        gemmhub.compare(*operands, backends=["nobody"])


def add_elsewhere(answer):
    """A backend for another kind of device, whose probe answers so."""
    backend = Scripted("elsewhere")
    backend.probe = lambda: answer
    description = gemmhub.BackendDescription(
        "elsewhere", lambda: backend, "for tests", contract=2, device_types=("cuda",)
    )
    registry.registry().add(description, "elsewhere", "gemmhub-elsewhere")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            gemmhub.Absent("no NVIDIA driver was found", "install one"),
            "absent: no NVIDIA driver was found; install one",
        ),
        (gemmhub.Ready((gemmhub.Device("cuda", 0),)), "the operands are on cpu; it runs on cuda:0"),
    ],
)
def test_a_backend_for_another_device_gives_its_own_reason(answer, reason, operands, monkeypatch):
    """It is asked although it is for another kind of device."""
    add_elsewhere(answer)
    with pytest.raises(InputError, match=f"'elsewhere' cannot: {reason}"):
        gemmhub.compare(*operands, backends=["elsewhere"])
    assert [row.backend for row in gemmhub.compare(*operands).rows] == ["numpy"]
    monkeypatch.setenv("GEMMHUB_BACKEND", "elsewhere,numpy")
    gemmhub.reload()
    add_elsewhere(answer)
    results = [gemmhub.compare(*operands)]
    with gemmhub.use(backend="elsewhere"):
        results.append(gemmhub.compare(*operands))
    for result in results:
        assert result
        assert result.deviating == ()
        assert [(row.backend, row.status) for row in result.rows] == [("numpy", "passed"), ("elsewhere", "refused")]
        assert result.rows[1].remark == reason
        assert not result.rows[1].ok
        assert reason in str(result)


def test_a_plugin_that_is_not_installed_is_named_with_its_package(operands, monkeypatch):
    suggestion = suggestions.Suggestion("gemmhub-unheard", "cuda", "unheard-of kernels")
    monkeypatch.setattr(suggestions, "known", lambda: (suggestion,))
    reason = "'unheard' cannot: not installed: unheard-of kernels; pip install gemmhub-unheard"
    with pytest.raises(InputError, match=reason):
        gemmhub.compare(*operands, backends=["unheard"])


@pytest.mark.parametrize(("argument", "value", "remedy"), [
    ("backends", "numpy", "['numpy']"), ("backends", 5, ""), ("backends", [["numpy"]], ""), ("backends", [None], ""),
    ("seed", -1, ""), ("seed", "one", ""), ("out", np.zeros((60, 40), np.float32), "omit out="),
])  # fmt: skip
def test_bad_arguments(operands, argument, value, remedy):
    with pytest.raises(InputError) as caught:
        gemmhub.compare(*operands, **{argument: value})
    assert caught.value.argument == argument
    assert remedy in caught.value.remedy


def test_backends_may_be_named_by_any_sequence(operands):
    for names in (["numpy"], ("numpy",), {"numpy"}, iter(["numpy"]), np.array(["numpy"])):
        assert [row.backend for row in gemmhub.compare(*operands, backends=names).rows] == ["numpy"]


def test_bad_operands_raise_as_in_a_product(operands):
    a, b = operands
    with pytest.raises(ShapeError):
        gemmhub.compare(a, b.T)
    with pytest.raises(DTypeError):
        gemmhub.compare(a.astype(object), b)
    with pytest.raises(TypeError, match=r"argument 'bachends'; did you mean backends=\?; allowed: backends, seed, "):
        gemmhub.compare(a, b, bachends=["numpy"])
