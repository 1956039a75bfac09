"""Quantization scales of 8-bit operands as kernels read them: in place, by their strides."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_uint64
from typing import NamedTuple

from gemmhub.capability import Refusal
from gemmhub.lowering import collapse
from gemmhub.operands import BLOCK, Scale
from gemmhub.problem import GemmProblem

NAMES = {"a": "scale_a", "b": "scale_b"}
"""The scales by the operand that they multiply."""
_SHIFT = BLOCK.bit_length() - 1


class Scales(ctypes.Structure):
    """``Scales`` of kernels/scales.cuh."""

    _fields_ = (
        ("at", c_uint64),
        *((name, c_int64) for name in ("stride", "depth", "batch")),
        *((name, c_int) for name in ("shift", "unused")),
    )


class ScaleAccess(NamedTuple):
    """The access of a kernel to the scales of one operand."""

    name: str
    """The problem's name of them: "scale_a" or "scale_b"."""
    stride: int
    """Elements from one row (column), or block of them, to the next; 0 where all have one scale."""
    depth: int
    """Elements from one block of K to the next; 0 where all have one scale."""
    batch: int
    """Elements from one matrix to the next; 0 where all share the scales."""
    shift: int
    """log2 of the rows (columns) that share a scale."""

    @property
    def fields(self) -> Scales:
        """The parameter of a kernel, without the address."""
        return Scales(0, self.stride, self.depth, self.batch, self.shift)


def use(problem: GemmProblem) -> str | None:
    """Return the use of the scales of ``problem``: "blocks" of k, "results" if none has blocks; None without scales."""
    scales = [x for name in NAMES.values() if (x := problem.operands.get(name)) is not None]
    return "blocks" if any(x.depth for x in scales) else "results" if scales else None


def access(problem: GemmProblem, name: str) -> ScaleAccess | None:
    """Return the access to the scales of operand ``name``; None where it has none."""
    scale: Scale | None = problem.operands.get(NAMES[name])
    if scale is None:
        return None
    shift = _SHIFT if scale.axis == "n blocks" else 0
    dims = _batch(problem, scale)
    stride, depth = scale.stride if scale.axis else 0, scale.depth_stride if scale.depth else 0
    return ScaleAccess(NAMES[name], stride, depth, dims[0][1][0] if dims else 0, shift)


def refusal(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of scales whose matrices are not evenly spaced."""
    for name in NAMES.values():
        scale = problem.operands.get(name)
        if scale is not None and len(_batch(problem, scale)) > 1:
            return Refusal(
                f"the batch of {name} is not evenly spaced", f"pass a contiguous {name} with all batch dimensions"
            )
    return None


def _batch(problem: GemmProblem, scale: Scale) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the batch dimensions, as few as the strides of ``scale`` allow, each with its stride."""
    return collapse(problem.batch, scale.batch_strides) if scale.batch_strides else ()
