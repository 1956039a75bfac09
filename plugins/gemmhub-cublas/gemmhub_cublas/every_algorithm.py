"""cuBLASLt as it is, for an audit of the library: gemmhub excludes none of its algorithms, and proves none first."""

from __future__ import annotations

from gemmhub.problem import GemmProblem
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.choose import HOPPER, Algorithm, Chooser, parse, text
from gemmhub_cublas.lower import Form

_ID, _SPLIT, _REDUCTION = 0, 2, 3
_IN_COMPUTE_TYPE = 2
_SPLITS = (2, 3, 5, 10)
"""Numbers of splits of k that are tried beside those that the library proposes."""


class EveryAlgorithm(CublasBackend):
    """A backend whose candidates are all that the library proposes, and the same algorithms with k split otherwise."""

    def _chooser(self, problem: GemmProblem, form: Form) -> Chooser:
        return _Unfiltered(self.machine, problem.device.index, form)


class _Unfiltered(Chooser):
    def candidates(self, limit: int) -> tuple[list[Algorithm], int]:
        algorithms, status = super().candidates(limit)
        others = [self._split(algorithm, splits) for algorithm in algorithms for splits in _SPLITS]
        found = {x.config: x for x in (*algorithms, *others) if x is not None and x.workspace <= limit}
        return list(found.values()), status

    def _split(self, algorithm: Algorithm, splits: int) -> Algorithm | None:
        """The algorithm with k split, its partial sums in the accumulator's type; None where the library refuses it."""
        numbers = list(parse(algorithm.config))
        if numbers[_ID] != HOPPER:  # the parts that older algorithms take are among the proposals
            return None
        numbers[_SPLIT], numbers[_REDUCTION] = splits, _IN_COMPUTE_TYPE
        return self.named(text(tuple(numbers)))

    def _allowed(self, numbers: tuple[int, ...]) -> bool:
        return True

    def _proved(self, algorithm: Algorithm) -> bool:
        return True
