"""Fits the constants of gemmhub-cublas's model to the times of torch.matmul that other benchmarks recorded.

    python benchmarks/cublas_model_fit.py FILE...

Needs gemmhub-cublas and scipy, no card. FILEs are what hopper_torch.py and cuda_torch.py wrote on an H200; all of them
for one kind of product (16 bits, tf32 or float32). Prints the constants for gemmhub_cublas/model.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from gemmhub_cublas import model
from gemmhub_cublas.model import Constants
from hopper_fit import H200, problem
from scipy.optimize import least_squares

_DRAWN = 0.3
"""How strongly constants are drawn towards what they were before."""


def main() -> int:
    records = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    rows = [
        (problem(row["m"], row["n"], row["k"], row["order"], record["dtype"]), row["torch_us"] * 1e-6)
        for record in records
        for row in record["rows"]
    ]
    gpu = SimpleNamespace(**H200.__dict__, capability=(9, 0))
    before = model.constants(rows[0][0])
    name = next(name for name in ("HALF", "TF32", "SINGLE") if getattr(model, name) is before)

    def errors(constants: Constants) -> np.ndarray:
        setattr(model, name, constants)
        return np.log([model.seconds(asked, gpu, 1) / seconds for asked, seconds in rows])

    def constants(v: np.ndarray) -> Constants:
        return Constants(*(x * np.exp(y) for x, y in zip(before, v)))

    found = least_squares(
        lambda v: np.concatenate([errors(constants(v)), _DRAWN * v]), np.zeros(len(before)), loss="soft_l1", f_scale=0.1
    )
    for words, each in (("before", before), ("after", constants(found.x))):
        left = errors(each)
        print(f"{words}: {len(rows)} products, off by {left.std():.1%}, on the whole by {left.mean():+.1%}")
    print(name, ", ".join(f"{key}={value:.4g}" for key, value in constants(found.x)._asdict().items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
