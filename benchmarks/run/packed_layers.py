"""Linear layers of a CPU in inference: torch's, gemmhub's, and gemmhub's with packed weights, in one run.

    python -m benchmarks.run.packed_layers [--json FILE]

The three are timed in interleaved rounds; the minimum over rounds is compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import gemmhub.torch as door
from benchmarks.lib import results
from gemmhub._base.timing import interleave

SIZES = ((1024, 1024), (4096, 1024))
"""Input and output features."""
ROWS = (1, 8, 32)


def main() -> None:
    """Print a table of minima, and the bytes that packed weights hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads: bfloat16, us")
    print(f"{'layer':>12} {'rows':>4} {'torch':>8} {'gemmhub':>8} {'packed':>8} {'bytes of weight, packed':>24}")
    found = []
    for k, n in SIZES:
        plain = torch.nn.Linear(k, n, dtype=torch.bfloat16)
        layers = plain, door.Linear.from_linear(plain), door.Linear.from_linear(plain, packed=True)
        for rows in ROWS:
            x = torch.randn(rows, k, dtype=torch.bfloat16)
            with torch.no_grad():
                timings = interleave([lambda layer=layer, x=x: layer(x) for layer in layers], rounds=15, warmup=3)  # type: ignore[misc]
            theirs, ours, packed = (timing.minimum * 1e6 for timing in timings)
            held, times = layers[2].packed_bytes, f"{theirs:8.0f} {ours:8.0f} {packed:8.0f}"
            print(f"{f'{k} to {n}':>12} {rows:4} {times} {plain.weight.nbytes:12} {held:11}")  # fmt: skip
            found.append(
                {"k": k, "n": n, "rows": rows, "torch": theirs, "gemmhub": ours, "packed": packed, "bytes": held}
            )
    if given.json:
        results.save(given.json, rows=found)


if __name__ == "__main__":
    main()
