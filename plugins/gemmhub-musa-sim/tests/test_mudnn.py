"""The stub library libmudnn: the C++ API of every generation, and the C API of 5.1."""

import ctypes
import functools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gemmhub_musa_sim.enums import enums
from gemmhub_musa_sim.headers import folder
from gemmhub_musa_sim.profiles import PROFILES
from stubs import Runtime, home, pointer

from gemmhub.capability import Refusal
from gemmhub.kit.native import Recipe, build

f16, bf16, f32, f64 = (np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
TYPES = [f16, bf16, f32, f64]
C_TYPES = ["HALF", "BFLOAT16", "FLOAT", "DOUBLE"]


class Spec(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("dims", ctypes.c_int64 * 8),
        ("strides", ctypes.c_int64 * 8),
    ]


class Workspace(ctypes.Structure):
    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("asked", ctypes.c_size_t),
        ("calls", ctypes.c_int),
        ("released", ctypes.c_int),
    ]


class Options(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("batched", "tensor_mode", "allow_tf32", "left", "right")] + [
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("gamma", ctypes.c_double),
        ("stream", ctypes.c_void_p),
    ]


def spec(address, dtype, dims, strides=None):
    strides = strides or [int(np.prod(dims[i + 1 :])) for i in range(len(dims))]
    pad = [0] * (8 - len(dims))
    eight = ctypes.c_int64 * 8
    return Spec(address, TYPES.index(dtype), len(dims), eight(*dims, *pad), eight(*strides, *pad))


@functools.cache
def calls(sdk: str) -> ctypes.CDLL:
    """tests/mudnn_calls.cpp, built against that generation's header and bound to its library."""
    profile = PROFILES[sdk]
    library = home(sdk) / "lib" / (profile.mudnn_cxx or profile.mudnn)
    ctypes.CDLL(str(library))  # the loader then finds it by its soname
    header = "<mudnncxx/mudnn.h>" if profile.mudnn_cxx else "<mudnn.h>"
    include = folder(profile, profile.mublas_symbols)
    flags = ("-std=c++17", "-fPIC", "-shared", f"-I{include}", f"-DMUDNN_HEADER={header}")
    source = Path(__file__).parent / "mudnn_calls.cpp"
    recipe = Recipe(("g++",), flags, (source, library), tuple(sorted(include.rglob("*.h"))), name="mudnn_calls")
    built = build(recipe)
    assert not isinstance(built, Refusal), built.traceback
    return ctypes.CDLL(str(built))


class Cxx:
    """The C++ API of one generation."""

    def __init__(self, sdk):
        self.runtime = Runtime(sdk)
        self.library = calls(sdk)
        self.names = {number: name for name, number in enums(PROFILES[sdk])["dnn_Status"].items()}

    def run(self, a, b, c, bias=None, workspace=None, size=None, **options):
        values = {
            "batched": 0,
            "tensor_mode": 0,
            "allow_tf32": 0,
            "left": 0,
            "right": 0,
            "alpha": 1,
            "beta": 0,
            "gamma": 1,
            "stream": None,
        }
        options = Options(**(values | options))
        parts = [None if x is None else ctypes.byref(x) for x in (a, b, c, bias, workspace, size)]
        return self.names[self.library.matmul(ctypes.byref(options), *parts)]


