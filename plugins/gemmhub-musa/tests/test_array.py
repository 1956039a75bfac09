"""Device arrays: views, copies, ownership, DLPack; and gemmhub.matmul on them."""

from __future__ import annotations

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest
from address_backend import Addresses
from gemmhub_musa import array, empty, from_numpy, runtime

import gemmhub
from gemmhub._arrays.find import arrays_of
from gemmhub._base.geometry import DeviceView
from gemmhub.errors import AllocationError, DeviceError, InputError, OutputError

RNG = np.random.default_rng(6)


@pytest.fixture
def backend(rt):
    """Multiplies at addresses of the fake's memory, which is the host's."""
    return Addresses.listed()


def whole(*shape, dtype=np.float32):
    return RNG.integers(-4, 5, shape).astype(dtype)


# Arrays


@pytest.mark.parametrize(
    "x",
    [whole(3, 4), whole(3, 4).T, whole(6, 8)[::-2, 1::3], whole(2, 3, 4), np.float64(3.0), whole(0, 3),
     whole(5).astype(ml_dtypes.bfloat16)],
    ids=lambda x: f"{x.dtype}{x.shape}{x.strides}",
)  # fmt: skip
def test_contents_go_there_and_back(rt, x):
    there = from_numpy(x, 1)
    assert (there.shape, there.dtype, there.ndim, there.size) == (x.shape, x.dtype, x.ndim, x.size)
    assert there.strides == np.ascontiguousarray(x).reshape(x.shape).strides or not x.size
    assert str(there.device) == "musa:1"
    back = there.numpy()
    assert back.dtype == x.dtype
    assert np.array_equal(back, x)
    assert back.flags.owndata or not x.size


@pytest.mark.parametrize(
    "key",
    [0, -1, slice(None), slice(1, 3), (slice(None, None, -1), slice(1, None, 2)), (1, 2), (..., 0), None,
     (slice(None), None, 2), (1, ..., slice(0, 2)), (), (np.int64(1),), (2, 4, 6), (slice(4, 1), 0)],
    ids=str,
)  # fmt: skip
def test_views_are_numpys(rt, key):
    x = whole(3, 5, 7)
    there = from_numpy(x)
    view = there[key]
    assert view.shape == np.asarray(x[key]).shape
    assert np.array_equal(view.numpy(), x[key])
    assert view.data.memory is there.data.memory
    assert np.array_equal(view.T.numpy(), np.asarray(x[key]).T)


@pytest.mark.parametrize(
    ("key", "error"),
    [(3, IndexError), ((0, 0, 0, 0), IndexError), ([0, 1], TypeError), (True, TypeError), (1.0, TypeError),
     ("a", TypeError), (np.array([1]), TypeError), ((..., ...), IndexError)],
    ids=str,
)  # fmt: skip
def test_what_selects_no_view_is_refused(rt, key, error):
    with pytest.raises(error):
        from_numpy(whole(3, 5, 7))[key]


def test_small_facts(rt):
    there = from_numpy(whole(3, 5))
    assert len(there) == 3
    assert there.nbytes == 60
    assert repr(there) == "<gemmhub_musa.Array float32 (3, 5) on musa:0>"
    with pytest.raises(TypeError):
        len(there[0, 0])
    assert empty((2, 3), np.dtype(np.int8), 1).shape == (2, 3)


def test_memory_lives_as_long_as_any_view_of_it(rt, fake):
    gc.collect()
    live = fake.fake_live()
    there = from_numpy(whole(4, 4), 1)
    view = there[1:, 1]
    expected = view.numpy()
    del there
    gc.collect()
    assert fake.fake_live() == live + 1
    assert np.array_equal(view.numpy(), expected)
    del view
    gc.collect()
    assert fake.fake_live() == live
    assert rt.current_device == 0
    assert rt.clear_error() == ""


def test_a_device_that_failed_does_not_fail_the_garbage_collector(rt, fake):
    there = from_numpy(whole(4, 4))
    fake.fake_plan(b"musaFree=700")
    del there
    gc.collect()
    fake.fake_plan(b"")


def test_full_devices_and_those_that_are_not_there(rt, fake, tmp_path, monkeypatch):
    fake.fake_limit(1024)
    with pytest.raises(AllocationError, match=r"float32 of shape \(100, 100\) needs .* on musa:1: .*musaMalloc"):
        from_numpy(whole(100, 100), 1)
    with pytest.raises(AllocationError, match="no machine has as much"):
        empty((1 << 40, 1 << 40), np.dtype(np.float64))
    with pytest.raises(InputError, match="musa:2; allowed: musa:0 to musa:1"):
        from_numpy(whole(2, 2), 2)
    fake.fake_devices(0)
    with pytest.raises(DeviceError, match="the MUSA runtime shows no device"):
        from_numpy(whole(2, 2))


