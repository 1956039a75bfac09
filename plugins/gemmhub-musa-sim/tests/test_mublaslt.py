"""The stub library libmublasLt: descriptors, the heuristic, workspace and epilogues, by the numbers of its header."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from gemmhub_musa_sim.enums import enums, lt_algorithm_words
from gemmhub_musa_sim.profiles import PROFILES
from stubs import N, Runtime, T, home, pointer

f16, bf16, f32, i8, i32 = (np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.int32))
e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
TYPE = {f16: "R_16F", bf16: "R_16BF", f32: "R_32F", i8: "R_8I", i32: "R_32I", e4m3: "R_8F_E4M3"}
CUBLASLT = {"TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8}


class Lt:
    """muBLASLt of one home: objects by number, statuses by name."""

    def __init__(self, sdk):
        self.runtime = Runtime(sdk)
        self.library = ctypes.CDLL(str(home(sdk) / "lib/libmublasLt.so.1"))
        self.numbers = self.runtime.numbers
        names = enums(PROFILES[sdk])["mublasStatus_t"]
        self.names = {number: name.removeprefix("MUBLAS_STATUS_") for name, number in names.items()}
        words = lt_algorithm_words(PROFILES[sdk])

        class Result(ctypes.Structure):
            _fields_ = [
                ("first", ctypes.c_int * 3),
                ("state", ctypes.c_int),
                ("algo", ctypes.c_uint64 * words),
                ("waves", ctypes.c_float),
                ("workspace", ctypes.c_size_t),
                ("reserved", ctypes.c_int * 5),
            ]

        self.result_type = Result
        self.handle = self.create("mublasLtCreate")

    def status(self, name, *arguments):
        return self.names[self.library[name](*arguments)]

    def create(self, name, *arguments):
        made = ctypes.c_void_p()
        assert self.status(name, ctypes.byref(made), *arguments) == "SUCCESS"
        return made

    def layout(self, dtype, rows, columns, ld, order=None, batch=None):
        number = self.numbers[f"MUSA_{TYPE[dtype]}"]
        size = ctypes.c_uint64
        made = self.create("mublasLtMatrixLayoutCreate", number, size(rows), size(columns), ctypes.c_int64(ld))
        if order:
            assert self.set("MatrixLayout", made, "MATRIX_LAYOUT_ORDER", self.numbers[order]) == "SUCCESS"
        if batch:
            count, offset = batch
            assert self.set("MatrixLayout", made, "MATRIX_LAYOUT_BATCH_COUNT", count) == "SUCCESS"
            offset = ctypes.c_int64(offset)
            assert self.set("MatrixLayout", made, "MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", offset) == "SUCCESS"
        return made

    def descriptor(self, compute="32F", scale=f32, ops=(N, N), epilogue=None, bias=None):
        compute, scale = self.numbers[f"MUBLAS_COMPUTE_{compute}"], self.numbers[f"MUSA_{TYPE[scale]}"]
        made = self.create("mublasLtMatmulDescCreate", compute, scale)
        for name, code in zip(("TRANSA", "TRANSB"), ops):
            assert self.set("MatmulDesc", made, f"MATMUL_DESC_{name}", code) == "SUCCESS"
        if epilogue:
            number = self.numbers[f"MUBLASLT_EPILOGUE_{epilogue}"]
            assert self.set("MatmulDesc", made, "MATMUL_DESC_EPILOGUE", number) == "SUCCESS"
        if bias:
            assert self.set("MatmulDesc", made, "MATMUL_DESC_BIAS_POINTER", pointer(bias)) == "SUCCESS"
        return made

    def set(self, sort, made, attribute, value):
        number = attribute if isinstance(attribute, int) else self.numbers[f"MUBLASLT_{attribute}"]
        value = ctypes.c_int32(value) if isinstance(value, int) else value
        size = ctypes.c_size_t(ctypes.sizeof(value))
        return self.status(f"mublasLt{sort}SetAttribute", made, number, ctypes.byref(value), size)

    def heuristic(self, desc, layouts, budget, count=4):
        preference = self.create("mublasLtMatmulPreferenceCreate")
        size = ctypes.c_uint64(budget)
        assert self.set("MatmulPreference", preference, "MATMUL_PREF_MAX_WORKSPACE_BYTES", size) == "SUCCESS"
        results, found = (self.result_type * count)(), ctypes.c_int()
        arguments = (self.handle, desc, *layouts, preference, count, results, ctypes.byref(found))
        assert self.status("mublasLtMatmulAlgoGetHeuristic", *arguments) == "SUCCESS"
        assert self.status("mublasLtMatmulPreferenceDestroy", preference) == "SUCCESS"
        return list(results[: found.value])

    def matmul(self, desc, layouts, addresses, scalars=None, algo=None, workspace=(0, 0), stream=None):
        alpha, beta = scalars or (np.float32([1]), np.float32([0]))
        alpha, beta = (x if isinstance(x, ctypes.c_void_p) else pointer(x.ctypes.data) for x in (alpha, beta))
        a, b, c, d = map(pointer, addresses)
        la, lb, lc, ld = layouts
        algo = ctypes.byref(algo) if algo is not None else None
        memory, size = pointer(workspace[0]), ctypes.c_size_t(workspace[1])
        arguments = (alpha, a, la, b, lb, beta, c, lc, d, ld, algo, memory, size, stream)
        return self.status("mublasLtMatmul", self.handle, desc, *arguments)


@pytest.fixture(params=["4.3", "5.1"])
def lt(request):
    lt = Lt(request.param)
    yield lt
    lt.runtime.close()


@pytest.fixture
def full():
    lt = Lt("5.1")
    yield lt
    lt.runtime.close()


class Example:
    """A 6 by 5 product over 8, column-major, of one type."""

    def __init__(self, lt, dtype=f16, result=f32, ops=(N, N), **descriptor):
        generator = np.random.default_rng(1)
        self.lt, self.result_type = lt, result

        def random(rows, columns, dtype):
            if dtype.kind == "i":
                return np.asfortranarray(generator.integers(-128, 128, (rows, columns)).astype(dtype))
            return np.asfortranarray(generator.standard_normal((rows, columns)).astype(f32).astype(dtype))

        self.a = random(*((6, 8) if ops[0] == N else (8, 6)), dtype)
        self.b = random(*((8, 5) if ops[1] == N else (5, 8)), dtype)
        self.old = random(6, 5, result)
        upload = lt.runtime.upload
        self.c = upload(self.old)
        self.addresses = (upload(self.a), upload(self.b), self.c, self.c)
        c_layout = lt.layout(result, 6, 5, 6)
        a_layout, b_layout = (lt.layout(dtype, *x.shape, x.shape[0]) for x in (self.a, self.b))
        self.layouts = (a_layout, b_layout, c_layout, c_layout)
        self.desc = lt.descriptor(ops=ops, **descriptor)
        wide_a, wide_b = (x.astype(np.float64) for x in (self.a, self.b))
        self.expected = (wide_a if ops[0] == N else wide_a.T) @ (wide_b if ops[1] == N else wide_b.T)

    def run(self, **changes):
        arguments = {"desc": self.desc, "layouts": self.layouts, "addresses": self.addresses} | changes
        return self.lt.matmul(**arguments)

    def result(self):
        return self.lt.runtime.download(self.c, (6, 5), self.result_type)


def test_no_number_is_cublaslts(lt):
    for name, cuda in CUBLASLT.items():
        assert lt.numbers[f"MUBLASLT_MATMUL_DESC_{name}"] != cuda
        assert lt.set("MatmulDesc", lt.descriptor(), cuda, N) == "INVALID_VALUE"
    assert lt_algorithm_words(lt.runtime.profile) != 8


def test_numbers_differ_between_generations():
    old, new = (enums(PROFILES[sdk]) for sdk in ("4.3", "5.1"))
    for enum in (name for name in old if name.startswith("mublasLt")):
        assert all(old[enum][name] != new[enum][name] for name in old[enum]), enum


def test_only_5_1_has_what_mapping_tables_promise():
    old, new = (set(enums(PROFILES[sdk])["mublasLtEpilogue_t"]) for sdk in ("4.3", "5.1"))
    assert old == {"MUBLASLT_EPILOGUE_DEFAULT", "MUBLASLT_EPILOGUE_BIAS"} < new
    assert not (home("3.1") / "include/mublasLt.h").exists()
    assert not (home("3.1") / "lib/libmublasLt.so").exists()


CASES = [(f16, f16), (f16, f32), (bf16, bf16), (f32, f32)]


@pytest.mark.parametrize("ops", [(N, N), (T, N), (N, T)])
@pytest.mark.parametrize("types", CASES, ids=str)
def test_products(lt, types, ops):
    example = Example(lt, *types, ops=ops)
    assert example.run(scalars=(np.float32([2]), np.float32([-1]))) == "SUCCESS"
    tolerance = {f16: 4e-3, bf16: 3e-2, f32: 1e-5}[types[1]]
    expected = 2 * example.expected - example.old.astype(np.float64)
    np.testing.assert_allclose(example.result().astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_the_heuristic_keeps_to_the_budget(lt):
    example = Example(lt)
    rich, poor = (lt.heuristic(example.desc, example.layouts, budget) for budget in (1 << 20, 0))
    assert [r.workspace for r in rich] == [256, 0]
    assert [r.workspace for r in poor] == [0]
    assert all(r.state == 0 for r in rich)
    assert len(lt.heuristic(example.desc, example.layouts, 1 << 20, count=1)) == 1


def test_workspace_is_checked(lt):
    example = Example(lt)
    best = lt.heuristic(example.desc, example.layouts, 1 << 20)[0]
    memory = lt.runtime.allocate(512)
    assert example.run(algo=best.algo, workspace=(memory, 256)) == "SUCCESS"
    np.testing.assert_allclose(example.result(), example.expected, rtol=1e-5, atol=1e-5)
    assert example.run(algo=best.algo) == "INVALID_VALUE"  # none given
    assert example.run(algo=best.algo, workspace=(memory, 128)) == "INVALID_VALUE"
    assert example.run(algo=best.algo, workspace=(memory, 1024)) == "INVALID_POINTER"  # larger than it is
    assert example.run(algo=best.algo, workspace=(memory + 16, 256)) == "INVALID_POINTER"  # misaligned
    host = np.zeros(512, np.uint8)
    assert example.run(algo=best.algo, workspace=(host.ctypes.data, 256)) == "INVALID_POINTER"
    assert example.run(algo=best.algo, workspace=(0, 256)) == "INVALID_POINTER"


def test_a_workspace_is_overwritten(lt):
    example = Example(lt)
    best = lt.heuristic(example.desc, example.layouts, 1 << 20)[0]
    memory = lt.runtime.upload(np.zeros(256, np.uint8))
    assert example.run(algo=best.algo, workspace=(memory, 256)) == "SUCCESS"
    assert (lt.runtime.download(memory, (256,), np.dtype(np.uint8)) == 0xA5).all()


def test_an_algorithm_is_for_its_problem(lt):
    example, other = Example(lt), Example(lt, f16, f16)
    algo = lt.heuristic(example.desc, example.layouts, 0)[0].algo
    assert example.run(algo=algo) == "SUCCESS"
    assert other.run(algo=algo) == "INVALID_VALUE"
    assert example.run(algo=type(algo)()) == "INVALID_VALUE"


def test_integers_run_without_heuristic_and_workspace(lt):
    example = Example(lt, i8, i32, compute="32I", scale=i32)
    assert lt.heuristic(example.desc, example.layouts, 1 << 20) == []
    scalars = (np.int32([3]), np.int32([-2]))
    assert example.run(scalars=scalars) == "SUCCESS"
    np.testing.assert_array_equal(example.result(), 3 * example.expected - 2.0 * example.old)
    memory = lt.runtime.allocate(256)
    assert example.run(scalars=scalars, workspace=(memory, 256)) == "NOT_IMPLEMENTED"


def test_the_heuristic_can_be_empty(lt, monkeypatch):
    monkeypatch.setenv("MUSA_SIM_LT_HEURISTIC", "0")
    example = Example(lt)
    assert lt.heuristic(example.desc, example.layouts, 1 << 20) == []
    assert example.run() == "SUCCESS"


def test_bias_is_per_row_and_checked(lt):
    bias = np.arange(6, dtype=f32)
    address = lt.runtime.upload(bias)
    example = Example(lt, f32, f32, epilogue="BIAS", bias=address)
    assert example.run() == "SUCCESS"
    np.testing.assert_allclose(example.result(), example.expected + bias[:, None], rtol=1e-5, atol=1e-5)
    assert Example(lt, f32, f32, epilogue="BIAS").run() == "INVALID_POINTER"
    assert Example(lt, f32, f32, epilogue="BIAS", bias=address + 4).run() == "INVALID_SIZE"
    assert Example(lt, f32, f32, epilogue="BIAS", bias=bias.ctypes.data).run() == "INVALID_POINTER"


def test_activations(full):
    bias = np.linspace(-3, 3, 6).astype(f32)
    address = full.runtime.upload(bias)
    gelu_tanh = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # noqa: E731
    relu = lambda x: np.maximum(x, 0)  # noqa: E731
    for epilogue, function in (("RELU", relu), ("GELU", gelu_tanh), ("RELU_BIAS", relu), ("GELU_BIAS", gelu_tanh)):
        added = bias[:, None] if "BIAS" in epilogue else 0
        example = Example(full, f32, f32, epilogue=epilogue, bias=address)
        assert example.run() == "SUCCESS"
        np.testing.assert_allclose(example.result(), function(example.expected + added), rtol=1e-5, atol=1e-5)


def test_row_major_orders_and_batches(full):
    runtime = full.runtime
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((3, 6, 8)).astype(f16), generator.standard_normal((3, 8, 5)).astype(f16)
    c = runtime.upload(np.zeros((3, 6, 5), f32))
    row = "MUBLASLT_ORDER_ROW"
    layouts = [
        full.layout(f16, 6, 8, 8, row, (3, 48)),
        full.layout(f16, 8, 5, 5, row, (3, 40)),
        full.layout(f32, 6, 5, 5, row, (3, 30)),
    ]
    layouts.append(layouts[-1])
    addresses = (runtime.upload(a), runtime.upload(b), c, c)
    assert full.matmul(full.descriptor(), layouts, addresses) == "SUCCESS"
    result = runtime.download(c, (3, 6, 5), f32, order="C")
    np.testing.assert_allclose(result, a.astype(f32) @ b.astype(f32), rtol=1e-5, atol=1e-5)
    desc = full.descriptor(epilogue="RELU")
    assert full.matmul(desc, layouts, addresses) == "NOT_IMPLEMENTED"


def test_scalars_in_device_memory(full):
    example = Example(full, f32, f32)
    scalars = [pointer(full.runtime.upload(np.float32([x]))) for x in (2, 0)]
    assert example.run(scalars=scalars) == "INVALID_POINTER"
    number = full.numbers["MUBLASLT_POINTER_MODE_DEVICE"]
    assert full.set("MatmulDesc", example.desc, "MATMUL_DESC_POINTER_MODE", number) == "SUCCESS"
    assert example.run(scalars=scalars) == "SUCCESS"
    np.testing.assert_allclose(example.result(), 2 * example.expected, rtol=1e-5, atol=1e-5)


def test_fp8_wants_an_mp_31_and_a_transposed(lt):
    example = Example(lt, e4m3, bf16, ops=(T, N))
    assert example.run() == "NOT_IMPLEMENTED"
    lt.runtime.option("ARCH", 31)
    try:
        assert example.run() == "SUCCESS"
        np.testing.assert_allclose(example.result().astype(f32), example.expected, rtol=1e-2, atol=1e-2)
        assert Example(lt, e4m3, bf16).run() == "NOT_IMPLEMENTED"
    finally:
        lt.runtime.option("ARCH", 22)


def test_what_is_refused(lt):
    example = Example(lt)
    layout = lt.layout
    a, b, c, _ = example.layouts
    assert example.run(layouts=(a, b, c, layout(f16, 6, 5, 6))) == "INVALID_VALUE"  # C and D differ
    assert example.run(layouts=(a, b, c, layout(f32, 6, 4, 6))) == "INVALID_VALUE"
    assert example.run(layouts=(layout(f16, 6, 8, 5), b, c, c)) == "INVALID_VALUE"  # a short leading dimension
    assert example.run(layouts=(layout(f16, 6, 8, 9), b, c, c)) == "INVALID_SIZE"  # beyond the allocation
    assert example.run(layouts=(layout(bf16, 6, 8, 6), b, c, c)) == "NOT_IMPLEMENTED"
    assert example.run(scalars=(pointer(0), np.float32([0]))) == "INVALID_POINTER"
    assert Example(lt, scale=f16).run() == "NOT_IMPLEMENTED"
    assert example.run(stream=pointer(0x1234)) == "INVALID_VALUE"
    assert lt.set("MatmulDesc", example.desc, "MATMUL_DESC_TRANSA", 0) == "INVALID_VALUE"
    assert lt.set("MatmulDesc", example.desc, "MATMUL_DESC_TRANSA", ctypes.c_int64(N)) == "INVALID_VALUE"
    large, made = ctypes.c_uint64(1 << 31), ctypes.c_void_p()
    arguments = (ctypes.byref(made), 0, large, large, ctypes.c_int64(1 << 31))
    assert lt.status("mublasLtMatrixLayoutCreate", *arguments) == "INVALID_SIZE"


def test_objects_have_a_life(lt):
    example = Example(lt)
    algo = lt.heuristic(example.desc, example.layouts, 0)[0].algo
    assert lt.status("mublasLtMatrixLayoutDestroy", example.layouts[0]) == "SUCCESS"
    assert lt.status("mublasLtMatrixLayoutDestroy", example.layouts[0]) == "INVALID_VALUE"
    assert example.run(algo=algo) == "INVALID_VALUE"
    example = Example(lt)
    assert lt.status("mublasLtMatmulDescDestroy", example.desc) == "SUCCESS"
    assert example.run() == "INVALID_VALUE"
    example = Example(lt)
    assert lt.status("mublasLtDestroy", lt.handle) == "SUCCESS"
    assert example.run() == "INVALID_HANDLE"
    assert lt.status("mublasLtDestroy", lt.handle) == "INVALID_VALUE"


def test_attributes_read_back(lt):
    desc = lt.descriptor(ops=(T, N))
    value, written = ctypes.c_int32(), ctypes.c_size_t()
    number, four = lt.numbers["MUBLASLT_MATMUL_DESC_TRANSA"], ctypes.c_size_t(4)
    arguments = (desc, number, ctypes.byref(value), four, ctypes.byref(written))
    assert lt.status("mublasLtMatmulDescGetAttribute", *arguments) == "SUCCESS"
    assert (value.value, written.value) == (T, 4)


def test_faults_are_injected(lt):
    example = Example(lt)
    lt.runtime.inject("mublasLtMatmul:1,mublasLtMatmulAlgoGetHeuristic")
    assert example.run() == "INTERNAL_ERROR"
    assert example.run() == "SUCCESS"
    with pytest.raises(AssertionError, match="INTERNAL_ERROR"):
        lt.heuristic(example.desc, example.layouts, 0)
