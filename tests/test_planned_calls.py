"""Calls of a plan: operands and terms as planned, and errors for others."""

from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np
import pytest
from products import E4M3, F16, F32, F64, I8, draw, ratio

import gemmhub
from gemmhub import Backend, BackendDescription, Device, Kernel, Ready
from gemmhub._choice import registry
from gemmhub.errors import InputError, OutputError

DTYPES = (F32, F64, F16)


FORMS = {"ndarray": np.asarray, "memmap": lambda x: x.view(np.memmap), "list": lambda x: x.tolist()}
"""The last two are not exactly ndarrays: the plan looks at such operands in every call."""


# Shapes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("a", "b", "other"), [
    ((2, 2), (2, 2), (2,)), ((3,), (3, 2), (3,)), ((3,), (3,), (1, 3)), ((3,), (3,), (3, 1)),
    ((2, 3), (3, 2), (1, 3, 2)), ((2, 3), (3, 2), (3, 3)), ((2, 2, 3), (3, 2), (3,)), ((2, 2), (2,), (2, 2)),
], ids=str)  # fmt: skip
def test_another_b_into_out_is_refused(a, b, other, dtype, rng):
    """NumPy would multiply some of these, and broadcast the product into out."""
    a, b, other = (draw(rng, shape, dtype) for shape in (a, b, other))
    for given in ({"out": np.empty(np.matmul(a, b).shape, dtype)}, {}):
        planned = gemmhub.plan(a, b, **given)
        out = np.full(np.matmul(a, b).shape, 7, dtype)
        with pytest.raises(InputError):
            planned(a, other, out)
        assert np.all(out == 7)
        assert planned(a, b, out) is out
        assert ratio(out, a, b) <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", [((1, 3, 4), (4,)), ((4,), (1, 4, 3)), ((1, 2, 4), (4, 3))], ids=str)
def test_a_larger_out_is_refused(shapes, dtype, rng):
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    planned = gemmhub.plan(a, b)
    out = np.full((5, *np.matmul(a, b).shape[1:]), 7, dtype)
    with pytest.raises(OutputError):
        planned(a, b, out)
    assert np.all(out == 7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("first", "second"), [
    (((4,), (4, 5)), ((1, 4), (4, 5))), (((5, 4), (4,)), ((5, 4), (4, 1))), (((4,), (4,)), ((1, 4), (4, 1))),
    (((1, 4), (4, 5)), ((1, 1, 4), (4, 5))), (((1, 1, 4), (4, 5)), ((4,), (1, 4, 5))),
], ids=str)  # fmt: skip
def test_a_vector_is_not_a_matrix_of_one_row(first, second, form, dtype, rng):
    for planned_for, called_with in ((first, second), (second, first)):
        planned = gemmhub.plan(*(FORMS[form](draw(rng, shape, dtype)) for shape in planned_for))
        with pytest.raises(InputError) as raised:
            planned(*(FORMS[form](draw(rng, shape, dtype)) for shape in called_with))
        assert raised.value.argument in ("a, b", "batch")
        assert raised.value.given != raised.value.allowed.removeprefix("what was planned: ")


# alpha and beta


@pytest.mark.parametrize(("form", "dtype"), [
    *(("ndarray", dtype) for dtype in (*DTYPES, I8)), ("memmap", F32), ("memmap", F64), ("list", F64),
], ids=str)  # fmt: skip
def test_a_plan_for_any_alpha_takes_1(form, dtype, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    wrapped = FORMS[form]
    planned = gemmhub.plan(wrapped(a), wrapped(b), alpha=2)
    for alpha in (3, 1, 1.0, 0, -1, 2):
        assert ratio(planned(wrapped(a), wrapped(b), alpha=alpha), a, b, alpha=alpha) <= 1
    with pytest.raises(InputError) as raised:
        gemmhub.plan(a, b, activation="relu")(a, b, alpha=2)
    assert raised.value.argument == "alpha"


def test_scales_whose_product_is_1(rng):
    a, b = draw(rng, (5, 6), E4M3), draw(rng, (6, 7), E4M3)
    scaled = gemmhub.plan(a, b, out_dtype=F32, alpha=0.5)
    for scales in ((0.5, 0.25), (0.5, 2.0), (1.0, 1.0)):
        alpha = scales[0] * scales[1]
        assert ratio(scaled(a, b, alpha=alpha), a, b, alpha=alpha, out_dtype=F32) <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["ndarray", "memmap"])
