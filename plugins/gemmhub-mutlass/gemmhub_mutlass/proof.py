"""Every compiled configuration proves itself on the device before it gets a user's product.

First the small products of :mod:`gemmhub_musa.selftest`, as far as they are stored as the configuration wants; then
one with everything at once: sizes that fill one tile and part of the next, several steps along k, padded rows, a batch,
an addend in the result's memory, scalars; and the same with alpha 0. Float32 values show if they were rounded to fewer
bits on the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gemmhub_musa import selftest
from gemmhub_musa.runtime import TO_DEVICE, TO_HOST

from gemmhub import accuracy
from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_mutlass import lower
from gemmhub_mutlass.choose import SIMT, TF32, Configuration
from gemmhub_mutlass.launch import Gemm, NotImplementableError
from gemmhub_mutlass.library import Library
from gemmhub_mutlass.probe import Machine

ROOM = 2**23
"""Bytes that a proof may need on the device."""
_PAD = 16
_ALIGNED = 256
_SMALL = {True: (32, 16, 48), False: (5, 3, 7)}
"""m, n, k of the first products, by whether the configuration reads vectors."""
_BEYOND = {True: (48, 16, 16), False: (37, 11, 5)}
"""What the product with everything has beyond whole tiles."""
_BETA = 2


def prove(machine: Machine, index: int, configuration: Configuration, library: Library) -> Refusal | None:
    """None where all is right. Raises AllocationError where the device has no room to tell."""
    runtime = machine.runtime
    with runtime.device(index):
        runtime.free(runtime.malloc(ROOM))

    def prepare(problem: GemmProblem) -> Kernel | Refusal:
        asked = replace(problem, precision=_precision(configuration))
        found = lower.lowered(asked)
        if isinstance(found, Refusal):
            return found
        if (found.form.a.column, found.form.b.column) != (configuration.column_a, configuration.column_b):
            return Refusal("stored for another configuration", "compile that")
        return Kernel(Gemm(machine, asked, found, configuration, library, ROOM).run, f"MUTLASS {configuration}")

    small = _SMALL[configuration.vectors]
    refusal = selftest.check(prepare, runtime, index, configuration.dtype, configuration.result, small)
    if refusal is not None:
        return refusal
    problem = everything(index, configuration)
    try:
        kernel = prepare(problem)
        if isinstance(kernel, Refusal):
            return kernel
        return _compared(machine, problem, kernel, _alpha(configuration)) or _compared(machine, problem, kernel, 0)
    except NotImplementableError as error:
        return Refusal(str(error), selftest.REMEDY)
    except Exception as error:  # whatever a kernel does on first contact
        return Refusal(
            f"MUTLASS's first product with everything ({problem.key}) failed: {type(error).__name__}: {error}",
            selftest.REMEDY, repr(error),
        )  # fmt: skip


def _precision(configuration: Configuration) -> str:
    return "tf32" if configuration.math == TF32 else "ieee"


def _alpha(configuration: Configuration) -> float:
    return -3 if configuration.dtype == "int8" else -0.5


def everything(index: int, configuration: Configuration) -> GemmProblem:
    """A padded batch of 2 with an addend in place, for ``configuration``."""
    tile, beyond = configuration.tile, _BEYOND[configuration.vectors]
    m, n, k = tile.m + beyond[0], tile.n + beyond[1], 2 * tile.k + beyond[2]
    plain = selftest.problems(configuration.dtype, index, configuration.result)[0]

    def operand(like: Operand, rows: int, cols: int, column: bool) -> Operand:
        lead = _PAD + (rows if column else cols)
        step = lead * (cols if column else rows) + _PAD
        row, col = (1, lead) if column else (lead, 1)
        return Operand(like.dtype, MatrixLayout(rows, cols, row, col, (2,), (step,)), _ALIGNED)

    out = operand(plain.out, m, n, False)
    return replace(
        plain, m=m, n=n, k=k, batch=(2,), a=operand(plain.a, m, k, configuration.column_a),
        b=operand(plain.b, k, n, configuration.column_b), out=out, c=out, alpha_is_one=False,
        precision=_precision(configuration),
    )  # fmt: skip


class _Image:
    """An operand in host memory, as it lies on the device; NaN patterns between its rows."""

    def __init__(self, operand: Operand, values: Any) -> None:
        layout, size = operand.layout, operand.dtype.itemsize
        shape = (*layout.batch, layout.rows, layout.cols)
        strides = tuple(size * x for x in (*layout.batch_strides, layout.row_stride, layout.col_stride))
        nbytes = size + sum((n - 1) * s for n, s in zip(shape, strides))
        self.data = np.full(nbytes, 0xFF, np.uint8)
        self.values = np.ndarray(shape, operand.dtype, self.data.data, 0, strides)
        self.values[...] = values


def _drawn(rng: np.random.Generator, operand: Operand, trap: bool) -> Any:
    """Small whole numbers; with ``trap`` positive ones that TF32 makes all smaller."""
    shape = (*operand.layout.batch, operand.layout.rows, operand.layout.cols)
    if not trap:
        return rng.integers(-4, 5, shape).astype(operand.dtype)
    return (1.0 + rng.integers(0, 16, shape) * 2.0**-10 + 2.0**-12).astype(operand.dtype)


def _compared(machine: Machine, problem: GemmProblem, kernel: Kernel, alpha: float) -> Refusal | None:
    """Run ``problem`` on a stream of its own; a refusal with the numbers where it is beyond gemmhub's error bound, or
    where it writes beside the result. With alpha 0 the operands are NaN.
    """
    rng, runtime = np.random.default_rng(7), machine.runtime
    trap = SIMT in kernel.description
    a, b, out = (_Image(x, _drawn(rng, x, trap)) for x in (problem.a, problem.b, problem.out))
    before, addend = out.data.copy(), out.values.copy()
    expected = accuracy.reference(
        a.values, b.values, model=accuracy.problem_model(problem), alpha=alpha, beta=_BETA, c=addend,
        out_dtype=problem.out.dtype,
    )  # fmt: skip
    if alpha == 0:
        a.data[...] = 0xFF
    images = [image.data for image in (a, b, out)]
    with runtime.device(problem.device.index):
        places: list[int] = []
        stream = runtime.stream_create()
        try:
            for data in images:
                places.append(runtime.malloc(data.nbytes))
                runtime.memcpy(places[-1], data.ctypes.data, data.nbytes, TO_DEVICE)
            runtime.synchronize()
            kernel.run(places[0], places[1], places[2], places[2], None, alpha, _BETA, stream)
            runtime.stream_synchronize(stream)
            runtime.memcpy(out.data.ctypes.data, places[2], out.data.nbytes, TO_HOST)
        finally:
            runtime.stream_destroy(stream)
            for place in places:
                runtime.free(place)
    what = f"MUTLASS's first product with everything ({problem.key}, alpha {alpha:g}) by {kernel.description}"
    ratio = expected.ratio(out.values)
    if not np.all(ratio <= 1.0):
        at = np.unravel_index(int(np.argmax(np.nan_to_num(ratio, nan=np.inf))), ratio.shape)
        got, right = float(out.values[at]), float(expected.value[at])
        wrong = int(np.count_nonzero(~(ratio <= 1.0)))
        return Refusal(
            f"{what} is wrong: {wrong} of {ratio.size} elements; at {tuple(map(int, at))} it has {got:.9g}, not "
            f"{right:.9g}",
            selftest.REMEDY,
        )
    out.values[...] = addend
    if not np.array_equal(out.data, before):
        return Refusal(f"{what} wrote beside the result", selftest.REMEDY)
    return None
