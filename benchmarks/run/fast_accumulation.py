"""Errors of float8 products on an NVIDIA GPU, as multiples of the bound: torch's two accumulations, and gemmhub's.

    python -m benchmarks.run.fast_accumulation [--seed N] [--json FILE]

Needs torch and a card with float8. Products are 64 x 64 by k, of float8_e4m3fn, with float32 results: no rounding of
the result hides errors. Elements are normal, or uniform between 0 and 1, whose sums grow with k. The bound is that
of :mod:`gemmhub.accuracy` for these dtypes; a product within it has at most 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.torch_calls import without_records
from gemmhub import accuracy
from gemmhub.testing.problems import problem

SIZE = 64
DATA: dict[str, Callable[..., Any]] = {"normal": torch.randn, "uniform": torch.rand}
LENGTHS = [2**i for i in range(7, 17)]
"""Values of k."""


def errors(k: int, data: str) -> dict[str, float]:
    """Return the largest error over the bound, by contender."""
    a, b = (DATA[data](SIZE, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")

    def torch_call(fast: bool) -> Any:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float32, use_fast_accum=fast)

    def host(x: Any) -> Any:
        return x.view(torch.uint8).cpu().numpy().view(ml_dtypes.float8_e4m3fn)

    model = accuracy.problem_model(problem(SIZE, SIZE, k, "float8_e4m3fn", "float32", b="col"))
    right = accuracy.reference(host(a), host(b).T, model=model, out_dtype=np.dtype(np.float32))
    found = {
        "torch": torch_call(False),
        "torch fast": torch_call(True),
        "gemmhub": gemmhub.matmul(a, b.t(), out_dtype=torch.float32),
    }
    return {name: float((np.abs(x.cpu().numpy() - right.value) / right.bound).max()) for name, x in found.items()}


def main() -> None:
    """Print a line for each k and kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    without_records()
    rows = [{"k": k, "data": data, "of_bound": errors(k, data)} for data in DATA for k in LENGTHS]
    for row in rows:
        print(row["data"], row["k"], *(f"{name} {x:.3g}" for name, x in row["of_bound"].items()))
    if given.json:
        results.save(given.json, torch=torch.__version__, seed=given.seed, rows=rows)


if __name__ == "__main__":
    main()