def test_beta_stays_0_or_other_than_0(form, dtype, rng):
    """Otherwise c would be dropped, or a kernel that reads c would propagate its NaN."""
    a, b, c = (FORMS[form](draw(rng, shape, dtype)) for shape in ((5, 6), (6, 7), (5, 7)))
    out = np.full((5, 7), 7, dtype)
    for first, second in ((0, 1), (0.0, 0.5), (0.5, 0), (1, 0.0)):
        planned = gemmhub.plan(a, b, c=c, beta=first)
        for given in ({"c": c, "beta": second}, {"beta": second}):
            with pytest.raises(InputError) as raised:
                planned(a, b, out, **given)
            assert raised.value.argument == "beta"
            assert np.all(out == 7)
        assert ratio(planned(a, b, c=c), a, b, c=c, beta=first) <= 1
        if first:
            assert ratio(planned(a, b, c=c, beta=-2), a, b, c=c, beta=-2) <= 1
            with pytest.raises(InputError) as raised:
                planned(a, b)
            assert raised.value.argument == "c"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_c_is_given_again_where_beta_is_0(dtype, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    c = np.full((5, 7), np.nan, dtype)
    planned = gemmhub.plan(a, b, c=c, beta=0)
    for given in ({"c": c}, {}, {"c": c, "beta": 0}, {"alpha": 1, "beta": 0.0, "bias": None}):
        assert ratio(planned(a, b, **given), a, b) <= 1
        out = np.empty((5, 7), dtype)
        assert planned(a, b, out, **given) is out
        assert ratio(out, a, b) <= 1
    with pytest.raises(InputError):
        planned(a, b, c=c[:4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("named", [{"alpha": 1}, {"alpha": 1.0}, {"beta": 0}, {"bias": None}, {"c": None}], ids=str)
def test_terms_that_were_named_may_be_named_again(named, dtype, rng):
    """A plan made with a computed alpha takes alpha, for any value at that time."""
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    planned = gemmhub.plan(a, b, **named)
    assert ratio(planned(a, b), a, b) <= 1
    assert ratio(planned(a, b, **named), a, b) <= 1
    for argument, value in {"alpha": 2, "beta": 1, "c": np.ones((5, 7), dtype), "bias": np.ones(7, dtype)}.items():
        with pytest.raises(InputError) as raised:
            planned(a, b, **{argument: value})
        assert raised.value.argument == argument


def test_an_argument_that_does_not_exist(rng):
    a = draw(rng, (2, 2), F32)
    for options in ({}, {"alpha": 1}, {"alpha": 2}, {"bias": a[0]}):
        planned = gemmhub.plan(a, a, **options)
        with pytest.raises(TypeError, match=r"a gemmhub\.Plan got an unexpected keyword argument 'gamma'"):
            planned(a, a, gamma=1)
    with pytest.raises((TypeError, InputError), match="alpha"):
        gemmhub.plan(a, a)(a, a, alpha=2)


# Strides


class Simple(Backend):
    """NumPy, of any name, cost and care for layouts."""

    takes: ClassVar = {"bias": frozenset({"n"})}

    def __init__(self, name, seconds, layout_sensitive):
        self.name, self.seconds, self.layout_sensitive, self.asked = name, seconds, layout_sensitive, 0

    def probe(self):
        return Ready((Device(),))

    def offer(self, problem):
        self.asked += 1
        return gemmhub.Offer((gemmhub.Candidate(seconds=self.seconds),))

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            out[...] = np.matmul(a, b) + (0 if bias is None else bias)

        return Kernel(run, self.name, direct=lambda a, b, out: np.matmul(a, b, out=out))


@pytest.mark.parametrize("form", ["ndarray", "memmap"])
@pytest.mark.parametrize("chosen_looks", [False, True])
def test_a_plan_depends_on_strides_where_its_backend_does(chosen_looks, form, rng):
    """Other backends have no effect. matmul decides again for other strides: another backend may be chosen."""
    chosen, beaten = Simple("chosen", 1e-9, chosen_looks), Simple("beaten", 1e-8, not chosen_looks)
    for backend in (chosen, beaten):
        description = BackendDescription(backend.name, lambda x=backend: x, "for tests", contract=2)
        registry.registry().add(description, backend.name, f"gemmhub-{backend.name}")
    a, b, bias = draw(rng, (6, 6), F32), draw(rng, (6, 6), F32), draw(rng, (12,), F32)
    wrapped = FORMS[form]
    plain = gemmhub.plan(wrapped(a), wrapped(b))
    with_bias = gemmhub.plan(wrapped(a), wrapped(b), bias=wrapped(bias[:6]))
    out = np.empty((6, 12), F32)[:, ::2]
    assert plain.decision.chosen == "chosen"
    for planned, left, right, options in (
        (plain, a.T, b, {}), (plain, a, b[::-1], {}), (plain, a, b, {"out": out}),
        (with_bias, a.T, b, {"bias": bias[:6]}), (with_bias, a, b, {"bias": bias[::2]}),
    ):  # fmt: skip
        given = {name: wrapped(x) for name, x in options.items()}
        if chosen_looks:
            with pytest.raises(InputError, match="planned"):
                planned(wrapped(left), wrapped(right), **given)
        else:
            got = planned(wrapped(left), wrapped(right), **given)
            assert ratio(np.asarray(got), left, right, bias=options.get("bias")) <= 1
    before = beaten.asked
    for left in (a, a.T, a[::-1]):
        assert ratio(gemmhub.matmul(left, b), left, b) <= 1
    assert beaten.asked >= before + 2


# What a plan is called


@pytest.mark.parametrize(("dtype", "options"), [(F32, {}), (F16, {}), (F32, {"alpha": 2})], ids=str)
def test_a_plan_prints_what_it_was_made_for(dtype, options, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    planned = gemmhub.plan(a, b, **options)
    assert isinstance(planned, gemmhub.Plan)
    assert not isinstance(gemmhub.matmul, gemmhub.Plan)
    assert "object at 0x" not in repr(planned)
    for text in ("plan for   5x7x6", f"{dtype},{dtype}", "on cpu", "backend    numpy"):
        assert text in repr(planned)
    with pytest.raises(TypeError, match="activation"):
        planned(a, b, activation="relu")
    with pytest.raises(InputError) as raised:
        planned(a, b, bias=np.ones(7, dtype))
    assert raised.value.argument == "bias"
    assert raised.value.remedy == "make a plan with bias="


def test_a_copy_of_a_plan_is_the_plan(rng):
    """It holds nothing of a call; a copy that is decided anew could be of another backend."""
    a = draw(rng, (4, 4), F32)
    for planned in (gemmhub.plan(a, a), gemmhub.plan(a, gemmhub.pack(a))):
        assert copy.copy(planned) is planned
        assert copy.deepcopy({"plan": planned})["plan"] is planned
