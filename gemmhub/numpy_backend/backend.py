"""The built-in backend, which runs every problem on the CPU, so that gemmhub needs no plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from gemmhub.backend import Array, Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Copy, Ready, Refusal
from gemmhub.dtypes import DType, holds, name_of
from gemmhub.epilogues import EPILOGUES
from gemmhub.kit.floats import DefaultMode
from gemmhub.layout import MatrixLayout
from gemmhub.numpy_backend import symmetric
from gemmhub.numpy_backend.blocked import BlockedGemm, by_block, work_dtypes
from gemmhub.numpy_backend.ending import CopyTo, Ending, combine, terms_of
from gemmhub.numpy_backend.probe import probe, sgemm_rate
from gemmhub.numpy_backend.scratch import unleased
from gemmhub.numpy_backend.small import READ, with_epilogue
from gemmhub.operands import OPERANDS
from gemmhub.problem import GemmProblem, Operand, Scale

_SPEED = {"float32": 1.0, "float64": 0.5, "complex64": 1.0, "complex128": 0.5}
"""Flop rate relative to SGEMM, by the dtype that the BLAS computes in (a complex flop counts as four real ones)."""
_SCALAR_RATE = 1.2e9
"""Rate, in flop/s, of NumPy's own loops for wide integers."""
_CONVERT_RATE = 0.6e9
"""Rate of conversion in elements a second."""
_READ_RATE = 1e10
"""Rate, in bytes a second, at which a matrix is read that few rows multiply."""
_SMALL = 2**16
"""Elements of a result up to which an epilogue in blocks saves less time than the preparation of the blocks takes."""
_CALL = 1.5e-6
"""Overhead of a call, in seconds, without any arithmetic."""


