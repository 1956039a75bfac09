"""The backend against gemmhub's promises, on a fake MUTLASS and the simulated home."""

from __future__ import annotations

from dataclasses import replace

from gemmhub_musa.testing import MusaMemory
from gemmhub_mutlass.backend import MutlassBackend

from gemmhub.testing import ConformanceSuite, matrix

_RESULTS = {
    ("float16", "float16"), ("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32"), ("int8", "int32"),
}  # fmt: skip
"""Operands and results that all cases are run for: each kind takes kernels of its own, which must be compiled."""


def _chosen():
    """Other dtypes have one case each, and only one kind has all candidates."""
    seen = set()
    for case in matrix():
        dtypes = (case.a_dtype, case.b_dtype, case.out_dtype)
        if (case.a_dtype, case.out_dtype) in _RESULTS and case.a_dtype == case.b_dtype:
            yield replace(case, every_candidate=case.every_candidate and case.a_dtype == "bfloat16" and case.m == 130)
        elif dtypes not in seen:
            seen.add(dtypes)
            yield case


class TestMutlass(ConformanceSuite):
    backend = MutlassBackend
    memory = MusaMemory()
    cases = tuple(_chosen())
    random_problems = 20
