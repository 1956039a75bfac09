"""The operands of one call on the host, and parts of its result recomputed from them.

Every operand of the call enters :func:`gemmhub.accuracy.reference` by its name, broadcastable to the part: what an
operand runs along follows from its field of the problem, so that a new one needs no line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemmhub import accuracy
from gemmhub._base.geometry import as_matrix, broadcast_shapes
from gemmhub._call.describe import Call, describe
from gemmhub._call.options import Request
from gemmhub.accuracy import ErrorModel, Reference
from gemmhub.dtypes import DType
from gemmhub.epilogues import EPILOGUES, columns
from gemmhub.operands import BLOCK, OPERANDS, Bias, Described, Operand

Array = Any


@dataclass(frozen=True)
class Product:
    """The operands of a call as matrices, with its scalars, addends, scales and activation."""

    a: Array
    """(..., m, k), broadcast to the batch."""
    b: Array
    """(..., k, columns): those of the activation's argument, of which a gated one has two for each of the result."""
    batch: tuple[int, ...]
    model: ErrorModel
    out_dtype: DType
    alpha: Any
    beta: Any
    activation: str | None
    operands: Mapping[str, tuple[Array, str]]
    """The operands that are read by name, each with the dimensions that it has: "mn", "m", "n", or none; "mk" and "kn"
    of stacks of scales with several along k, or with factors for each matrix."""

    @property
    def gate(self) -> str | None:
        """Where the columns of a pair are, of a gated activation."""
        return None if self.activation is None else EPILOGUES[self.activation].gate

    @property
    def columns(self) -> int:
        """Number of columns of the result."""
        return columns(self.activation, int(self.b.shape[-1]))

    @property
    def per_column(self) -> int:
        """Number of columns of the argument for each column of the result."""
        return 1 if self.gate is None else 2

    def argument(self, cols: Array) -> Array:
        """The columns of the argument that these columns of the result depend on: (len(cols), per_column)."""
        if self.gate is None:
            return cols[:, np.newaxis]
        first, step = (cols, self.columns) if self.gate == "halves" else (2 * cols, 1)
        return np.stack([first, first + step], axis=-1)

    def block(self, batch: tuple[int, ...], rows: Array, cols: Array) -> Reference:
        """The elements in these rows and columns of one matrix."""
        argument = self.argument(cols)
        # In the order of the entire argument, of which the activation takes halves or neighbours.
        argument = argument.T.ravel() if self.gate == "halves" else argument.ravel()
        pick = {
            "mn": lambda x: x[batch][np.ix_(rows, argument)],
            "m": lambda x: x[rows][:, np.newaxis],
            "n": lambda x: x[argument][np.newaxis],
            "mk": lambda x: x[batch] if x.shape[-2] == 1 else x[batch][rows],
            "kn": lambda x: x[batch] if x.shape[-1] == 1 else x[batch][:, argument],
            "": lambda x: x,
        }
        return self._reference(self.a[batch][rows], self.b[batch][:, argument], pick)

    def points(self, batch: tuple[int, ...], cells: Array) -> Reference:
        """The elements at these indices (i, j) of one matrix, as a stack of matrices of one element."""
        rows, argument = cells[:, 0], self.argument(cells[:, 1])
        pick = {
            "mn": lambda x: x[batch][rows[:, np.newaxis], argument][:, np.newaxis],
            "m": lambda x: x[rows][:, np.newaxis, np.newaxis],
            "n": lambda x: x[argument][:, np.newaxis],
            "mk": lambda x: x[batch] if x.shape[-2] == 1 else x[batch][rows][:, np.newaxis],
            "kn": lambda x: x[batch] if x.shape[-1] == 1 else np.moveaxis(x[batch][:, argument], 0, 1),
            "": lambda x: x,
        }
        b = np.moveaxis(self.b[batch][:, argument], 0, 1)
        return self._reference(self.a[batch][rows][:, np.newaxis], b, pick)

    def _reference(self, a: Array, b: Array, pick: Mapping[str, Any]) -> Reference:
        operands = {name: pick[axes](x) for name, (x, axes) in self.operands.items()}
        return accuracy.reference(
            a, b, model=self.model, alpha=self.alpha, beta=self.beta, activation=self.activation,
            out_dtype=self.out_dtype, **operands,
        )  # fmt: skip


def product(call: Call, request: Request) -> Product:
    """The product of a call whose operands are on the host."""
    a, b, problem = as_matrix(call.a, "a"), as_matrix(call.b, "b"), call.problem
    if request.alpha == 0:  # as in BLAS, the operands are not read
        a, b = (np.broadcast_to(np.zeros((), x.dtype), x.shape) for x in (a, b))
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    operands = {
        name: _with_axes(name, x, problem.operands[name], batch, b.shape[-1])
        for name, x in call.operands.items()
        if not OPERANDS[name].written
    }
    return Product(
        np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:]), batch,
        accuracy.problem_model(problem), problem.out.dtype, request.alpha, request.beta, problem.activation, operands,
    )  # fmt: skip


def on_host(call: Call, request: Request) -> Call:
    """``call`` with its operands on the host, copied from a device where necessary; itself where b is packed."""
    problem = call.problem
    if problem.device.type == "cpu" or problem.packed_by is not None or isinstance(call.a, np.ndarray):
        return call
    fetch = call.arrays.to_host
    request = hosted(request, fetch)
    there = describe(fetch(call.a.owner), fetch(call.b.owner), None, replace(request, out_dtype=problem.out.dtype))
    return replace(call, a=there.a, b=there.b, operands=there.operands)


def hosted(request: Request, fetch: Callable[[Any], Array]) -> Request:
    """``request`` with copies on the host of the operands that are read, and without a stream."""
    read = {name: fetch(x) for name, x in request.operands.items() if not OPERANDS[name].written}
    return replace(request, operands=read, stream=None)


def _with_axes(name: str, x: Array, described: Described, batch: tuple[int, ...], n: int) -> tuple[Array, str]:
    """An operand and the dimensions that it has; see :attr:`Product.operands`."""
    if isinstance(described, Operand):
        return x, "mn"
    if isinstance(described, Bias):
        return x, described.axis
    simple = {"tensor": "", "row": "m", "column": "n"}.get(described.form)
    if simple is not None:
        return x.reshape(-1), simple
    if described.axis == "n blocks":
        x = np.repeat(x, BLOCK, axis=-1)[..., :n]
    return np.broadcast_to(x, batch + x.shape[-2:]), "mk" if name == "scale_a" else "kn"
