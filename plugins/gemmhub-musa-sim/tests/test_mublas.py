"""The stub library libmublas: names, numbers, and what it refuses."""

import ctypes
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from stubs import MANGLED, C, Mublas, N, Runtime, T, home, long, pointer

SDKS = ["3.1", "4.3", "5.1"]
f16, bf16, f32, f64 = (np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
i8, i32, c64, c128 = (np.dtype(t) for t in (np.int8, np.int32, np.complex64, np.complex128))
TYPE = {
    f16: "MUSA_R_16F",
    bf16: "MUSA_R_16BF",
    f32: "MUSA_R_32F",
    f64: "MUSA_R_64F",
    i8: "MUSA_R_8I",
    i32: "MUSA_R_32I",
}


@pytest.fixture(params=SDKS)
def mublas(request):
    runtime = Runtime(request.param)
    yield Mublas(runtime)
    runtime.close()


@pytest.fixture
def mublas43():
    runtime = Runtime("4.3")
    yield Mublas(runtime)
    runtime.close()


def random(shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    if dtype.kind == "i":
        return np.asfortranarray(generator.integers(-128, 128, shape).astype(dtype))
    values = generator.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return np.asfortranarray(values.astype(dtype))


def op(x, code):
    return {N: x, T: x.T, C: x.T.conj()}[code]


def exported(sdk, symbols=None):
    library = home(sdk, symbols) / "lib" / ("libmublas.so" if sdk == "3.1" else "libmublas.so.1")
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in lines.splitlines()}


def gemm_ex(mublas, a, b, c, *, m, n, k, lda, ldb, ldc, types, ops=(N, N), compute="32F", scalars=None, algo=0):
    """mublasGemmEx on device addresses; the status's name."""
    alpha, beta = scalars if scalars is not None else (np.float32(1), np.float32(0))
    number = mublas.runtime.numbers
    a_type, b_type, c_type = (t if isinstance(t, int) else number[TYPE[t]] for t in types)
    compute = compute if isinstance(compute, int) else number[f"MUBLAS_COMPUTE_{compute}"]
    c_part = (beta, pointer(c), c_type, ldc, compute, algo)
    return mublas.call("mublasGemmEx", *ops, m, n, k, alpha, pointer(a), a_type, lda, pointer(b), b_type, ldb, *c_part)


class Example:
    """A 7 by 5 product over 9, on the device, of one type."""

    def __init__(self, mublas, dtype=f16, result=None, ops=(N, N)):
        self.mublas, self.ops = mublas, ops
        self.types = (dtype, dtype, result or dtype)
        self.a = random((7, 9) if ops[0] == N else (9, 7), dtype, 1)
        self.b = random((9, 5) if ops[1] == N else (5, 9), dtype, 2)
        runtime = mublas.runtime
        self.device = {"a": runtime.upload(self.a), "b": runtime.upload(self.b)}
        self.device["c"] = runtime.upload(random((7, 5), self.types[2], 3))

    def run(self, **changes):
        arguments = {
            "m": 7,
            "n": 5,
            "k": 9,
            "lda": self.a.shape[0],
            "ldb": self.b.shape[0],
            "ldc": 7,
            "types": self.types,
            "ops": self.ops,
        }
        arguments |= self.device | changes
        return gemm_ex(self.mublas, **arguments)

    def result(self):
        return self.mublas.runtime.download(self.device["c"], (7, 5), self.types[2])

    def expected(self):
        wide = np.complex128 if self.a.dtype.kind == "c" else np.float64
        return op(self.a.astype(wide), self.ops[0]) @ op(self.b.astype(wide), self.ops[1])


def test_exported_names_are_the_vendors():
    for sdk in ("3.1", "4.3"):
        names = exported(sdk)
        assert set(MANGLED.values()) <= names
        assert not set(MANGLED) & names
    assert set(MANGLED) <= exported("5.1")
    assert not any(name.startswith("_Z") and "mublas" in name for name in exported("5.1"))
    plain = {f"mublas{t}gemm{form}" for t in "SDCZ" for form in ("", "Batched", "StridedBatched")}
    assert plain | {"mublasHgemm", "mublasCreate", "mublasDestroy", "mublasSetStream"} <= exported("4.3")


def test_the_old_overload_exists_and_does_nothing():
    old = [name for name in exported("3.1") if name.startswith("_Z12mublasGemmEx") and name not in MANGLED.values()]
    assert len(old) == 1
    assert not old[0].endswith("16mublasGemmAlgo_t")


def test_scanned_symbols_are_found_only_by_a_scan():
    names = exported("4.3", "scanned")
    assert not (set(MANGLED) | set(MANGLED.values())) & names
    found = [name for name in names if name.startswith("_Z12mublasGemmEx") and name.endswith("16mublasGemmAlgo_t")]
    assert len(found) == 1
    runtime = Runtime("4.3")
    mublas = Mublas(runtime, "scanned")
    mublas.function = lambda name: mublas.library[found[0]]
    example = Example(mublas)
    assert example.run() == "SUCCESS"
    np.testing.assert_allclose(example.result().astype(f64), example.expected(), rtol=1e-3, atol=1e-3)
    runtime.close()


CASES = [
    # a and b, c, compute, scalars, unit of rounding of the result and of the sum
    (f16, f16, "32F", f32, 2.0**-11, 2.0**-23),
    (f16, f32, "32F", f32, 2.0**-24, 2.0**-23),
    (f16, f16, "16F", f16, 2.0**-11, 2.0**-11),
    (bf16, bf16, "32F", f32, 2.0**-8, 2.0**-23),
    (bf16, f32, "32F", f32, 2.0**-24, 2.0**-23),
    (f32, f32, "32F", f32, 2.0**-24, 2.0**-23),
    (f32, f32, "32F_FAST_TF32", f32, 2.0**-24, 2.0**-10),
    (f64, f64, "64F", f64, 2.0**-53, 2.0**-52),
    (i8, i32, "32I", i32, 0, 0),
]


@pytest.mark.parametrize("ops", [(N, N), (T, N), (N, T), (C, T)])
@pytest.mark.parametrize("case", CASES, ids=[f"{a.name}-{c.name}-{compute}" for a, c, compute, *_ in CASES])
def test_products_of_every_type(mublas43, case, ops):
    dtype, result, compute, scalar, unit, sum_unit = case
    example = Example(mublas43, dtype, result, ops)
    old = example.result().astype(f64)
    alpha, beta = scalar.type(2), scalar.type(-1)
    assert example.run(compute=compute, scalars=(alpha, beta)) == "SUCCESS"
    exact = 2 * example.expected() - old
    magnitude = 2 * np.abs(op(example.a.astype(f64), ops[0])) @ np.abs(op(example.b.astype(f64), ops[1]))
    bound = unit * np.abs(exact) + 9 * sum_unit * (magnitude + np.abs(old))
    assert (np.abs(example.result().astype(f64) - exact) <= bound).all()


@pytest.mark.parametrize("sdk", SDKS)
def test_every_generation_multiplies(sdk):
    runtime = Runtime(sdk)
    mublas = Mublas(runtime)
    for dtype, compute in ((f16, "32F"), (f32, "32F")):
        example = Example(mublas, dtype, f32)
        assert example.run(compute=compute) == "SUCCESS"
        np.testing.assert_allclose(example.result(), example.expected(), rtol=1e-5, atol=1e-5)
    runtime.close()


def test_tf32_really_rounds_and_math_modes_switch_it_on(mublas):
    example = Example(mublas, f32)
    exact, mode = example.expected(), mublas.runtime.profile.tf32_math_mode
    assert example.run() == "SUCCESS"
    assert np.abs(example.result() - exact).max() < 1e-5
    assert mublas.call("mublasSetMathMode", mublas.runtime.numbers[mode]) == "SUCCESS"
    assert example.run() == "SUCCESS"
    assert 1e-5 < np.abs(example.result() - exact).max() < 1e-1
    assert mublas.call("mublasSetMathMode", 1) == "INVALID_VALUE"  # cuBLAS's number
    assert mublas.call("mublasSetMathMode", 3) == "INVALID_VALUE"


def test_half_precision_sums_are_coarser(mublas43):
    k = 2048
    a, b = np.ones((1, k), f16, order="F"), np.full((k, 1), 1 + 2**-9, f16, order="F")
    runtime = mublas43.runtime
    device = {"a": runtime.upload(a), "b": runtime.upload(b), "c": runtime.upload(np.zeros((1, 1), f16))}
    sizes = {"m": 1, "n": 1, "k": k, "lda": 1, "ldb": k, "ldc": 1, "types": (f16, f16, f16)}
    assert gemm_ex(mublas43, **device, **sizes) == "SUCCESS"
    fine = runtime.download(device["c"], (1, 1), f16)[0, 0]
    half = (np.float16(1), np.float16(0))
    assert gemm_ex(mublas43, **device, **sizes, compute="16F", scalars=half) == "SUCCESS"
    coarse = runtime.download(device["c"], (1, 1), f16)[0, 0]
    assert float(fine) == 2052
    assert coarse != fine
    assert abs(float(coarse) - 2052) <= k * 2**-11 * 2052


def test_results_are_rounded_once(mublas43):
    # 1 + 2^-8 is a tie between two bfloat16s. 2^-30 more is not, but rounds to the tie in f32 on its way.
    a, b = np.array([[1, 2.0**-8]], bf16, order="F"), np.ones((2, 1), bf16, order="F")
    runtime = mublas43.runtime
    device = {"a": runtime.upload(a), "b": runtime.upload(b), "c": runtime.upload(np.zeros((1, 1), bf16))}
    sizes = {"m": 1, "n": 1, "k": 2, "ldc": 1, "types": (bf16, bf16, bf16), "lda": 1, "ldb": 2}
    assert gemm_ex(mublas43, **device, **sizes) == "SUCCESS"
    assert float(runtime.download(device["c"], (1, 1), bf16)[0, 0]) == 1.0  # to even
    third = runtime.upload(np.full((1, 1), 2.0**-30, bf16))
    device["c"] = third
    scalars = (np.float32(1), np.float32(1))
    assert gemm_ex(mublas43, **device, **sizes, scalars=scalars) == "SUCCESS"
    assert float(runtime.download(third, (1, 1), bf16)[0, 0]) == 1.0 + 2.0**-7


def test_exceptional_values_pass_through(mublas43):
    values = np.array([[np.inf, 1e-8, 65504, 2.0**-24, -0.0, np.nan]], f16, order="F")
    runtime = mublas43.runtime
    device = {"a": runtime.upload(values), "b": runtime.upload(np.ones((1, 1), f16)), "c": runtime.upload(values)}
    sizes = {"m": 6, "n": 1, "k": 1, "lda": 6, "ldb": 1, "ldc": 6, "types": (f16, f16, f16)}
    assert gemm_ex(mublas43, **device, **sizes) == "SUCCESS"
    np.testing.assert_array_equal(runtime.download(device["c"], (1, 6), f16), values)
    assert gemm_ex(mublas43, **device, **sizes, scalars=(np.float32(2), np.float32(0))) == "SUCCESS"
    np.testing.assert_array_equal(
        runtime.download(device["c"], (1, 6), f16), np.array([[np.inf, 0, np.inf, 2.0**-23, 0, np.nan]], f16)
    )


@pytest.mark.parametrize("letter", "SDCZ")
@pytest.mark.parametrize("ops", [(N, N), (T, C), (C, N)])
def test_typed_functions(mublas, letter, ops):
    dtype = {"S": f32, "D": f64, "C": c64, "Z": c128}[letter]
    example = Example(mublas, dtype, ops=ops)
    scalars = np.array([2], dtype), np.array([0], dtype)
    a, b, c = (pointer(example.device[x]) for x in "abc")
    sizes = (7, 5, 9, scalars[0], a, example.a.shape[0], b, example.b.shape[0], scalars[1], c, 7)
    assert mublas.call(f"mublas{letter}gemm", *ops, *sizes) == "SUCCESS"
    np.testing.assert_allclose(example.result(), 2 * example.expected(), rtol=1e-5, atol=1e-5)


def test_hgemm(mublas43):
    example = Example(mublas43, f16)
    a, b, c = (pointer(example.device[x]) for x in "abc")
    assert mublas43.call("mublasHgemm", N, N, 7, 5, 9, np.float16(1), a, 7, b, 9, np.float16(0), c, 7) == "SUCCESS"
    np.testing.assert_allclose(example.result().astype(f64), example.expected(), rtol=2e-2, atol=2e-2)


def test_strided_batches(mublas):
    runtime = mublas.runtime
    a, b = random((4, 6, 3), f32, 1), random((6, 5, 3), f32, 2)
    c = runtime.upload(np.zeros((4, 5, 3), f32, order="F"))
    address_a, address_b = pointer(runtime.upload(a)), pointer(runtime.upload(b))
    one, zero = np.float32(1), np.float32(0)

    def call(stride_b, stride_c, count=3):
        return mublas.call(
            "mublasSgemmStridedBatched", N, N, 4, 5, 6, one, address_a, 4, long(24), address_b, 6, long(stride_b),
            zero, pointer(c), 4, long(stride_c), count,
        )  # fmt: skip

    assert call(30, 20) == "SUCCESS"
    np.testing.assert_allclose(
        runtime.download(c, (4, 5, 3), f32), np.einsum("mkb,knb->mnb", a, b), rtol=1e-5, atol=1e-5
    )
    assert call(0, 20) == "SUCCESS"  # one B for all
    np.testing.assert_allclose(
        runtime.download(c, (4, 5, 3), f32), np.einsum("mkb,kn->mnb", a, b[:, :, 0]), rtol=1e-5, atol=1e-5
    )
    assert call(30, 10) == "INVALID_VALUE"  # parts of C overlap
    assert call(-30, 20) == "INVALID_SIZE"
    assert call(31, 20) == "INVALID_SIZE"  # beyond the allocation
    assert call(30, 20, -1) == "INVALID_SIZE"
    assert call(30, 20, 0) == "SUCCESS"


def test_strided_batches_by_type(mublas):
    runtime, number = mublas.runtime, mublas.runtime.numbers
    a, b = random((4, 6, 2), f16, 1), random((6, 5, 2), f16, 2)
    c = runtime.upload(np.zeros((4, 5, 2), f32, order="F"))
    half, single, compute = number["MUSA_R_16F"], number["MUSA_R_32F"], number["MUBLAS_COMPUTE_32F"]
    status = mublas.call(
        "mublasGemmStridedBatchedEx", N, N, 4, 5, 6, np.float32(1), pointer(runtime.upload(a)), half, 4, long(24),
        pointer(runtime.upload(b)), half, 6, long(30), np.float32(0), pointer(c), single, 4, long(20), 2, compute, 1,
    )  # fmt: skip
    assert status == "SUCCESS"
    expected = np.einsum("mkb,knb->mnb", a.astype(f32), b.astype(f32))
    np.testing.assert_allclose(runtime.download(c, (4, 5, 2), f32), expected, rtol=1e-5, atol=1e-5)


def test_pointer_arrays_live_in_device_memory(mublas):
    runtime, number = mublas.runtime, mublas.runtime.numbers
    a, b = [random((4, 6), f16, i) for i in (1, 2)], [random((6, 5), f16, i) for i in (3, 4)]
    c = [runtime.upload(np.zeros((4, 5), f16, order="F")) for _ in range(2)]
    arrays = [np.array(x, np.uint64) for x in ([runtime.upload(x) for x in a], [runtime.upload(x) for x in b], c)]
    half, compute = number["MUSA_R_16F"], number["MUBLAS_COMPUTE_32F"]

    def call(addresses, count=2):
        x, y, z = addresses
        return mublas.call(
            "mublasGemmBatchedEx", N, N, 4, 5, 6, np.float32(1), pointer(x), half, 4, pointer(y), half, 6,
            np.float32(0), pointer(z), half, 4, count, compute, 0,
        )  # fmt: skip

    on_device = [runtime.upload(array) for array in arrays]
    assert call(on_device) == "SUCCESS"
    for i in range(2):
        expected = a[i].astype(f64) @ b[i].astype(f64)
        np.testing.assert_allclose(runtime.download(c[i], (4, 5), f16).astype(f64), expected, rtol=1e-3, atol=1e-3)
    assert call([array.ctypes.data for array in arrays]) == "INVALID_POINTER"
    assert call(on_device, 3) == "INVALID_POINTER"
    # Addresses of host memory in a device array are found when the work runs: the device is lost, as on a card.
    bad = runtime.upload(np.array([x.ctypes.data for x in a], np.uint64))
    assert call([bad, *on_device[1:]]) == "SUCCESS"
    assert runtime.library.musaDeviceSynchronize() == 700


def test_wrong_numbers_are_refused(mublas):
    example, number = Example(mublas), mublas.runtime.numbers
    assert example.run(ops=(0, 111)) == "INVALID_VALUE"  # cuBLAS's
    assert example.run(ops=(111, 1)) == "INVALID_VALUE"
    assert example.run(ops=(114, 111)) == "INVALID_VALUE"
    assert example.run(algo=-1) == "INVALID_VALUE"
    assert example.run(algo=99) == "INVALID_VALUE"
    assert example.run(compute=0) == "NOT_IMPLEMENTED"  # CUDA_R_32F, the argument of an older API
    assert example.run(compute=number["MUBLAS_COMPUTE_32F_PEDANTIC"]) == "NOT_IMPLEMENTED"
    assert example.run(types=(7, 7, 7)) == "NOT_IMPLEMENTED"
    assert example.run(types=(f16, bf16, f16)) == "NOT_IMPLEMENTED"
    assert example.run(types=(bf16, bf16, f16)) == "NOT_IMPLEMENTED"  # no public program runs it
    if mublas.runtime.profile.sdk == "3.1":
        assert example.run(types=(f16, f16, 0)) == "NOT_IMPLEMENTED"  # cudaDataType's number of f32
    assert example.run() == "SUCCESS"


def test_sizes_are_checked(mublas43):
    example = Example(mublas43)
    for change in ({"m": -1}, {"n": -1}, {"k": -1}, {"lda": 6}, {"ldb": 8}, {"ldc": 6}, {"lda": 0}):
        assert example.run(**change) == "INVALID_SIZE", change
    for change in ({"m": 8, "lda": 8, "ldc": 8}, {"lda": 8}, {"ldc": 8}, {"n": 6}, {"k": 10, "ldb": 10}):
        assert example.run(**change) == "INVALID_SIZE", change  # beyond an allocation
    assert example.run(m=0) == "SUCCESS"
    assert example.run(n=0, a=0, b=0, c=0) == "SUCCESS"


def test_operands_must_be_device_memory(mublas43):
    example = Example(mublas43)
    host = np.zeros(1000, f16)
    for name in "abc":
        assert example.run(**{name: host.ctypes.data}) == "INVALID_POINTER"
        assert example.run(**{name: 0}) == "INVALID_POINTER"
        assert example.run(**{name: example.device[name] + 1}) == "INVALID_POINTER"  # misaligned
    assert example.run(c=example.device["a"]) == "INVALID_VALUE"  # overlaps
    freed = example.device["a"]
    mublas43.runtime.library.musaFree(pointer(freed))
    assert example.run() == "INVALID_POINTER"


def test_slices_of_one_buffer_do_not_overlap(mublas43):
    """A and C are the upper and lower rows of one matrix."""
    runtime = mublas43.runtime
    whole = runtime.upload(np.zeros((12, 9), f32, order="F"))
    b = runtime.upload(np.zeros((9, 9), f32, order="F"))
    sizes = {"m": 5, "n": 9, "k": 9, "ldb": 9, "types": (f32, f32, f32), "lda": 12, "ldc": 12, "b": b}
    assert gemm_ex(mublas43, a=whole, c=whole + 5 * 4, **sizes) == "SUCCESS"
    assert gemm_ex(mublas43, a=whole, c=whole + 4 * 4, **sizes) == "INVALID_VALUE"


def test_an_empty_sum_clears_or_scales_c(mublas43):
    example = Example(mublas43, f32)
    old = example.result()
    assert example.run(k=0, a=0, b=0, lda=7, ldb=1, scalars=(np.float32(1), np.float32(3))) == "SUCCESS"
    np.testing.assert_array_equal(example.result(), 3 * old)
    assert example.run(k=0, a=0, b=0, lda=7, ldb=1) == "SUCCESS"
    assert not example.result().any()


def test_beta_zero_never_reads_c(mublas43):
    example = Example(mublas43, f32)
    runtime = mublas43.runtime
    example.device["c"] = runtime.upload(np.full((7, 5), np.nan, f32, order="F"))
    assert example.run() == "SUCCESS"
    np.testing.assert_allclose(example.result(), example.expected(), rtol=1e-5, atol=1e-5)


def test_integers_are_exact_and_wrap(mublas43):
    runtime = mublas43.runtime
    a, b = np.full((1, 1000), -128, i8, order="F"), np.full((1000, 1), 127, i8, order="F")
    device = {"a": runtime.upload(a), "b": runtime.upload(b), "c": runtime.upload(np.full((1, 1), 5, i32))}
    scalars = (np.int32(200), np.int32(-3))
    sizes = {"m": 1, "n": 1, "k": 1000, "lda": 1, "ldb": 1000, "ldc": 1, "types": (i8, i8, i32), "compute": "32I"}
    assert gemm_ex(mublas43, **device, **sizes, scalars=scalars) == "SUCCESS"
    exact = 200 * 1000 * -128 * 127 - 15
    assert int(runtime.download(device["c"], (1, 1), i32)[0, 0]) == (exact + 2**31) % 2**32 - 2**31


def test_scalars_are_where_the_pointer_mode_puts_them(mublas43):
    example, runtime = Example(mublas43, f32), mublas43.runtime
    on_device = [pointer(runtime.upload(np.float32([x]))) for x in (2, 0)]
    assert example.run(scalars=on_device) == "INVALID_POINTER"
    assert example.run(scalars=(pointer(0), np.float32(0))) == "INVALID_POINTER"
    assert mublas43.call("mublasSetPointerMode", 1) == "SUCCESS"
    assert example.run() == "INVALID_POINTER"
    assert example.run(scalars=on_device) == "SUCCESS"
    np.testing.assert_allclose(example.result(), 2 * example.expected(), rtol=1e-5, atol=1e-5)
    assert mublas43.call("mublasSetPointerMode", 2) == "INVALID_VALUE"


def test_handles_and_streams_have_a_life(mublas43):
    example, runtime, library = Example(mublas43, f32), mublas43.runtime, mublas43.library
    stream = runtime.stream()
    assert mublas43.call("mublasSetStream", stream) == "SUCCESS"
    back = ctypes.c_void_p()
    assert mublas43.call("mublasGetStream", ctypes.byref(back)) == "SUCCESS"
    assert back.value == stream.value
    assert runtime.library.musaStreamDestroy(stream) == 0
    assert example.run() == "INVALID_VALUE"
    assert mublas43.call("mublasSetStream", stream) == "INVALID_VALUE"
    assert mublas43.call("mublasSetStream", pointer(0)) == "SUCCESS"
    assert example.run() == "SUCCESS"
    assert library.mublasDestroy(mublas43.handle) == 0
    assert example.run() == "INVALID_HANDLE"
    assert mublas43.name(library.mublasDestroy(mublas43.handle)) == "INVALID_HANDLE"
    other = ctypes.c_void_p()
    assert library.mublasCreate(ctypes.byref(other)) == 0
    assert other.value != mublas43.handle.value


def test_a_handle_belongs_to_its_device():
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from stubs import Runtime, Mublas
from test_mublas import Example, f32
runtime = Runtime("4.3")
mublas = Mublas(runtime)
example = Example(mublas, f32)
assert example.run() == "SUCCESS"
assert runtime.library.musaSetDevice(1) == 0
assert example.run() == "INVALID_HANDLE"
second = Mublas(runtime)
example.mublas = second
assert example.run() == "INVALID_POINTER"  # operands of device 0
"""
    environment = os.environ | {"MUSA_SIM_DEVICES": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_work_is_late_on_its_stream(mublas43):
    """A copy on another stream that does not wait gets the old values."""
    example, runtime = Example(mublas43, f32), mublas43.runtime
    old, stream, other = example.result(), runtime.stream(), runtime.stream()
    assert mublas43.call("mublasSetStream", stream) == "SUCCESS"
    assert example.run() == "SUCCESS"
    seen = np.empty((7, 5), f32, order="F")
    address, host, size = pointer(example.device["c"]), pointer(seen.ctypes.data), ctypes.c_size_t(seen.nbytes)
    assert runtime.library.musaMemcpyAsync(host, address, size, 2, other) == 0
    assert runtime.library.musaStreamSynchronize(other) == 0
    np.testing.assert_array_equal(seen, old)
    assert runtime.library.musaStreamSynchronize(stream) == 0
    np.testing.assert_allclose(example.result(), example.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [f16, bf16, i8])
def test_an_s80_has_no_tensor_types(mublas43, dtype):
    mublas43.runtime.option("ARCH", 21)
    try:
        example = Example(mublas43, dtype, i32 if dtype == i8 else dtype)
        compute, scalars = ("32I", (np.int32(1), np.int32(0))) if dtype == i8 else ("32F", None)
        assert example.run(compute=compute, scalars=scalars) == "NOT_IMPLEMENTED"
        assert Example(mublas43, f32).run() == "SUCCESS"
        assert Example(mublas43, f64).run(compute="64F", scalars=(np.float64(1), np.float64(0))) == "SUCCESS"
    finally:
        mublas43.runtime.option("ARCH", 22)


def test_faults_are_injected_by_name_and_count(mublas43):
    example, runtime = Example(mublas43, f32), mublas43.runtime
    runtime.inject("mublasGemmEx:2,mublasSetStream")
    assert example.run() == "SUCCESS"
    assert example.run() == "INTERNAL_ERROR"
    assert example.run() == "SUCCESS"
    assert mublas43.call("mublasSetStream", pointer(0)) == "INTERNAL_ERROR"
    runtime.inject("mublasCreate")
    assert mublas43.name(mublas43.library.mublasCreate(ctypes.byref(ctypes.c_void_p()))) == "MEMORY_ERROR"
    runtime.inject("")
    assert mublas43.call("mublasSetStream", pointer(0)) == "SUCCESS"


def test_a_sticky_error_can_be_left_behind(mublas43, monkeypatch):
    monkeypatch.setenv("MUSA_SIM_BLAS_STICKY", "801")
    example, runtime = Example(mublas43, f32), mublas43.runtime
    assert example.run() == "SUCCESS"
    assert runtime.library.musaGetLastError() == 801
    assert runtime.library.musaGetLastError() == 0
    np.testing.assert_allclose(example.result(), example.expected(), rtol=1e-5, atol=1e-5)


def test_refusals_can_be_explained():
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from stubs import Runtime, Mublas
from test_mublas import Example
Example(Mublas(Runtime("4.3"))).run(lda=3)
"""
    environment = os.environ | {"MUSA_SIM_EXPLAIN": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "mublasGemmEx: lda: 3"
