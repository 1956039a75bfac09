"""gemmhub.quantize on devices: a backend that quantizes gets addresses; what it refuses is left to the library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import address_backend
import numpy as np
import pytest
from machine import at

import gemmhub
from gemmhub import Refusal
from gemmhub._choice import quantizers
from gemmhub._choice.quantizers import quantized

F32, I8 = np.dtype(np.float32), np.dtype(np.int8)
BLOCKS = ((1, 128), (128, 1), (128, 128))
FORMS = {"tensor": {}, "row": {}, "column": {}, **{f"{m}x{n}": {"block": (m, n)} for m, n in BLOCKS}}
"""The options of each granularity, by the word that a backend gets."""


class Quantizing(address_backend.Addresses):
    """A backend that quantizes on the host; ``answer`` is its refusal, or the exception that it raises."""

    answer = None

    def __init__(self, name="quantizing"):
        super().__init__(name)
        self.tasks = []

    def quantize(self, task):
        self.tasks.append(task)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        x, q, scale = (at(y.address, y.dtype, y.shape, y.strides) for y in (task.x, task.q, task.scale))
        at(task.scratch(100), np.uint8, (100,), (1,)).fill(255)
        options = {"granularity": "block" if "x" in task.granularity else task.granularity, **FORMS[task.granularity]}
        q[...], computed = gemmhub.quantize(x, q.dtype, **options, scale=scale.copy() if task.given else None)
        if not task.given:
            scale[...] = computed
        return None


@pytest.fixture
def quantizing(machine):
    return address_backend.add(Quantizing())


@pytest.fixture
def library(library_of):
    return library_of("torch")


def drawn(rng, shape):
    return rng.standard_normal(shape).astype(F32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 7), (2, 130, 257)])
def test_a_backend_quantizes(library, quantizing, form, shape, rng):
    options = {"granularity": "block" if "x" in form else form, **FORMS[form]}
    for given in (False, True):
        x = drawn(rng, shape)
        expected, of_x = gemmhub.quantize(x, "float8_e4m3fn", **options)
        scale = library.array(of_x) if given else None
        with library.current(0x77):
            q, of_q = gemmhub.quantize(library.array(x), "float8_e4m3fn", **options, scale=scale)
        assert library.owns(q)
        assert of_q is scale or not given
        assert q.host.tobytes() == expected.tobytes()
        assert of_q.host.shape == of_x.shape
        assert np.array_equal(of_q.host, of_x)
        task = quantizing.tasks[-1]
        assert (task.granularity, task.given, task.stream) == (form, given, 0x77)
        assert task.device == gemmhub.Device("cuda", 0)
    assert len(quantizing.tasks) == 2


def test_codes_have_the_order_of_x(library, quantizing, rng):
    """A transpose stays one; what is cut out, or repeated, becomes dense."""
    whole = drawn(rng, (6, 8, 10))
    dense = library.array(whole)
    for x, strides in (
        (dense, (80, 10, 1)), (dense.T, (1, 10, 80)), (dense[:, 1:5, 2:], (32, 8, 1)), (dense[:, :, 0], (8, 1)),
        (dense.as_strided((6, 3, 10), (80, 0, 1)), (10, 60, 1)),
    ):  # fmt: skip
        q, scale = gemmhub.quantize(x, "int8", "row")
        assert q.stride() == strides
        expected, of_x = gemmhub.quantize(np.array(x.host), "int8", "row")
        assert np.array_equal(q.host, expected)
        assert np.array_equal(scale.host, of_x)


def test_the_second_device(library, quantizing, rng):
    q, scale = gemmhub.quantize(library.array(drawn(rng, (3, 4)), device=1), "int8")
    assert library.device(q) == library.device(scale) == 1
    assert quantizing.tasks[-1].device.index == 1


def left(library, x=None):
    """Whether a tensor is left to the operations of its library."""
    return quantized(library.array(np.ones((2, 3), F32)) if x is None else x, None, I8, "row", (2, 1)) is None


def test_what_is_refused_is_left_to_the_library(library, quantizing, caplog):
    quantizing.answer = Refusal("it is small", "grow it")
    caplog.set_level("DEBUG", "gemmhub")
    assert left(library)
    assert "backend quantizing does not quantize: it is small" in caplog.text


def test_a_backend_that_fails(library, quantizing, caplog):
    quantizing.answer = RuntimeError("a bug")
    assert left(library)
    assert "quantizing does not quantize: quantize() raised RuntimeError: a bug" in caplog.text


def test_the_next_backend_is_asked(library, quantizing):
    other = address_backend.add(Quantizing("other"))
    quantizing.answer = Refusal("it is small", "grow it")
    assert not left(library)
    assert (len(quantizing.tasks), len(other.tasks)) == (1, 1)


def test_a_backend_without_the_method_is_not_asked(library, backend):
    assert left(library)
    assert library.machine.log == []  # and nothing is allocated or copied


def test_only_a_forced_backend_quantizes(library, quantizing):
    with gemmhub.use(backend="numpy"):
        assert left(library)
    assert quantizing.tasks == []
    with gemmhub.use(backend="quantizing"):
        assert not left(library)


def test_tensors_without_plain_memory_are_left_to_torch(library, quantizing, monkeypatch):
    x = library.array(np.ones((2, 3), F32))
    assert left(library, x.negated())
    x.is_meta = True
    assert left(library, x)
    x.is_meta = False
    x.device = library.module.device("xpu", 0)
    assert left(library, x)
    x.device = library.module.device("cuda", 0)
    assert not left(library, x)
    assert len(quantizing.tasks) == 1


def test_what_torch_compiles_is_left_to_it(library, quantizing, monkeypatch):
    asked = []
    monkeypatch.setattr(quantizers, "quantized", lambda *given: asked.append(given) or (1, 2))
    x, torch = library.array(np.ones((2, 3), F32)), sys.modules["torch"]
    torch.compiler = SimpleNamespace(is_compiling=lambda: True)
    with pytest.raises(AttributeError):  # the operations that the fake torch has not
        gemmhub.quantize(x, "int8")
    assert not asked
    torch.compiler.is_compiling = lambda: False
    assert gemmhub.quantize(x, "int8") == (1, 2)


def test_no_memory_for_the_results(library, quantizing):
    x = library.array(np.ones((200, 300), F32))
    library.machine.room = 1000
    with pytest.raises(gemmhub.errors.AllocationError, match="int8 of shape"):
        gemmhub.quantize(x, "int8")