def test_a_failing_copy_raises(rt, fake):
    there = from_numpy(whole(4, 4))
    fake.fake_plan(b"musaMemcpy=700")
    with pytest.raises(runtime.MusaError, match="musaMemcpy: musaErrorIllegalAddress"):
        there.numpy()
    with pytest.raises(runtime.MusaError, match="musaMemcpy"):
        from_numpy(whole(4, 4))


# The arrays


def layouts():
    base = whole(6, 8, 10)
    for key in [
        (),
        np.s_[::2],
        np.s_[:, 1:7],
        np.s_[:, :, ::3],
        np.s_[::-1, ::2, 1:9],
        np.s_[2],
        np.s_[2, 3],
        np.s_[1, 1, 1],
    ]:
        yield base, key, False
        yield base, key, True


@pytest.mark.parametrize(
    ("base", "key", "turned"), list(layouts()), ids=lambda x: "" if isinstance(x, np.ndarray) else str(x)
)
def test_copies_write_the_elements_and_nothing_else(rt, base, key, turned):
    arrays = array.arrays(0)
    source = from_numpy(base)[key]
    target = from_numpy(np.full_like(base, -100))
    into, expected = target[key], np.full_like(base, -100)
    expected[key] = base[key]
    if turned:
        source, into = source.T, into.T
    arrays.copy(into, source)
    assert np.array_equal(target.numpy(), expected)


def test_copies_need_few_calls(rt, fake):
    before = fake.fake_copies_2d()
    x = from_numpy(whole(64, 64, 4))
    array.arrays(0).copy(from_numpy(whole(64, 64, 4))[:, 1:33], x[:, 1:33])
    assert fake.fake_copies_2d() == before + 1
    with pytest.raises(ValueError, match="differ in dtype, shape or strides"):
        array.arrays(0).copy(x[0], x[:, 0])


@pytest.mark.parametrize(
    ("base", "key", "turned"), list(layouts()), ids=lambda x: "" if isinstance(x, np.ndarray) else str(x)
)
def test_twins_and_clones_have_the_original_layout(rt, base, key, turned):
    arrays = array.arrays(1)
    x = from_numpy(base, 1)[key]
    native = arrays.view(x, "x")
    twin = arrays.empty_strided_like(native)
    assert (twin.shape, twin.strides, twin.dtype) == (x.shape, x.strides, x.dtype)
    assert twin.data.ptr % 256 == x.data.ptr % 256
    assert twin.data.memory is not x.data.memory
    for clone in (arrays.clone(x), arrays.clone(native)):
        assert np.array_equal(clone.numpy(), base[key])
        assert clone.strides == x.strides


def test_the_family_of_an_array(rt):
    x = from_numpy(whole(3, 4), 1)
    arrays = arrays_of(x, "a")
    assert arrays is array.arrays(1)
    assert (arrays.name, str(arrays.device)) == ("gemmhub_musa", "musa:1")
    view = arrays.view(x, "a")
    assert isinstance(view, DeviceView)
    assert (view.address, view.owner) == (x.data.ptr, x)
    assert arrays.key(x) == (x.dtype, x.shape, x.strides, x.data.ptr % 256, x.device)
    assert arrays.key(x) != arrays.key(x[:, 1:])
    with pytest.raises(DeviceError, match="on musa:1; allowed: operands on musa:0"):
        array.arrays(0).view(x, "a")
    with pytest.raises(DeviceError, match="an ndarray; allowed: gemmhub_musa arrays on musa:1"):
        arrays.view(whole(2, 2), "a")
    with pytest.raises(OutputError):
        arrays.target(x, (4, 4))
    assert arrays.overlap(view, arrays.view(x[1:], "b"))
    assert not arrays.overlap(arrays.view(x[:1], "a"), arrays.view(x[1:], "b"))


def test_streams_are_those_of_the_block_and_of_the_thread(rt):
    arrays, other = array.arrays(0), array.arrays(1)
    assert arrays.current_stream() == 0
    with arrays.on(None):
        assert arrays.current_stream() == 0
        with other.on(70):
            assert (arrays.current_stream(), other.current_stream()) == (0, 70)
            assert rt.current_device == 1
            with other.on(None):
                assert other.current_stream() == 70
        assert rt.current_device == 0
    assert other.current_stream() == 0
    other.synchronize()
    with pytest.raises(ZeroDivisionError), arrays.on(5):
        raise ZeroDivisionError
    assert arrays.current_stream() == 0