class NumpyBackend(Backend):
    """NumPy's BLAS: called directly for float and complex, on converted blocks for other dtypes."""

    name = "numpy"
    layout_sensitive = False
    by_bucket = True
    takes: ClassVar[Mapping[str, frozenset[str] | None]] = dict.fromkeys(
        (
            *(name for name, row in OPERANDS.items() if row.role == "term"), "scale_a", "scale_b", "scale_out",
            "pre_activation", "amax", "activation", "precision", "reproducible", "symmetric",
        )
    )  # fmt: skip

    def probe(self) -> Ready:
        return probe()

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if problem.device != CPU:
            return Refusal(f"the operands are on {problem.device}", "copy them to the host, or install its plugin")
        if problem.pinned and problem.activation is not None and not EPILOGUES[problem.activation].arithmetic:
            return Refusal(
                f"NumPy does not promise that its exponential function, which {problem.activation} needs, has the same "
                "bits at each position of an array",
                "apply it to the product, or choose another backend", any_layout=True, any_size=True,
            )  # fmt: skip
        exact = "exact" if problem.compute_dtype.kind in "biu" else None  # a sum modulo 2**n has no order
        candidate = Candidate(seconds=self.seconds(problem), copies=_copies(problem), order=exact)
        return Offer((candidate,), lambda name: _remark(problem), any_size=True)

    def seconds(self, problem: GemmProblem) -> float:
        """Return the expected seconds of a call."""
        seconds = self._seconds(problem)
        return symmetric.seconds(problem, seconds) if problem.symmetric else seconds

    def _seconds(self, problem: GemmProblem) -> float:
        dtypes = work_dtypes(problem)
        if dtypes is None:
            return _CALL + problem.flops / _SCALAR_RATE
        seconds = _CALL + problem.flops / (sgemm_rate() * _SPEED[name_of(dtypes[0])])
        if _is_native(problem):
            return seconds
        operands = [problem.a, problem.b, problem.out]
        if problem.packed_by is not None and holds(
            dtypes[0], problem.b.dtype
        ):  # converted beforehand, and read entirely
            operands.remove(problem.b)
            nbytes = problem.b.layout.distinct_elements * dtypes[0].itemsize
            seconds = max(seconds, _CALL + nbytes / _READ_RATE)
        converted = sum(x.layout.distinct_elements for x in operands if x.dtype != dtypes[0])
        return seconds + 10e-6 + converted / _CONVERT_RATE

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        if problem.symmetric:
            native = problem.plain and _is_native(problem) and problem.reproducible is None
            return symmetric.symmetric_kernel(
                problem, lambda part: self.prepare(part, candidate, workspace_limit), native
            )
        if work_dtypes(problem) is None:
            return _loop_kernel(problem)
        if problem.plain and _is_native(problem):
            return _native_kernel(problem)
        kernel = blocked_kernel(problem, workspace_limit)
        blocks = problem.reproducible is not None or problem.packed_by or _has_blocks(problem)
        if _is_native(problem) and not blocks and problem.operands.keys() <= READ:
            return replace(kernel, direct_epilogue=with_epilogue(problem, _SMALL))
        return kernel

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Convert ``b`` once to the dtype of the BLAS, where that is exact, instead of in every call."""
        dtypes = work_dtypes(problem)
        if dtypes is None:
            return Refusal(f"{problem.a.dtype} by {problem.b.dtype} does not go through the BLAS", "multiply unpacked")
        # A dtype that the BLAS's dtype would round is kept: a product of another out_dtype may be computed in a wider
        # dtype, or in integers.
        dtype = dtypes[0] if holds(dtypes[0], b.dtype) else b.dtype
        with DefaultMode():
            return np.array(b, dtype=dtype, order="C")


def _remark(problem: GemmProblem) -> str:
    return _how(problem) + symmetric.remark(problem)


def _how(problem: GemmProblem) -> str:
    dtypes = work_dtypes(problem)
    if dtypes is None:
        return f"NumPy's scalar loops in {problem.compute_dtype}: no BLAS for these integers"
    return "BLAS" if _is_native(problem) else f"converted blocks through {dtypes[0].name} BLAS"


def _copies(problem: GemmProblem) -> Sequence[Copy]:
    """Return the copies that numpy.matmul makes of its arguments. Converted blocks are workspace, not copies."""
    dtypes = work_dtypes(problem)
    read = [("a", problem.a)]
    if problem.packed_by is None or dtypes is None:
        read.append(("b", problem.b))
    native = problem.plain and (dtypes is None or _is_native(problem))
    if native:
        read.append(("out", problem.out))
    dtype = problem.compute_dtype if dtypes is None else dtypes[0]
    copies = []
    for name, x in read:
        why = _why_copied(problem, x, dtype, dtypes is not None)
        size = x.layout.rows * x.layout.cols * x.layout.matrices * dtype.itemsize
        if why and size:
            copies.append(Copy(name, size, f"{why}: numpy.matmul copies"))
        elif (
            name == "out"
            and native
            and dtypes is not None
            and problem.reproducible is not None
            and not _is_new(problem.out)
        ):
            copies.append(Copy(name, size, "reproducible=: it is made as without out and copied"))
    if dtypes is None and not problem.plain:
        size = problem.m * problem.n * problem.batch_count * dtype.itemsize
        if size:
            copies.append(Copy("out", size, "the epilogue is applied to a new array"))
            copies += [Copy("c", size, f"it is converted to {dtype} and multiplied by beta")] * (problem.c is not None)
    return copies


def _why_copied(problem: GemmProblem, x: Operand, dtype: DType, blas: bool) -> str:
    """Why numpy.matmul, which multiplies in ``dtype``, copies an operand; "" where it does not.

    It copies in full, even elements that a stride of 0 repeats. As of NumPy 2.3 it copies operands that the BLAS cannot
    address where no dimension is 1.
    """
    if x.dtype != dtype:
        return "" if blas else f"it is not {dtype}"
    if x.alignment < x.dtype.itemsize:
        return "its elements are not aligned"
    if blas and x.layout.order is None and min(problem.m, problem.n, problem.k) > 1:
        return "neither dimension is contiguous"
    return ""


def _is_new(x: Operand) -> bool:
    """Whether an operand has the layout of a new array."""
    new = MatrixLayout.contiguous(x.layout.rows, x.layout.cols, x.layout.batch)
    return x.layout.essential == new.essential


def _has_blocks(problem: GemmProblem) -> bool:
    """Whether blocks of k or of columns have scales of their own."""
    return by_block(problem) or any(isinstance(x, Scale) and x.axis == "n blocks" for x in problem.operands.values())


def _is_native(problem: GemmProblem) -> bool:
    """Whether NumPy's BLAS takes the operands without conversion and returns the result dtype."""
    dtypes = {problem.a.dtype, problem.b.dtype, problem.out.dtype}
    return len(dtypes) == 1 and problem.compute_dtype in dtypes and name_of(problem.out.dtype) in _SPEED


def blocked_kernel(problem: GemmProblem, workspace_limit: int, copy: CopyTo = np.copyto) -> Kernel:
    """A kernel on converted blocks; with a shared b and dense operands the batch is one GEMM."""
    gemm = BlockedGemm(problem, workspace_limit, copy)
    # Only a dense out can be folded as well, and the blocks of a folded batch are different.
    folds = _shares_b(problem) and not (problem.reproducible is not None or problem.per_row)

    def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
        if folds and b.ndim == 2:
            *batch, m, _ = out.shape
            matrices = {name: operands[name] for name in problem.matrices}
            if all(_is_stack(x, batch) for x in (a, out, *matrices.values())):
                a, out, *others = (x.reshape(prod(batch) * m, x.shape[-1]) for x in (a, out, *matrices.values()))
                operands |= zip(matrices, others)
        gemm(a, b, out, alpha, beta, **operands)

    blocks = gemm.blocks
    description = (
        f"{blocks.work.name} BLAS in blocks of {blocks.rows} x {blocks.cols} x {blocks.depth}, "
        f"added up in {blocks.accumulator.name}"
    )
    return Kernel(run, description, blocks.scratch_bytes, any_size=True)


