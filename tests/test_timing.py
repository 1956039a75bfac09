"""Timing by a clock that only the timed calls move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmhub._base import timing


class Clock:
    def __init__(self):
        self.now = 0.0
        self.log = []

    def call(self, name, *seconds):
        """A contender that takes ``seconds``, one after the other and the last for ever."""
        left = list(seconds)

        def run():
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def test_each_call_gets_its_own_time(clock):
    found = timing.interleave([clock.call("a", 0.5), clock.call("b", 0.25)], rounds=3)
    assert [f.median for f in found] == [0.5, 0.25]
    assert found[0].samples == (0.5, 0.5, 0.5)
    assert timing.interleave([]) == []


def test_all_calls_run_in_every_round_in_rotating_order(clock):
    progress = []
    calls = [clock.call(name, 1.0) for name in "abc"]
    timing.interleave(calls, rounds=4, progress=lambda: progress.append(len(clock.log)))
    assert "".join(clock.log) == "aabbcc" + "abc" + "bca" + "cab" + "abc"
    assert progress == [9, 12, 15, 18]


def test_the_median_forgives_one_disturbed_round(clock):
    # Warm-up, calibration, then five rounds of which one is disturbed.
    (found,) = timing.interleave([clock.call("a", 9.0, 1.0, 1.0, 1.0, 50.0, 1.0, 0.5)], rounds=5)
    assert (found.median, found.minimum, found.maximum) == (1.0, 0.5, 50.0)


def test_short_calls_are_repeated_to_the_resolution_of_the_clock(clock):
    (found,) = timing.interleave([clock.call("a", 2.0**-20)], rounds=2, min_time=2.0**-12)
    assert clock.log.count("a") == 2 + 2 * 2**8
    assert found.median == pytest.approx(2.0**-20)


def test_calls_that_take_no_time_at_all_end(clock):
    (found,) = timing.interleave([clock.call("a", 0.0)], rounds=1)
    assert found.median == 0.0
    assert len(clock.log) <= 100_002


def test_an_exception_comes_through(clock):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        timing.interleave([broken])


def test_host_times_count_no_waiting(clock):
    """The device takes 1 s a call, waited for after each batch; the host 2**-10 s."""
    left = []

    def call():
        clock.log.append("call")
        clock.now += 2.0**-10
        left.append(2.0**-12)

    def synchronize():
        clock.log.append("wait")
        clock.now += sum(left)
        left.clear()

    (found,) = timing.host_times([call], synchronize=synchronize, batch=8, batches=3)
    assert found == 2.0**-10
    assert "".join(x[0] for x in clock.log) == "cwcw" + 3 * ("c" * 8 + "w")


def test_host_times_are_the_least_batch_of_each(clock):
    calls = [clock.call("a", *[0.25] * 3, 0.125, 0.25), clock.call("b", 0.5)]
    assert timing.host_times(calls, batches=3, longest=0.25) == [0.125, 0.5]
    assert "".join(clock.log) == "aabb" + "ab" * 3
    assert timing.host_times([]) == []


def test_host_times_of_long_calls_end_soon(clock):
    timing.host_times([clock.call("a", 1.0)], batches=2)
    assert len(clock.log) == 4


def test_a_real_clock():
    found = timing.interleave([lambda: sum(range(200)), lambda: sum(range(20_000))], rounds=3, min_time=1e-4)
    assert 0 < found[0].median < found[1].median
    for f in found:
        assert f.minimum <= f.median <= f.maximum
        assert len(f.samples) == 3


@given(nbytes=st.floats(0, 1e18), cache=st.floats(1, 1e10), most=st.integers(1, 100))
def test_rotation_leaves_the_cache_or_reaches_its_limit(nbytes, cache, most):
    sets = timing.rotation(nbytes, cache, most)
    assert 1 <= sets <= most
    assert sets == most or sets * max(nbytes, 1) >= cache
    assert sets == 1 or (sets - 1) * max(nbytes, 1) < cache
