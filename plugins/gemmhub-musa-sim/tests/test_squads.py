"""Multiplications by squads (SQMMA) on mp_31: every type and storage order, and what wrong ones end in."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from gemmhub_musa_sim import checks
from simulated import Card, compiled

SHAPES = [
    (16, 64),
    (32, 32),
    (32, 64),
    (32, 128),
    (64, 16),
    (64, 32),
    (64, 64),
    (64, 128),
    (128, 32),
    (128, 64),
    (128, 128),
]
SOURCE = (
    """#include <musa_runtime.h>
struct Case {
  int m, n, k, type, transposed_a, transposed_b, negative_a, negative_b, times, scale, bytes_a, bytes_b;
  int pitch_a, pitch_b, swizzle_a, swizzle_b, start_a, start_b, what;
};

// Operands are copied to shared memory as they are; a thread's elements of D lie one after another.
template <int M, int N, class Multiply>
__device__ void product(const Case& c, const uint4* a, const uint4* b, int* d, Multiply multiply) {
  extern __shared__ __align__(4096) uint4 shared[];
  for (int i = threadIdx.x; i < c.bytes_a / 16; i += blockDim.x) shared[i] = a[i];
  for (int i = threadIdx.x; i < c.bytes_b / 16; i += blockDim.x) shared[4096 + i] = b[i];
  if (c.what != 1) __syncthreads();
  constexpr int each = M * N / 128;
  int sums[each];
  for (int i = 0; i < each; i++) sums[i] = d[threadIdx.x * each + i];
  const int start = int(__cvta_generic_to_shared(shared));
  int at_a = (start + c.start_a) | c.pitch_a << 18 | c.swizzle_a << 21;
  int at_b = (start + 65536 + c.start_b) | c.pitch_b << 18 | c.swizzle_b << 21;
  if (c.what == 2 && threadIdx.x % 128 == 5) at_a += 16;
  if (c.what == 3 && threadIdx.x % 128 == 5) return;
  if (c.what >= 9) {
    // Two accumulators in turns, each group waited for when the next one is under way; 10: a group too late.
    int others[each];
    for (int i = 0; i < each; i++) others[i] = 0;
    for (int i = 0; i < c.times; i++) {
      multiply(i % 2 ? others : sums, &at_a, &at_b, i % 2 ? others : sums, 0);
      __musa_tce_commit_group();
      __musa_tce_wait_group(c.what == 9 ? 1 : 2);
      if (i % 2 == 0 && i > 0)
        for (int j = 0; j < each; j++) d[threadIdx.x * each + j] = others[j];
    }
    __musa_tce_wait_group(0);
    for (int j = 0; j < each; j++) d[threadIdx.x * each + j] += sums[j];
    return;
  }
  for (int i = 0; i < c.times; i++) multiply(sums, &at_a, &at_b, sums, i ? 0 : c.scale);
  if (c.what == 4) shared[threadIdx.x] = make_uint4_of(0);
  if (c.what == 5)
    for (int i = 0; i < each; i++) d[threadIdx.x * each + i] = sums[i];
  if (c.what != 6) __musa_sqmma_wait();
  if (c.what == 5) return;
  for (int i = 0; i < each; i++) d[threadIdx.x * each + i] = sums[i];
  if (c.what == 7) shared[threadIdx.x] = make_uint4_of(0);
}

#define KERNEL(M, N)                                                                                           \\
  __global__ void product_##M##_##N(Case c, const uint4* a, const uint4* b, int* d) {                          \\
    product<M, N>(c, a, b, d, [&](int* to, const int* x, const int* y, const int* from, int scale) {           \\
      __musa_sqmma_m##M##n##N##_mma(to, x, y, from, c.transposed_a, c.transposed_b, c.negative_a, c.negative_b, \\
                                    scale, c.what == 8, c.k, c.type);                                          \\
    });                                                                                                        \\
  }                                                                                                            \\
  extern "C" int run_##M##_##N(const Case* c, const uint4* a, const uint4* b, int* d, int threads) {           \\
    musaFuncSetAttribute(product_##M##_##N, musaFuncAttributeMaxDynamicSharedMemorySize, 131072);              \\
    product_##M##_##N<<<1, threads, 131072>>>(*c, a, b, d);                                                    \\
    return musaGetLastError();                                                                                 \\
  }