class CApi:
    """The C API of 5.1, with the same run(); descriptors are made and destroyed in each call."""

    def __init__(self):
        self.runtime = Runtime("5.1")
        self.library = ctypes.CDLL(str(home("5.1") / "lib/libmudnn.so.3"))
        self.numbers = self.runtime.numbers
        names = enums(PROFILES["5.1"])["mudnnStatus_t"]
        self.names = {number: name.removeprefix("MUDNN_STATUS_") for name, number in names.items()}
        self.handle = self.create("mudnnCreate")

    def status(self, name, *arguments):
        return self.names[self.library[name](*arguments)]

    def create(self, name):
        made = ctypes.c_void_p()
        assert self.status(name, ctypes.byref(made)) == "SUCCESS"
        return made

    def tensor(self, spec, scale=1.0, format="MUDNN_TENSOR_NCHW"):
        made = self.create("mudnnCreateTensorDescriptor")
        number = self.numbers[f"MUDNN_DATA_{C_TYPES[spec.type]}"]
        return made, self.status(
            "mudnnSetTensorNdDescriptorWithScale", made, self.numbers[format], number, spec.ndim, spec.dims,
            spec.strides, ctypes.c_float(scale),
        )  # fmt: skip

    def product(self, tensor_mode=0, left=0, right=0, alpha=1, beta=0, gamma=1, epilogue="DEFAULT", flag=False):
        made = self.create("mudnnCreateBatchMatMulDescriptor")
        math = self.numbers["MUDNN_TENSOR_OP_MATH" if tensor_mode else "MUDNN_FMA_MATH"]
        number = self.numbers[f"MUDNN_MATMULLT_EPILOGUE_{epilogue}"]
        doubles = map(ctypes.c_double, (alpha, beta, gamma))
        flags = (ctypes.c_bool(x) for x in (left, right, flag))
        return made, self.status("mudnnSetBatchMatMulDescriptorEx", made, math, *flags, number, 0, *doubles)

    def run(self, a, b, c, bias=None, workspace=None, size=None, stream=None, batched=0, allow_tf32=0, **options):
        made = []
        for tensor in (a, b, c, bias):
            descriptor, status = (None, "SUCCESS") if tensor is None else self.tensor(tensor)
            if status != "SUCCESS":
                return status
            made.append(descriptor)
        desc, status = self.product(**options)
        assert status == "SUCCESS"
        assert self.status("mudnnSetStream", self.handle, pointer(stream)) == "SUCCESS"
        if size is not None:
            arguments = (made[0], made[1], made[2], made[2], ctypes.byref(size))
            return self.status("mudnnBatchMatmulGetWorkspaceSize", self.handle, desc, *arguments)
        needed = ctypes.c_size_t()
        arguments = (made[0], made[1], made[2], made[2], ctypes.byref(needed))
        status = self.status("mudnnBatchMatmulGetWorkspaceSize", self.handle, desc, *arguments)
        if status != "SUCCESS":
            return status
        if workspace is not None and needed.value:
            workspace.asked, workspace.calls, workspace.released = needed.value, 1, 1
        memory = workspace.memory if workspace is not None else None
        return self.status(
            "mudnnBatchMatMulBias", self.handle, desc, made[0], pointer(a.address), made[1], pointer(b.address),
            made[2], pointer(c.address), made[2], pointer(c.address), made[3], pointer(bias.address if bias else None),
            pointer(memory), ctypes.c_size_t(needed.value if memory else 0),
        )  # fmt: skip


@pytest.fixture(params=["3.1", "4.3", "5.1", "5.1 C"])
def mudnn(request):
    api = CApi() if request.param == "5.1 C" else Cxx(request.param)
    yield api
    api.runtime.close()


@pytest.fixture
def cxx():
    api = Cxx("4.3")
    yield api
    api.runtime.close()


@pytest.fixture
def c_api():
    api = CApi()
    yield api
    api.runtime.close()


class Example:
    """A row-major product of 6 by k and k by 5, of a batch when `batch` is given."""

    def __init__(self, api, dtype=f32, result=None, batch=(), k=7, left=False, right=False):
        generator = np.random.default_rng(3)
        self.api, self.batch, self.result_type = api, batch, result or dtype
        upload = api.runtime.upload

        def random(*shape):
            return generator.standard_normal((*batch, *shape)).astype(dtype)

        self.a, self.b = random(*((k, 6) if left else (6, k))), random(*((5, k) if right else (k, 5)))
        self.old = generator.standard_normal((*batch, 6, 5)).astype(self.result_type)
        self.c = spec(upload(self.old), self.result_type, self.old.shape)
        self.specs = spec(upload(self.a), dtype, self.a.shape), spec(upload(self.b), dtype, self.b.shape)
        wide_a, wide_b = self.a.astype(f64), self.b.astype(f64)
        self.expected = (wide_a.swapaxes(-1, -2) if left else wide_a) @ (wide_b.swapaxes(-1, -2) if right else wide_b)
        self.options = {"left": left, "right": right, "batched": len(batch) > 0}

    def run(self, a=None, b=None, c=None, **options):
        return self.api.run(a or self.specs[0], b or self.specs[1], c or self.c, **(self.options | options))

    def result(self):
        return self.api.runtime.download(self.c.address, self.old.shape, self.result_type, order="C")


