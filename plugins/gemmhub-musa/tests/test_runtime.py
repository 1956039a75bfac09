"""The runtime by ctypes: what each call does, and what each failure becomes."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from gemmhub_musa import runtime
from gemmhub_musa.runtime import ON_DEVICE, TO_DEVICE, TO_HOST, MusaError

from conftest import HERE, link
from gemmhub.capability import Absent
from gemmhub.errors import AllocationError, BackendError


def test_it_is_the_one_of_the_home(rt, named):
    assert rt.library.where == str(named / "lib" / "libmusart.so.4")
    assert runtime.load() is rt
    assert (rt.version, rt.driver_version) == ("4.3.0", "5.1.0")


def test_devices_and_their_attributes(rt):
    assert rt.device_count() == 2
    assert rt.attribute(runtime.MULTIPROCESSORS, 1) == 56
    assert rt.arch(0) == (2, 2)
    with pytest.raises(MusaError, match=r"musaDeviceGetAttribute: musaErrorInvalidDevice \(101\)"):
        rt.attribute(runtime.MULTIPROCESSORS, 5)
    assert rt.arch(5) is None


def test_a_block_on_a_device_leaves_the_thread_as_it_was(rt):
    assert rt.current_device == 0
    with rt.device(1):
        assert rt.current_device == 1
        with rt.device(0):
            assert rt.current_device == 0
        assert rt.current_device == 1
        seen = []
        thread = threading.Thread(target=lambda: seen.append(rt.current_device))
        thread.start()
        thread.join()
        assert seen == [0]
    assert rt.current_device == 0
    with pytest.raises(ZeroDivisionError), rt.device(1):
        raise ZeroDivisionError
    assert rt.current_device == 0
    with pytest.raises(MusaError), rt.device(2):
        pass
    assert rt.current_device == 0


def test_memory_goes_there_and_back(rt, fake):
    x = np.arange(100, dtype=np.uint8)
    back = np.zeros(100, np.uint8)
    live = fake.fake_live()
    with rt.device(1):
        one, other = rt.malloc(100), rt.malloc(100)
        assert fake.fake_device_of(runtime.c_void_p(one)) == 1
        rt.memcpy(one, x.ctypes.data, 100, TO_DEVICE)
        rt.memcpy_async(other, one, 100, ON_DEVICE, 0)
        rt.memset(other, 7, 3)
        rt.memset_async(other + 97, 9, 3, 0)
        rt.memcpy(back.ctypes.data, other, 100, TO_HOST)
        assert fake.fake_live() == live + 2
        rt.free(one)
        rt.free(other)
    assert fake.fake_live() == live
    assert back.tolist() == [7, 7, 7, *range(3, 97), 9, 9, 9]


def test_nothing_is_not_asked_of_the_runtime(rt, fake):
    fake.fake_plan(b"musaMalloc=999 musaMemcpy=999 musaMemcpyAsync=999 musaMemset=999 musaMemcpy2DAsync=999")
    assert rt.malloc(0) == 0
    rt.memcpy(0, 0, 0, TO_DEVICE)
    rt.memcpy_async(0, 0, 0, TO_DEVICE, 0)
    rt.memcpy_2d_async(0, 4, 0, 4, 0, 8, 0)
    rt.memset(0, 0, 0)
    rt.memset_async(0, 0, 0, 0)


def test_a_full_device_is_an_allocation_error(rt, fake):
    free, total = rt.memory_info()
    assert 0 < free <= total == 1 << 30
    with pytest.raises(AllocationError, match=r"2 GiB of device memory: musaMalloc: musaErrorMemoryAllocation \(2\)"):
        rt.malloc(2 << 30)
    assert rt.clear_error() == ""
    fake.fake_plan(b"musaMalloc=700")
    with pytest.raises(MusaError, match="musaErrorIllegalAddress"):
        rt.malloc(1)


def test_a_failure_is_not_left_for_the_next_call(rt, fake):
    with pytest.raises(MusaError) as caught:
        rt.stream_synchronize(0x1234)
    error = caught.value
    assert (error.function, error.code, error.name) == ("musaStreamSynchronize", 400, "musaErrorInvalidResourceHandle")
    assert isinstance(error, BackendError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert rt.clear_error() == ""


def test_errors_that_others_left_behind_are_read_and_cleared(rt, fake):
    fake.fake_set_last(801)
    assert rt.clear_error() == "musaErrorNotSupported"
    assert rt.clear_error() == ""
    fake.fake_set_last(12345)
    assert rt.clear_error() == "unknown error"


def test_streams_and_events(rt):
    stream = rt.stream_create()
    start, end = rt.event_create(), rt.event_create()
    with pytest.raises(MusaError):
        rt.event_elapsed(start, end)
    rt.event_record(start, stream)
    rt.stream_wait(stream, start)
    rt.event_record(end, 0)
    rt.event_synchronize(end)
    assert rt.event_elapsed(start, end) == 0.5
    rt.stream_synchronize(stream)
    rt.synchronize()
    for event in (start, end):
        rt.event_destroy(event)
    rt.stream_destroy(stream)
    with pytest.raises(MusaError):
        rt.stream_destroy(stream)


# The machine


def test_the_machine(rt):
    found = runtime.machine()
    assert found.count == 2
    assert found.arch_name(0) == "mp_22"
    assert found.names == ("", "")  # this home has no driver
    assert found.versions == {
        "musa runtime": "4.3.0", "musa driver": "5.1.0", "device": "mp_22", "multiprocessors": "56",
    }  # fmt: skip


def test_what_has_passed_is_not_looked_up_again(rt, monkeypatch):
    """Each array looks for the machine; reading the installation's files and the cache takes 20 ms and more."""
    first = runtime.machine()

    def again(*arguments):
        raise AssertionError("looked up again")

    monkeypatch.setattr(runtime.first_run, "passed", again)
    assert runtime.machine().count == first.count
    monkeypatch.setenv("MUSA_VISIBLE_DEVICES", "1")
    with pytest.raises(AssertionError, match="looked up again"):
        runtime.machine()


