"""Fit the constants of gemmhub-cuda's cost model to times measured by benchmarks/run/cuda_torch.py.

    python -m benchmarks.run.cuda_torch --quick --every --order nn --json benchmarks/results/h200/cuda_f32.json
    python -m benchmarks.run.cuda_torch --quick --every --order nn --dtype bfloat16 --json [...]/cuda_bf16.json
    python -m benchmarks.fit.cuda_model [--write] benchmarks/results/h200/cuda_f32.json [...]/cuda_bf16.json

It needs gemmhub-cuda, but no card. It is a reproducible random search from the constants in its cost/fitted.py.
It minimises the difference of logarithms of estimated and measured times, with most weight on fast candidates, and
the loss through the model's choice. It prints the quality of the fit; ``--write`` writes the constants to fitted.py.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gemmhub_cuda.candidate import Choice
from gemmhub_cuda.cost import fitted, model, wave_model
from gemmhub_cuda.cost.fitted import Fitted
from gemmhub_cuda.lower import lowered
from gemmhub_cuda.variants import mma, sgemm
from gemmhub_cuda.variants.card import Card

from gemmhub.capability import Device, Refusal
from gemmhub.testing.problems import problem

H200 = Card(132, 1.98e9, 4.8e12, (9, 0), 232448, 233472, 2048)
KERNELS = {"float32": "SINGLE", "bfloat16": "TENSOR", "float16": "TENSOR"}
LIMITS = {
    "clock": (0.5, 1.0), "single_warp": (1.0, 4.0), "l2_latency": (200.0, 1500.0), "memory_latency": (500.0, 2500.0),
    "sharpness": (1.5, 12.0), "start": (500.0, 3000.0), "l2_bytes": (30.0, 64.0), "store_bytes": (16.0, 64.0),
    "split_sync": (1000.0, 8000.0), "split_cycles": (50.0, 2000.0), "partial_bytes": (16.0, 128.0),
    "dram": (0.7, 0.95),
}  # fmt: skip
"""Plausible range of each constant for a card; the measurements hardly determine some of them."""
_WITHOUT_HOST = wave_model.LAUNCH - 1.5e-6
"""Seconds by which an estimate exceeds a measured time: a graph starts its next kernel sooner than a program does."""

Row = list[tuple[Choice, float]]
"""The measured candidates of a product, each with its seconds."""


def rows(record: dict[str, Any]) -> list[Row]:
    """Return the measured candidates of each product in a file of cuda_torch.py."""
    shapes = {shape.name: shape for shape in (*sgemm.SHAPES, *mma.SHAPES)}
    found = []
    for row in record["rows"]:
        asked = problem(
            row["m"], row["n"], row["k"], record["dtype"], b="col" if row["order"] == "nt" else "row",
            device=Device("cuda"),
        )  # fmt: skip
        lowering = lowered(asked, H200.capability)
        assert not isinstance(lowering, Refusal)
        names = [(*name.partition("/")[::2], us) for name, us in row["us"].items()]
        found.append([(Choice(lowering, shapes[name], int(parts or 1)), 1e-6 * us) for name, parts, us in names])
    return found


def _estimate(choice: Choice, constants: Fitted | None) -> float:
    return model.seconds(choice, H200, constants) - _WITHOUT_HOST


def losses(row: Row, constants: Fitted | None = None) -> tuple[float, float]:
    """Return the excess time of the model's choice over the fastest candidate, as a fraction of it, and the mean
    squared error of the logarithms of its estimates."""
    estimated = [_estimate(choice, constants) for choice, _ in row]
    least = min(seconds for _, seconds in row)
    chosen = min(range(len(row)), key=lambda i: estimated[i])
    errors = [math.log(x / seconds) ** 2 for x, (_, seconds) in zip(estimated, row)]
    return row[chosen][1] / least - 1, sum(errors) / len(errors)


def _badness(data: list[Row], constants: Fitted) -> float:
    total = 0.0
    for row in data:
        best = min(row, key=lambda pair: pair[1])
        best_estimate = _estimate(best[0], constants)
        for choice, seconds in row:
            estimate = _estimate(choice, constants)
            slower = seconds / best[1]
            total += min(abs(math.log(estimate / seconds)), 0.4) ** 2 / slower**2 / len(row)
            if slower > 1.01:  # its estimate should be slower, too
                total += min(slower - 1, 0.5) * max(0.0, math.log(1.01 * best_estimate / estimate))
    return total / len(data) + 0.005 * sum(math.log(x) ** 2 for x in constants.efficiency.values())


def fit(data: list[Row], constants: Fitted, tries: int) -> Fitted:
    rng = random.Random(0)
    names = sorted({choice.shape.name for row in data for choice, _ in row})
    inside = {name: min(high, max(low, getattr(constants, name))) for name, (low, high) in LIMITS.items()}
    constants = replace(constants, **inside, efficiency={name: constants.efficiency.get(name, 1.0) for name in names})
    least = _badness(data, constants)
    for turn in range(tries):
        width = 0.3 * (1 - turn / tries) + 0.01
        if rng.random() < 0.5:
            name = rng.choice([field.name for field in fields(Fitted) if field.name in LIMITS])
            low, high = LIMITS[name]
            value = getattr(constants, name) * math.exp(rng.gauss(0, width))
            other = replace(constants, **{name: min(high, max(low, value))})
        else:
            name = rng.choice(names)
            value = constants.efficiency[name] * math.exp(rng.gauss(0, width / 2))
            other = replace(constants, efficiency={**constants.efficiency, name: value})
        badness = _badness(data, other)
        if badness < least:
            least, constants = badness, other
    return constants


def text(name: str, constants: Fitted) -> str:
    """Return the constants as Python for fitted.py."""
    numbers = [f"{key}={getattr(constants, key):.4g}," for key in LIMITS]
    shapes = [f'        "{key}": {value:.3f},' for key, value in constants.efficiency.items()]
    lines = [
        f"{name} = Fitted(", f"    {' '.join(numbers[:6])}", f"    {' '.join(numbers[6:])}",
        "    efficiency={", *shapes, "    },", ")  # fmt: skip", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--tries", type=int, default=8000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    data: dict[str, list[Row]] = {}
    for path in options.records:
        record = json.loads(path.read_text())
        data.setdefault(KERNELS[record["dtype"]], []).extend(rows(record))
    path = Path(fitted.__file__)
    for name, measured in data.items():
        found = fit(measured, getattr(fitted, name), options.tries)
        for row in measured:
            lost, error = losses(row, found)
            lowering = row[0][0].lowering
            print(f"{name} {lowering.m:6}{lowering.n:6}{lowering.k:6}  lost {lost:6.1%}  error {math.sqrt(error):6.1%}")
        whole = path.read_text()
        before, rest = whole.split(f"{name} = ", 1)
        after = rest.partition("  # fmt: skip\n")[2]
        if options.write:
            path.write_text(before + text(name, found) + after)
        else:
            print(text(name, found))


if __name__ == "__main__":
    main()