def _shares_b(problem: GemmProblem) -> bool:
    """Whether one b serves all matrices of a batch, which may then be one GEMM of more rows."""
    return bool(problem.batch) and not any(problem.b.layout.batch_strides)


def _is_stack(x: Array, batch: Sequence[int]) -> bool:
    """Whether a reshape turns the batch into one matrix."""
    return x.shape[:-2] == tuple(batch) and bool(x.flags.c_contiguous)


def _native_kernel(problem: GemmProblem) -> Kernel:
    multiply: Callable[[Array, Array, Array | None], Array] = np.matmul
    if _shares_b(problem):
        multiply = _folding
    if problem.reproducible is not None:
        multiply = _as_without_out(multiply)
    elif problem.out.dtype.kind == "c" and problem.out.alignment < problem.out.dtype.itemsize:
        multiply = _in_whole_elements(multiply)

    def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any) -> None:
        multiply(a, b, out)

    folded = _shares_b(problem) and _worth_folding(problem.batch_count, problem.m * problem.n * problem.k)
    description = "numpy.matmul" + ", the batch folded into one GEMM" * folded
    return Kernel(run, description, direct=multiply, any_size=True)


def _in_whole_elements(multiply: Callable[[Array, Array, Array | None], Array]) -> Callable[..., Array]:
    """``multiply`` for complex results whose elements may be no multiple of their size apart, as in structured arrays.

    Where such a result is one row or one column, NumPy 2.2 to 2.5 writes it with that distance rounded down.
    """
    return _through_new(multiply, lambda a, b, out: any(step % out.itemsize for step in out.strides))


def _as_without_out(multiply: Callable[[Array, Array, Array | None], Array]) -> Callable[..., Array]:
    """``multiply`` with the same bits for any ``out``.

    Where ``out`` is not dense, or overlaps an operand, NumPy calls other functions of the BLAS, or none.
    """
    return _through_new(
        multiply, lambda a, b, out: not out.flags.carray or np.may_share_memory(out, a) or np.may_share_memory(out, b)
    )


def _through_new(
    multiply: Callable[[Array, Array, Array | None], Array], needed: Callable[[Array, Array, Array], bool]
) -> Callable[..., Array]:
    """``multiply`` that computes a new array, and copies it to ``out``, where that is ``needed``."""

    def product(a: Array, b: Array, out: Array | None) -> Array:
        if out is None or not needed(a, b, out):
            return multiply(a, b, out)
        result = multiply(a, b, None)
        if out.shape != result.shape:
            raise ValueError(f"out has shape {out.shape}, not {result.shape}")
        np.copyto(out, result)
        return out

    return product


def _worth_folding(batch: int, work: int) -> bool:
    """Whether one GEMM for a batch is faster than NumPy's one for each matrix. ``work``: m * n * k.

    It is from about 2**15 multiplications on (below, the reshapes cost more), and gains nothing once each matrix
    occupies all cores.
    """
    return batch > 1 and work * batch >= 2**15 and work <= 2**25


def _folding(a: Array, b: Array, out: Array | None = None) -> Array:
    """numpy.matmul, as one GEMM where a batch shares b and a reshape is a view: then nothing is copied."""
    shape = a.shape
    batch = shape[:-2]
    if batch and b.ndim == 2 and _worth_folding(prod(batch), shape[-2] * b.size):
        out_shape = (*shape[:-1], b.shape[-1])
        if a.flags.c_contiguous and (out is None or (out.shape == out_shape and out.flags.c_contiguous)):
            rows = prod(shape[:-1])
            if out is None:
                return np.matmul(a.reshape(rows, shape[-1]), b).reshape(out_shape)
            np.matmul(a.reshape(rows, shape[-1]), b, out.reshape(rows, out_shape[-1]))
            return out
    return np.matmul(a, b, out)


def _loop_kernel(problem: GemmProblem) -> Kernel:
    """Wide integers and bool: NumPy's own loops, modulo the width of the accumulator."""
    compute: DType = problem.compute_dtype

    def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
        if problem.plain and out.dtype == compute:
            np.matmul(a, b, out=out, dtype=compute, casting="unsafe")
            return
        tile, lease = np.matmul(a, b, dtype=compute, casting="unsafe"), unleased()
        combine(lease, tile, alpha, terms_of(problem, operands, beta, compute))
        if "pre_activation" in operands:
            np.copyto(operands["pre_activation"], tile, casting="unsafe")
        Ending(problem.activation, np.copyto, operands).write(tile, out)

    return Kernel(run, f"numpy.matmul's loops in {compute.name}", any_size=True)
