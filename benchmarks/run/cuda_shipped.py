"""The kernels that gemmhub-cuda's wheel carries: selected, and what they cost; without a card.

As benchmarks/run/hopper_shipped.py, for a card of each architecture: kernels are selected for all of them together.

    python -m benchmarks.run.cuda_shipped --draws 4000 --write --json cuda_shipped.json
"""

from __future__ import annotations

import argparse
import json
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gemmhub_cuda
import numpy as np
from gemmhub_cuda import shipped
from gemmhub_cuda.backend import SHIPPED
from gemmhub_cuda.compiled import uniform
from gemmhub_cuda.cost import corrections
from gemmhub_cuda.lower import Lowering, lowered
from gemmhub_cuda.variants.card import Card
from gemmhub_cuda.variants.variant import Variant

from benchmarks.lib.kernel_selection import Product, Selection, figures, sides
from gemmhub.backend import WORKSPACE
from gemmhub.capability import Device
from gemmhub.testing.problems import problem

CARDS = {
    "A100": Card(108, 1.41e9, 1.555e12, (8, 0), shipped.SHARED["sm_80"], 164 * 1024, 2048),
    "A10": Card(72, 1.695e9, 6.0e11, (8, 6), shipped.SHARED["sm_86"], 100 * 1024, 1536),
    "L40S": Card(142, 2.52e9, 8.64e11, (8, 9), shipped.SHARED["sm_89"], 100 * 1024, 1536),
    "H100": Card(
        132, 1.98e9, 3.352e12, (9, 0), shipped.SHARED["sm_90"], 228 * 1024, 2048, "NVIDIA H100 80GB HBM3"
    ),
}  # fmt: skip
COMMAND = "python -m benchmarks.run.cuda_shipped --draws {} --write --json cuda_shipped.json"
NUMBERS = {"bfloat16": 130, "float32": 70}
"""Kernels of each dtype; those of bfloat16 count twice, as float16's are the same."""


def drawn(dtype: str, card: str, seed: int, draws: int) -> list[Product]:
    """Return the candidates of random products."""
    rng, facts = random.Random(f"{dtype} {card} {seed}"), CARDS[card]
    side, products = sides(rng), []
    while len(products) < draws:
        orders = {name: rng.choice(["row", "col"]) for name in "ab"}
        asked = problem(next(side), next(side), next(side), dtype, device=Device("cuda"), **orders)
        lowering = lowered(asked, facts.capability)
        assert isinstance(lowering, Lowering), lowering
        timed = corrections.ranked(lowering, facts, WORKSPACE, corrections.find(lowering, facts))
        products.append([(t / timed[0][0], (uniform(choice.variant),)) for t, choice in timed])
    return products


def main() -> None:
    """Select, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4000, help="of each dtype and card")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="select anew, and replace data/shipped.json")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:

        def gathered(dtype: str, seed: int, draws: int) -> dict[str, list[Product]]:
            return dict(zip(CARDS, pool.map(partial(drawn, dtype, seed=seed, draws=draws), CARDS)))

        if arguments.write:
            chosen: list[Variant] = []
            for dtype, number in NUMBERS.items():
                every = gathered(dtype, arguments.seed, arguments.draws)
                selection = Selection([product for some in every.values() for product in some], ())
                selection.add(number)
                selection.add(number // 4, float(np.log(1.75)))
                chosen += [x for x in selection.chosen if isinstance(x, Variant)]
                print(dtype, len(selection.chosen), np.exp(selection.costs.max()), flush=True)
            data = Path(gemmhub_cuda.__file__).parent / "data" / "shipped.json"
            data.write_text(shipped.encoded(chosen))
        kernels = shipped.variants()
        report: dict[str, Any] = {
            "command": COMMAND.format(arguments.draws),
            "kernels": {x: len(shipped.sources(x)) for x in shipped.ARCHITECTURES},
        }
        for dtype in NUMBERS:
            fresh = gathered(dtype, arguments.seed + 1000, max(1, arguments.draws // 3))
            report[dtype] = {card: figures(products, kernels, SHIPPED) for card, products in fresh.items()}
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