def close(result, expected, dtype):
    tolerance = {f16: 4e-3, bf16: 3e-2, f32: 1e-5}[dtype]
    np.testing.assert_allclose(result.astype(f64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("types", [(f16, f16), (f16, f32), (bf16, bf16), (f32, f32)], ids=str)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_products(mudnn, types, batch):
    for left in (False, True):
        example = Example(mudnn, *types, batch=batch, left=left, right=not left)
        assert example.run(alpha=2, beta=-1) == "SUCCESS"
        close(example.result(), 2 * example.expected - example.old.astype(f64), types[1])


def test_a_bias_is_per_column(mudnn):
    bias = np.arange(5, dtype=f32)
    for batch in ((), (2,)):
        example = Example(mudnn, batch=batch)
        vector = spec(mudnn.runtime.upload(bias), f32, [5])
        assert example.run(bias=vector, gamma=3) == "SUCCESS"
        close(example.result(), example.expected + 3 * bias, f32)
    short = spec(mudnn.runtime.upload(bias), f32, [4])
    assert Example(mudnn).run(bias=short) == "INVALID_PARAMETER"
    double = spec(mudnn.runtime.upload(bias.astype(f64)), f64, [5])
    assert Example(mudnn).run(bias=double) == "NOT_SUPPORTED"
    beyond = spec(vector.address + 4, f32, [5])
    assert Example(mudnn).run(bias=beyond) == "INVALID_PARAMETER"


def test_tf32_is_on_unless_switched_off_everywhere(cxx, c_api):
    def error(api, **options):
        example = Example(api)
        assert example.run(**options) == "SUCCESS"
        return np.abs(example.result() - example.expected).max()

    assert error(cxx, allow_tf32=1) > 1e-5
    assert error(cxx, allow_tf32=0, tensor_mode=1) > 1e-5
    assert error(cxx, allow_tf32=0) < 1e-5
    assert error(c_api, tensor_mode=1) > 1e-5
    assert error(c_api) < 1e-5


def test_run_needs_its_workspace(mudnn):
    example = Example(mudnn, k=64)
    size = ctypes.c_size_t(99)
    assert example.run(size=size) == "SUCCESS"
    assert size.value == 256
    assert example.run() == "ALLOC_FAILED"
    memory = Workspace(mudnn.runtime.allocate(256))
    assert example.run(workspace=memory) == "SUCCESS"
    assert (memory.asked, memory.calls, memory.released) == (256, 1, 1)
    close(example.result(), example.expected, f32)
    assert example.run(workspace=Workspace(None)) == "ALLOC_FAILED"
    assert example.run(workspace=Workspace(memory.memory + 8)) == "INVALID_PARAMETER"
    assert example.run(workspace=Workspace(mudnn.runtime.allocate(128))) == "EXECUTION_FAILED"
    host = np.zeros(1024, np.uint8)
    aligned = host.ctypes.data + -host.ctypes.data % 256
    assert example.run(workspace=Workspace(aligned)) == "EXECUTION_FAILED"
    assert example.run(workspace=Workspace(example.specs[0].address)) == "SUCCESS"  # it eats an operand
    assert np.isfinite(example.result()).all()
    assert np.abs(example.result() - example.expected).max() > 1e-3


def test_a_small_k_needs_no_workspace(mudnn):
    example, size, unused = Example(mudnn, k=31), ctypes.c_size_t(99), Workspace(None)
    assert example.run(size=size) == "SUCCESS"
    assert size.value == 0
    assert example.run(workspace=unused) == "SUCCESS"
    assert unused.calls == 0


def test_strides_are_canonical_or_refused(mudnn):
    example = Example(mudnn, batch=(1,))
    buffer = mudnn.runtime.upload(np.zeros(1000, f32))

    def a(dims, strides):
        c = [*dims[:-1], 5]
        return example.run(
            a=spec(buffer, f32, dims, strides),
            b=spec(buffer + 1600, f32, [dims[0], dims[-1], 5]),
            c=spec(buffer + 2400, f32, c),
        )

    assert a([1, 6, 7], [42, 7, 1]) == "SUCCESS"
    assert a([1, 6, 7], [0, 7, 1]) == "SUCCESS"  # broadcast
    assert a([1, 6, 7], [54, 9, 1]) == "SUCCESS"  # padded rows
    assert a([1, 6, 7], [1, 7, 1]) == "INVALID_PARAMETER"
    assert a([1, 6, 7], [42, 6, 1]) == "INVALID_PARAMETER"
    assert a([1, 6, 7], [42, 1, 6]) == "INVALID_PARAMETER"  # column-major: set by SetTranspose
    assert a([1, 1, 7], [7, 7, 1]) == "SUCCESS"
    assert a([1, 1, 7], [7, 1, 1]) == "INVALID_PARAMETER"  # "lda 1"
    assert a([1, 6, 1], [6, 1, 1]) == "SUCCESS"
    assert a([1, 6, 1], [6, 1, 6]) == "INVALID_PARAMETER"
    assert a([2, 6, 7], [42, 7, 1]) == "SUCCESS"
    assert a([2, 6, 7], [0, 7, 1]) == "INVALID_PARAMETER"  # a batch that does not move


def test_batches_are_broadcast_as_one(mudnn):
    example = Example(mudnn, batch=(3,))
    shared = spec(mudnn.runtime.upload(example.b[0]), f32, [1, 7, 5], [0, 5, 1])
    assert example.run(b=shared) == "SUCCESS"
    close(example.result(), example.a.astype(f64) @ example.b[0].astype(f64), f32)
    two = spec(shared.address, f32, [2, 7, 5])
    assert example.run(b=two) == "INVALID_PARAMETER"


def test_ranks_and_types_are_checked(mudnn):
    example, c_api = Example(mudnn), isinstance(mudnn, CApi)
    a, b = example.specs
    assert example.run(a=spec(a.address, f32, [])) == "INVALID_PARAMETER"  # rank 0
    assert example.run(a=spec(a.address, f32, [42])) == "INVALID_PARAMETER"
    assert example.run(a=spec(a.address, f32, [1, 6, 7])) == "INVALID_PARAMETER"
    assert example.run(a=spec(a.address, f32, [6, 7], [2**40, 1])) == "INVALID_PARAMETER"
    assert example.run(a=spec(a.address, f32, [6, 0])) == "INVALID_PARAMETER"
    assert example.run(b=spec(b.address, f32, [5, 7])) == "INVALID_PARAMETER"
    doubles = [spec(x.address, f64, [2, 2]) for x in (a, b, example.c)]
    assert mudnn.run(*doubles) == "NOT_SUPPORTED"
    assert example.run(a=spec(a.address, f16, [6, 7])) == "NOT_SUPPORTED"
    assert example.run(c=spec(example.c.address, f16, [6, 5])) == "NOT_SUPPORTED"
    if not c_api:
        assert Example(mudnn, batch=(2,)).run(batched=0) == "INVALID_PARAMETER"
        assert example.run(batched=1) == "INVALID_PARAMETER"


def test_operands_must_be_device_memory(mudnn):
    example = Example(mudnn)
    host = np.zeros(100, f32)
    a, _ = example.specs
    assert example.run(a=spec(host.ctypes.data, f32, [6, 7])) == "INVALID_PARAMETER"
    assert example.run(a=spec(a.address + 4, f32, [6, 7])) == "INVALID_PARAMETER"  # beyond its end
    assert example.run(a=spec(a.address + 2, f32, [6, 7])) == "INVALID_PARAMETER"  # misaligned
    assert example.run(a=spec(None, f32, [6, 7])) == "INVALID_PARAMETER"
    assert example.run(c=spec(a.address, f32, [6, 5])) == "INVALID_PARAMETER"  # overlaps a


def test_streams_are_checked_and_late(cxx):
    example, runtime = Example(cxx), cxx.runtime
    stream = runtime.stream()
    assert example.run(stream=stream.value) == "SUCCESS"
    seen, other = np.empty((6, 5), f32), runtime.stream()
    arguments = (pointer(seen.ctypes.data), pointer(example.c.address), ctypes.c_size_t(seen.nbytes), 2, other)
    assert runtime.library.musaMemcpyAsync(*arguments) == 0
    assert runtime.library.musaStreamSynchronize(other) == 0
    np.testing.assert_array_equal(seen, example.old)
    assert runtime.library.musaStreamSynchronize(stream) == 0
    close(example.result(), example.expected, f32)
    assert runtime.library.musaStreamDestroy(stream) == 0
    assert example.run(stream=stream.value) == "INVALID_PARAMETER"


def test_an_s80_has_no_tensor_types(mudnn):
    mudnn.runtime.option("ARCH", 21)
    try:
        assert Example(mudnn, f16).run() == "NOT_SUPPORTED"
        assert Example(mudnn, bf16).run() == "NOT_SUPPORTED"
        assert Example(mudnn, f32).run(tensor_mode=1) == "ARCH_MISMATCH"
        assert Example(mudnn, f32).run() == "SUCCESS"
    finally:
        mudnn.runtime.option("ARCH", 22)


def test_faults_are_injected(cxx, c_api):
    for api, name in ((cxx, "MatMul.Run"), (c_api, "mudnnBatchMatMulBias")):
        example = Example(api)
        api.runtime.inject(f"{name}:1")
        assert example.run() == "INTERNAL_ERROR"
        assert example.run() == "SUCCESS"
    cxx.runtime.inject("Handle.Handle")
    assert Example(cxx).run() == "NOT_INITIALIZED"


def test_handles_have_a_life(cxx, c_api):
    example = Example(cxx)
    assert (
        cxx.names[cxx.library.use_after_destroy(*map(ctypes.byref, (*example.specs, example.c)))] == "NOT_INITIALIZED"
    )
    example = Example(c_api)
    assert c_api.status("mudnnDestroy", c_api.handle) == "SUCCESS"
    assert c_api.status("mudnnDestroy", c_api.handle) == "NOT_INITIALIZED"
    with pytest.raises(AssertionError, match="NOT_INITIALIZED"):
        example.run()


def test_c_descriptors(c_api):
    shape = spec(None, f32, [6, 7])
    assert c_api.tensor(shape, scale=2.0)[1] == "NOT_SUPPORTED"
    assert c_api.tensor(shape, format="MUDNN_TENSOR_NHWC")[1] == "INVALID_PARAMETER"
    assert c_api.product(epilogue="RELU")[1] == "NOT_SUPPORTED"
    assert c_api.product(flag=True)[1] == "NOT_SUPPORTED"
    made, _ = c_api.tensor(shape)
    assert c_api.status("mudnnDestroyTensorDescriptor", made) == "SUCCESS"
    assert c_api.status("mudnnDestroyTensorDescriptor", made) == "INVALID_PARAMETER"


def test_numbers_are_made_up_and_differ_between_generations():
    tables = [enums(PROFILES[sdk]) for sdk in ("3.1", "4.3", "5.1")]
    for name in ("dnn_Status", "dnn_Type", "dnn_ComputeMode", "mudnnStatus_t"):
        for member, number in tables[0][name].items():
            assert len({number, tables[1][name][member], tables[2][name][member]}) == 3, member
            assert number >= 100
