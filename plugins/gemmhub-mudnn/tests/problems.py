"""Problems for tests."""

from __future__ import annotations

from gemmhub.capability import Device
from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import Bias, GemmProblem, Operand


def operand(dtype, rows, cols, order="row", batch=(), alignment=256, **changes):
    """A dense operand; ``changes`` are fields of MatrixLayout."""
    layout = MatrixLayout.contiguous(rows, cols, batch, order)
    return Operand(as_dtype(dtype), MatrixLayout(**{**vars(layout), **changes}), alignment)


def problem(m=16, n=24, k=8, dtype="float32", batch=(), a="row", b="row", d="row", index=0, **changes):
    """A problem with dense operands; ``changes`` are fields of GemmProblem."""
    values = {
        "a": operand(dtype, m, k, a, batch), "b": operand(dtype, k, n, b, batch), "out": operand(dtype, m, n, d, batch),
        "compute_dtype": compute_dtype(*[as_dtype(dtype)] * 3), "batch": batch, "device": Device("musa", index),
    }  # fmt: skip
    return GemmProblem(m=m, n=n, k=k, **{**values, **changes})


def bias(dtype="float32", axis="n", stride=1):
    return Bias(as_dtype(dtype), axis, stride)
