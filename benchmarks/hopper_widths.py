"""What widths of tiles cost by how b lies in memory, of gemmhub-hopper's candidates for 16 bits.

    python benchmarks/hopper_widths.py FILE...

Needs gemmhub-hopper, no card. FILEs are what candidates.py wrote on an H200, compressed by xz or not. Candidates of one
product that differ in nothing but the width of their tiles are compared: each with that of the next width that 16, or
32, divides.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from hopper_fit import contents, microseconds

_NAME = re.compile(r"(\d+)x(\d+)x\d+([^t]*)(t?)(.*)")
"""Rows, columns, stages; the rest but for whether operands change places."""
_STEPS = (8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    ratios: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for file in parser.parse_args().files:
        for row in json.loads(contents(file))["rows"]:
            timed = {}
            for name, us in microseconds(row).items():
                found = _NAME.fullmatch(name)
                if found is not None:  # else a kernel for few vectors
                    timed[int(found[1]), int(found[2]), found[3], found[4], found[5]] = us
            for (rows, width, kind, exchanged, parts), us in timed.items():
                # Neighbours along the kernel's n: of b by rows, or exchanged of a by columns.
                along_n = row["order"][0] == "t" if exchanged else row["order"][1] == "n"
                for step in _STEPS:
                    other = timed.get((rows, width + step, kind, exchanged, parts))
                    if width % (2 * step) == step and other is not None:
                        ratios[step, along_n].append(us / other)
    for (step, along_n), found in sorted(ratios.items()):
        print(
            f"widths that {2 * step} does not divide, b along {'n' if along_n else 'k'}: {len(found)} pairs, "
            f"{np.exp(np.log(found).mean()):.3f} times as long as {step} columns more, "
            f"nine of ten at most {np.quantile(found, 0.9):.3f}, all {max(found):.3f}"
        )


if __name__ == "__main__":
    main()
