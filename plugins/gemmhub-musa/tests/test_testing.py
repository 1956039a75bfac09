"""What the tests of backends stand on: memory for the kit, problems made by hand, operands on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from address_backend import Addresses
from gemmhub_musa.array import MusaArrays
from gemmhub_musa.runtime import MusaError
from gemmhub_musa.testing import MusaMemory, Operands, bias, operand, problem, strided

from gemmhub.capability import Device
from gemmhub.testing import Case, check

# Memory


@pytest.mark.parametrize("case", [
    Case(m=5, n=7, k=3),
    Case(m=5, n=7, k=3, a_dtype="int8", b_dtype="int8", a="reversed", b="col_padded", out="strided", batch=(2, 3)),
    Case(m=5, n=7, k=3, alpha=0.5, beta=2, c="out", bias="n", offset=3),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("index", [0, 1])
def test_the_kit_runs_on_it(rt, case, index):
    backend, memory = Addresses(), MusaMemory(index)
    assert check(backend, case, memory).accepted
    assert memory.device == Device("musa", index)
    assert set(backend.streams) == {memory.stream} != {0}
    with pytest.raises(AssertionError, match="wrong result"):
        check(Addresses(spoil=lambda x: x + 1), case, memory)


def test_each_has_a_stream_of_its_own(rt):
    memory = MusaMemory()
    assert memory.stream == memory.stream != MusaMemory().stream


def test_it_waits_for_its_stream_only(rt, fake):
    """Work that a backend puts elsewhere must not be right by chance."""
    memory = MusaMemory()
    buffer, data = memory.empty(300), np.arange(300, dtype=np.uint8)
    fake.fake_plan(b"musaDeviceSynchronize=999")
    memory.write(buffer, data)
    memory.synchronize()
    assert np.array_equal(memory.read(buffer), data)
    fake.fake_plan(b"musaStreamSynchronize=999")
    with pytest.raises(MusaError, match="musaStreamSynchronize"):
        memory.synchronize()


def test_memory_at_an_odd_address_is_reported(rt, monkeypatch):
    original = MusaArrays.empty
    monkeypatch.setattr(MusaArrays, "empty", lambda self, shape, dtype: original(self, (shape[0] + 16,), dtype)[16:])
    with pytest.raises(AssertionError, match="not aligned to 256 bytes"):
        MusaMemory().empty(1024)


def test_it_loads_little_and_looks_for_a_device_only_when_used(python, tmp_path):
    code = """
import sys
from gemmhub_musa.testing import MusaMemory
memory = MusaMemory(3)
print(memory.device, [x for x in ("pytest", "gemmhub_musa_sim") if x in sys.modules])
try:
    memory.empty(16)
except Exception as error:
    print(type(error).__name__, "no MUSA installation was found" in str(error))
"""
    assert python(code, MUSA_HOME=tmp_path).splitlines() == ["musa:3 []", "DeviceError True"]


# Problems


def test_problems():
    made = problem(2, 3, 4, "float16", "float32", batch=(5,), b="col", index=1, precision="tf32")
    assert (made.m, made.n, made.k, made.batch, made.device) == (2, 3, 4, (5,), Device("musa", 1))
    assert [x.dtype.name for x in (made.a, made.b, made.out)] == ["float16", "float16", "float32"]
    assert (made.compute_dtype.name, made.precision) == ("float32", "tf32")
    assert made.a == operand("float16", 2, 4, batch=(5,)) == strided("float16", 2, 4, 4, 1, (5,), (8,))
    assert made.b == operand("float16", 4, 3, "col", (5,)) == strided("float16", 4, 3, 1, 4, (5,), (12,))
    assert operand("int8", 2, 4, row_stride=9, alignment=1) == strided("int8", 2, 4, 9, 1, alignment=1)
    assert (bias().dtype.name, bias().axis, bias().stride) == ("float32", "n", 1)


# Operands


@pytest.mark.parametrize("asked", [
    problem(5, 7, 3),
    problem(5, 7, 3, batch=(2, 3), a="col", b="col", d="col", index=1),
    replace(problem(5, 7, 3), a=strided("float32", 5, 3, -6, 2), out=strided("float32", 5, 7, 1, -9)),
    replace(problem(5, 7, 3, "float16", "float32", batch=(4,)), b=strided("float16", 3, 7, 7, 1, (4,), (0,))),
], ids=["dense", "batch", "strided", "broadcast"])  # fmt: skip
def test_operands(rt, asked):
    kernel, operands = Addresses().prepare(asked, "default", 0), Operands(asked)
    assert operands.a.values.shape == (*asked.batch, 5, 3)
    expected = operands.a.values.astype(np.float64) @ operands.b.values.astype(np.float64)
    assert np.array_equal(operands.wide, expected)
    assert not np.array_equal(operands.result(), expected)
    assert np.array_equal(operands.run(kernel.run), expected)
    assert not np.array_equal(Operands(asked, seed=1).wide, expected)


def test_an_addend_and_a_bias(rt):
    asked = problem(5, 7, 3, c=operand("float32", 5, 7), bias=bias(), alpha_is_one=False)
    backend = Addresses()
    run, operands = backend.prepare(asked, "default", 0).run, Operands(asked)
    before, plain = operands.result(), 2 * operands.wide + operands.bias.values
    assert np.array_equal(operands.run(run, alpha=2, beta=3, in_place=True, stream=17), plain + 3 * before)
    assert np.array_equal(operands.run(run, alpha=2, beta=3), plain + 3 * operands.c.values)
    assert np.array_equal(operands.run(run, alpha=2), plain)
    assert backend.streams == [17, 0, 0]
    with pytest.raises(ValueError, match="the problem has no c"):
        Operands(problem()).run(run, beta=1)
