"""Copies of boxes of tensors (TME) on mp_31: what they move, when it is there, and what is reported of wrong ones."""

import ctypes

import numpy as np
import pytest
from gemmhub_musa_sim import checks
from simulated import Card, compiled, home

SOURCE = """#include <musa.h>
#include <musa_runtime.h>
typedef int pair __attribute__((vector_size(8)));
typedef int quad __attribute__((vector_size(16)));
enum { FULL = 1, DONE = 2 };
struct Box { int at[2], size[2], granularity, stride, line, offset; };

// Copies a box in, and out of shared memory as it lies there; or to another place by a copy out.
__global__ void through(const __attribute__((grid_constant)) MUtensorDescriptor from,
                        const __attribute__((grid_constant)) MUtensorDescriptor to, unsigned char* raw, Box box,
                        int what) {
  extern __shared__ __align__(4096) unsigned char shared[];
  unsigned char* tile = shared + box.offset;
  const int bytes = box.size[0] * box.size[1] * 2;
  __musa_async_bar_record(2);
  if (threadIdx.x < 32) {
    __musa_async_init_arrival(FULL, 1, 0);
    __musa_async_init_arrival(DONE, 2, 0);
  }
  if (what == 1) for (int i = threadIdx.x; i < bytes; i += blockDim.x) tile[i] = 1;
  __syncthreads();
  const pair at = {box.at[0], box.at[1]}, size = {box.size[0], box.size[1]};
  if (threadIdx.x < 32) {
    __musa_async_add_trans(FULL, what == 3 ? bytes / 2 : what == 4 ? 2 * bytes : bytes);
    __musa_async_arrive(FULL);
    __musa_tme_ld_tile_2d(what == 5 ? 7 : FULL, tile, (unsigned long long)(what == 6 ? (void*)raw : (void*)&from), size,
                          at, box.granularity, box.stride, box.line, 128);
  }
  if (what == 7) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) raw[i] = tile[i];
    __syncthreads();
  }
  if (what != 8) __musa_async_wait(FULL, 0);
  if (what != 7) for (int i = threadIdx.x; i < bytes; i += blockDim.x) raw[i] = tile[i];
  if (what == 10) for (int i = threadIdx.x; i < bytes; i += blockDim.x) tile[i] = tile[i] + 1;
  if (what != 10) __syncthreads();
  if (what >= 10 && threadIdx.x / 32 == 1) {
    __musa_tme_st_2d(tile, (unsigned long long)&to, size, at, box.granularity, box.stride, box.line);
    if (what != 11) __musa_tme_store_commit();
    if (what != 12 && what != 14) __musa_tme_store_read_wait();
  }
  if (what == 14) __syncthreads();
  if (what == 13 && threadIdx.x / 32 == 1) tile[threadIdx.x] = 0;
  if (what == 14 && threadIdx.x < 32) tile[threadIdx.x] = 0;
  if (what == 14 && threadIdx.x >= 32) __musa_tme_store_read_wait();
}

extern "C" int encode(MUtensorDescriptor* made, void* address, int type, int rank, const unsigned long* sizes,
                      const unsigned long* strides, unsigned long fill) {
  return muTensorDescriptorEncode(made, type == 2 ? MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT16
                                                  : MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT32,
                                  rank, address, sizes, strides, MU_TENSOR_DESCRIPTOR_INTERLEAVE_NONE, fill);
}
extern "C" int run_through(void* from, void* to, int rows, int columns, int pitch, unsigned long fill, void* raw,
                           const Box* box, int what) {
  MUtensorDescriptor source, target;
  const unsigned long sizes[] = {(unsigned long)columns, (unsigned long)rows}, strides[] = {2ul * pitch};
  if (encode(&source, from, 2, 2, sizes, strides, fill) || encode(&target, to, 2, 2, sizes, strides, 0)) return 1;
  through<<<1, 64, 16384>>>(source, target, (unsigned char*)raw, *box, what);
  return musaGetLastError();
}

__global__ void deep(const __attribute__((grid_constant)) MUtensorDescriptor from, float* out) {
  __shared__ __align__(256) float tile[2 * 3 * 2 * 8];
  __musa_async_bar_record(1);
  if (threadIdx.x < 32) __musa_async_init_arrival(1, 1, 0);
  __syncthreads();
  if (threadIdx.x == 0) {
    const quad at = {4, -1, 1, 2}, size = {8, 2, 3, 2};
    __musa_async_add_trans(1, sizeof tile);
    __musa_async_arrive(1);
    __musa_tme_ld_tile_4d(1, tile, (unsigned long long)&from, size, at, 0, 3, 1, 0, 2, 2, 0);
  }
  __musa_async_wait(1, 0);
  for (int i = threadIdx.x; i < 96; i += 64) out[i] = tile[i];
}
extern "C" int run_deep(void* from, const unsigned long* sizes, const unsigned long* strides, float* out) {
  MUtensorDescriptor source;
  if (encode(&source, from, 4, 4, sizes, strides, 0)) return 1;
  deep<<<1, 64>>>(source, out);
  return musaGetLastError();
}
"""
MISUSE = "misuse of asynchronous barriers or copies"
IN_FLIGHT = "access to bytes of an asynchronous copy that nobody waited for"
READING = "write to bytes that an asynchronous operation is reading"
RAW, WAR, WAW = (f"{x} race" for x in ("read-after-write", "write-after-read", "write-after-write"))
ROWS, COLUMNS, PITCH = 21, 50, 56
PLAIN = (0, 3, 1)
SWIZZLES = [PLAIN, (1, 3, 1), (2, 3, 1), (3, 3, 1), (1, 2, 0), (1, 0, 0), (2, 2, 1)]


