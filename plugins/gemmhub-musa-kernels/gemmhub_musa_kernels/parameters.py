"""The argument of the kernels' launchers: ``struct Gemm`` of kernels/gemm.h, field by field."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_longlong, c_void_p
from dataclasses import replace

from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels import sources
from gemmhub_musa_kernels.lower import BATCH_DIMS, Gemm, Strides, pitch

TYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
BIAS_AXES = {None: 0, "m": 1, "n": 2}
_BATCH = c_longlong * BATCH_DIMS


class Parameters(Structure):
    """``struct Gemm`` of kernels/gemm.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("a", "b", "c", "bias", "d")),
        *((f"{name}_{step}", c_longlong) for name in "abcd" for step in ("row", "col")),
        ("bias_step", c_longlong),
        *((f"batch_{name}", _BATCH) for name in "abcd"),
        ("batch_size", c_int * BATCH_DIMS),
        *((name, c_int) for name in ("batch_dims", "m", "n", "k", "a_readable", "b_readable")),
        *((name, c_int) for name in ("c_type", "bias_type", "bias_axis", "activation")),
        ("alpha", c_float),
        ("beta", c_float),
        *((name, c_int) for name in ("first_batch", "a_granule", "b_granule", "vectors")),
    )  # fmt: skip


def copied(gemm: Gemm, operands: tuple[str, ...]) -> Gemm:
    """``gemm`` with copies of ``operands`` in their place, shared by the whole batch: contiguous along M or N, or where
    it is pinned row-major."""
    none = (0,) * len(gemm.batch)
    if "a" in operands and gemm.pinned:
        gemm = replace(gemm, a=Strides(pitch(gemm.k), 1, none))
    elif "a" in operands:
        gemm = replace(gemm, a=Strides(1, pitch(gemm.m), none, padded=True))
    if "b" in operands:
        gemm = replace(gemm, b=Strides(pitch(gemm.n), 1, none, padded=True))
    return gemm


def parameters(gemm: Gemm, problem: GemmProblem) -> Parameters:
    """Return the parameters of ``gemm``, without addresses, alpha and beta."""
    made = Parameters(m=gemm.m, n=gemm.n, k=gemm.k, batch_dims=len(gemm.batch))
    made.a_readable = pitch(gemm.m) if gemm.a.padded else gemm.m
    made.b_readable = pitch(gemm.n) if gemm.b.padded else gemm.n
    made.batch_size[: len(gemm.batch)] = gemm.batch
    for name, strides in (("a", gemm.a), ("b", gemm.b), ("c", gemm.c), ("d", gemm.d)):
        if strides is not None:
            setattr(made, f"{name}_row", strides.row)
            setattr(made, f"{name}_col", strides.col)
            getattr(made, f"batch_{name}")[: len(strides.batch)] = strides.batch
    made.activation = sources.number(problem.activation)
    if problem.c is not None:
        made.c_type = TYPES[problem.c.dtype.name]
    if problem.bias is not None:
        made.bias_axis, made.bias_step = BIAS_AXES[gemm.bias_axis], problem.bias.stride
        made.bias_type = TYPES[problem.bias.dtype.name]
    return made
