"""b packed once: what is kept, who reads it, and when its memory is freed."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import shapes
from gemmhub_hopper.variants.config import Shape
from gemmhub_hopper.variants.shapes import ShapeList
from gemmhub_nvidia.scratch import COUNTERS
from problems import operand, problem
from test_float32 import data, ratio, specials

from gemmhub.accuracy import error_model, reference
from gemmhub.capability import Refusal

pytestmark = pytest.mark.emulator

LIMIT = 2**26


@pytest.fixture
def home():
    return Home()


@pytest.fixture(params=["planes", "registers"])
def backend(home, monkeypatch, request):
    """float32 products read b's planes, or b itself and split it in registers."""
    split = Shape(64, 64, 2, consumers=1)
    monkeypatch.setattr(shapes, "SHAPES", ShapeList((Shape(64, 64, 3, consumers=1),)))
    monkeypatch.setattr(shapes, "SPLIT_SHAPES", ShapeList((split,)))
    monkeypatch.setattr(shapes, "REGISTER_SHAPES", ShapeList((split,)))
    made, preferred = home.backend(), request.param == "registers"

    def offer(asked):
        answer = HopperBackend.offer(made, asked)
        if isinstance(answer, Refusal):
            return answer
        return replace(answer, candidates=sorted(answer.candidates, key=lambda x: ("r" in x.name) != preferred))

    monkeypatch.setattr(made, "offer", offer)
    yield made
    assert home.cuda.complaints == []


def place(home, x):
    buffer = FakeMemory(home).empty(max(256, x.nbytes))
    buffer[: x.nbytes] = np.ascontiguousarray(x).view(np.uint8).ravel()
    return buffer


def packed(home, backend, b, asked):
    """Packs b and overwrites it."""
    buffer = place(home, b)
    made = backend.pack(buffer.ctypes.data, asked)
    buffer[:] = 0xFF
    return made


def multiply(home, backend, a, made, asked, limit=LIMIT):
    asked = replace(asked, packed_by="hopper", b=operand(asked.b.dtype.name, asked.k, asked.n))
    kernel = backend.prepare(asked, backend.offer(asked).first.name, limit)
    left, out = place(home, a), place(home, np.empty((asked.m, asked.n), asked.out.dtype))
    kernel.run(left.ctypes.data, made, out.ctypes.data, 1, 0, 0)
    nbytes = asked.m * asked.n * asked.out.dtype.itemsize
    return out[:nbytes].view(asked.out.dtype).reshape(asked.m, asked.n)


@pytest.mark.parametrize("limit", [LIMIT, COUNTERS + 2**15])
def test_float32(home, backend, limit):
    """Results are right also where elements are recomputed from the copy, and with K passes of a."""
    a, b = specials()
    asked = problem(*a.shape[:1], b.shape[1], a.shape[1], dtype="float32")
    made = packed(home, backend, b, asked)
    assert ratio(multiply(home, backend, a, made, asked, limit), a, b) <= 1


def test_subnormal_elements_of_a_packed_b(home, backend):
    """Its marks serve every call."""
    a, b = data("normal", 64, 64, 64)
    b = b * np.float32(2.0**-140)
    asked = problem(64, 64, 64, dtype="float32")
    made = packed(home, backend, b, asked)
    for scale in (2.0**100, 1.0, 2.0**100):
        x = a * np.float32(scale)
        assert ratio(multiply(home, backend, x, made, asked), x, b) <= 1


def test_no_product_writes_to_a_packed_b(home, backend):
    """What a kernel finds that splits b itself stays with it: others' results would change."""
    a, b = data("normal", 64, 128, 256)
    b[3, 7] = 2.0**-112  # exactly its planes, but beyond what a kernel is sure of
    asked = problem(64, 128, 256, dtype="float32")
    made = packed(home, backend, b, asked)
    lowerings = lower.lowerings(replace(asked, packed_by="hopper"))
    kept = memory(made)
    for registers, splits in ((False, 1), (True, 1), (True, 2), (False, 2)):
        lowering = next(
            lowering
            for lowering in lowerings
            if lowering.swapped and lowering.form.registers_a == registers and not lowering.form.split_planes_b
        )
        launch = backend.launch(0, Choice(lowering, Shape(64, 64, 2, consumers=1), splits), LIMIT)
        left, out = place(home, a * np.float32(1000)), place(home, np.empty((64, 128), np.float32))
        launch.run(left.ctypes.data, made, out.ctypes.data, 1, 0, 0)
        result = out.view(np.float32).reshape(64, 128)
        assert ratio(result, a * np.float32(1000), b) <= 1
        assert memory(made) == kept


def memory(made):
    return ctypes.string_at(made.marks, made.nbytes)


