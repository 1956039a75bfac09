"""All of it on simulated SDKs of three generations, each in a process of its own: streams run late there."""

from __future__ import annotations

import json

import pytest
from gemmhub_musa import attested

sim = pytest.importorskip("gemmhub_musa_sim")

SONAMES = {"3.1": "libmusart.so.1.0", "4.3": "libmusart.so.4", "5.1": "libmusart.so.5"}


@pytest.fixture(scope="module", params=list(SONAMES))
def generation(request):
    return request.param


@pytest.fixture(scope="module")
def simulated(generation, tmp_path_factory, cache_dir):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMHUB_CACHE_DIR", str(cache_dir))
        return sim.make_home(tmp_path_factory.mktemp("musa") / generation, sdk=generation)


@pytest.fixture
def musa(python, simulated):
    """``musa(code)``: what it prints in a fresh process of two simulated devices."""
    begin = """
import ctypes, gc, json, numpy as np
from gemmhub_musa import array, compile, doctor, from_numpy, runtime, sdk, workspace
from gemmhub_musa.testing import stream_of_its_own
rt = runtime.load()
control = rt.library.cdll
"""
    return lambda code, **options: python(
        begin + code, **{"MUSA_HOME": simulated, "MUSA_SIM_DEVICES": 2, "MUSA_SIM_LAZY": 1, **options}
    )


def test_the_report(musa, generation, simulated):
    found = json.loads(musa("print(json.dumps([vars(x) for x in doctor.findings()]))"))
    assert [x for x in found if x["ok"] is False] == []
    says = {(x["section"], x["item"]): x["text"] for x in found}
    assert says["installation", "home"] == f"{simulated} (by MUSA_HOME)"
    assert says["installation", "version"] == f"{generation}.0"
    assert says["devices", "runtime, driver"].startswith(f"{generation}.0, ")
    assert "mp_22" in says["devices", "musa:1"]
    for index in range(2):
        assert says["arrays", f"copies on musa:{index}"].startswith("right; ")
        assert says["compilers", f"a kernel on musa:{index}"] == "runs, and is right"
    for name in ("MUBLAS_OP_N", "MUSA_R_16F"):
        assert says["mublas.h", name] == f"{attested.MUBLAS[name]}, as in public sources"
    assert ("mublasLt.h", "not public before") in says or generation == "3.1"
    assert says["libraries", "mublasLt"].startswith("there is no libmublasLt.so") == (generation == "3.1")
    assert ("mudnncxx/mudnn.h", "not public before") in says or generation != "5.1"


def test_the_runtime_that_is_loaded(musa, generation):
    code = """
found = sdk.find()
print(open(found.libraries[0] / "libmusart.so", "rb").read() == open(found.library("musart").where, "rb").read())
ctypes.CDLL("SONAME")
print(runtime.machine().versions["device"])
"""
    same, device = musa(code.replace("SONAME", SONAMES[generation])).splitlines()
    assert same == "True"
    assert "Simulated" in device


def test_the_command_line_reaches_the_arrays(musa):
    code = """
from gemmhub.cli import by_name as devices
from gemmhub_musa import Array
arrays = devices.arrays_for("musa:1")
x = np.arange(6, dtype=np.float32).reshape(2, 3)
for order in devices.ORDERS:
    there = devices.place(x, arrays, order)
    assert type(there) is Array and there.device.index == 1 and np.array_equal(there.numpy(), x)
print(devices.device_name(arrays), "|", *devices.library_versions(arrays))
print(*[found.devices for found in devices.library_statuses() if found.library == arrays.name])
"""
    first, second = musa(code).splitlines()
    assert "S4000" in first
    assert "musa runtime" in first
    assert "musa:0" in second
    assert "musa:1" in second


def test_copies_on_late_streams(musa):
    code = """
arrays = array.arrays(1)
x = np.arange(24, dtype=np.float32).reshape(4, 6)
with rt.device(1):
    stream = stream_of_its_own(rt)
there = from_numpy(x, 1)
with arrays.on(stream):
    clone = arrays.clone(there[:, ::2])
    target = from_numpy(np.zeros_like(x), 1)
    arrays.copy(target[1:3], there[1:3])
expected = np.zeros_like(x); expected[1:3] = x[1:3]
print(np.array_equal(clone.numpy(), x[:, ::2]), np.array_equal(target.numpy(), expected))
with rt.device(1):
    rt.stream_destroy(stream)
del there, clone, target
gc.collect()
print(control.musaSimLive())
"""
    assert musa(code).splitlines() == ["True True", "0"]


def test_zeros_are_there_for_every_stream(musa):
    code = """
with rt.device(0):
    stream = stream_of_its_own(rt)
    copy = from_numpy(np.ones(64, np.uint8))
    zeros = workspace.of(rt, 0).zeros(64)
    rt.memcpy_async(copy.data.ptr, zeros, 64, runtime.ON_DEVICE, stream)
print(copy.numpy().max())
"""
    assert musa(code) == "0"


def test_injected_failures(musa):
    code = """
from gemmhub.errors import AllocationError
control.musaSimInject(b"musaMalloc")
try:
    from_numpy(np.ones((4, 4)))
except AllocationError as error:
    print(type(error).__name__)
control.musaSimInject(b"musaMemcpy")
try:
    from_numpy(np.ones((4, 4)))
except runtime.MusaError as error:
    print(error.function)
control.musaSimInject(b"")
control.musaSimSetSticky(801)
print(rt.clear_error())
print(repr(rt.clear_error()))
print(from_numpy(np.ones((4, 4))).numpy().sum())
"""
    assert musa(code).splitlines() == ["AllocationError", "musaMemcpy", "musaErrorNotSupported", "''", "16.0"]


def test_a_kernel_that_faults(musa):
    code = '''
source = """
#include <musa_runtime.h>
__global__ void stray(float* p) { p[1 << 24] = 1.0f; }
extern "C" int launch(float* p) { stray<<<1, 1>>>(p); return (int)musaGetLastError(); }
"""
built = compile.compile_mu(source, sdk.find(), "mp_22", name="stray")
from gemmhub.kit import native
there = from_numpy(np.ones(4, np.float32))
native.load(built).launch(ctypes.c_void_p(there.data.ptr))
try:
    there.numpy()
except runtime.MusaError as error:
    print(error.code)
'''
    assert musa(code, MUSA_SIM_QUIET=1) == "700"


def test_values_of_the_headers(musa, generation):
    """Numbers that are not public are odd, so that no code can have guessed them; absent names have none."""
    code = """
names = ["MUBLAS_OP_T", "MUBLAS_COMPUTE_32F", "MUBLAS_NEVER", "MUBLAS_DEFAULT_MATH", "MUBLAS_MATH_MODE_DEFAULT"]
print(json.dumps(compile.enumerators(sdk.find(), "mublas.h", names)))
"""
    values = json.loads(musa(code))
    assert (values.pop("MUBLAS_OP_T"), values.pop("MUBLAS_COMPUTE_32F")) == (112, 68)
    assert list(values) == ["MUBLAS_MATH_MODE_DEFAULT" if generation == "3.1" else "MUBLAS_DEFAULT_MATH"]


def test_without_any_device(musa):
    assert musa("print(runtime.machine().reason)", MUSA_SIM_DEVICES=0) == "the MUSA runtime shows no device"
