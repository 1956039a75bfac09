"""The simulated libmusart: memory, streams as late as they may be, events, errors, injected failures."""

import ctypes
import os
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest
from gemmhub_musa_sim.profiles import PROFILES
from gemmhub_musa_sim.runtime.recipe import object_recipe
from simulated import D2D, D2H, H2D, Card, home

INVALID_VALUE, OUT_OF_MEMORY, BAD_DIRECTION, BAD_DEVICE, BAD_HANDLE, NOT_READY, LOST = 1, 2, 21, 101, 400, 600, 700


@pytest.fixture
def card():
    card = Card()
    live = card.rt.musaSimLive(), card.rt.musaSimLiveHandles()
    with card.options(QUIET=1):
        yield card
        card.reset()
        assert (card.rt.musaSimLive(), card.rt.musaSimLiveHandles()) == live, "the test left something behind"


def vector(n=1000):
    return np.arange(n, dtype=np.float32)


def test_the_library_is_built_again_when_fibers_or_barriers_change():
    """The cache's key covers the files that the core ships."""
    recipe = object_recipe()
    shared = {path.name for path in resources.files("gemmhub").joinpath("testing", "simt").iterdir()}
    assert {"fiber.cpp", "schedule.hpp"} <= shared <= {path.name for path in (*recipe.sources, *recipe.depends)}


class TestMemory:
    def test_there_and_back(self, card):
        a = vector()
        p = card.put(a)
        assert p.value % 256 == 0
        assert np.array_equal(card.get(p, a.shape, a.dtype), a)
        card.free(p)

    def test_fresh_memory_is_nan(self, card):
        p = card.malloc(400)
        assert np.isnan(card.get(p, 100, np.float32)).all()
        card.free(p)

    def test_extent(self, card):
        p = card.malloc(1000)
        extent = card.rt.musaSimExtent
        inside = [ctypes.c_void_p(p.value + offset) for offset in (0, 999, 1000, -1)]
        assert [extent(q) for q in inside] == [1000, 1, 0, 0]
        card.free(p)
        assert extent(p) == 0
        assert extent(ctypes.c_void_p(vector().ctypes.data)) == 0

    def test_copies_of_rows(self, card):
        a = np.arange(24, dtype=np.float32).reshape(4, 6)
        p = card.malloc(4 * 3 * 4)
        sizes = [ctypes.c_size_t(n) for n in (3 * 4, 6 * 4, 3 * 4, 4)]
        pitch, source_pitch, width, rows = sizes
        assert card.rt.musaMemcpy2D(p, pitch, ctypes.c_void_p(a.ctypes.data), source_pitch, width, rows, H2D) == 0
        assert np.array_equal(card.get(p, (4, 3), np.float32), a[:, :3])
        too_wide = ctypes.c_size_t(4 * 4)
        assert card.rt.musaMemcpy2D(p, pitch, ctypes.c_void_p(a.ctypes.data), source_pitch, too_wide, rows, H2D) == 1
        card.free(p)

    @pytest.mark.parametrize(
        ("to", "source", "extra", "kind", "error"),
        [
            ("device", "host", 0, H2D, 0),
            ("device", "host", 1, H2D, INVALID_VALUE),
            ("host", "device", 1, D2H, INVALID_VALUE),
            ("device", "device", 1, D2D, INVALID_VALUE),
            ("host", "host", 0, H2D, INVALID_VALUE),
            ("device", "host", 0, D2H, INVALID_VALUE),
            ("device", "device", 0, H2D, INVALID_VALUE),
            ("null", "host", 0, H2D, INVALID_VALUE),
            ("device", "host", 0, 4, 0),
            ("device", "host", 0, 5, BAD_DIRECTION),
        ],
    )
    def test_copies_are_checked(self, card, to, source, extra, kind, error):
        host = np.zeros(101, np.float32)
        p = card.malloc(400)
        places = {"device": p, "host": host.ctypes.data, "null": None}
        assert card.copy(places[to], places[source], 400 + 4 * extra, kind) == error
        assert card.rt.musaGetLastError() == error
        card.free(p)

    def test_freeing_what_is_not_allocated(self, card):
        p = card.malloc(64)
        assert card.rt.musaFree(ctypes.c_void_p(p.value + 16)) == INVALID_VALUE
        card.free(p)
        assert card.rt.musaFree(p) == INVALID_VALUE
        assert card.rt.musaFree(None) == 0

    def test_limit_and_information(self, card):
        card.rt.musaSimLimit(1 << 20)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        p = card.malloc(1 << 19)
        assert card.rt.musaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
        assert (free.value, total.value) == (1 << 19, 1 << 20)
        q = ctypes.c_void_p()
        assert card.rt.musaMalloc(ctypes.byref(q), ctypes.c_size_t((1 << 19) + 1)) == OUT_OF_MEMORY
        assert q.value is None
        assert card.rt.musaGetLastError() == OUT_OF_MEMORY
        card.free(p)

    @pytest.mark.parametrize("nbytes", [1 << 46, (1 << 64) - 1])
    def test_more_than_there_is(self, card, nbytes):
        q = ctypes.c_void_p()
        assert card.rt.musaMalloc(ctypes.byref(q), ctypes.c_size_t(nbytes)) == OUT_OF_MEMORY

    def test_pinned_memory_is_no_device_memory(self, card):
        p = ctypes.c_void_p()
        assert card.rt.musaMallocHost(ctypes.byref(p), ctypes.c_size_t(64)) == 0
        assert card.rt.musaSimExtent(p) == 0
        assert card.rt.musaFree(p) == INVALID_VALUE
        assert card.rt.musaFreeHost(p) == 0


