"""The estimates of gemmhub-cuda for cards that it never ran on, beside the peak rates that NVIDIA publishes; no card.

Estimates are those of one large product, of 8192 x 8192 x 8192, by the card's own figures.

    python -m benchmarks.run.cuda_cards --json benchmarks/results/cpu/cuda_cards.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gemmhub_cuda.cost import corrections
from gemmhub_cuda.lower import lowered
from gemmhub_cuda.variants.card import Card

from benchmarks.lib.nvidia_cards import CARDS
from gemmhub.backend import WORKSPACE
from gemmhub.capability import Device, Refusal
from gemmhub.testing.problems import problem

COMMAND = "python -m benchmarks.run.cuda_cards --json benchmarks/results/cpu/cuda_cards.json"
SIDE = 8192
DTYPES = {
    "float32": ("float32", "float32"), "half": ("float16", "float16"), "int8": ("int8", "int32"),
    "float8": ("float8_e4m3fn", "bfloat16"),
}  # fmt: skip
"""Dtypes of operands and result, by the field of the rates."""


def estimated(card: Card, kind: str) -> tuple[float, str] | None:
    """Return the estimate in 10^12 operations a second, and the candidate; None where the card has no such kernel."""
    operands, result = DTYPES[kind]
    asked = problem(SIDE, SIDE, SIDE, operands, result, device=Device("cuda"))
    lowering = lowered(asked, card.capability)
    if isinstance(lowering, Refusal):
        return None
    seconds, choice = corrections.ranked(lowering, card, WORKSPACE, corrections.find(lowering, card))[0]
    return 2e-12 * SIDE**3 / seconds, choice.name


def main() -> None:
    """Estimate, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"command": COMMAND, "side": SIDE, "cards": {}}
    for name, (card, published) in CARDS.items():
        rows = report["cards"][name] = {"capability": "{}.{}".format(*card.capability)}
        for kind, peak in published._asdict().items():
            rate = 2e-12 * getattr(card.rates, kind) * card.sms * card.clock
            found = estimated(card, kind)
            estimate = {"estimate": round(found[0], 1), "candidate": found[1]} if found else {}
            if peak:
                rows[kind] = {"published": peak, "peak": round(rate, 1), **estimate}
                print(name, kind, rows[kind])
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
