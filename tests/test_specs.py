"""Specs: plans and decisions from shapes and dtypes, without arrays."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from products import BF16, F16, F32, I8, draw, ratio

import gemmhub
from gemmhub import ArraySpec, Device
from gemmhub.dtypes import SUPPORTED, as_dtype
from gemmhub.errors import DeviceError, DTypeError, InputError, OutputError, ShapeError

TALL = 2**20
"""Sizes whose arrays would take terabytes."""


def spec(x, **others):
    return ArraySpec(x.shape, x.dtype, strides=x.strides, **others)


@pytest.mark.parametrize("dtype", [F16, BF16, F32, I8], ids=str)
@pytest.mark.parametrize("order", "CF")
def test_a_decision_is_that_of_an_array(dtype, order, rng):
    a = draw(rng, (2, 5, 7), dtype)
    b = draw(rng, (7, 3), dtype).copy(order)
    expected = gemmhub.explain(a, b)
    decision = gemmhub.explain(ArraySpec((2, 5, 7), dtype), ArraySpec((7, 3), dtype.name, order=order))
    assert decision == expected
    assert str(decision.problem) == str(expected.problem)
    assert gemmhub.explain(spec(a[:, ::2]), spec(b)) == gemmhub.explain(a[:, ::2], b)


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_dtype(name, rng):
    dtype = as_dtype(name)
    out_dtype = "float32" if name.startswith("float8") else None
    a = np.zeros((3, 0, 5), dtype), np.zeros((4, 5), dtype).T
    expected = gemmhub.explain(*a, out_dtype=out_dtype)
    decision = gemmhub.explain(*map(spec, a), out_dtype=out_dtype)
    assert decision == expected
    assert decision.problem.b.alignment == dtype.itemsize
    assert gemmhub.plan(*map(spec, a), out_dtype=out_dtype)(*a).shape == (3, 0, 4)


def test_a_decision_of_every_operand(rng):
    a, b, c = draw(rng, (4, 6), F32), draw(rng, (6, 3), F32), draw(rng, (4, 3), F32)
    arrays = {"c": c, "beta": 1, "bias": c[0], "scale_a": np.ones(4, F32), "out": c.copy("F")}
    specs = {name: spec(x) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
    assert gemmhub.explain(spec(a), spec(b), **specs) == gemmhub.explain(a, b, **arrays)
    mixed = {**specs, "bias": c[0]}
    with pytest.raises(DeviceError, match=r"a is a spec on cpu.* bias is numpy on cpu"):
        gemmhub.explain(spec(a), spec(b), **mixed)


def test_no_memory_and_no_device_are_needed():
    a = ArraySpec((TALL, TALL), "float32", device="cuda:3")
    decision = gemmhub.explain(a, a)
    assert decision.problem.device == Device("cuda", 3)
    assert decision.problem.a.alignment == 256
    assert decision.problem.m == TALL
    a = ArraySpec((TALL, TALL), "float32")
    assert gemmhub.explain(a, a).chosen is not None


@pytest.mark.parametrize("dtype", [F16, F32, I8], ids=str)
def test_a_plan_of_specs_multiplies_arrays(dtype, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (7, 6), dtype).T
    planned = gemmhub.plan(ArraySpec((5, 6), dtype), ArraySpec((6, 7), dtype, order="F"))
    assert planned.decision == gemmhub.plan(a, b).decision
    for _ in range(3):
        result = planned(a, b)
        assert type(result) is np.ndarray
        assert ratio(result, a, b) <= 1
        out = np.empty_like(result)
        assert planned(a, b, out) is out
        assert np.array_equal(out, result)
    with pytest.raises(InputError, match="make another plan"):
        planned(a, b[:, :3])
    again = pickle.loads(pickle.dumps(planned))
    assert np.array_equal(again(a, b), result)


def test_the_first_operands_are_checked_too(rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    planned = gemmhub.plan(spec(a), spec(b))
    for wrong in (a[:3], a.astype(np.float64), a[0]):
        with pytest.raises(InputError, match="make another plan"):
            planned(wrong, b)
    with pytest.raises(InputError, match="make a plan with bias="):
        planned(a, b, bias=b[0])
    with pytest.raises(InputError, match=r"gemmhub\.ArraySpec, which has no data"):
        planned(spec(a), spec(b))
    assert ratio(planned(a, b), a, b) <= 1


def test_a_plan_of_specs_with_operands(rng):
    a, b, c = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32), draw(rng, (5, 7), F32)
    planned = gemmhub.plan(spec(a), spec(b), c=spec(c), beta=2, bias=spec(c[0]))
    with pytest.raises(InputError, match="None with beta 2"):
        planned(a, b, bias=c[0])
    for _ in range(2):
        result = planned(a, b, c=c, bias=c[0])
        assert np.array_equal(result, gemmhub.matmul(a, b, c=c, beta=2, bias=c[0]))


def test_a_plan_is_for_one_device(rng):
    """A plan of arrays elsewhere: its problem differs by the device alone."""
    from dataclasses import replace

    from gemmhub._call import describe
    from gemmhub._call.options import request
    from gemmhub._call.plan import make_plan

    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    local = gemmhub.plan(spec(a), spec(b))
    call = describe.describe(spec(a), spec(b), None, request({}), specs=True)
    moved = replace(call, problem=replace(call.problem, device=Device("cuda", 1)))
    planned = make_plan(moved, local.decision, local.kernel, request({}), describe.describe, spec(b), local._recipe)
    with pytest.raises(DeviceError, match="arrays on cpu; allowed: arrays on cuda:1, as planned"):
        planned(a, b)


def test_what_reads_data_refuses_specs():
    a = ArraySpec((3, 3), "float32")
    for function in (
        gemmhub.matmul, gemmhub.compare, gemmhub.tune, lambda a, b: gemmhub.pack(b),
        lambda a, b: gemmhub.spot_check(a, b, a), lambda a, b: gemmhub.matmul(a, b, out=a),
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"gemmhub\.ArraySpec, which has no data; allowed: arrays"):
            function(a, a)
    with gemmhub.use(tune="first"):
        assert gemmhub.explain(a, a).race == "none: specs have no data"


def test_out_is_checked():
    a = ArraySpec((3, 3), "float32")
    with pytest.raises(OutputError, match=r"shape \(3, 4\)"):
        gemmhub.explain(a, a, out=ArraySpec((3, 4)))
    with pytest.raises(OutputError, match="share memory"):
        gemmhub.explain(a, a, out=ArraySpec((3, 3), strides=(0, 4)))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((2, -1),), ShapeError, "sizes of 0 or more"),
        ((3,), InputError, "a sequence of ints"),
        (((2, 3), "float31"), DTypeError, "float32?"),
        (((2, 3), "float32", "K"), InputError, "order: 'K'; allowed: C, F"),
        (((2, 3), "float32", "C", "gpu:0"), InputError, "device: 'gpu:0'; allowed: cpu, cuda, cuda:N"),
        (((2, 3), "float32", "C", "cpu", (4,)), InputError, "strides: .* one for each dimension"),
        (((2**30, 2**30),), ShapeError, "at most 128 TiB"),
    ],
    ids=str,
)
def test_errors(arguments, error, text):
    names = ("shape", "dtype", "order", "device", "strides")
    named = dict(zip(names, arguments))
    shape = named.pop("shape")
    with pytest.raises(error, match=text):
        ArraySpec(shape, **named)


def test_a_spec_prints_as_it_is_written():
    for x in (
        ArraySpec((2, 3)), ArraySpec([2, 3], BF16, order="F", device=Device("cuda", 1)),
        ArraySpec((4, 2, 3), "int8", strides=(3, 12, 1)),
    ):  # fmt: skip
        assert eval(repr(x)) == x
        assert hash(eval(repr(x))) == hash(x)
    assert repr(ArraySpec((2, 3), order="F")) == "ArraySpec((2, 3), 'float32', order='F', device='cpu')"
    assert ArraySpec((4, 2, 3), "int8", order="F").strides == (6, 1, 2)


@pytest.mark.parametrize(("shape", "strides"), [((2**70, 4), (0, 4)), ((4, 4), (2**70, 4))])
def test_sizes_and_strides_beyond_a_process_are_refused(shape, strides):
    with pytest.raises(InputError, match="the addresses of a process"):
        ArraySpec(shape, strides=strides)
