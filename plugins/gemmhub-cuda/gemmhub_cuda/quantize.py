"""Quantization on the device by kernels/quantize.cu: which of its steps run, with which sizes, and their launches."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_uint64
from dataclasses import dataclass
from typing import NamedTuple

from gemmhub_nvidia import sources
from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.images import Images
from gemmhub_nvidia.launch import Function, Slot
from gemmhub_nvidia.nvrtc import Source

from gemmhub._base.evicting import keep
from gemmhub.array_library import DeviceView
from gemmhub.backend import Quantization
from gemmhub.capability import Refusal
from gemmhub.kit import locks
from gemmhub_cuda.variants.form import TYPES

MAIN, KERNEL = "quantize.cu", "quantize"
TARGETS = {"float8_e4m3fn": 0, "float8_e5m2": 1, "int8": 2}
"""Number of each dtype of codes."""
GROUPS = {
    "tensor": (0, 0),
    "row": (1, 0),
    "column": (0, 1),
    "1x128": (1, 128),
    "128x1": (128, 1),
    "128x128": (128, 128),
}
"""Rows and columns that share a scale, by granularity; 0 for all."""
BLOCKS, ROWS, MAXIMA, CONVERT, GIVEN = range(5)
"""The steps of the kernel."""
SIDE = 128
"""Columns of a tile."""
_HELD = 32
"""Elements of a row that a thread of ROWS keeps in registers."""
_TEAMS = (32, 128, 512)
"""Threads that read a row together."""
_MAX_PARTS = 128
"""Largest number of parts of a column of tiles."""
_KEPT = 1024
"""The number of plans that are kept."""
_MAX = 2**30
"""Largest number of rows, columns and tiles, which the kernel counts in 31 bits."""


class Params(ctypes.Structure):
    """``Params`` of kernels/quantize.cu."""

    _fields_ = (
        *((name, c_uint64) for name in ("x", "q", "scale", "maxima")),
        *((name, c_int64) for name in (
            "x_ld", "q_ld", "x_batch", "q_batch", "scale_row", "scale_column", "scale_batch",
        )),
        *((name, c_int) for name in ("rows", "columns", "last", "batch", "tiles_m", "tiles_n", "parts", "wide")),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """The arguments of the kernel."""

    _fields_ = (("p", Params),)


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    step: int
    group: tuple[int, int]
    """Rows and columns that share a scale; 0 for all."""
    input: str
    """The dtype of x."""
    target: str
    """The dtype of the codes."""
    team: int = 0
    """Threads that read a row together, of ROWS; else 0."""

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return max(128, self.team) if self.step == ROWS else 256

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return 128 if self.step == BLOCKS and self.group[0] == 128 else 64

    @property
    def run(self) -> int:
        """Elements that a thread loads at once: 16 bytes."""
        return 4 if self.input == "float32" else 8

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA: a number for each warp, or the columns' magnitudes of each line of runs."""
        return self.threads // 8 if self.step == ROWS else 4 * self.threads * self.run

    @property
    def ctas_per_sm(self) -> int:
        """CTAs for which an SM must have room: the fewer, the more registers a thread has."""
        if self.step == ROWS:
            return max(1, 768 // self.threads)
        if self.tile_rows == 128 or self.group[1] == 1:
            return 2
        return 4 if self.step == MAXIMA else 3

    @property
    def macros(self) -> dict[str, int]:
        """The macros of kernels/narrow.cuh and kernels/quantize.cu."""
        return {
            "INPUT": TYPES[self.input], "TARGET": TARGETS[self.target], "STEP": self.step, "GROUP_ROWS": self.group[0],
            "GROUP_COLUMNS": self.group[1], "TILE_ROWS": self.tile_rows, "TEAM": self.team or self.threads,
            "HELD": _HELD // self.run, "THREADS": self.threads, "CTAS": self.ctas_per_sm,
            "SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip

    def source(self, capability: tuple[int, int]) -> Source:
        """Return the kernel and its headers, for cards of that compute capability."""
        files, card = sources.files("gemmhub_cuda"), "{}{}".format(*capability)
        name = f"cuda-{KERNEL}-{TARGETS[self.target]}{TYPES[self.input]}{self.step}-sm{card}"
        return sources.source(name, MAIN, files, f"sm_{card}", self.macros)


class Axis(NamedTuple):
    """A dimension, and the elements from one index to the next in x, in q and in the scales."""

    size: int
    x: int
    q: int
    scale: int


SINGLE = Axis(1, 0, 0, 0)


@dataclass(frozen=True)
class Matrices:
    """x as matrices that are contiguous along their columns."""

    group: tuple[int, int]
    """Rows and columns that share a scale; 0 for all."""
    batch: Axis
    row: Axis
    column: Axis
    last: int
    """Columns of the last row."""


def matrices(task: Quantization) -> Matrices | Refusal:
    """Return x as matrices: flat for one scale, and transposed where its rows are not contiguous. Refuse others."""
    group = GROUPS[task.granularity]
    scales = (0,) * task.x.ndim if group == (0, 0) else _steps(task.scale)
    axes = [Axis(*axis) for axis in zip(task.x.shape, _steps(task.x), _steps(task.q), scales)]
    axes = [axis if axis.size > 1 else SINGLE for axis in axes]
    if group == (0, 0) and _flat(axes):
        count = task.x.size
        rows = -(-count // SIDE)
        return Matrices(
            group, SINGLE, Axis(rows, SIDE, SIDE, 0), Axis(min(SIDE, count), 1, 1, 0), count - (rows - 1) * SIDE
        )
    *rest, row, column = *[SINGLE] * (2 - len(axes)), *axes
    if not _contiguous(column):
        row, column, group = column, row, (group[1], group[0])
    if not _contiguous(column):
        return Refusal("x is contiguous along neither of its last two dimensions", "make it contiguous")
    batch = _folded(rest)
    if batch is None:
        return Refusal("the batch of x is not evenly spaced", "make x contiguous")
    all_rows = _folded((batch, row)) if group[0] == 1 or group == (0, 0) else None
    if all_rows is not None:
        batch, row = SINGLE, all_rows
    return Matrices(group, batch, row, column, column.size)


def _steps(x: DeviceView) -> tuple[int, ...]:
    return tuple(step // x.itemsize for step in x.strides)


def _contiguous(axis: Axis) -> bool:
    return axis.size == 1 or axis.x == axis.q == 1


def _flat(axes: Sequence[Axis]) -> bool:
    """Whether the elements of x and of q fill their memory in the same order."""
    count = 1
    for axis in sorted((axis for axis in axes if axis.size > 1), key=lambda axis: axis.x):
        if axis.x != count or axis.q != count:
            return False
        count *= axis.size
    return True


def _folded(axes: Sequence[Axis]) -> Axis | None:
    """Return one dimension with the elements of several; None where they are not evenly spaced."""
    whole = SINGLE
    for axis in reversed([axis for axis in axes if axis.size > 1]):
        if whole.size == 1:
            whole = axis
        elif axis[1:] == tuple(whole.size * step for step in whole[1:]):
            whole = whole._replace(size=axis.size * whole.size)
        else:
            return None
    return whole


class Plan(NamedTuple):
    """The launches of a task."""

    params: Params
    """The parameters that the launches share, without the address of the maxima."""
    launches: tuple[tuple[Variant, int], ...]
    """The variants with their numbers of CTAs, in order."""
    scratch_bytes: int
    """Bytes of memory for the maxima."""


def plan(task: Quantization, sms: int) -> Plan | Refusal:
    """Return the launches of ``task`` on a card with ``sms`` SMs, or why there are none."""
    x, q = task.x, task.q
    if x.dtype.name not in TYPES or q.dtype.name not in TARGETS:
        return Refusal(f"it does not quantize {x.dtype} to {q.dtype}", f"convert x to one of {', '.join(TYPES)}")
    if x.size == 0:
        return Refusal("x has no elements", "there is nothing to do")
    if any(step % view.itemsize for view in (x, q, task.scale) for step in view.strides):
        return Refusal("its elements are not aligned to their size", "make it contiguous")
    found = matrices(task)
    if isinstance(found, Refusal):
        return found
    batch, row, column = found.batch, found.row, found.column
    steps, group, team = _steps_of(found, task.given)
    variants = [Variant(step, group, x.dtype.name, q.dtype.name, team) for step in steps]
    first, columns = variants[0], batch.size * -(-column.size // SIDE)
    tiles_m = -(-row.size // first.tile_rows)
    tiles, parts, scratch = tiles_m * columns, 0, 0
    if max(batch.size * row.size, column.size, tiles) > _MAX:
        return Refusal(f"x has more than {_MAX} rows, columns or tiles", "quantize it in parts")
    if first.step == BLOCKS:
        grids = [tiles]
    elif first.step == ROWS:
        grids = [-(-batch.size * row.size // (first.threads // team))]
    elif first.step == MAXIMA and group[1] == 1:
        parts = max(1, min(variants[1].ctas_per_sm * sms // columns, tiles_m, _MAX_PARTS))
        grids = [parts * columns] * 2
        scratch = 4 * SIDE * parts * columns
    else:  # CTAs that take one tile after another: as many as run at once
        grids = [min(tiles, variant.ctas_per_sm * sms) for variant in variants]
        parts = grids[0]
        scratch = 4 * parts * (first.step == MAXIMA)
    wide = (x.address | x.itemsize * (row.x | batch.x)) % 16 == 0 and (q.address | row.q | batch.q) % first.run == 0
    params = Params(
        x=x.address, q=q.address, scale=task.scale.address, x_ld=row.x, q_ld=row.q, x_batch=batch.x, q_batch=batch.q,
        scale_row=row.scale, scale_column=column.scale, scale_batch=batch.scale, rows=row.size, columns=column.size,
        last=found.last, batch=batch.size, tiles_m=tiles_m, tiles_n=columns // batch.size, parts=parts, wide=wide,
    )  # fmt: skip
    return Plan(params, tuple(zip(variants, grids)), scratch)


def _steps_of(found: Matrices, given: bool) -> tuple[tuple[int, ...], tuple[int, int], int]:
    """Return the steps, the rows and columns of a group for them, and the threads that read a row together."""
    group, rows, columns = found.group, found.row.size, found.column.size
    if given:
        return (GIVEN,), group, 0
    # What fits in a tile is one block of it.
    if group[0] == 0 and rows <= SIDE and (group[1] > 0 or (columns <= SIDE and found.batch.size == 1)):
        group = SIDE, group[1] or SIDE
    if group == (1, 0) and columns <= SIDE:
        group = 1, SIDE
    if group == (1, 0):
        return (ROWS,), group, next((team for team in _TEAMS if columns <= team * _HELD), _TEAMS[-1])
    return ((MAXIMA, CONVERT) if group[0] == 0 else (BLOCKS,)), group, 0


class Ready(NamedTuple):
    """A plan with its kernels on a device."""

    params: Params
    """The parameters of the plan; the addresses are another task's."""
    launches: tuple[tuple[Function[Slot], int], ...]
    """The kernels with their numbers of CTAs, in order."""
    scratch_bytes: int


def facts(task: Quantization) -> tuple[object, ...]:
    """Return what the plan of a task depends on: all but addresses, of which alignments count."""
    x, q = task.x, task.q
    return (
        task.granularity, task.given, x.dtype, x.shape, x.strides, x.address % 16, q.dtype, q.strides, q.address % 8,
        task.scale.strides,
    )  # fmt: skip


class Quantizer:
    """The kernels for quantization, each compiled and loaded once for each device. Safe in any number of threads."""

    def __init__(self) -> None:
        self._functions: dict[tuple[int, Variant], Function[Slot]] = {}
        self._lock = locks.lock()
        self._ready: OrderedDict[tuple[int, tuple[object, ...]], Ready] = OrderedDict()
        """Plans by device and facts, the last that were made."""

    def run(self, task: Quantization, gpu: Gpu, images: Images) -> Refusal | None:
        """Launch ``task``. Raises CompilerError, DriverError, KernelError."""
        key = gpu.index, facts(task)
        ready = self._ready.get(key)
        if ready is None:
            planned = plan(task, gpu.sms)
            if isinstance(planned, Refusal):
                return planned
            launches = tuple((self._function(gpu, variant, images), grid) for variant, grid in planned.launches)
            ready = Ready(planned.params, launches, planned.scratch_bytes)
            keep(self._ready, key, ready, _KEPT)
        stream, maxima = task.stream, task.scratch(ready.scratch_bytes) if ready.scratch_bytes else 0
        for function, grid in ready.launches:
            slot = function.take()
            slot.arguments.p = ready.params
            p = slot.arguments.p
            p.x, p.q, p.scale, p.maxima = task.x.address, task.q.address, task.scale.address, maxima
            slot.grid[0] = grid
            if not function.started(slot, stream):
                with gpu:
                    function.check(function.start(slot, stream))
            function.free.append(slot)
        return None

    def _function(self, gpu: Gpu, variant: Variant, images: Images) -> Function[Slot]:
        key = gpu.index, variant
        function = self._functions.get(key)
        if function is None:
            with self._lock:
                function = self._functions.get(key)
                if function is None:
                    handle = images.function(gpu, variant.source(gpu.capability), KERNEL, variant.shared_bytes)
                    function = self._functions[key] = Function(
                        gpu, "cuda", handle,
                        lambda: Slot(Arguments(), (1, 1, 1), variant.threads, variant.shared_bytes),
                    )  # fmt: skip
        return function