""".replace("make_uint4_of(0)", "make_uint4(0, 0, 0, 0)")
    + "".join(f"KERNEL({m}, {n})\n" for m, n in SHAPES)
)
FIELDS = [
    "m",
    "n",
    "k",
    "type",
    "transposed_a",
    "transposed_b",
    "negative_a",
    "negative_b",
    "times",
    "scale",
    "bytes_a",
    "bytes_b",
    "pitch_a",
    "pitch_b",
    "swizzle_a",
    "swizzle_b",
    "start_a",
    "start_b",
    "what",
]
TYPES = {
    "uint8": (0, np.uint8), "int8": (1, np.int8), "float16": (2, np.float16), "bfloat16": (3, ml_dtypes.bfloat16),
    "tf32": (4, np.float32), "e4m3": (5, ml_dtypes.float8_e4m3fn), "e5m2": (6, ml_dtypes.float8_e5m2),
}  # fmt: skip
TF32 = {(128, 128), (128, 64), (64, 64), (64, 32), (64, 16), (32, 64), (32, 32), (16, 64)}


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1, ARCH=31):
        yield card
        card.reset()


def stored(matrix, base, pitch):
    """The bytes of a matrix's rows, ``pitch`` apart and swizzled: 2^base bytes as a unit in lines of 256."""
    rows = np.ascontiguousarray(matrix).view(np.uint8).reshape(matrix.shape[0], -1)
    linear = np.zeros((rows.shape[0] * pitch + 4095) // 4096 * 4096, np.uint8)
    for i, row in enumerate(rows):
        linear[i * pitch : i * pitch + len(row)] = row
    number = np.arange(len(linear))
    mask = 255 & ~((1 << base) - 1)
    out = np.empty_like(linear)
    out[number ^ (number >> (8 - base) & mask)] = linear
    return out


class Run:
    """D = C + ``times`` A B of small numbers, whose sums are exact."""

    def __init__(self, card, m, n, k, name="float16", orders="kk", *, times=1, scale=0, threads=128, what=0,
                 checked=False, minimum=8, **changes):  # fmt: skip
        rng = np.random.default_rng()
        number, dtype = TYPES[name]
        low = 0 if name == "uint8" else -4
        a = rng.integers(low, 5, (m, k)).astype(np.float32).astype(dtype)
        b = rng.integers(low, 5, (n, k)).astype(np.float32).astype(dtype)
        sums = np.int32 if name in ("uint8", "int8") else np.float32
        squads = max(threads // 128, 1)
        c = rng.integers(-9, 10, (squads, m, n)).astype(sums)
        size, images, values = np.dtype(dtype).itemsize, [], {}
        for letter, matrix, order in (("a", a, orders[0]), ("b", b, orders[1])):
            lines = matrix if order == "k" else matrix.T
            run = lines.shape[1] * size
            pitch = max(minimum, 1 << (run - 1).bit_length())
            swizzle = 1 if order == "k" or size == 1 else size // 2 + 1
            images.append(stored(lines, 3 + swizzle, pitch))
            values |= {
                f"bytes_{letter}": len(images[-1]),
                f"pitch_{letter}": pitch.bit_length() - 3,
                f"swizzle_{letter}": swizzle,
            }
        values |= {"transposed_a": orders[0] == "m", "transposed_b": orders[1] == "k"}
        values |= {"m": m, "n": n, "k": k, "type": number, "times": times, "scale": scale, "what": what} | changes
        case = np.array([values.get(field, 0) for field in FIELDS], np.int32)
        p, q, r = card.put(images[0]), card.put(images[1]), card.put(self.spread(c))
        built = compiled(SOURCE, arch="mp_31", checks=checked)
        launch = getattr(built, f"run_{m}_{n}")
        assert launch(ctypes.c_void_p(case.ctypes.data), p, q, r, threads) == 0, card.message()
        self.error, self.message = card.rt.musaDeviceSynchronize(), card.message()
        if self.error:
            card.rt.musaSimReset()
        got = card.get(r, c.size, sums).reshape(squads, 128, -1)
        card.free(p, q, r)
        self.found = {finding.kind for finding in checks.findings(card.rt)}
        self.got = np.stack([self.gathered(each, m, n) for each in got])
        sign = -1 if values.get("negative_a", 0) != values.get("negative_b", 0) else 1
        self.expected = (c if scale == 0 else 0 * c) + (sign * times * (a.astype(sums) @ b.astype(sums).T)).astype(sums)

    @staticmethod
    def places(m, n):
        """Row and column of each thread's values."""
        lane, value = np.ogrid[:128, : m * n // 128]
        column = lane % 8 + 8 * (value % 2) + 16 * (value // 2 % (n // 16))
        return lane // 8 % 4 + 4 * (lane // 32) + 16 * (value // 2 // (n // 16)), column

    def spread(self, c):
        rows, columns = self.places(*c.shape[1:])
        return np.stack([each[rows, columns] for each in c])

    def gathered(self, values, m, n):
        whole = np.empty((m, n), values.dtype)
        whole[self.places(m, n)] = values
        return whole

    @property
    def right(self):
        return self.error == 0 and np.array_equal(self.got, self.expected)


def depths(name):
    return {1: (32, 64, 128), 2: (16, 32, 64), 4: (8, 16, 32)}[np.dtype(TYPES[name][1]).itemsize]


@pytest.mark.parametrize("orders", ["kk", "km", "mk", "mm"])
@pytest.mark.parametrize("name", TYPES)
def test_types_and_orders(card, name, orders):
    for shape in SHAPES:
        if name == "tf32" and (shape not in TF32 or (shape[0] == 128 and orders != "kk")):
            continue
        k = depths(name)[sum(shape) // 16 % 3]
        run = Run(card, *shape, k, name, orders)
        assert run.right, (shape, k, run.message)


@pytest.mark.parametrize("k", depths("float16"))
@pytest.mark.parametrize("minimum", [8, 128, 256])
def test_rows_further_apart_than_they_are_long(card, k, minimum):
    assert Run(card, 64, 32, k, minimum=minimum).right


@pytest.mark.parametrize("asynchronous", [0, 1, 2])
def test_chains_and_squads(card, asynchronous):
    """Multiplications that add to the same registers, by two squads; and one that does not add."""
    with card.options(ASYNC=asynchronous):
        for name in ("float16", "int8"):
            for scale in (0, 1):
                assert Run(card, 32, 64, 64, name, times=3, scale=scale, threads=256).right
        assert Run(card, 32, 64, 64, negative_a=1).right
        assert Run(card, 32, 64, 64, negative_a=1, negative_b=1).right


@pytest.mark.parametrize(("what", "right"), [(9, True), (10, False)])
def test_groups(card, what, right):
    """The second accumulator is read while a third product is pending: its own must have been waited for."""
    assert Run(card, 32, 64, 32, "int8", times=3, what=what).right == right


def test_float_sums_are_those_of_the_numbers(card):
    """The formats of 8 bits, of every finite number."""
    for name in ("e4m3", "e5m2"):
        number, dtype = TYPES[name]
        every = np.arange(256, dtype=np.uint8).view(dtype)
        every = every[np.isfinite(every.astype(np.float32))]
        a = np.resize(every, (128, 128))
        b = np.eye(128, dtype=np.float32)[:64].astype(dtype)
        built = compiled(SOURCE, arch="mp_31")
        values = {"m": 128, "n": 64, "k": 128, "type": number, "transposed_b": 1, "times": 1, "scale": 1}
        values |= {"bytes_a": 16384, "bytes_b": 8192, "pitch_a": 5, "pitch_b": 5, "swizzle_a": 1, "swizzle_b": 1}
        case = np.array([values.get(field, 0) for field in FIELDS], np.int32)
        p, q, r = card.put(stored(a, 4, 128)), card.put(stored(b, 4, 128)), card.put(np.zeros((128, 64), np.float32))
        assert built.run_128_64(ctypes.c_void_p(case.ctypes.data), p, q, r, 128) == 0
        got = card.get(r, (128, 64), np.float32)
        whole = np.empty_like(got)
        whole[Run.places(128, 64)] = got
        assert np.array_equal(whole, a[:, :64].astype(np.float32))
        card.free(p, q, r)


def test_nothing_is_found_of_a_right_product(card):
    for orders in ("kk", "mm"):
        run = Run(card, 64, 64, 32, orders=orders, times=2, threads=256, checked=True)
        assert run.right, run.message
        assert not run.found
    assert not Run(card, 64, 64, 32, what=4, checked=False).error


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (1, "read-after-write race"),  # operands written without a barrier
        (4, "write to bytes that an asynchronous operation is reading"),
        (7, "write-after-read race"),  # a thread that has waited knows of no other's wait
    ],
)
def test_findings(card, what, kind):
    run = Run(card, 32, 32, 32, what=what, checked=True)
    assert kind in run.found, run.found


def test_results_that_are_not_waited_for_are_not_there(card):
    assert np.isnan(Run(card, 32, 32, 32, what=5).got).all()
    assert "without __musa_sqmma_wait" in Run(card, 32, 32, 32, what=6).message


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ((32, 32, 24), {}, "32x32x24 is no shape"),
        ((128, 32, 16, "tf32"), {}, "128x32x16 is no shape"),
        ((64, 16, 128), {}, "64x16x128 is no shape"),
        ((128, 64, 16, "tf32", "km"), {}, "TF32 with 128 rows takes operands contiguous along K only"),
        ((32, 32, 32), {"type": 7}, "type number 7 are not simulated"),
        ((32, 32, 32), {"pitch_a": 0}, "descriptor of A: the leading stride must be 1"),
        ((32, 32, 32), {"pitch_b": 7}, "descriptor of B: the leading stride must be 1"),
        ((32, 32, 32), {"pitch_b": 3}, "lines of 64 bytes are longer than the leading stride of 32"),
        ((32, 32, 32), {"swizzle_a": 0}, "descriptor of A: the swizzle must have granularity 16 bytes"),
        ((32, 32, 32, "float16", "mm"), {"swizzle_b": 1}, "descriptor of B: the swizzle must have granularity 32"),
        ((32, 32, 32), {"start_a": 8}, "descriptor of A: the address must be a multiple of 16"),
        ((32, 32, 32), {"start_b": 65520}, "are not in the kernel's shared memory"),
        ((32, 32, 32), {"what": 8}, "saturation is not simulated"),
        ((32, 32, 32, "int8"), {"negative_b": 1}, "integers cannot be negated"),
        ((32, 32, 32), {"what": 2}, "lanes of one group disagree"),
        ((32, 32, 32), {"what": 3}, "deadlock"),
        ((32, 32, 32), {"threads": 96}, "by a group of 128 threads that has only 96"),
    ],
)
def test_wrong_products(card, arguments, changes, message):
    run = Run(card, *arguments, **changes)
    assert message in run.message