@pytest.mark.parametrize("count", [0, 38])
def test_no_device_is_reported(rt, fake, count):
    """The one number as this header has it (from a count of none), the other as older ones may."""
    if count:
        fake.fake_plan(b"musaGetDeviceCount=38")
    else:
        fake.fake_devices(0)
    no = runtime.machine()
    assert isinstance(no, Absent)
    assert no.reason == "the MUSA runtime shows no device"
    assert "MUSA_VISIBLE_DEVICES" in no.remedy


def test_a_runtime_that_does_not_work(rt, fake):
    fake.fake_plan(b"musaGetDeviceCount=999")
    no = runtime.machine()
    assert isinstance(no, Absent)
    assert no.reason == ("the MUSA runtime does not work: musaGetDeviceCount: unknown error (999): some other trouble")


def test_an_unknown_architecture_is_not_believed(rt, monkeypatch):
    monkeypatch.setattr(rt, "attribute", lambda number, index: 56)
    assert rt.arch(0) is None
    assert runtime.machine().arch_name(0) == "unknown"


def test_a_library_without_functions_that_are_needed(tmp_path, python):
    source = (
        (HERE / "fake_musart.cpp").read_text().replace("musaMemGetInfo", "musaOther").replace("musaFree", "musaFre")
    )
    link(tmp_path / "home" / "lib" / "libmusart.so.4", source)
    code = "from gemmhub_musa import runtime; no = runtime.machine(); print(type(no).__name__, no.reason, no.remedy)"
    told = python(code, MUSA_HOME=tmp_path / "home")
    assert told.startswith(f"Absent {tmp_path}/home/lib/libmusart.so.4 lacks musaFree, musaFreeHost, musaMemGetInfo ")
    assert "install a MUSA SDK of version 3.1 or later" in told


def test_names_of_devices_by_the_driver(tmp_path, python):
    lib = tmp_path / "home" / "lib"
    link(lib / "libmusart.so.4", HERE / "fake_musart.cpp")
    driver = """
        #include <cstring>
        extern "C" int muInit(unsigned) { return 0; }
        extern "C" int muDeviceGet(int* device, int index) { *device = index + 10; return 0; }
        extern "C" int muDeviceGetName(char* name, int length, int device) {
          if (device == 11) return 101;
          strncpy(name, "MTT S4000", length);
          return 0;
        }
    """
    link(lib / "libmusa.so.1", driver)
    code = """
        from gemmhub_musa import runtime
        found = runtime.machine()
        print(found.names, found.versions["device"])
    """
    assert python(code, MUSA_HOME=tmp_path / "home") == "('MTT S4000', '') MTT S4000"


def test_without_an_installation(python, tmp_path):
    code = "from gemmhub_musa import runtime; print(type(runtime.machine()).__name__, type(runtime.load()).__name__)"
    assert python(code, PATH=tmp_path) == "Absent Absent"
