"""New operands of random numbers, with the layouts of others: the products of a function are timed on these.

On the CPU they are arrays of NumPy, whatever library the operands were of: a problem, and so its record, is the same.
On devices they are arrays of the operands' library.
"""

from __future__ import annotations

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
    made = {name: _like(view, arrays, rng, name) for name, view in product.operands.items()}
    if problem.packed_by is not None:
        made["b"] = pack_operand(made["b"], problem.a.dtype, problem.m, problem.packed_by, problem.reproducible)
    return made


def _like(view: DeviceView, arrays: ArrayLibrary, rng: np.random.Generator, name: str) -> Array:
    """An array with the shape, dtype and strides of ``view``. Elements that share memory are one number."""
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in view.strides)
    shape = tuple(1 if step == 0 else size for size, step in zip(view.shape, view.strides))
    drawn = random_operand(rng, shape, view.dtype)
    if name in OPERANDS and OPERANDS[name].role in ("factor", "result"):
        drawn = np.abs(drawn) + np.float32(0.5)  # scales, which are positive
    if arrays is NUMPY:
        array = arrays.empty_strided_like(view)
        array[once] = drawn
        return array
    return _on_device(view, arrays, drawn)


def _on_device(view: DeviceView, arrays: Any, drawn: Array) -> Array:
    """The same on a device, where a batch dimension in which elements share memory has size 1."""
    batch = max(0, len(view.shape) - 2)
    if 0 in view.strides[batch:]:
        drawn = np.broadcast_to(drawn, (*drawn.shape[:batch], *view.shape[batch:]))
        return arrays.from_host(np.ascontiguousarray(drawn))
    with arrays.on(None):
        array = arrays.empty_strided_like(DeviceView(0, view.dtype, drawn.shape, view.strides))
        arrays.copy(array, arrays.from_host(drawn))
    return array