def test_the_clock_measures_by_events(rt):
    arrays = array.arrays(1)
    ran = []
    seconds = arrays.clock().measure(lambda: ran.append(rt.current_device), 5)
    assert seconds > 0
    assert set(ran) == {1}


def test_events_belong_to_their_device_wherever_the_thread_is(rt):
    start, end = array.Event(array.arrays(1)), array.Event(array.arrays(1))
    start.record()
    end.record()
    end.synchronize()
    assert rt.event_elapsed(start.handle, end.handle) == 0.5
    handle = start.handle
    del start
    gc.collect()
    with pytest.raises(runtime.MusaError):
        rt.event_synchronize(handle)


# Products


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, ml_dtypes.bfloat16], ids=lambda x: x.__name__)
def test_matmul(backend, dtype):
    a, b = whole(5, 7, dtype=dtype), whole(7, 3, dtype=dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    x, y = from_numpy(a), from_numpy(b)
    for _ in range(3):
        c = gemmhub.matmul(x, y)
        assert type(c) is array.Array
        assert np.array_equal(c.numpy().astype(np.float64), expected)
    assert set(backend.streams) == {0}
    out = empty((3, 5), c.dtype).T
    assert gemmhub.matmul(x, y, out=out) is out
    assert np.array_equal(out.numpy().astype(np.float64), expected)
    assert str(gemmhub.explain(x, y).problem.device) == "musa:0"


def test_repeated_calls_are_looked_up_by_keys(backend, monkeypatch):
    analysed, whole_call = [], gemmhub.api._call
    monkeypatch.setattr(gemmhub.api, "_call", lambda *given: analysed.append(given) or whole_call(*given))
    a, b, v = whole(8, 8), whole(8, 8), whole(8)
    operands = [tuple(from_numpy(x, index) for x in (a, b, v)) for index in (0, 1)]
    for turn in range(3):
        for x, y, bias in operands:
            out = from_numpy(a, x.device.index)
            assert np.array_equal(gemmhub.matmul(x, y).numpy(), a @ b)
            assert np.array_equal(gemmhub.matmul(x.T, y).numpy(), a.T @ b)
            assert np.array_equal(gemmhub.matmul(x, y, out=out, bias=bias).numpy(), a @ b + v)
        assert (len(analysed) > 0) is (turn == 0)
        analysed.clear()


def test_matmul_batched_with_epilogue_stream_and_device(backend, rt):
    a, b, c, bias = whole(4, 5, 6), whole(6, 3), whole(4, 5, 3), whole(3)
    there = [from_numpy(x, 1) for x in (a, b, c, bias)]
    stream = rt.stream_create()
    got = gemmhub.matmul(
        there[0], there[1], c=there[2], bias=there[3], alpha=2, beta=3, activation="relu", stream=stream
    )
    assert np.array_equal(got.numpy(), np.maximum(2 * (a @ b) + 3 * c + bias, 0))
    assert backend.streams == [stream]
    assert backend.devices == [1]
    assert rt.current_device == 0
    rt.stream_destroy(stream)


def test_matmul_into_an_operand(backend):
    a = whole(6, 6)
    there = from_numpy(a)
    gemmhub.matmul(there, there, out=there)
    assert np.array_equal(there.numpy(), a @ a)
    wide = from_numpy(np.zeros((6, 12), np.float32))
    wide_host = np.zeros((6, 12), np.float32)
    gemmhub.matmul(wide[:, ::2], wide[:, 1::2], out=wide[:, ::2])
    assert np.array_equal(wide.numpy(), wide_host)


def test_matmul_where_they_do_not_go_together(backend):
    a = whole(4, 4)
    with pytest.raises(DeviceError, match="gemmhub_musa on musa:0, b is numpy on cpu"):
        gemmhub.matmul(from_numpy(a), a)
    with pytest.raises(DeviceError, match="musa:0, b is gemmhub_musa on musa:1"):
        gemmhub.matmul(from_numpy(a), from_numpy(a, 1))


def test_the_rest_of_gemmhub_takes_them_too(backend):
    a, b = whole(40, 30), whole(30, 20)
    x, y = from_numpy(a, 1), from_numpy(b, 1)
    c = gemmhub.matmul(x, y)
    assert gemmhub.spot_check(x, y, c)
    wrong = a @ b
    wrong[3, 4] += 100
    assert not gemmhub.spot_check(x, y, from_numpy(wrong, 1))
    compared = gemmhub.compare(x, y)
    assert compared
    assert [row.backend for row in compared.rows] == ["addresses", "numpy"]
    gemmhub.tune(x, y)
    assert set(backend.devices) == {1}


def test_matmul_without_room_for_the_result(backend, fake):
    x, y = from_numpy(whole(64, 1)), from_numpy(whole(1, 64))
    free = array.arrays(0).runtime.memory_info()[0]
    fake.fake_limit((1 << 30) - free + 100)
    with pytest.raises(AllocationError, match=r"float32 of shape \(64, 64\) needs"):
        gemmhub.matmul(x, y)


# DLPack


class Seen(ctypes.Structure):
    """The beginning of a DLManagedTensor, by the letter of DLPack's header."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )  # fmt: skip


def taken(capsule):
    """What a consumer does: reads the tensor and renames the capsule."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = (
        ctypes.c_void_p,
        (ctypes.py_object, ctypes.c_char_p),
    )
    api.PyCapsule_SetName.argtypes = ctypes.py_object, ctypes.c_char_p
    address = api.PyCapsule_GetPointer(capsule, b"dltensor")
    api.PyCapsule_SetName(capsule, b"used_dltensor")
    return address, Seen.from_address(address)


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [("float16", 2, 16), ("bfloat16", 4, 16), ("int8", 0, 8), ("uint8", 1, 8), ("complex64", 5, 64), ("bool", 6, 8)],
)
def test_a_capsule_describes_the_array(rt, fake, dtype, code, bits):
    gc.collect()
    live = fake.fake_live()
    x = from_numpy(whole(4, 6).astype(gemmhub.dtypes.as_dtype(dtype)), 1)[1:, ::2]
    assert x.__dlpack_device__() == (12, 1)
    address, seen = taken(x.__dlpack__())
    assert (seen.data, seen.device_type, seen.device_id, seen.ndim) == (x.data.ptr, 12, 1, 2)
    assert (seen.code, seen.bits, seen.lanes, seen.byte_offset) == (code, bits, 1, 0)
    assert (seen.shape[:2], seen.strides[:2]) == ([3, 3], [6, 2])
    deleter = seen.deleter
    del x
    gc.collect()
    assert fake.fake_live() == live + 1  # the consumer still has it
    deleter(address)
    gc.collect()
    assert fake.fake_live() == live


