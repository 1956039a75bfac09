"""Problems written in one line, and random ones for backends that compile kernels."""

from __future__ import annotations

import numpy as np

from gemmhub.capability import CPU, Device
from gemmhub.testing.cases import EPILOGUES, draw_few_kernels
from gemmhub.testing.problems import bias, operand, problem


def test_a_problem():
    asked = problem(3, 5, 7, "float16", "float32", (2,), "row", "col", "col", bias=bias("float32", "m", 2))
    assert (asked.m, asked.n, asked.k, asked.batch, asked.device) == (3, 5, 7, (2,), CPU)
    assert (asked.a.layout.row_stride, asked.b.layout.row_stride, asked.out.layout.row_stride) == (7, 1, 1)
    assert (asked.out.dtype, asked.compute_dtype, asked.bias.stride) == (np.float32, np.float32, 2)
    assert asked.a == operand("float16", 3, 7, batch=(2,))
    assert problem(3, 5, 7, device=Device("cuda", 1)).device.index == 1


def test_random_problems_of_few_kernels():
    """The same in every run; dtypes as asked for; all sizes multiples of 8, or not."""

    def drawn(aligned):
        return list(draw_few_kernels(60, lambda rng, epilogue: "float16" if epilogue else "bfloat16", aligned))

    cases = drawn(1.0)
    assert cases == drawn(1.0)
    assert all(size % 8 == 0 for case in cases for size in (case.m, case.n, case.k))
    assert any(size % 8 for case in drawn(0.0) for size in (case.m, case.n, case.k))
    assert max(case.m for case in cases) > 360 > sorted(case.m for case in cases)[-4]
    assert {(case.a_dtype, case.alpha == 1 and case.bias is None) for case in cases} == {
        ("float16", False), ("bfloat16", True),
    }  # fmt: skip
    assert len({(case.c, case.bias, case.activation) for case in cases}) == len(EPILOGUES)
