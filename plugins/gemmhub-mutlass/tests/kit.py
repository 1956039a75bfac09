"""The conformance kit without pytest, in a process of its own: ``python kit.py FIRST STEP [DTYPE...]``.

Of the matrix's cases (those of the dtypes only, if any are named) every STEP-th from number FIRST on. Prints a JSON
object.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from gemmhub_musa.testing import MusaMemory
from gemmhub_mutlass.backend import MutlassBackend

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Absent, Refusal
from gemmhub.testing import Unrepresentable, check, matrix


class Compiling(MutlassBackend):
    """``offer`` compiles at once, so that what does not compile counts as refused."""

    def offer(self, problem):
        while True:
            found = super().offer(problem)
            if isinstance(found, Refusal) or problem.empty:
                return found
            kernel = self.prepare(problem, found.first.name, found.workspace)
            if isinstance(kernel, Kernel):
                return found
            left = super().offer(problem)
            if isinstance(left, Offer) and left.names == found.names:  # the kernel compiles, but does not take this
                return kernel


def main(first, step, dtypes):
    backend = Compiling() if dtypes else MutlassBackend()
    found = backend.probe()
    if isinstance(found, Absent):
        return {"absent": found.reason, "remedy": found.remedy}
    accepted, refused, worst, memory = Counter(), Counter(), 0.0, MusaMemory()
    cases = [x for x in matrix() if not x.every_candidate and (not dtypes or x.a_dtype in dtypes)]
    for case in cases[first::step]:
        try:
            outcome = check(backend, case, memory)
        except Unrepresentable:
            continue
        accepted[case.a_dtype] += outcome.accepted
        worst = max(worst, outcome.worst)
        if outcome.refusal is not None:
            refused[outcome.refusal.reason.split(":")[0]] += 1
    return {"accepted": dict(accepted), "refused": dict(refused), "worst": worst, "features": found.features}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
