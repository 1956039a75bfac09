"""New operands of random numbers, with the layouts of others: the products of a function are timed on these.

On the CPU they are arrays of NumPy, whatever library the operands were of: a problem, and so its record, is the same.
On devices they are arrays of the operands' library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.spec.operands import SpecArrays
from gemmhub._base.draw import random_operand
from gemmhub._base.geometry import DeviceView
from gemmhub._call.observe import Observed
from gemmhub._call.pack import pack_operand
from gemmhub.array_library import ArrayLibrary
from gemmhub.capability import CPU
from gemmhub.errors import InputError
from gemmhub.operands import OPERANDS

Array = Any


def operands_like(product: Observed) -> dict[str, Array]:
    """New arrays for all operands of a product by name, ``out`` among them; its b is packed as it was.

    Raises AllocationError where there is no memory for them, InputError for specs of a device, of which no library is
    known.
    """
    arrays, problem = product.arrays, product.problem
    if problem.device == CPU:
        arrays = NUMPY
    elif isinstance(arrays, SpecArrays):
        raise InputError("a, b", f"planned for specs on {problem.device}", "arrays", "plan for arrays to tune it")
    rng = np.random.default_rng()
    drawn = {name: _drawn(view, rng, name) for name, view in product.operands.items()}
    if problem.symmetric:
        drawn |= _symmetric(product.operands, rng)
    made = {name: _placed(view, arrays, drawn[name]) for name, view in product.operands.items()}
    if problem.packed_by is not None:
        made["b"] = pack_operand(made["b"], problem.a.dtype, problem.m, problem.packed_by, problem.reproducible)
    return made


def _drawn(view: DeviceView, rng: np.random.Generator, name: str) -> Array:
    """Values for ``view``: a dimension in which elements share memory has size 1."""
    shape = tuple(1 if step == 0 else size for size, step in zip(view.shape, view.strides))
    drawn = random_operand(rng, shape, view.dtype)
    if name in OPERANDS and OPERANDS[name].role in ("factor", "result"):
        drawn = np.abs(drawn) + np.float32(0.5)  # scales, which are positive
    return drawn


def _symmetric(operands: Mapping[str, DeviceView], rng: np.random.Generator) -> dict[str, Array]:
    """Values of a, b and c of a symmetric product: b is the transpose of a, and c its own. All matrices of a stack are
    the same, whichever of the operands repeats one.
    """
    a, b, c = operands["a"], operands["b"], operands.get("c")
    (rows, inner), (other_inner, columns) = a.strides[-2:], b.strides[-2:]
    n = 1 if 0 in (rows, columns) else a.shape[-2]
    k = 1 if 0 in (inner, other_inner) else a.shape[-1]
    mixed = a.dtype != b.dtype  # then numbers that both types have
    values = rng.integers(0, 2, (n, k)) if mixed else random_operand(rng, (n, k), a.dtype)
    drawn = {"a": values.astype(a.dtype), "b": values.T.astype(b.dtype)}
    if c is not None and (len(c.shape) < 2 or 0 in c.strides[-2:] or 1 in c.shape[-2:]):
        drawn["c"] = random_operand(rng, (1,) * len(c.shape), c.dtype)  # repeated rows: symmetric where it is constant
    elif c is not None:
        values = random_operand(rng, c.shape[-2:], c.dtype)
        drawn["c"] = np.where(np.tri(len(values), dtype=np.bool_), values, values.T)
    return drawn


def _placed(view: DeviceView, arrays: ArrayLibrary, drawn: Array) -> Array:
    """An array with the shape, dtype and strides of ``view``, and these values. Elements that share memory are one."""
    if arrays is NUMPY:
        once = tuple(slice(0, 1) if step == 0 else slice(None) for step in view.strides)
        array = arrays.empty_strided_like(view)
        array[once] = drawn
        return array
    return _on_device(view, arrays, drawn)


def _on_device(view: DeviceView, arrays: Any, drawn: Array) -> Array:
    """The same on a device, where a batch dimension in which elements share memory has size 1."""
    batch = max(0, len(view.shape) - 2)
    once = tuple(1 if step == 0 else size for size, step in zip(view.shape[:batch], view.strides))
    shape = (*once, *view.shape[batch:])
    drawn = np.ascontiguousarray(np.broadcast_to(drawn, shape))
    if 0 in view.strides[batch:]:
        return arrays.from_host(drawn)
    with arrays.on(None):
        array = arrays.empty_strided_like(DeviceView(view.address, view.dtype, shape, view.strides))
        arrays.copy(array, arrays.from_host(drawn))
    return array