class TestStreams:
    """Work runs when something demands it, and not before."""

    def queued(self, card, flags=0):
        """A stream on which a copy to the device waits; the copied array and the device's memory."""
        stream, a = card.stream(flags), vector()
        p = card.malloc(a.nbytes)
        assert card.copy_async(p, a.ctypes.data, a.nbytes, H2D, stream) == 0
        return stream, a, p

    def seen_from(self, card, p, n, stream):
        """What a copy back on another stream gets."""
        out = np.zeros(n, np.float32)
        assert card.copy_async(out.ctypes.data, p, out.nbytes, D2H, stream) == 0
        assert card.rt.musaStreamSynchronize(stream) == 0
        return out

    def test_synchronising_the_stream_runs_it(self, card):
        stream, a, p = self.queued(card)
        assert np.array_equal(self.seen_from(card, p, a.size, stream), a)
        card.rt.musaStreamDestroy(stream)
        card.free(p)

    def test_another_stream_sees_old_data(self, card):
        stream, a, p = self.queued(card)
        other = card.stream()
        assert np.isnan(self.seen_from(card, p, a.size, other)).all()
        assert card.rt.musaDeviceSynchronize() == 0
        assert np.array_equal(self.seen_from(card, p, a.size, other), a)
        for s in (stream, other):
            card.rt.musaStreamDestroy(s)
        card.free(p)

    @pytest.mark.parametrize(("flags", "ordered"), [(0, True), (1, False)])
    def test_the_default_stream_waits_for_blocking_streams(self, card, flags, ordered):
        stream, a, p = self.queued(card, flags)
        got = card.get(p, a.shape, np.float32)  # a plain copy is on the default stream
        assert np.array_equal(got, a) if ordered else np.isnan(got).all()
        card.rt.musaStreamDestroy(stream)
        card.free(p)

    @pytest.mark.parametrize(("flags", "ordered"), [(0, True), (1, False)])
    def test_blocking_streams_wait_for_the_default_stream(self, card, flags, ordered):
        p, stream = card.malloc(400), card.stream(flags)
        assert card.rt.musaMemset(p, 0, ctypes.c_size_t(400)) == 0
        got = self.seen_from(card, p, 100, stream)
        assert (got == 0).all() if ordered else np.isnan(got).all()
        card.rt.musaStreamDestroy(stream)
        card.free(p)

    def test_a_destroyed_streams_work_still_runs(self, card):
        stream, a, p = self.queued(card)
        assert card.rt.musaStreamDestroy(stream) == 0
        assert np.array_equal(card.get(p, a.shape, np.float32), a)
        card.free(p)

    def test_eager_when_asked_for(self, card):
        with card.options(LAZY=0):
            stream, a, p = self.queued(card)
        other = card.stream()
        assert np.array_equal(self.seen_from(card, p, a.size, other), a)
        for s in (stream, other):
            card.rt.musaStreamDestroy(s)
        card.free(p)

    def test_polling_makes_progress(self, card):
        stream, _, p = self.queued(card)
        assert [card.rt.musaStreamQuery(stream) for _ in range(2)] == [NOT_READY, 0]
        card.rt.musaStreamDestroy(stream)
        card.free(p)

    def test_work_of_other_libraries_is_in_order(self, card):
        stream, order = card.stream(), []
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda number: order.append(number))
        for number in (1, 2, 3):
            assert card.rt.musaSimEnqueue(stream, work, ctypes.c_void_p(number)) == 0
        assert order == []
        assert card.rt.musaStreamSynchronize(stream) == 0
        assert order == [1, 2, 3]
        assert card.rt.musaStreamDestroy(stream) == 0
        assert card.rt.musaSimEnqueue(stream, work, None) == BAD_HANDLE

    def test_unknown_and_destroyed_handles(self, card):
        stream = card.stream()
        assert card.rt.musaSimStreamAlive(stream) == card.rt.musaSimStreamAlive(None) == 1
        assert card.rt.musaStreamDestroy(stream) == 0
        assert card.rt.musaSimStreamAlive(stream) == 0
        assert card.rt.musaStreamDestroy(stream) == BAD_HANDLE
        assert card.rt.musaStreamSynchronize(stream) == BAD_HANDLE
        assert card.rt.musaStreamSynchronize(ctypes.c_void_p(0x1234)) == BAD_HANDLE
        assert card.rt.musaStreamDestroy(None) == BAD_HANDLE

    def test_a_queued_copy_whose_host_memory_is_gone(self, card):
        """As on a device, the error is reported later, and the process lives."""
        p, nbytes = card.malloc(4096), 4096
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        host = libc.mmap(None, nbytes, 3, 0x22, -1, 0)
        assert card.copy_async(p, host, nbytes, H2D, None) == 0
        libc.munmap(host, nbytes)
        assert card.rt.musaDeviceSynchronize() == LOST
        assert "freed" in card.message()
        card.reset()
        card.free(p)