def test_an_unconsumed_capsule_frees_the_array(rt, fake):
    gc.collect()
    live = fake.fake_live()
    capsule = from_numpy(whole(4, 6)).__dlpack__(stream=3, max_version=(1, 0), copy=False)
    gc.collect()
    assert fake.fake_live() == live + 1
    del capsule
    gc.collect()
    assert fake.fake_live() == live


def test_what_dlpack_cannot_describe_is_a_buffer_error(rt):
    x = from_numpy(whole(4, 6))
    with pytest.raises(BufferError, match="no copy"):
        x.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="another device"):
        x.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="no code for float8_e4m3fn"):
        from_numpy(np.zeros((2, 2), ml_dtypes.float8_e4m3fn)).__dlpack__()
    with pytest.raises(BufferError, match=r"whole number|multiple"):
        odd(x).__dlpack__()


def odd(x):
    """A view whose strides are no whole numbers of elements."""
    return array.Array(x.data, x.dtype, (3,), (6,))


def test_consumers_without_the_device_refuse_it(rt, fake):
    live = fake.fake_live()
    x = from_numpy(whole(4, 6))
    with pytest.raises((BufferError, RuntimeError)) as caught:
        np.from_dlpack(x)
    assert "evice" in str(caught.value)
    del x, caught
    gc.collect()
    assert fake.fake_live() == live


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)], ids=str)
def test_capsules_of_small_arrays(rt, shape):
    x = from_numpy(np.zeros(shape, np.int16))
    address, seen = taken(x.__dlpack__())
    assert (seen.ndim, seen.shape[: len(shape)]) == (len(shape), list(shape))
    assert seen.data == x.data.ptr or 0 in shape
    seen.deleter(address)


def test_the_consumer_waits_for_the_device(rt, fake):
    x = from_numpy(whole(4, 6))
    fake.fake_plan(b"musaDeviceSynchronize=700")
    with pytest.raises(runtime.MusaError):
        x.__dlpack__()
    x.__dlpack__(stream=-1)  # the consumer requests no synchronisation
