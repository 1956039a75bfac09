"""benchmarks/run/hopper_bringup.py, whose minutes on a card are scarce: its judgements, on the emulated kernel."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated

from benchmarks.run import hopper_bringup as bringup

pytestmark = pytest.mark.emulator


class Card(bringup.Card):
    """A card whose memory is the host's."""

    def __init__(self):
        self.home = Home()
        self.backend, self.memory, self.kept = self.home.backend(), FakeMemory(self.home), []

    def call(self, name, *arguments):
        assert name == "cuCtxSynchronize"

    def put(self, data):
        self.kept.append(self.memory.empty(max(256, data.nbytes)))
        self.kept[-1][: data.nbytes] = data
        return self.kept[-1].ctypes.data

    def get(self, address, nbytes):
        return next(x for x in self.kept if x.ctypes.data == address)[:nbytes].copy()


def test_right_products_pass():
    card = Card()
    for product in bringup.PROBES:
        assert bringup.judge(card, product) == {"status": "PASS", "detail": ""}


def test_wrong_products_are_reported(monkeypatch, tmp_path):
    mutated(monkeypatch, tmp_path, "smem_desc.cuh", ("stride << 32", "stride / 2 << 32"))
    verdict = bringup.judge(Card(), bringup.PROBES[0])
    assert verdict["status"] == "FAIL"
    assert "b where it holds its row: first row" in verdict["detail"]
    verdict = bringup.judge(Card(), bringup.PRODUCTS[0])
    assert "of 4096 wrong in run 0" in verdict["detail"]
    assert "x" in verdict["detail"].splitlines()[1]


def test_the_map_of_blocks():
    result = np.ones((16, 24), np.float32)
    wrong = np.zeros(result.shape, bool)
    wrong[0, 0] = wrong[8:, 8:16] = wrong[:8, 16:] = True
    result[:8, 16:] = np.full((8, 8), 0xFFFFFFFF, np.uint32).view(np.float32)
    assert bringup.blocks(result, wrong) == "o.u\n.x."


def test_the_large_products_can_be_run():
    for product in bringup.LARGE:
        assert product.choice.variant.refusal is None
