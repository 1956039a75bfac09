"""A backend that keeps the bits of rows, and wrong ones: each breaks that promise once, which the kit notices."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from conformance_backends import Array, Operands, RightBackend

from gemmhub.backend import Candidate, Kernel, Offer
from gemmhub.capability import Device, Ready, Refusal
from gemmhub.problem import GemmProblem


def chain(a: Array, b: Array, backwards: bool = False) -> Array:
    """Sums of products whose terms are added one by one along k, from either end."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    terms = range(a.shape[-1])
    for i in reversed(terms) if backwards else terms:
        total = total + a[..., i : i + 1] * b[..., i : i + 1, :]
    return total


class Chains(RightBackend):
    """Adds the terms of each element one by one: no row depends on another.

    Of the activations it has relu alone, as exponential functions may differ from lane to lane of a vector.
    """

    takes: ClassVar = {
        **RightBackend.takes,
        "activation": frozenset({"relu"}),
        "reproducible": frozenset({"run", "batch"}),
    }
    candidates = ("rows", "columns")

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        offer = super().offer(problem)
        if isinstance(offer, Refusal) or not problem.pinned:
            return offer
        return Offer(tuple(Candidate(name, 1e-6, order=self.order(problem, name)) for name in self.candidates))

    def order(self, problem: GemmProblem, candidate: str) -> str | None:
        return "mul.add"

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        if not problem.pinned:
            return super().product(problem, a, b, candidate)
        a, b = (x.astype(problem.compute_dtype) for x in (a, b))
        return self.sums(problem, a, b, candidate)

    def sums(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        return chain(a, b, self.backwards(problem, candidate))

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        """Whether it adds from the other end of k, where it should not."""
        return False


class SplitsManyRows(Chains):
    """Adds the halves of k apart in products of many rows."""

    def sums(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        half = problem.k // 2 if a.shape[-2] > 200 else 0
        return chain(a[..., :half], b[..., :half, :]) + chain(a[..., half:], b[..., half:, :])


class OtherSumOfOneRow(Chains):
    """Multiplies a single row by a function for vectors."""

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return problem.m == 1


class OrderByPosition(Chains):
    """Adds each second row from the other end."""

    def sums(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        sums = chain(a, b)
        sums[..., 1::2, :] = chain(a[..., 1::2, :], b, backwards=True)
        return sums


class RoundsByLargest(Chains):
    """Rounds all of a to a multiple of its largest element, as a split into integers does."""

    def sums(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        if a.dtype.kind != "f":
            return chain(a, b)
        step = np.max(np.abs(a), initial=0) * np.finfo(a.dtype).eps or 1
        return chain(np.rint(a / step) * step, b)


class OrderByMatrix(Chains):
    """Adds all matrices of a stack but the first from the other end."""

    def sums(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        sums = chain(a, b)
        if problem.batch:
            sums[1:] = chain(a, b, backwards=True)[1:]
        return sums


class OrderByLayoutOfA(Chains):
    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return problem.m > 1 and problem.a.layout.order == "col"


class OrderByLayoutOfB(Chains):
    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return problem.b.layout.order == "col"


class OrderByLayoutOfResult(Chains):
    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return problem.m > 1 and problem.out.layout.order == "col"


class OrderByLeadingDimension(Chains):
    """Adds from the other end where rows of a are padded, as a kernel with other loads may."""

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        layout = problem.a.layout
        return layout.col_stride == 1 and layout.row_stride > layout.cols and not problem.batch


class OrderByCallers(Chains):
    """Adds from the other end while another thread may be in a call, as a pool without idle threads may."""

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return threading.active_count() > 1


class OrderByProcessors(Chains):
    """Adds from the other end where it may use one processor alone."""

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return len(os.sched_getaffinity(0)) == 1


class FalseOrderOfSecond(Chains):
    """States one order for two candidates that add in different ones."""

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return candidate == "columns"


class RefusesFewRows(Chains):
    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if problem.pinned and problem.m < 8:
            return Refusal("so few rows are faster elsewhere", "choose another backend")
        return super().offer(problem)


class RefusesCanonical(Chains):
    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if problem.pinned and problem.n >= 1024:
            return Refusal("so many columns are faster elsewhere", "choose another backend")
        return super().offer(problem)


class OrderOfSize(Chains):
    """Another order comes first where k is long."""

    def order(self, problem: GemmProblem, candidate: str) -> str | None:
        return "mul.add" if (candidate == "rows") == (problem.k < 1000) else "add.mul"

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return self.order(problem, candidate) == "add.mul"


class OrderOfRows(Chains):
    """States an order of its own for many rows."""

    def order(self, problem: GemmProblem, candidate: str) -> str | None:
        return "mul.add" if problem.m < 200 or problem.m == 1024 else "add.mul"


class PackedBackwards(Chains):
    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return problem.packed_by is not None


class EpilogueByRows(Chains):
    """Adds the bias before c in products of few rows."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        if problem.pinned and problem.m < 4 and problem.bias is not None:
            bias = operands["bias"].astype(product.dtype)
            product = product + (bias[:, np.newaxis] if problem.bias.axis == "m" else bias) / product.dtype.type(alpha)
            operands = {name: x for name, x in operands.items() if name != "bias"}
        return super().epilogue(problem, product, out, alpha, beta, operands)


class DirectBackwards(Chains):
    """direct adds from the other end, where out is passed."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)
        if not problem.pinned or {problem.a.dtype, problem.b.dtype, problem.out.dtype} != {np.dtype(np.float32)}:
            return kernel

        def direct(a: Array, b: Array, out: Array | None) -> Array:
            left, right = (a[np.newaxis] if a.ndim == 1 else a), (b[:, np.newaxis] if b.ndim == 1 else b)
            sums = chain(left, right, backwards=out is not None)
            sums = sums[..., 0, :] if a.ndim == 1 else sums
            sums = sums[..., 0] if b.ndim == 1 else sums
            if out is None:
                return sums
            out[...] = sums
            return out

        return replace(kernel, direct=direct)


class DirectEpilogueByRows(Chains):
    """direct_epilogue adds a single row from the other end."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)
        if not problem.pinned or not problem.operands.keys() <= {"c"} or problem.out.dtype != np.float32:
            return kernel

        def direct(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
            operands = {name: options[name] for name in problem.operands}
            sums = chain(*(x.astype(problem.compute_dtype) for x in (a, b)), backwards=problem.m == 1)
            result = self.epilogue(problem, sums, sums, options["alpha"], options.get("beta", 0), operands)
            if out is None:
                return result
            out[...] = result
            return out

        return replace(kernel, direct_epilogue=lambda size: direct)


class KernelOfFirstSizes(Chains):
    """Its kernels serve all sizes, in an order of the sizes that they were prepared for."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)

        def run(a: Array, b: Array, out: Array, *rest: Any) -> None:
            if a.shape[-2] != problem.m:
                out[...] = chain(a.astype(problem.compute_dtype), b.astype(problem.compute_dtype), backwards=True)
            else:
                kernel.run(a, b, out, *rest)

        return replace(kernel, run=run, any_size=True) if problem.pinned and problem.plain else kernel


class OnDevice(Chains):
    """A backend of a fake device whose kernels run other rows."""

    backwards_with_rows = False
    backwards_unaligned = False

    def probe(self) -> Ready:
        return Ready((Device("cuda", 1),))

    def backwards(self, problem: GemmProblem, candidate: str) -> bool:
        return self.backwards_unaligned and problem.a.alignment < 16

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)
        if not problem.pinned or not problem.plain:
            return kernel

        def run(a: Array, b: Array, out: Array, *rest: Any) -> None:
            left, right = (x.astype(problem.compute_dtype) for x in (a, b))
            out[...] = chain(left, right, self.backwards_with_rows)

        return replace(kernel, with_rows=lambda rows: run)


class WithRowsBackwards(OnDevice):
    backwards_with_rows = True


class OrderByAlignment(OnDevice):
    backwards_unaligned = True
