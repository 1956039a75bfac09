"""Problems for tests of backends, written in one line: ``problem(64, 64, 64, "float16", b="col", bias=bias())``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.epilogues import columns
from gemmhub.layout import MatrixLayout
from gemmhub.operands import OPERANDS, Operands
from gemmhub.problem import Bias, GemmProblem, Operand


def operand(
    dtype: str, rows: int, cols: int, order: str = "row", batch: tuple[int, ...] = (), alignment: int = 256
) -> Operand:
    """A dense operand; ``order`` is "row" or "col"."""
    return Operand(as_dtype(dtype), MatrixLayout.contiguous(rows, cols, batch, order), alignment)


def bias(dtype: str = "float32", axis: str = "n", stride: int = 1) -> Bias:
    """A bias; ``stride`` counts elements."""
    return Bias(as_dtype(dtype), axis, stride)


def problem(
    m: int, n: int, k: int, dtype: str = "float32", out: str | None = None, batch: tuple[int, ...] = (),
    a: str = "row", b: str = "row", d: str = "row", **changes: Any,
) -> GemmProblem:  # fmt: skip
    """A problem with dense operands, on the host unless ``changes``, fields of GemmProblem, has a ``device``.

    Where ``changes`` has ``groups``, operands have their batch dimensions.

    ``out`` is the dtype of the result, by default ``dtype``; ``a``, ``b`` and ``d`` are the orders of the operands and
    the result, "row" or "col". ``changes`` may name operands of the table, too.
    """
    operand_dtype, result = as_dtype(dtype), as_dtype(out or dtype)
    operands = Operands({name: changes.pop(name) for name in OPERANDS if name in changes})
    groups = changes.get("groups")
    batches = {name: batch if groups is None else groups.batch(name) for name in ("a", "b", "out")}
    values: dict[str, Any] = {
        "a": operand(dtype, m, k, a, batches["a"]), "b": operand(dtype, k, n, b, batches["b"]),
        "out": operand(result.name, m, columns(changes.get("activation"), n), d, batches["out"]), "batch": batch,
        "compute_dtype": compute_dtype(operand_dtype, operand_dtype, result), "operands": operands,
    }  # fmt: skip
    return GemmProblem(m=m, n=n, k=k, **{**values, **changes})


def unsigned_bytes(signed: GemmProblem) -> tuple[GemmProblem, ...]:
    """The int8 problem ``signed`` with uint8 for a, for b, and for both; the result stays int32."""
    a, b = (replace(x, dtype=as_dtype("uint8")) for x in (signed.a, signed.b))
    return replace(signed, a=a), replace(signed, b=b), replace(signed, a=a, b=b)
