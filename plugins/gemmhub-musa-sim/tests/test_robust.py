"""Robust access on mp_31: nothing is read or written outside of a buffer."""

import numpy as np
import pytest
from gemmhub_musa_sim import checks
from simulated import Card, compiled

SOURCE = """#include <musa_robust.h>
__global__ void copy(const int* from, int* to, int first, int count, int what) {
  __shared__ __align__(16) int tile[64 * 4];
  const int t = threadIdx.x;
  const auto buffer = __musa::robust_ptr<int>(const_cast<int*>(from), 4ull * count).get_v4_robust_addr();
  const auto result = __musa::robust_ptr<int>(to, 4ull * 64 * 4).get_v4_robust_addr();
  const int* p = from + first + 4 * t;
  int* q = to + 4 * t;
  switch (what) {
    case 0: for (int i = 0; i < 4; i++) {
        const int value = __musa_ld_v4_robust_i32(p + i, buffer, 0);
        __musa_st_v4_robust_i32(value, q + i, result);
      }
      break;
    case 1: for (int i = 0; i < 2; i++) {
        const long value = __musa_ld_v4_robust_i64(p + 2 * i, buffer, 128);
        __musa_st_v4_robust_i64(value, q + 2 * i, result);
      }
      break;
    case 2: __musa_st_v4_robust_v4i32(__musa_ld_v4_robust_v4i32(p, buffer, 0), q, result); break;
    case 3: __musa_memcpy_g2s_robust_v4(&tile[4 * t], p, 16, buffer, 0);
      __musa_memcpy_g2s_wait();
      for (int i = 0; i < 4; i++) q[i] = tile[4 * t + i];
      break;
    case 4: if (t < 16) {
        const auto value = __musa_ld_v4_robust_v16i32(from + first + 16 * t, buffer, 0);
        __musa_st_v4_robust_v16i32(value, to + 16 * t, result);
      }
      break;
    case 5: for (int i = 0; i < 4; i++) {
        q[i] = 0;
        __musa_st_v4_robust_i32(i + 1, q + i + 64 * first, result);
      }
      break;
    case 6: q[0] = *p; break;
  }
}
extern "C" void run_copy(const int* from, int* to, int first, int count, int what) {
  copy<<<1, 64>>>(from, to, first, count, what);
}
"""


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1, ARCH=31):
        yield card
        card.reset()


def copied(card, what, first, count, *, checked=False):
    source = np.random.default_rng().integers(1, 2**31, 256).astype(np.int32)
    p, q = card.put(source), card.malloc(1024)
    compiled(SOURCE, arch="mp_31", checks=checked).run_copy(p, q, first, count, what)
    error, message = card.rt.musaDeviceSynchronize(), card.message()
    if error:
        card.rt.musaSimReset()
    got = card.get(q, 256, np.int32)
    card.free(p, q)
    at = first + np.arange(256)
    inside = (at >= 0) & (at < count)
    return got, np.where(inside, source[np.where(inside, at, 0)], 0), error, message


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("what", range(5))
@pytest.mark.parametrize(("first", "count"), [(0, 256), (0, 96), (-64, 256), (512, 256), (16, 0)])
def test_outside_of_the_buffer_loads_give_zero(card, what, first, count, checked):
    got, expected, error, message = copied(card, what, first, count, checked=checked)
    assert (error, message) == (0, "")
    assert np.array_equal(got, expected)
    assert not checks.findings(card.rt)


def test_outside_of_the_buffer_stores_do_nothing(card):
    assert not copied(card, 5, 64, 256)[0].any()


def test_elements_partly_in_the_buffer_are_refused(card):
    """What a card does with them is not public."""
    _, _, error, message = copied(card, 2, 0, 98)
    assert error == 700
    assert "robust access: part of the elements is in the buffer" in message


def test_a_plain_load_there_is_still_an_error(card):
    assert copied(card, 6, 256, 256)[2] == 700