def library(*, checks=False):
    ctypes.CDLL(str(home() / "lib" / "libmusa.so.1"), mode=ctypes.RTLD_GLOBAL)  # where a program finds the encoder
    return compiled(SOURCE, arch="mp_31", checks=checks)


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1, ARCH=31):
        yield card
        card.reset()


class Run:
    """A box of 16-bit numbers through shared memory: what lay there, and what was copied out."""

    def __init__(self, card, what, at=(8, 3), size=(32, 16), swizzle=PLAIN, *, offset=0, fill=0, checked=False):
        rng = np.random.default_rng()
        self.source = rng.integers(1, 2**16, (ROWS, PITCH)).astype(np.uint16)
        self.start = np.full((ROWS, PITCH), 7, np.uint16)
        p, q, raw = card.put(self.source), card.put(self.start), card.malloc(2 * size[0] * size[1])
        box = np.array([*at, *size, *swizzle, offset], np.int32)
        built = library(checks=checked)
        self.refused = built.run_through(p, q, ROWS, COLUMNS, PITCH, ctypes.c_ulong(fill), raw, pointer(box), what)
        self.error = card.rt.musaDeviceSynchronize()
        self.message = card.message()
        if self.error:
            card.rt.musaSimReset()
        self.raw = card.get(raw, size[0] * size[1], np.uint16)
        self.target = card.get(q, (ROWS, PITCH), np.uint16)
        card.free(p, q, raw)
        self.found = {finding.kind for finding in checks.findings(card.rt)}
        self.texts = [finding.text for finding in checks.findings(card.rt)]
        self.at, self.size, self.swizzle, self.fill, self.offset = at, size, swizzle, fill, offset

    @property
    def box(self):
        """The box as it should be, row by row."""
        box = np.full(self.size[::-1], self.fill, np.uint16)
        for y, x in np.ndindex(*box.shape):
            row, column = self.at[1] + y, self.at[0] + x
            if 0 <= row < ROWS and 0 <= column < COLUMNS:
                box[y, x] = self.source[row, column]
        return box

    @property
    def expected(self):
        """The bytes of shared memory: the address of each 16 bytes is swizzled."""
        granularity, stride, line = self.swizzle
        if granularity == 0:
            return self.box.ravel()
        base, top, shift = 3 + granularity, 5 + stride, 7 + line - (3 + granularity)
        number = self.offset + np.arange(0, 2 * self.box.size, 16)
        mask = (1 << top) - (1 << base)
        places = (number ^ (number >> shift & mask)) - self.offset
        out = np.empty(self.box.size, np.uint16)
        for unit, place in zip(self.box.reshape(-1, 8), places):
            out[place // 2 : place // 2 + 8] = unit
        return out


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("asynchronous", [0, 1, 2])
@pytest.mark.parametrize("swizzle", SWIZZLES, ids=str)
def test_a_box_is_copied_in(card, swizzle, asynchronous):
    with card.options(ASYNC=asynchronous, SEED=asynchronous):
        run = Run(card, 0, swizzle=swizzle)
    assert (run.refused, run.error) == (0, 0), run.message
    assert np.array_equal(run.raw, run.expected)


@pytest.mark.parametrize("at", [(-5, -2), (40, 15), (0, 0), (49, 20), (60, 2), (3, 30)])
def test_what_is_outside_of_the_tensor_is_filled(card, at):
    run = Run(card, 0, at, fill=0x1234)
    assert run.error == 0, run.message
    assert np.array_equal(run.raw, run.expected)


def test_four_dimensions(card):
    rng = np.random.default_rng()
    source = rng.standard_normal((5, 4, 3, 16)).astype(np.float32)
    p, out = card.put(source), card.malloc(4 * 96)
    sizes, strides = np.array([16, 3, 4, 5], np.uint64), np.array([64, 192, 768], np.uint64)
    assert library().run_deep(p, pointer(sizes), pointer(strides), out) == 0
    got = card.get(out, (2, 3, 2, 8), np.float32)
    card.free(p, out)
    expected = np.zeros_like(got)
    expected[:, :, 1] = source[2:4, 1:4, 0, 4:12]
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("asynchronous", [0, 1, 2])
@pytest.mark.parametrize("at", [(8, 3), (-5, -2), (40, 15)])
@pytest.mark.parametrize("swizzle", SWIZZLES[:3], ids=str)
def test_a_box_is_copied_out(card, swizzle, at, asynchronous):
    with card.options(ASYNC=asynchronous, SEED=asynchronous):
        run = Run(card, 15, at, swizzle=swizzle)
    assert run.error == 0, run.message
    expected = run.start.copy()
    rows = slice(max(at[1], 0), min(at[1] + run.size[1], ROWS))
    columns = slice(max(at[0], 0), min(at[0] + run.size[0], COLUMNS))
    expected[rows, columns] = run.source[rows, columns]
    assert np.array_equal(run.target, expected)


@pytest.mark.parametrize("what", [0, 15])
@pytest.mark.parametrize("swizzle", SWIZZLES[:2], ids=str)
def test_nothing_is_found_of_a_right_copy(card, swizzle, what):
    run = Run(card, what, (-5, -2), swizzle=swizzle, checked=True)
    assert (run.error, run.texts) == (0, [])
    assert np.array_equal(run.raw, run.expected)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (1, None),  # written before, in order
        (7, IN_FLIGHT),  # read before the barrier
        (8, IN_FLIGHT),
        (10, RAW),  # no barrier between the threads' writes and the copy out of them
        (12, MISUSE),  # nobody waits for the copy out
        (13, None),
        (14, READING),
    ],
)
def test_findings(card, what, kind):
    run = Run(card, what, checked=True)
    assert (kind in run.found) if kind else not run.found, run.texts


