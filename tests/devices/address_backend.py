"""A backend for the kind "cuda" whose kernels get addresses, as real ones do, and compute there with NumPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
from machine import at

sys.path.append(str(Path(__file__).parents[1]))

from grouped_kernel import GroupedKernel

from gemmhub import Backend, BackendDescription, Candidate, Device, Kernel, Offer, Ready, Refusal, dtypes
from gemmhub._choice import registry
from gemmhub.backend import BASIC
from gemmhub.problem import Operand


class Addresses(Backend):
    """Counts every question, and records the streams and addresses that its kernels receive.

    Its kernels write garbage into ``out`` before they read a and b, to reveal any overlap. ``broken`` is the exception
    that they raise, if it is set.
    """

    layout_sensitive = True
    takes: ClassVar = {**BASIC, "activation": frozenset({"relu"})}

    def __init__(self, name="addresses", seconds=1e-6, devices=2):
        self.name, self.seconds, self.devices = name, seconds, devices
        self.questions, self.problems, self.streams, self.calls = 0, [], [], []
        self.broken = None
        self.violations = []
        self.wrong = 0
        self.by_rows, self.rows, self.unable = False, [], set()
        self.fault = None

    def probe(self):
        self.questions += 1
        return Ready(tuple(Device("cuda", index) for index in range(self.devices)))

    def offer(self, problem):
        self.questions += 1
        matrices = {"a": problem.a, "b": problem.b, "out": problem.out, **problem.operands}
        for name, operand in matrices.items():
            if isinstance(operand, Operand) and operand.alignment < operand.dtype.itemsize:
                return Refusal(f"{name} is not aligned", "copy it")
        return Offer((Candidate("first", self.seconds), Candidate("second")))

    def prepare(self, problem, candidate, workspace_limit):
        self.questions += 1
        self.problems.append(problem)
        return self.kernel(problem, candidate)

    def kernel(self, problem, candidate):
        operands = dict(problem.operands)
        grouped = GroupedKernel(problem, self.fault) if problem.groups else None
        matrices = {"a": problem.a, "b": problem.b, "out": problem.out}
        matrices.update((name, x) for name, x in operands.items() if isinstance(x, Operand))

        def check(given, alpha, stream):
            assert type(stream) is int
            assert given.keys() == operands.keys() | {"a", "b", "out"} | ({"offsets"} if problem.groups else set())
            for name, address in given.items():
                assert type(address) is int, name
                operand = matrices.get(name)
                fits = operand is None or operand.layout.empty or not address % operand.alignment
                assert fits, f"{name} at {address:#x}"
            assert alpha == 1 or not problem.alpha_is_one

        def run(a, b, out, alpha, beta, stream, **given):
            try:
                check({"a": a, "b": b, "out": out, **given}, alpha, stream)
            except AssertionError as error:  # which a fast path takes for a call that it does not know
                self.violations.append(str(error))
                raise
            self.streams.append(stream)
            self.calls.append((a, b, out, given.get("c"), given.get("bias")))
            if self.broken is not None:
                raise self.broken
            if grouped is not None:
                grouped.run(a, b, out, alpha, beta, stream, **given)
            else:
                multiply(problem, operands, a, b, out, alpha, beta, **given)
            if self.wrong:
                matrix(problem.out, out)[...] += np.asarray(self.wrong, problem.out.dtype)

        def with_rows(rows):
            self.rows.append(rows)
            if rows in self.unable:
                return None
            return self.kernel(problem.with_rows(rows), candidate).run

        return Kernel(run, f"{self.name} {candidate}", with_rows=with_rows if self.by_rows else None)


class Grouped(Addresses):
    """The same, for grouped products too."""

    takes: ClassVar = {
        **Addresses.takes, "activation": None, "bias": frozenset({"n", "m", "batch n"}), "scale_a": None,
        "scale_b": None, "groups": frozenset({"m", "n", "k"}),
    }  # fmt: skip


class InPlace(Grouped):
    """The same with the refusals of tensor cores that read groups in place: 16 bits, lines and matrices at multiples of
    16 bytes, operands that groups divide contiguous along the other side, one result column for each of the product.
    """

    takes: ClassVar = {**Grouped.takes, "activation": frozenset({"relu", "gelu", "silu"})}

    def offer(self, problem):
        reason = "" if problem.groups is None or problem.empty else self._reason(problem)
        return Refusal(reason, "pass others") if reason else super().offer(problem)

    def _reason(self, problem):
        divides = problem.groups.divides
        if problem.a.dtype.itemsize != 2:
            return f"there is no kernel for groups of {problem.a.dtype}"
        if divides == "k" and not problem.k:
            return "there are no elements along k for the groups"
        along = {"m": {"a": "row"}, "n": {"b": "col"}, "k": {"a": "col", "b": "row"}}[divides]
        orders = {"a": ("row", "col"), "b": ("col", "row")}  # along k first, where a side of one element has both
        for name, operand in (("a", problem.a), ("b", problem.b)) if problem.k else ():
            order = next((x for x in orders[name] if in_lines(operand, x)), None)
            if order is None:
                return f"{name} would be copied first"
            if along.get(name, order) != order:
                return f"{name} is contiguous along {divides}, which the groups divide"
        return ""


def in_lines(operand, order):
    """Whether a matrix is stored in this order, with its address, lines and matrices at multiples of 16 bytes."""
    layout, size = operand.layout, operand.dtype.itemsize
    lines = layout.rows if order == "row" else layout.cols
    steps = [layout.leading_dimension(order) if lines > 1 else 0]
    steps += [step for step, count in zip(layout.batch_strides, layout.batch) if count > 1]
    return layout.stored(order) and not operand.alignment % 16 and not any(step * size % 16 for step in steps)


def matrix(operand, address):
    """The operand as an ndarray of shape (..., rows, cols)."""
    layout, size = operand.layout, operand.dtype.itemsize
    strides = (*layout.batch_strides, layout.row_stride, layout.col_stride)
    shape = (*layout.batch, layout.rows, layout.cols)
    return at(address, operand.dtype, shape, [step * size for step in strides])


def multiply(problem, operands, a, b, out, alpha, beta, c=None, bias=None):
    target = matrix(problem.out, out)
    addend = None if c is None else matrix(operands["c"], c)
    if addend is None or c != out:
        target.view(f"V{problem.out.dtype.itemsize}").fill(b"\x5a" * problem.out.dtype.itemsize)
    compute = problem.compute_dtype
    wide = compute if compute.kind in "biuc" else np.dtype(np.float64)
    product = np.matmul(matrix(problem.a, a).astype(wide), matrix(problem.b, b).astype(wide))
    result = alpha * product if alpha != 1 else product
    if addend is not None:
        result = result + beta * addend.astype(wide)
    if bias is not None:
        facts = operands["bias"]
        length, step = (problem.n if facts.axis == "n" else problem.m), facts.stride * facts.dtype.itemsize
        vector = at(bias, facts.dtype, (length,), (step,)).astype(wide)
        result = result + (vector if facts.axis == "n" else vector[:, np.newaxis])
    if problem.activation == "relu":
        result = np.maximum(result, 0)
    target[...] = result.astype(problem.out.dtype)


def add(backend, kinds=("cuda",)):
    """List ``backend`` as if a plugin had described it; forgotten at the next reload."""
    description = BackendDescription(backend.name, lambda: backend, "computes at addresses", kinds, contract=2)
    entry = registry.registry().add(description, backend.name, f"gemmhub-{backend.name}")
    assert entry.description is description, entry.get()
    return backend


DTYPES = tuple(np.dtype(x) if x not in dtypes.ML_DTYPES else dtypes.as_dtype(x) for x in dtypes.SUPPORTED)
"""Every dtype that gemmhub knows."""


def small(rng, shape, dtype=np.float32):
    """Whole numbers whose products every dtype holds exactly."""
    return rng.integers(0, 2 if dtype == np.bool_ else 3, shape).astype(dtype)
