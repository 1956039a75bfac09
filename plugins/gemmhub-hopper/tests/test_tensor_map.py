"""The arguments of cuTensorMapEncodeTiled, and where a map keeps its address."""

from __future__ import annotations

import pytest
from fake_cuda import FakeCuda
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.launches.launch import maps
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import tensor_map
from gemmhub_hopper.variants.config import INPUTS, Form, Shape
from gemmhub_hopper.variants.shapes import F16_PLANES_SHAPES, SHAPES, SPLIT_SHAPES
from gemmhub_hopper.variants.tensor_map import MapArguments, Stored
from gemmhub_nvidia import tma
from gemmhub_nvidia.driver import Driver, DriverError
from problems import problem

pytestmark = pytest.mark.emulator

FORMS = {kind: Form(False, False, kind, "float32") for kind in INPUTS}
LIMIT = 2**30


def all_maps(choice):
    return maps(choice, choice.k_passes(LIMIT), choice.variant)


def test_k_major():
    """128 bytes of k by the rows of the tile, or by half of them; 64 of a plane."""
    stored = Stored(inner=200, outer=300, count=5, ld=512, stride=512 * 300)
    whole = tensor_map.operand(stored, FORMS["bfloat16"], False, 256, 1)
    assert whole == MapArguments(9, (200, 300, 5), (512, 512 * 300), (64, 256, 1), 3)
    assert tensor_map.operand(stored, FORMS["float16"], False, 256, 2).box == (64, 128, 1)
    tf32 = tensor_map.operand(stored, FORMS["tf32"], False, 128, 1)
    assert (tf32.type, tf32.box, tf32.swizzle) == (11, (32, 128, 1), 3)
    split = tensor_map.operand(stored, FORMS["split"], False, 128, 1)
    assert (split.type, split.box, split.swizzle) == (9, (32, 128, 1), 2)


def test_mn_major():
    """64 elements along m (n), by the k of a stage or half of it; several boxes make a tile."""
    stored = Stored(300, 200, 1, 608, 608 * 200)
    assert tensor_map.operand(stored, FORMS["bfloat16"], True, 256, 1).box == (64, 64, 1)
    assert tensor_map.operand(stored, FORMS["bfloat16"], True, 256, 2).box == (64, 32, 1)
    split = tensor_map.operand(stored, FORMS["split"], True, 256, 1)
    assert (split.box, split.swizzle) == ((64, 32, 1), 3)


@pytest.mark.parametrize(
    ("out", "n", "swapped", "box", "swizzle"),
    [
        ("bfloat16", 256, False, (64, 64, 1), 3),
        ("bfloat16", 160, False, (32, 64, 1), 2),
        ("bfloat16", 16, False, (16, 64, 1), 1),
        ("bfloat16", 160, True, (64, 32, 1), 3),
        ("float32", 256, False, (32, 64, 1), 3),
        ("float32", 16, False, (16, 64, 1), 2),
        ("float32", 256, True, (32, 32, 1), 3),
        ("float32", 16, True, (32, 16, 1), 3),
    ],
)
def test_result(out, n, swapped, box, swizzle):
    lowering = lower.lowerings(problem(512, 512, 64, out=out))[swapped]
    arguments = all_maps(Choice(lowering, Shape(128, n, 2), 1))[2]
    assert (arguments.box, arguments.swizzle) == (box, swizzle)
    assert arguments.type == {"bfloat16": 9, "float32": 7}[out]
    assert arguments.sizes == (512, 512, 1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_driver_takes_every_map(shape):
    """The fake driver has the rules of cuda.h: boxes up to 256, multiples of 16 bytes, within the swizzle's span."""
    driver = Driver(FakeCuda())
    for a in ("row", "col"):
        for b in ("row", "col"):
            for out in ("bfloat16", "float32"):
                for lowering in lower.lowerings(problem(1000, 1000, 1000, out=out, a=a, b=b)):
                    for arguments in all_maps(Choice(lowering, shape, 1)):
                        assert len(tma.encode(driver, arguments, 0x7000_0000_0000)) == 128


@pytest.mark.parametrize("shape", [*SPLIT_SHAPES, *F16_PLANES_SHAPES], ids=lambda shape: shape.name)
def test_the_driver_takes_every_map_of_planes(shape):
    driver = Driver(FakeCuda())
    kind, planes = ("f16x3", 2) if shape in F16_PLANES_SHAPES else ("split", 3)
    for order in ("row", "col"):
        lowerings = lower.lowerings(problem(999, 999, 999, "float32", a=order, b=order))
        for lowering in (x for x in lowerings if x.form.input == kind):
            for arguments in all_maps(Choice(lowering, shape, 1))[:2]:
                assert arguments.sizes[2] == planes
                assert len(tma.encode(driver, arguments, 0x7000_0000_0000)) == 128


def test_what_the_driver_does_not_take():
    driver = Driver(FakeCuda())
    with pytest.raises(DriverError):
        tma.encode(driver, MapArguments(9, (64, 64, 1), (128, 8192), (64, 64, 1), 3), 0x7000_0000_0008)
    with pytest.raises(DriverError):
        tma.encode(driver, MapArguments(9, (64, 64, 1), (130, 8192), (64, 64, 1), 3), 0x7000_0000_0000)
    with pytest.raises(DriverError):
        tma.encode(driver, MapArguments(9, (64, 64, 1), (128, 8192), (128, 64, 1), 3), 0x7000_0000_0000)


def test_the_word_of_the_address(monkeypatch):
    driver = Driver(FakeCuda())
    arguments = MapArguments(9, (64, 64, 1), (128, 8192), (64, 64, 1), 3)
    assert tma.address_word(driver, arguments) == 0
    real = tma.encode

    def in_two_places(driver, arguments, address):
        data = real(driver, arguments, address)
        return data[:-8] + data[:8]

    monkeypatch.setattr(tma, "encode", in_two_places)
    assert tma.address_word(driver, arguments) is None


def test_a_driver_that_checks_addresses():
    driver = Driver(FakeCuda())
    arguments = MapArguments(9, (64, 64, 1), (128, 8192), (64, 64, 1), 3)
    driver.cuda.faults["cuTensorMapEncodeTiled"] = 1
    assert tma.address_word(driver, arguments) is None
