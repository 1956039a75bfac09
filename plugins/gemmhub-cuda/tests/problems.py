"""Problems for tests, written in one line."""

from __future__ import annotations

from gemmhub.capability import Device
from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import Bias, GemmProblem, Operand


def operand(dtype, rows, cols, order="row", batch=(), alignment=256):
    """A dense operand."""
    return Operand(as_dtype(dtype), MatrixLayout.contiguous(rows, cols, batch, order), alignment)


def problem(m=64, n=64, k=64, dtype="float32", out=None, batch=(), a="row", b="row", d="row", index=0, **changes):
    """A problem with dense operands; ``changes`` are fields of GemmProblem."""
    out = as_dtype(out or dtype)
    values = {
        "a": operand(dtype, m, k, a, batch), "b": operand(dtype, k, n, b, batch),
        "out": operand(out.name, m, n, d, batch),
        "compute_dtype": compute_dtype(as_dtype(dtype), as_dtype(dtype), out), "batch": batch,
        "device": Device("cuda", index),
    }  # fmt: skip
    return GemmProblem(m=m, n=n, k=k, **{**values, **changes})


def bias(dtype="float32", axis="n", stride=1):
    return Bias(as_dtype(dtype), axis, stride)