@pytest.mark.parametrize("order", ["row", "col"])
def test_tf32_and_ieee_of_one(home, backend, order):
    a, b = data("normal", 40, 72, 100)
    asked = problem(40, 72, 100, dtype="float32", b=order)
    made = packed(home, backend, b if order == "row" else b.T, asked)
    assert ratio(multiply(home, backend, a, made, asked), a, b) <= 0.1
    f32 = asked.a.dtype
    rounded = reference(a, b, model=error_model(f32, f32, f32, f32, "tf32"))
    result = multiply(home, backend, a, made, replace(asked, precision="tf32"))
    assert rounded.ratio(result).max() <= 1


def test_what_is_kept(home, backend):
    """A plain copy and planes, with rows at multiples of 16 bytes, scales of float16 planes, and marks; freed with the
    last reference.
    """
    asked = problem(8, 72, 100, dtype="float32")
    made = packed(home, backend, data("normal", 8, 72, 100)[1], asked)
    plain, planes, f16_planes, scales = 72 * 400 + 128, 3 * 72 * 208 + 128, 2 * 72 * 208, 4 * (72 + 256 + 56)
    assert plain % 256 == planes % 256 == f16_planes % 256 == 0
    assert made.nbytes == 8192 + plain + planes + f16_planes + scales
    less = packed(home, backend, np.zeros((63, 72), np.float32), problem(8, 72, 63, dtype="float32"))
    assert less.nbytes == 8192 + 72 * 256 + 3 * 72 * 128  # too few elements along K for float16 planes
    address = made.marks
    del made, less
    gc.collect()
    assert address in home.cuda.freed
    assert len(home.cuda.freed) == 2
    half = packed(home, backend, np.zeros((100, 72), np.float16), problem(8, 72, 100, dtype="float16"))
    assert half.nbytes == 8192 + -(-72 * 208 // 256) * 256


def test_freed_while_a_graph_is_captured(home, backend):
    made = packed(home, backend, np.zeros((100, 72), np.float16), problem(8, 72, 100, dtype="float16"))
    home.cuda.captures[5] = 77
    del made
    gc.collect()
    home.cuda.captures.clear()
    assert len(home.cuda.freed) == 1


def test_without_elements(home, backend):
    asked = problem(8, 72, 0, dtype="float32")
    made = packed(home, backend, np.zeros((0, 72), np.float32), asked)
    assert not multiply(home, backend, np.zeros((8, 0), np.float32), made, asked).any()
    packed(home, backend, np.zeros((72, 0), np.float32), problem(8, 0, 72, dtype="float32"))


def test_refusals(home, backend):
    stack = backend.pack(256, problem(8, 8, 8, batch=(2,)))
    assert isinstance(stack, Refusal)
    assert "one by one" in stack.remedy
    assert "no kernel" in backend.pack(256, problem(8, 8, 8, dtype="float64")).reason
    home.cuda.faults["cuCtxSynchronize"] = 719
    assert "packing failed" in backend.pack(256, problem(8, 8, 8)).reason


def test_copies_are_reported(home, backend, monkeypatch):
    """A packed b has no copy, nor has an operand that goes through registers or is split in shared memory."""
    offer = home.backend().offer
    asked = problem(64, 72, 100, dtype="float32")
    assert offer(asked).first.copies == ()
    monkeypatch.setattr(shapes, "SMALL_SHAPES", ShapeList())
    split_shapes = shapes.SPLIT_SHAPES
    monkeypatch.setattr(shapes, "SPLIT_SHAPES", ShapeList())
    (copy,) = offer(asked).first.copies
    assert (copy.operand, copy.nbytes) in (("a", 3 * 64 * 208), ("b", 3 * 100 * 144), ("b", 3 * 72 * 208))
    monkeypatch.setattr(shapes, "SPLIT_SHAPES", split_shapes)
    monkeypatch.setattr(shapes, "REGISTER_SHAPES", ShapeList())
    assert [(copy.operand, copy.nbytes) for copy in offer(asked).first.copies] == [
        ("a", 3 * 64 * 208), ("b", 3 * 100 * 144),
    ]  # fmt: skip
    assert [copy.operand for copy in offer(replace(asked, packed_by="hopper")).first.copies] == ["a"]
    odd = problem(60, 72, 99)  # of fewer rows than a tile has: others go through registers
    (copy,) = offer(odd).first.copies
    assert copy.operand == "a"
    assert "leading dimension is 99" in copy.why
    assert "leading dimension is 99" in offer(odd).remark(offer(odd).first.name)
    assert offer(problem(64, 72, 96)).first.copies == ()
    assert offer(replace(asked, packed_by="hopper")).first.seconds < offer(asked).first.seconds
