"""Fit the corrections of all CUDA plugins to the card of this machine: measure, train, write, report.

    python -m benchmarks.fit DIR [--seconds 500] [--seed 1]

DIR keeps the measured times. A further run measures more products, which DIR does not have yet, and trains on all of
them. It needs an NVIDIA card, torch, and the plugins to fit; run ``gemmhub build hopper`` before, as compilation would
take most of the time. The steps are measure.py and train.py, which also run alone: training needs no card.
"""

from __future__ import annotations

import argparse
import subprocess
import sys


def commands(options: argparse.Namespace) -> list[list[str]]:
    """Return the arguments of python for each step."""
    measure = ["benchmarks.fit.measure", options.folder, "--seconds", str(options.seconds), "--seed", str(options.seed)]
    return [["-m", *measure], ["-m", "benchmarks.fit.train", options.folder, "--write"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--seconds", type=float, default=500.0, help="of measuring")
    parser.add_argument("--seed", type=int, default=1)
    # Wrong results make measure.py's status 1 and are not in its files: training continues.
    return max([subprocess.run([sys.executable, *x]).returncode for x in commands(parser.parse_args())])


if __name__ == "__main__":
    raise SystemExit(main())
