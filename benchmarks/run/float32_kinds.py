"""Complex64, and a 16-bit operand by a float32 one, on a Hopper GPU beside torch.

    python -m benchmarks.run.float32_kinds [--rounds 5] [--json FILE]

Needs torch and gemmhub-hopper. torch multiplies complex64 by cuBLAS; it takes no operands of two dtypes, so that the
cast of the 16-bit operand is part of its time. Calls are timed in one run, interleaved, by CUDA events, on normal data.
Errors are the largest of 64 rows relative to |A||B|, against float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.run.float32_data import error, timed

COMPLEX = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (3000, 2000, 5000), (8192, 2048, 1024))
"""(m, n, k)."""
WEIGHTS = ((768, 6144), (384, 3072))
"""(n, k) of float32 weights."""
ROWS = (1, 8, 64, 512, 2048, 8192)


def row(
    what: str, sizes: tuple[int, int, int], a: Any, b: Any, theirs: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    calls = {"gemmhub": partial(gemmhub.matmul, a, b), "torch": theirs}
    times = timed(calls, rounds)
    result = calls["gemmhub"]()
    found = {
        "what": what, "sizes": list(sizes), "us": times["gemmhub"] * 1e6, "ratio": times["torch"] / times["gemmhub"],
        "error": error(result, a, b), "torch_error": error(theirs(), a, b),
        "chosen": gemmhub.explain(a, b).chosen,
    }  # fmt: skip
    print(
        f"{what:22}{'x'.join(map(str, sizes)):>18}{found['us']:10.1f} us  torch / gemmhub {found['ratio']:6.2f}"
        f"  error {found['error']:.1e} (torch {found['torch_error']:.1e})  {found['chosen']}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for m, n, k in COMPLEX:
        a, b = (torch.randn(*x, dtype=torch.complex64, device="cuda") for x in ((m, k), (k, n)))
        rows.append(row("complex64", (m, n, k), a, b, partial(torch.matmul, a, b), options.rounds))
    for n, k in WEIGHTS:
        weight = torch.randn(n, k, device="cuda").T
        for m in ROWS:
            a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)

            def cast(a: torch.Tensor = a, weight: torch.Tensor = weight) -> torch.Tensor:
                return torch.matmul(a.float(), weight)

            rows.append(row("bfloat16 by float32", (m, n, k), a, weight, cast, options.rounds))
    if options.json:
        results.save(options.json, products=rows)


if __name__ == "__main__":
    main()
