"""The conformance kit without pytest, in a process of its own: ``python kit.py STEP [DTYPE...]``.

Every STEP-th case of the matrix, of the dtypes only, if any are named. Prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from gemmhub_musa.testing import MusaMemory
from gemmhub_mutlass.backend import CompileError, MutlassBackend
from gemmhub_mutlass.kernel import NotImplementableError

from gemmhub.capability import Absent, Refusal
from gemmhub.testing import Unrepresentable, check, matrix


class Compiling(MutlassBackend):
    """``supports`` compiles at once, so that what does not compile counts as refused."""

    def supports(self, problem):
        while True:
            refusal = super().supports(problem)
            if refusal is not None or problem.empty:
                return refusal
            try:
                self.prepare(problem, self.candidates(problem)[0], 2**26)
            except CompileError:
                continue  # the next candidate takes its place, or it is refused now
            except NotImplementableError as error:
                return Refusal(str(error), "use another backend")
            return None


def main(step, dtypes):
    backend = Compiling() if dtypes else MutlassBackend()
    found = backend.probe()
    if isinstance(found, Absent):
        return {"absent": found.reason, "remedy": found.remedy}
    accepted, refused, worst, memory = Counter(), Counter(), 0.0, MusaMemory()
    for case in matrix()[::step]:
        if case.every_candidate or (dtypes and case.a_dtype not in dtypes):
            continue
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
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2:])))
