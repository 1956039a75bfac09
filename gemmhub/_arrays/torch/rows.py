"""Products of torch tensors with new numbers of rows: tokens, whose number changes at each step of a model.

Calls that differ in the rows of a alone are one family. Its kernels, one for each bucket of rows so far, return
functions for other numbers of rows (:attr:`gemmhub.backend.Kernel.with_rows`). So a new number is neither described nor
decided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from typing import Any

from gemmhub._base.evicting import keep
from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub.backend import Run, WithRows
from gemmhub.buckets import end
from gemmhub.dtypes import scalar_class
from gemmhub.problem import GemmProblem

_MAX_ENTRIES = 256
"""Maximum number of families that are kept."""
_RUNS = 1024
"""Maximum count of numbers of rows of a family, and of its buckets."""


class Family:
    """The kernels of products that differ in their rows alone."""

    def __init__(self, arrays: Any, problem: GemmProblem, alpha: Any, beta: Any) -> None:
        self.columns, self.inner, self._n = problem.out_columns, problem.k, problem.n
        self.dtype, self.torch_device = arrays.dtype_of(problem.out.dtype), arrays.torch_device
        self.empty, self.stream, self.ordinal = arrays.module.empty, arrays.raw_stream, arrays.device.index
        self.alpha, self.beta = alpha, beta
        self._buckets: OrderedDict[int, WithRows] = OrderedDict()
        self._runs: OrderedDict[int, Run] = OrderedDict()

    def add(self, rows: int, with_rows: WithRows) -> None:
        """Keep the kernel of a bucket, which ``rows`` is in."""
        keep(self._buckets, end(rows), with_rows, _RUNS)

    def run(self, rows: int, measured: Set[tuple[int, ...]]) -> Run | None:
        """Return the function for products of ``rows``; None where a decision is needed. ``measured``: sizes that have
        tuning records, which decide them exactly.
        """
        run = self._runs.get(rows)
        if run is None:
            with_rows = self._buckets.get(end(rows))
            if with_rows is None or (rows, self._n, self.inner) in measured:
                return None
            run = with_rows(rows)
            if run is not None:
                keep(self._runs, rows, run, _RUNS)
        return run


class Families:
    """The families so far, one for each key: all facts that a decision depends on but the rows."""

    def __init__(self, settings: Callable[[], object], alpha: Any, beta: Any) -> None:
        """``settings`` returns those in force. ``alpha``, ``beta``: their defaults."""
        self._settings, self._alpha, self._beta = settings, alpha, beta
        self._families: OrderedDict[Any, Family] = OrderedDict()
        self._measured: Set[tuple[int, ...]] = frozenset()

    def product(self, a: Any, b: Any, options: Mapping[str, Any]) -> Any:
        """Return the product in a new tensor; None, with nothing done, where its family or its bucket is new."""
        if not self._families or not a.is_contiguous():
            return None
        family = self._families.get(self._key_of(a, b, options))
        if family is None:
            return None
        shape = a.shape
        rows = 1
        for size in shape[:-1]:
            rows *= size
        bias = options.get("bias") if options else None
        if a.is_neg() or b.is_neg() or (bias is not None and bias.is_neg()):
            return None  # torch negates lazily, which only the slow path detects
        x, y, v = a.data_ptr(), b.data_ptr(), None if bias is None else bias.data_ptr()
        if not (x and y) or v == 0:
            return None  # torch has zeros without memory
        run = family.run(rows, self._measured)
        if run is None:
            return None
        out = family.empty((*shape[:-1], family.columns), dtype=family.dtype, device=family.torch_device)
        alpha, beta = family.alpha, family.beta
        if options:
            alpha, beta = options.get("alpha", alpha), options.get("beta", beta)
        stream = family.stream(family.ordinal)
        if bias is None:
            run(x, y, out.data_ptr(), alpha, beta, stream)
        else:
            run(x, y, out.data_ptr(), alpha, beta, stream, bias=v)
        return out

    def learn(
        self, arrays: Any, problem: GemmProblem, with_rows: WithRows, measured: Set[tuple[int, ...]],
        a: Any, b: Any, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Keep a decided product in a new tensor for its family, where it has one."""
        if problem.batch or problem.empty or problem.k == 0 or problem.packed_by is not None:
            return
        if problem.compute_dtype.kind == "c" or problem.b.layout.order is None or problem.m == 1:
            return  # torch conjugates lazily, which only the slow path detects
        if (
            len(b.shape) != 2
            or len(a.shape) < 2
            or not a.is_contiguous()
            or (problem.bias and problem.bias.axis != "n")
        ):
            return
        if "stream" in options or problem.operands.keys() - {"bias"}:
            return
        key = self._key_of(a, b, options)
        family = self._families.get(key)
        if family is None:
            family = Family(arrays, problem, self._alpha, self._beta)
            keep(self._families, key, family, _MAX_ENTRIES)
        self._measured = measured
        family.add(problem.m, with_rows)

    def _key_of(self, a: Any, b: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
        key: tuple[Any, ...] = (  # the strides of a follow from its rows, as it is contiguous
            self._settings(), a.__class__, a.dtype, a.shape[-1], a.device, low_bits(a), *_facts(b),
        )  # fmt: skip
        for name, value in options.items():
            if name == "bias" and value is not None:
                key += (name, *_facts(value))
            elif name in ("alpha", "beta"):
                key += (name, scalar_class(value))
            else:
                key += (name, value.__class__, value)
        return key


def _facts(x: Any) -> tuple[Any, ...]:
    return x.__class__, x.dtype, x.shape, x.stride(), x.device, low_bits(x)


def low_bits(x: Any) -> int:
    """Return the bits of a tensor's address that its alignment depends on: on the CPU, whether elements are aligned."""
    address: int = x.data_ptr()
    return address & (x.element_size() - 1 if x.is_cpu else MAX_ALIGNMENT - 1)
