"""Complex64, and a 16-bit operand by a float32 one, on a Hopper GPU beside torch.

    python -m benchmarks.run.float32_kinds [--rounds 5] [--json FILE]

Needs torch and gemmhub-hopper. torch multiplies complex64 by cuBLAS; it takes no operands of two dtypes, so that the
cast of the 16-bit operand is part of its time. Products are timed in one run by CUDA graphs
(benchmarks/lib/cuda_graphs.py), and as calls one after the other, which the host may bound. Data is normal. Errors are
the largest of 64 rows relative to |A||B|, against float64.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cuda_graphs import Rig, matrix
from benchmarks.lib.torch_calls import chosen, without_records
from benchmarks.run.float32_data import error, timed

COMPLEX = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (3000, 2000, 5000), (8192, 2048, 1024))
"""(m, n, k)."""
WEIGHTS = ((768, 6144), (384, 3072))
"""(n, k) of float32 weights."""
ROWS = (1, 8, 64, 512, 2048, 8192)


class Operands(Rig):
    """A rig whose a and b have dtypes of their own. A real b, the weights of a layer, is column-major."""

    def __init__(self, m: int, n: int, k: int, dtypes: tuple[torch.dtype, torch.dtype], seconds: float) -> None:
        self._dtypes = dtypes
        super().__init__(m, n, k, "nn" if dtypes[1].is_complex else "nt", dtypes[1], seconds)

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        a, b = matrix(m, k, order[0], self._dtypes[0]).normal_(), matrix(k, n, order[1], self._dtypes[1]).normal_()
        return a, b, matrix(m, n, "n", self._dtypes[1])


def row(what: str, sizes: tuple[int, int, int], a: torch.dtype, b: torch.dtype, rounds: int) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    m, n, k = sizes
    rig = Operands(m, n, k, (a, b), max(1e-5, 2e-14 * m * n * k * (4 if a.is_complex else 1)))
    first, second, out = rig.sets[0]
    plan = gemmhub.plan(first, second, out=out)

    def theirs(a: Any, b: Any, out: Any) -> None:
        torch.matmul(a.to(b.dtype), b, out=out)

    ours, torchs = rig.medians([rig.add(plan), rig.add(theirs)], rounds)
    calls = {"gemmhub": partial(gemmhub.matmul, first, second), "torch": lambda: first.to(b) @ second}
    of_calls = timed(calls, rounds)
    found = {
        "what": what, "sizes": list(sizes), "us": ours * 1e6, "ratio": torchs / ours,
        "call_us": of_calls["gemmhub"] * 1e6, "call_ratio": of_calls["torch"] / of_calls["gemmhub"],
        "error": error(calls["gemmhub"](), first, second), "torch_error": error(calls["torch"](), first, second),
        "chosen": chosen(plan),
    }  # fmt: skip
    print(
        f"{what:22}{'x'.join(map(str, sizes)):>18}{found['us']:10.1f} us  torch / gemmhub {found['ratio']:6.2f}, as "
        f"calls {found['call_us']:.1f} us, {found['call_ratio']:.2f}"
        f"  error {found['error']:.1e} (torch {found['torch_error']:.1e})  {found['chosen']}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records()
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for sizes in COMPLEX:
        rows.append(row("complex64", sizes, torch.complex64, torch.complex64, options.rounds))
    for n, k in WEIGHTS:
        for m in ROWS:
            rows.append(row("bfloat16 by float32", (m, n, k), torch.bfloat16, torch.float32, options.rounds))
    if options.json:
        results.save(options.json, products=rows)


if __name__ == "__main__":
    main()
