"""The kernels that gemmhub-hopper's wheel carries: selected, and what they cost; without a card.

Random plain products (sides log-uniform to 16384, of any size or multiples of 8 or 64, in all orders) are ranked for an
H100, an H200 and a card that was not measured. Kernels are selected greedily: the next are those that lower the mean
logarithm of (estimate of the fastest candidate in the wheel / estimate of the fastest) the most. Grouped products are
those of experts: 8 to 128 groups of 1 to 8192 rows on average, weights in both orders, and the gradients of weights.
``--write`` replaces ``data/shipped.json``, or with ``--kind`` the kernels of that kind in it; other products, of
another seed, give the figures of ``hopper_shipped.json``.

    python -m benchmarks.run.hopper_shipped --draws 3000 --write --json hopper_shipped.json
"""

from __future__ import annotations

import argparse
import json
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gemmhub_hopper
import numpy as np
from gemmhub_hopper import shipped
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost import choose
from gemmhub_hopper.cost.grouped import of_unequal_groups
from gemmhub_hopper.cost.model import Card
from gemmhub_hopper.cost.shortlist import SHIPPED, code
from gemmhub_hopper.lowering import groups, lower
from gemmhub_hopper.variants.compiled import Code
from gemmhub_hopper.variants.config import Variant

from benchmarks.lib.kernel_selection import Product, Selection, figures, sides
from gemmhub.capability import Device
from gemmhub.problem import Groups
from gemmhub.testing.problems import problem

CARDS = {
    "H100": (Card(132, 1.98e9, 3.352e12, name="NVIDIA H100 80GB HBM3"), 80 * 2**30),
    "H200": (Card(132, 1.98e9, 4.814e12, name="NVIDIA H200"), 141 * 2**30),
    "not measured": (Card(132, 1.98e9, 4e12), 96 * 2**30),
}
KINDS = {
    "bfloat16": ("bfloat16", "ieee"), "tf32": ("float32", "tf32"), "float32": ("float32", "ieee"),
    "grouped": ("bfloat16", "ieee"),
}  # fmt: skip
COMMAND = "python -m benchmarks.run.hopper_shipped --draws {} --write --json hopper_shipped.json"
NUMBERS = {"bfloat16": 260, "tf32": 190, "float32": 400, "grouped": 12}
"""Kernels of each kind; those of bfloat16 count twice, as float16's are the same. Those of groups are bfloat16's alone.
"""
_BYTES = 2e10
"""Bound of the bytes of a grouped product."""
_CANDIDATES = 80
"""Candidates of a product that are looked at, at most."""


def drawn(kind: str, card: str, seed: int, draws: int) -> list[Product]:
    """Return the candidates of random products."""
    rng = random.Random(f"{kind} {card} {seed}")
    (facts, memory), (dtype, precision), side = CARDS[card], KINDS[kind], sides(rng)
    products = []
    while len(products) < draws:
        if kind == "grouped":
            products.append(_of_groups(rng, facts, memory // 256))
            continue
        orders = {name: rng.choice(["row", "col"]) for name in "ab"}
        asked = problem(next(side), next(side), next(side), dtype, device=Device("cuda"), precision=precision, **orders)
        lowerings = lower.lowerings(asked)
        assert isinstance(lowerings, tuple), lowerings
        timed = choose.timed(lowerings, facts, memory // 256)[:_CANDIDATES]
        if timed:
            products.append([(t / timed[0][0], _kernels(choice, facts, memory // 256)) for t, choice in timed])
    return products


def _of_groups(rng: random.Random, card: Card, workspace: int) -> Product:
    """Return the candidates of a random grouped product."""
    count, n, k, total = 0, 0, 0, 0
    while not count or 2 * (total * k + count * k * n + total * n) > _BYTES:
        count = int(2 ** rng.uniform(3, 7))
        total = count * int(2 ** rng.uniform(0, 13))
        n, k = (int(2 ** rng.uniform(9, 13.8)) // 64 * 64 for _ in range(2))
    divides, order = rng.choice([("m", "row"), ("m", "col"), ("m", "col"), ("k", "row")])
    sizes = (total, n, k) if divides == "m" else (k, n, total)
    asked = problem(
        *sizes, "bfloat16", a="row" if divides == "m" else "col", b=order, groups=Groups(count, divides),
        device=Device("cuda"),
    )  # fmt: skip
    lowerings = groups.even_lowerings(asked)
    assert isinstance(lowerings, tuple), lowerings
    timed = of_unequal_groups(choose.timed(lowerings, card, workspace, 1), card)[:_CANDIDATES]
    return [(t / timed[0][0], _kernels(choice, card, workspace)) for t, choice in timed]


def _grouped(kernel: Code) -> bool:
    """Return whether a kernel is one for groups."""
    return isinstance(kernel, Variant) and kernel.form.divided is not None


def _kernels(choice: Any, card: Card, workspace: int) -> tuple[Code, ...]:
    passes = None if isinstance(choice, GemvChoice) else choice.k_passes(workspace)
    return tuple(sorted(set(code(choice, passes, card)), key=repr))


def _gathered(kind: str, seed: int, draws: int, pool: ProcessPoolExecutor) -> dict[str, list[Product]]:
    return dict(zip(CARDS, pool.map(partial(drawn, kind, seed=seed, draws=draws), CARDS)))


def main() -> None:
    """Select, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3000, help="of each kind and card")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kind", choices=("grouped",), help="select these alone, and keep the other kernels and figures"
    )
    parser.add_argument("--write", action="store_true", help="select anew, and replace data/shipped.json")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        if arguments.write:
            kept = [x for x in shipped.codes() if arguments.kind and not _grouped(x) and not shipped.of_float16(x)]
            chosen: set[Code] = set(kept)
            for kind, number in NUMBERS.items():
                if arguments.kind not in (None, kind):
                    continue
                every = _gathered(kind, arguments.seed, arguments.draws, pool)
                before = {x for x in chosen if isinstance(x, int)} | set(shipped.PREPASS_CODES)
                selection = Selection([product for some in every.values() for product in some], before)
                selection.add(number)
                if kind != "grouped":
                    selection.add(number // 4, float(np.log(1.75)))
                print(kind, len(selection.chosen), np.exp(selection.costs.max()), flush=True)
                chosen |= selection.chosen
            data = Path(gemmhub_hopper.__file__).parent / "data" / "shipped.json"
            data.write_text(shipped.encoded(chosen))
        kernels = shipped.codes()
        report: dict[str, Any] = {"command": COMMAND.format(arguments.draws), "kernels": len(kernels)}
        if arguments.kind and arguments.json:
            report = json.loads(arguments.json.read_text()) | {"kernels": len(kernels)}
        for kind in [arguments.kind] if arguments.kind else KINDS:
            fresh = _gathered(kind, arguments.seed + 1000, max(1, arguments.draws // 3), pool)
            report[kind] = {card: figures(products, kernels, SHIPPED) for card, products in fresh.items()}
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