class TestEvents:
    def test_a_stream_waits_for_an_event(self, card):
        first, second, event = card.stream(), card.stream(), card.event()
        a = vector()
        p, out = card.malloc(a.nbytes), np.zeros_like(a)
        card.copy_async(p, a.ctypes.data, a.nbytes, H2D, first)
        assert card.rt.musaEventRecord(event, first) == 0
        assert card.rt.musaStreamWaitEvent(second, event, 0) == 0
        card.copy_async(out.ctypes.data, p, a.nbytes, D2H, second)
        assert card.rt.musaStreamSynchronize(second) == 0
        assert np.array_equal(out, a)
        for s in (first, second):
            card.rt.musaStreamDestroy(s)
        card.rt.musaEventDestroy(event)
        card.free(p)

    def test_times(self, card):
        start, end, milliseconds = card.event(), card.event(), ctypes.c_float()
        elapsed = card.rt.musaEventElapsedTime
        assert elapsed(ctypes.byref(milliseconds), start, end) == BAD_HANDLE  # never recorded
        assert card.rt.musaEventRecord(start, None) == card.rt.musaEventRecord(end, None) == 0
        assert elapsed(ctypes.byref(milliseconds), start, end) == NOT_READY
        assert card.rt.musaEventSynchronize(end) == 0
        assert elapsed(ctypes.byref(milliseconds), start, end) == 0
        assert milliseconds.value >= 0
        for event in (start, end):
            assert card.rt.musaEventDestroy(event) == 0
        assert card.rt.musaEventDestroy(start) == BAD_HANDLE

    def test_an_event_destroyed_before_it_happened(self, card):
        event = card.event()
        assert card.rt.musaEventRecord(event, None) == 0
        assert card.rt.musaEventDestroy(event) == 0
        assert card.rt.musaDeviceSynchronize() == 0


class TestErrors:
    def test_the_last_error_is_kept_until_asked_for(self, card):
        assert card.rt.musaFree(ctypes.c_void_p(16)) == INVALID_VALUE
        assert card.rt.musaPeekAtLastError() == INVALID_VALUE
        assert [card.rt.musaGetLastError() for _ in range(2)] == [INVALID_VALUE, 0]

    def test_a_left_behind_error(self, card):
        card.rt.musaSimSetSticky(801)
        p = card.malloc(16)  # calls go on
        card.free(p)
        assert [card.rt.musaGetLastError() for _ in range(2)] == [801, 0]

    def test_a_lost_device_stays_lost(self, card):
        p = card.malloc(16)
        card.rt.musaSimSetSticky(LOST)
        assert [card.rt.musaGetLastError() for _ in range(2)] == [LOST, LOST]
        assert card.rt.musaDeviceSynchronize() == LOST
        assert card.rt.musaFree(p) == LOST
        card.rt.musaSimReset()
        card.free(p)

    def test_names_and_texts(self, card):
        assert card.rt.musaGetErrorName(700) == b"musaErrorIllegalAddress"
        assert card.rt.musaGetErrorString(2) == b"out of memory"
        assert b"unrecognized" in card.rt.musaGetErrorString(12345)

    def test_injection(self, card):
        card.rt.musaSimInject(b"musaMalloc:2,musaStreamCreate")
        p = card.malloc(16)
        q = ctypes.c_void_p()
        assert card.rt.musaMalloc(ctypes.byref(q), ctypes.c_size_t(16)) == OUT_OF_MEMORY
        card.free(card.malloc(16), p)
        assert [card.rt.musaStreamCreate(ctypes.byref(q)) for _ in range(3)] == [OUT_OF_MEMORY] * 3
        card.rt.musaSimInject(b"mublasGemmEx")
        assert card.rt.musaSimShouldFail(b"mublasGemmEx") == 1
        card.rt.musaSimInject(b"")
        assert card.rt.musaSimShouldFail(b"mublasGemmEx") == 0


