"""The recommendations for NVIDIA cards."""

from __future__ import annotations

from gemmhub_nvidia.driver import Driver
from gemmhub_nvidia.hardware import cards
from gemmhub_nvidia.testing.fake_cuda import FakeCuda


def found(**cuda):
    return dict(cards(lambda: Driver(FakeCuda(**cuda))))


def test_a_hopper_card_has_kernels_of_its_own():
    expected = {"Fake H200, compute capability 9.0": ("gemmhub-cublas", "gemmhub-cuda", "gemmhub-hopper")}
    assert found(devices=2) == expected
    ampere = found(attributes={75: 8, 76: 6})
    assert ampere == {"Fake H200, compute capability 8.6": ("gemmhub-cublas", "gemmhub-cuda")}


def test_a_machine_without_a_card():
    assert found(devices=0) == {}
