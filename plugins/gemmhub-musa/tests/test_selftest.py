"""The first product: what it finds, and that it lets right backends pass."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import Addresses, matrix
from gemmhub_musa import selftest

from gemmhub import Kernel, Refusal

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "complex64"]


def prepared(backend):
    return lambda problem: backend.prepare(problem, "default", 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [0, 1])
def test_a_right_backend_passes(rt, fake, dtype, index):
    live = fake.fake_live()
    backend = Addresses()
    assert selftest.check(prepared(backend), rt, index, dtype) is None
    assert set(backend.devices) == {index}
    assert len(backend.streams) == 8
    assert 0 not in backend.streams  # a backend that forgets the stream is found where streams run late
    assert fake.fake_live() == live


def test_other_results_and_sizes(rt):
    assert selftest.check(prepared(Addresses()), rt, 0, "float16", "float32") is None
    assert selftest.check(prepared(Addresses()), rt, 0, "int8", sizes=(33, 17, 40)) is None
    seen = {problem.key for problem in selftest.problems("float16", 1, "float32")}
    assert "4x3x2 batch=1 float16,float16->float32 order=rcr epilogue=none precision=ieee" in seen
    assert len(seen) == 8


def test_wrong_numbers_are_shown(rt):
    backend = Addresses(spoil=lambda result: result + np.eye(4, 3))
    no = selftest.check(prepared(backend), rt, 0, "float32")
    assert isinstance(no, Refusal)
    assert no.reason == (
        "the first product (4x3x2 batch=1 float32,float32->float32 order=rrr epilogue=none precision=ieee) by NumPy at "
        "addresses is wrong: NumPy has [[4, -1, 1], [-12, 8, 0], [-7, 3, -1], [-2, -2, -2]], it has [[5, -1, 1], "
        "[-12, 9, 0], [-7, 3, 0], [-2, -2, -2]]"
    )
    assert "gemmhub doctor musa" in no.remedy


def swap(problem, name):
    """``problem`` with one operand read in the other storage order: a transposition mixed up."""
    from dataclasses import replace

    from gemmhub.layout import MatrixLayout

    operand = getattr(problem, name)
    layout = operand.layout
    order = "row" if layout.order == "col" else "col"
    return replace(
        problem, **{name: replace(operand, layout=MatrixLayout.contiguous(layout.rows, layout.cols, (), order))}
    )


@pytest.mark.parametrize("name", ["a", "b", "out"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_every_mixed_up_transposition_is_found(rt, name, dtype):
    backend = Addresses()
    for wrong in range(8):

        def prepare(problem, wrong=wrong, count=[0]):  # noqa: B006
            count[0] += 1
            return backend.prepare(swap(problem, name) if count[0] - 1 == wrong else problem, "default", 0)

        no = selftest.check(prepare, rt, 0, dtype)
        assert isinstance(no, Refusal), wrong
        assert "is wrong" in no.reason


def test_writing_beyond_the_result_is_found(rt):
    def prepare(problem):
        kernel = Addresses().prepare(problem, "default", 0)

        def run(a, b, out, *scalars):
            matrix(problem.out, out + 4 * 3 * problem.out.dtype.itemsize)[...] = 1
            kernel.run(a, b, out, *scalars)

        return Kernel(run, "careless")

    assert "wrote beyond the result" in selftest.check(prepare, rt, 0, "float32").reason


def test_nothing_written_is_found(rt):
    assert "nan" in selftest.check(lambda problem: Kernel(lambda *_: None, "idle"), rt, 0, "float32").reason
    assert "is wrong" in selftest.check(lambda problem: Kernel(lambda *_: None, "idle"), rt, 0, "int8").reason


def test_exceptions_become_refusals(rt, fake):
    live = fake.fake_live()

    def prepare(problem):
        def run(*_):
            raise RuntimeError("the library said no")

        return Kernel(run, "broken")

    no = selftest.check(prepare, rt, 0, "float32")
    assert no.reason.endswith("failed: RuntimeError: the library said no")
    assert "Traceback" in no.traceback
    assert fake.fake_live() == live
    fake.fake_plan(b"musaMalloc=2")
    assert "AllocationError" in selftest.check(prepared(Addresses()), rt, 0, "float32").reason
    fake.fake_plan(b"musaStreamSynchronize=700")
    assert "musaErrorIllegalAddress" in selftest.check(prepared(Addresses()), rt, 0, "float32").reason


def test_orders_that_are_refused_are_passed_over(rt):
    ran = []

    def prepare(problem):
        if problem.out.layout.order == "col":
            return Refusal("row-major results only", "pass another out")
        ran.append(problem)
        return Addresses().prepare(problem, "default", 0)

    assert selftest.check(prepare, rt, 0, "float32") is None
    assert len(ran) == 4
    no = Refusal("no such dtype", "convert")
    assert selftest.check(lambda problem: no, rt, 0, "float32") is no
