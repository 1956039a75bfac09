"""The emulator detects the faults that it promises to detect, and accepts correct programs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import emulated
import numpy as np
import pytest
from emulated import EmulatorError

pytestmark = pytest.mark.emulator

SOURCE = Path(__file__).parent / "emulator" / "faults.cu"


class Params(ctypes.Structure):
    _fields_ = (("out", ctypes.c_uint64), ("in_", ctypes.c_uint64), ("which", ctypes.c_int))


def launch(case, seed=0, blocks=3, **options):
    """(64 words of out for each block, the report) of one case."""
    values = np.arange(64, dtype=np.uint32) + 100
    buffer = np.zeros(blocks * 64 * 5 + 8, np.uint32)  # results, 64 parts of 4 words for each block, a counter
    skip = -buffer.ctypes.data % 16 // 4
    out = buffer[skip : skip + blocks * 64 * 5 + 1]
    params = Params(out.ctypes.data, values.ctypes.data, case)
    report = emulated.run(SOURCE, {}, params, (blocks, 1, 1), 64, 512, [values], [out], seed=seed, **options)
    return out[: blocks * 64].reshape(blocks, 64), report


LANES = np.arange(64)


@pytest.mark.parametrize(("case", "expected"), [(0, (LANES + 33) % 64), (14, (LANES + 1) % 64 + 100), (15, LANES ^ 1)])
def test_right_programs_run(case, expected):
    for seed in range(5):
        out, _ = launch(case, seed)
        assert (out == expected).all()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (1, "no thread wrote|no barrier in between"),
        (2, "no thread wrote"),
        (3, "out of the 512 bytes"),
        (4, "no multiple of 4"),
        (5, r"deadlock: \d+ threads wait for block_sync"),
        (6, "warp_sync|deadlock"),
        (7, "writes where thread .* wrote"),
        (8, "writes where several threads .* reads|reads what thread 40"),
        (9, "writes outside of the buffers: 3844 bytes"),
        (10, "writes outside of the buffers"),
        (11, "may still be writing"),
        (12, "may still be writing|copies that it has not waited for"),
        (13, "no barrier in between|may still be writing|no thread wrote"),
        (16, "no thread wrote|no barrier in between"),
        (19, "reads a part that thread .* no fence and barrier"),
        (20, "reads a part that thread .* no fence and barrier|reads a part that no thread stored"),
    ],
)
def test_wrong_programs_do_not(case, message):
    for seed in range(5):
        with pytest.raises(EmulatorError, match=message):
            launch(case, seed)


def test_partial_sums_of_other_blocks():
    for seed in range(5):
        out, _ = launch(18, seed)
        assert (out[0] == 12).all()


def test_the_message_names_the_line():
    with pytest.raises(EmulatorError, match=r"block \(\d, 0, 0\) thread \d+ at faults.cu:\d+: "):
        launch(9)


def test_bank_conflicts_are_counted():
    _, report = launch(17, count=True)
    assert set(report.requests.values()) == {3 * 2}
    assert set(report.conflicts.values()) == {3 * 2}
    _, report = launch(0, count=True)
    assert set(report.conflicts.values()) == {0}


def test_parameters_of_another_size_are_refused():
    out = np.zeros(1, np.uint32)
    with pytest.raises(EmulatorError, match="params have 4 bytes"):
        emulated.run(SOURCE, {}, ctypes.c_uint32(0), (1, 1, 1), 64, 512, [], [out])
