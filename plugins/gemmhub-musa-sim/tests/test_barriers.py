"""Asynchronous barriers of mp_31: phases, and what is reported of programs that misuse them."""

import numpy as np
import pytest
from gemmhub_musa_sim import checks
from simulated import Card, compiled

SOURCE = """#include <musa_runtime.h>
enum { FULL = 1, EMPTY = 2 };
// Warp 0 writes numbers into a buffer, round after round; warp 1 adds them up.
__global__ void rounds(float* out, int what, int count) {
  __shared__ float buffer[32];
  const int lane = threadIdx.x % 32;
  if (what != 1) __musa_async_bar_record(2);
  if (threadIdx.x < 32 && what != 2) {
    __musa_async_init_arrival(FULL, what == 9 ? 2 : 1, 0);
    __musa_async_init_arrival(EMPTY, 1, 0);
  }
  if (what != 3) __syncthreads();
  if (threadIdx.x < 32) {
    for (int i = 0; i < count; i++) {
      if (what != 4) __musa_async_wait(EMPTY, (what == 5 ? 1 : (i & 1) ^ 1));
      buffer[lane] = float(i + 1) * float(lane);
      if (what == 10 && lane >= 16) __syncwarp();
      __musa_async_arrive(FULL);
      if (what == 11) __musa_async_arrive(FULL);
    }
  } else {
    float sum = 0;
    for (int i = 0; i < count; i++) {
      if (what == 6) __musa_async_arrive(EMPTY);
      if (what != 7) __musa_async_wait(FULL, what == 8 ? 0 : i & 1);
      sum += buffer[31 - lane];
      if (what != 6 && (what != 12 || lane < 16)) __musa_async_arrive(EMPTY);
    }
    out[31 - lane] = sum;
  }
}
extern "C" void run_rounds(float* out, int what, int count) { rounds<<<1, 64>>>(out, what, count); }

__global__ void phases(int* out) {
  __musa_async_bar_record(63);
  if (threadIdx.x < 32) __musa_async_init_arrival(63, 2, 1);
  __syncthreads();
  int seen = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned phase = __musa_async_arrive(63);
    __musa_async_wait(63, phase);
    seen = 2 * seen + int(phase);
  }
  out[threadIdx.x] = seen;
}
extern "C" void run_phases(int* out) { phases<<<1, 64>>>(out); }

__global__ void numbers(int number, int warps, int phase, int what) {
  __musa_async_bar_record(8);
  __musa_async_init_arrival(number, warps, phase);
  if (what != 5) __syncthreads();
  if (what == 1) __musa_async_wait(number, 2);
  if (what == 2) __musa_async_add_trans(number, 64);
  if (what == 3) {
    __musa_async_add_trans(number, 64);
    __musa_async_decrease_trans(number, 64);
  }
  if (what == 4) __musa_async_init_arrival(number, warps, phase);
  __musa_async_arrive(number);
  if (what == 4) __musa_async_init_arrival(number, warps, phase);
  __musa_async_wait(number, phase);
}
extern "C" void run_numbers(int number, int warps, int phase, int what) {
  numbers<<<1, 64>>>(number, warps, phase, what);
}
"""
RAW, WAR = "read-after-write race", "write-after-read race"
MISUSE = "misuse of asynchronous barriers or copies"


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1, ARCH=31):
        yield card
        card.reset()


def rounds(card, what, count=5, *, checked=True):
    """The kinds found with their texts, the error with its message, and whether the sums are right."""
    library = compiled(SOURCE, checks=checked, arch="mp_31")
    out = card.malloc(128)
    library.run_rounds(out, what, count)
    error = card.rt.musaDeviceSynchronize()
    message = card.message()
    if error:
        card.rt.musaSimReset()
    expected = np.arange(32, dtype=np.float32) * (count * (count + 1) // 2)
    right = not error and np.array_equal(card.get(out, 32, np.float32), expected)
    card.free(out)
    found = {(finding.kind, finding.text) for finding in checks.findings(card.rt)}
    return found, message, right


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_producer_and_a_consumer_take_turns(card, seed, checked):
    with card.options(SEED=seed):
        assert rounds(card, 0, checked=checked) == (set(), "", True)


def test_phases_alternate(card):
    library = compiled(SOURCE, arch="mp_31")
    out = card.malloc(256)
    library.run_phases(out)
    assert np.array_equal(card.get(out, 64, np.int32), np.full(64, 0b1010))
    card.free(out)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (1, "barrier 1: __musa_async_bar_record has named 0 barriers"),
        (2, "is used before __musa_async_init_arrival"),
        (3, "is used before __musa_async_init_arrival"),
        (9, "barrier 1: phase 0, 1 of 2 warps have arrived, 0 bytes are missing"),
        (10, "16 threads wait for __syncwarp"),
    ],
)
def test_a_barrier_that_cannot_work_ends_the_kernel(card, what, message):
    _, said, _ = rounds(card, what, checked=False)
    assert message in said


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        (4, WAR, "shared memory"),  # the producer does not wait for an empty buffer
        (5, MISUSE, "its phase bit was not flipped"),
        (6, WAR, "shared memory"),  # the consumer gives the buffer back before it has read
        (7, RAW, "shared memory"),  # the consumer does not wait for a full one
        (8, MISUSE, "its phase bit was not flipped"),
        (11, MISUSE, "has gone past the phase that a thread waits for"),  # the producer arrives twice
    ],
)
def test_misuse_is_found(card, what, kind, text):
    found, _, _ = rounds(card, what)
    assert any(kind == seen and text in words for seen, words in found), found


def test_lanes_that_do_not_arrive_are_no_warp(card):
    """Half of the consumer's lanes give the buffer back: their warp counts, and the other half is not waited for."""
    found, _, _ = rounds(card, 12)
    assert any(seen == WAR for seen, _ in found), found


def test_an_unordered_barrier_is_found(card):
    compiled(SOURCE, checks=True, arch="mp_31").run_numbers(1, 2, 0, 5)
    card.rt.musaDeviceSynchronize()
    texts = [finding.text for finding in checks.findings(card.rt)]
    assert any("no __syncthreads between __musa_async_init_arrival and the use of barrier 1" in text for text in texts)


@pytest.mark.parametrize(
    ("number", "warps", "phase", "what", "message"),
    [
        (1, 2, 0, 0, ""),
        (8, 2, 1, 0, ""),
        (9, 2, 0, 0, "barrier 9: __musa_async_bar_record has named 8 barriers"),
        (0, 2, 0, 0, "barrier 0: there are barriers 1 to 63"),
        (64, 2, 0, 0, "barrier 64: there are barriers 1 to 63"),
        (1, 0, 0, 0, "barrier 1: needs warps to wait for, and phase 0 or 1"),
        (1, 2, 2, 0, "barrier 1: needs warps to wait for, and phase 0 or 1"),
        (1, 2, 0, 1, "barrier 1: the phase to wait for is 0 or 1, not 2"),
        (1, 2, 0, 2, "128 bytes are missing"),
        (1, 2, 0, 3, ""),
        (1, 3, 0, 4, "barrier 1 is made anew in the middle of a phase"),
    ],
)
def test_numbers(card, number, warps, phase, what, message):
    compiled(SOURCE, arch="mp_31").run_numbers(number, warps, phase, what)
    error = card.rt.musaDeviceSynchronize()
    assert (error == 719) == bool(message)
    assert message in card.message()
