"""Descriptions of NVIDIA cards: what their drivers report, and the peak rates that NVIDIA publishes."""

from __future__ import annotations

from typing import NamedTuple

from gemmhub_cuda.variants import limits
from gemmhub_cuda.variants.card import Card

_MIB = 2**20


class Published(NamedTuple):
    """Published peak rates in 10^12 operations a second, dense; None where there is none."""

    float32: float
    half: float
    """float16 summed in float32."""
    int8: float
    float8: float | None = None
    """Summed in float32."""


def card(name: str, capability: tuple[int, int], sms: int, mhz: float, gbytes: float, l2: int) -> Card:
    """Return the card of that name: SMs, boost clock in MHz, bandwidth in GB/s, MiB of L2."""
    sm = limits.SMS[capability]
    return Card(
        sms, mhz * 1e6, gbytes * 1e9, capability, sm.shared_per_block, sm.shared_per_sm, sm.threads, name, l2 * _MIB,
        sm.ctas, sm.reserved,
    )  # fmt: skip


CARDS = {
    "T4": (card("Tesla T4", (7, 5), 40, 1590, 320, 4), Published(8.1, 65, 130)),
    "A100": (card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, 2039, 40), Published(19.5, 312, 624)),
    "RTX 3090": (card("NVIDIA GeForce RTX 3090", (8, 6), 82, 1695, 936, 6), Published(35.6, 71, 284)),
    "A10": (card("NVIDIA A10", (8, 6), 72, 1695, 600, 6), Published(31.2, 125, 250)),
    "RTX 4090": (card("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, 1008, 72), Published(82.6, 165.2, 660.6, 330.3)),
    "L4": (card("NVIDIA L4", (8, 9), 58, 2040, 300, 48), Published(30.3, 121, 242, 242)),
    "L40S": (card("NVIDIA L40S", (8, 9), 142, 2520, 864, 96), Published(91.6, 362, 733, 733)),
    "RTX 5090": (card("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407, 1792, 96), Published(104.8, 209.5, 838, 419)),
}
"""Cards and their published rates."""
H100 = card("NVIDIA H100 80GB HBM3", (9, 0), 132, 1980, 3352, 50)
"""A card whose rates of mma.sync are not published."""
EVERY = {**{name: facts for name, (facts, _) in CARDS.items()}, "H100": H100}
"""All cards by their short names."""
