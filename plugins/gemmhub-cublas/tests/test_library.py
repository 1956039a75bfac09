"""The declarations of C functions, and the text of status codes."""

from __future__ import annotations

import ctypes
import struct

import pytest
from fake_lt import CONFIG, FakeLt
from fakes import FakeCuda as CopyingCuda
from gemmhub_cublas import algorithm_proof as proof
from gemmhub_cublas import descriptors, library
from gemmhub_nvidia.driver import FUNCTIONS
from gemmhub_nvidia.testing.fake_cuda import FakeCuda


def width(kind):
    return ctypes.sizeof(kind)


@pytest.mark.parametrize("name", library.FUNCTIONS)
def test_library_declarations(name):
    """Declarations have the number and width of arguments of cublasLt.h."""
    result, arguments = library.FUNCTIONS[name]
    expected, types = FakeLt.types[name]
    assert (width(result), [*map(width, arguments)]) == (width(expected), [*map(width, types)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_driver_declarations(name):
    assert [*map(width, FUNCTIONS[name])] == [*map(width, FakeCuda.types[name][1])]


@pytest.mark.parametrize("name", proof.COPIES)
def test_declarations_of_copies(name):
    assert [*map(width, proof.COPIES[name])] == [*map(width, CopyingCuda.types[name][1])]


def test_configuration_widths():
    assert tuple(map(struct.calcsize, descriptors.CONFIG)) == CONFIG


def test_result_structure():
    assert ctypes.sizeof(descriptors.HeuristicResult) == 96


def test_status_texts():
    assert library.words(15) == "CUBLAS_STATUS_NOT_SUPPORTED (15): the library has no algorithm for this"
    assert "restart the process" in library.words(13)
    assert library.words(4711) == "unknown status 4711"


def test_attribute_widths_of_a_real_library():
    """The library itself refuses an attribute of the wrong width; it needs no device for that."""
    try:
        real = library.load(99)
    except library.LibraryError as error:
        pytest.skip(error.reason)
    from fakes import bias, problem
    from gemmhub_cublas.descriptors import Object, Objects
    from gemmhub_cublas.lower import lowered

    objects = Objects(real)
    objects.descriptors(lowered(problem(batch=(3,), bias=bias())).main)
    preference = Object(objects.preferences)
    for attribute, kind in ((1, "Q"), (3, "I"), (5, "I"), (6, "I"), (7, "I"), (8, "I"), (12, "Q")):
        preference.set(attribute, kind, 4)
    with pytest.raises(library.StatusError, match="INVALID_VALUE"):
        preference.set(1, "I", 4)
