"""The conformance kit without pytest, in a process of its own: ``python kit.py BACKEND STEP``.

Every STEP-th case of the matrix, and fresh ones.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import numpy as np
from gemmhub_mublas.backend import MublasBackend
from gemmhub_mublas.lt.backend import MublasLtBackend
from gemmhub_musa.testing import MusaMemory

from gemmhub.capability import Absent
from gemmhub.testing import Unrepresentable, check, draw, matrix

_DRAWN = 60


def main(name, step):
    backend = {"mublas": MublasBackend, "mublaslt": MublasLtBackend}[name]()
    found = backend.probe()
    if isinstance(found, Absent):
        return {"absent": found.reason}
    rng = np.random.default_rng()
    accepted, memory = Counter(), MusaMemory()
    for case in (*matrix()[::step], *(draw(rng) for _ in range(_DRAWN))):
        try:
            outcome = check(backend, case, memory)
        except Unrepresentable:
            continue
        accepted[case.a_dtype] += outcome.accepted
    return {"accepted": dict(accepted), "features": found.features}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