def test_a_copy_out_that_was_not_committed_is_not_waited_for(card):
    run = Run(card, 11, checked=True)
    assert MISUSE in run.found


@pytest.mark.parametrize("what", [3, 4])
def test_bytes_that_were_not_announced_right_end_no_phase(card, what):
    assert "bytes are missing" in Run(card, what).message


def test_a_copy_that_is_not_waited_for_must_not_outlive_the_block(card):
    assert "the block ended while a copy into its shared memory was on its way" in Run(card, 8).message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"what": 5}, "barrier 7: __musa_async_bar_record has named 2 barriers"),
        ({"what": 6}, "was not made by muTensorDescriptorEncode"),
        ({"size": (12, 16)}, "rows of a box must be multiples of 16 bytes"),
        ({"size": (32, 0)}, "a box has at least 1 element"),
        ({"size": (256, 64)}, "are not in the kernel's shared memory"),
        ({"swizzle": (1, 3, 0)}, "a swizzle's granularity must be below its stride"),
        ({"swizzle": (4, 3, 1)}, "no such swizzle"),
        ({"swizzle": (1, 3, 1), "offset": 128}, "a box must start at a multiple of 256 bytes"),
        ({"offset": 8}, "a box must start at a multiple of 16 bytes"),
    ],
)
def test_wrong_boxes(card, change, message):
    run = Run(card, **{"what": 0, **change})
    assert message in run.message


@pytest.mark.parametrize(
    ("address", "sizes", "strides"),
    [(8, (64, 4), (128,)), (0, (64, 0), (128,)), (0, (64, 4), (120,)), (0, (64, 4), (0,))],
)
def test_wrong_tensors(card, address, sizes, strides):
    p, descriptor = card.malloc(4096), np.zeros(32, np.uint64)
    base = descriptor.ctypes.data + -descriptor.ctypes.data % 64
    built = library()
    arrays = [np.array(x, np.uint64) for x in (sizes, strides)]
    place = ctypes.c_void_p(p.value + address)
    made = built.encode(ctypes.c_void_p(base), place, 2, 2, *map(pointer, arrays), ctypes.c_ulong(0))
    assert made == 1
    card.free(p)