class TestDevices:
    def test_one_device(self, card):
        count, device = ctypes.c_int(), ctypes.c_int()
        assert card.rt.musaGetDeviceCount(ctypes.byref(count)) == 0
        assert count.value == 1
        assert card.rt.musaSetDevice(1) == BAD_DEVICE
        assert card.rt.musaGetDevice(ctypes.byref(device)) == 0
        assert device.value == 0

    def test_two_devices(self, card):
        with card.options(DEVICES=2):
            stream, p = card.stream(), card.malloc(64)
            assert card.rt.musaSetDevice(1) == 0
            q = card.malloc(64)
            assert [card.rt.musaSimDeviceOf(x) for x in (p, q)] == [0, 1]
            a = vector(16)
            assert card.copy_async(q, a.ctypes.data, 64, H2D, stream) == BAD_HANDLE  # a stream of the other device
            assert card.copy(q, p, 64, D2D) == 0
            card.free(q)
            assert card.rt.musaSetDevice(0) == 0
            card.free(p)
            card.rt.musaStreamDestroy(stream)

    @pytest.mark.parametrize(
        ("arch", "warp", "major", "minor", "shared"), [(22, 128, 2, 2, 73728), (31, 32, 3, 1, 196608)]
    )
    def test_attributes(self, card, arch, warp, major, minor, shared):
        with card.options(ARCH=arch):
            got = {}
            for attribute in (10, 75, 76, 8, 81, 1):
                value = ctypes.c_int()
                assert card.rt.musaDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
                got[attribute] = value.value
        assert got == {10: warp, 75: major, 76: minor, 8: shared, 81: shared, 1: 1024}
        assert card.rt.musaDeviceGetAttribute(ctypes.byref(value), 9999, 0) == INVALID_VALUE
        assert card.rt.musaDeviceGetAttribute(ctypes.byref(value), 10, 7) == BAD_DEVICE


@pytest.mark.parametrize("sdk", PROFILES)
def test_generations(sdk):
    profile = PROFILES[sdk]
    library = ctypes.CDLL(str(home(sdk) / "lib" / profile.musart))
    version = ctypes.c_int()
    assert library.musaRuntimeGetVersion(ctypes.byref(version)) == 0
    assert version.value == profile.number
    assert hasattr(library, "musaMallocAsync") == (sdk == "5.1")
    assert str(profile.number) in (home(sdk) / "include" / "musa_version.h").read_text()


def test_options_come_from_the_environment():
    code = (
        "import ctypes, sys; rt = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int(); p = ctypes.c_void_p();"
        "rt.musaGetDeviceCount(ctypes.byref(n));"
        "print(n.value, rt.musaMalloc(ctypes.byref(p), ctypes.c_size_t(8)), rt.musaSimSetOption(b'NONE', 1))"
    )
    environment = {**os.environ, "MUSA_SIM_DEVICES": "3", "MUSA_SIM_FAIL": "musaMalloc"}
    path = home() / "lib" / "libmusart.so"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["3", "2", "0"]


def test_the_driver_library_answers_by_the_runtime():
    card = Card()
    driver = ctypes.CDLL(str(home() / "lib" / "libmusa.so.1"))
    n, p = ctypes.c_int(), ctypes.c_ulonglong()
    assert driver.muDeviceGetCount(ctypes.byref(n)) == 3  # not initialised
    assert driver.muInit(0) == 0
    assert driver.muDeviceGetCount(ctypes.byref(n)) == 0
    name = ctypes.create_string_buffer(64)
    assert (driver.muDeviceGetName(name, 64, 0), name.value) == (0, b"Simulated MTT S4000")
    assert driver.muDeviceGet(ctypes.byref(n), 5) == BAD_DEVICE
    assert driver.muMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64)) == 0
    assert card.rt.musaSimExtent(ctypes.c_void_p(p.value)) == 64
    assert driver.muMemFree_v2(p) == 0
    assert driver.muModuleLoadData(ctypes.byref(p), None) == 801
