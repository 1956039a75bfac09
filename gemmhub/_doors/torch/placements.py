"""The choice how a product of DTensors is split over a mesh: placements of operands and result, and their cost.

Each dimension of the mesh splits one dimension of the product, or none: rows ("m"), columns ("n"), a batch dimension
(its number), or the summed one ("k"), after which partial results are added. All combinations are compared by
an estimate of seconds, from sizes, placements and device type alone, so that every rank makes the same choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

Axis = Any
"""Dimension of a product that a dimension of the mesh splits: "m", "n", "k", the number of a batch dimension, or ""."""

RATES = {"cpu": 1e11, "cuda": 4e14}
"""Operations a second of one device in 16 bits, by device type; others count as "cuda"."""
BANDWIDTH = {"cpu": 2e9, "cuda": 2e11}
"""Bytes a second that one device receives: gloo on one host, NVLink."""
LATENCY = {"cpu": 1e-4, "cuda": 2e-5}
"""Seconds of one collective."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the choice depends on."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]
    """Global shapes; those of the operands have two dimensions or more."""
    mesh: tuple[int, ...]
    itemsize: int
    """Bytes of an element of the wider operand."""
    wide: int
    """Bytes of an element of the accumulator, the dtype of partial results in collectives."""
    device: str
    pinned: bool = False
    """Whether the bits of rows are pinned, so that partial sums must not be added."""


@dataclass(frozen=True)
class Split:
    """One split of a product over a mesh, with a tuple of placements for each array."""

    axes: tuple[Axis, ...]
    a: tuple[Placement, ...]
    b: tuple[Placement, ...]
    partial: tuple[Placement, ...]
    """Placements of the product of local operands: Partial where k is split."""
    out: tuple[Placement, ...]
    received: int
    """Bytes that one device receives for operands and partial results."""
    collectives: int
    operations: float
    """Operations of one device: 2 m n k for its share."""
    seconds: float
    """Estimated, at the rates of this module."""

    def at(self, rate: float, bandwidth: float, latency: float) -> float:
        """Seconds, product and transfers one after the other, at these operations and bytes a second of one device
        and these seconds of one collective (:func:`gemmhub.distributed.measure`).
        """
        return self.operations / rate + self.received / bandwidth + self.collectives * latency


def choose(sizes: Sizes, a: tuple[Placement, ...], b: tuple[Placement, ...]) -> Split:
    """Return the split with the minimum estimated time for operands with these placements.

    Among equals it has the fewest bytes, then the most unchanged placements, then the fewest gathers with a copy.
    """
    splits = [_priced(sizes, axes, a, b) for axes in product(*(_axes(sizes, p) for p in sizes.mesh))]

    def order(x: Split) -> tuple[float, int, int, int]:
        pairs = list(zip(a + b, x.a + x.b))
        copied = sum(isinstance(p, Shard) and p.dim > 0 and isinstance(q, Replicate) for p, q in pairs)
        return x.seconds, x.received, sum(p != q for p, q in pairs), copied

    return min(splits, key=order)


def placed(placements: Sequence[Placement], ndim: int) -> tuple[Placement, ...]:
    """Placements with non-negative dimensions."""
    return tuple(
        Shard(p.dim % ndim) if isinstance(p, Shard) and type(p) is Shard and p.dim < 0 else p for p in placements
    )


def _axes(sizes: Sizes, devices: int) -> Iterator[Axis]:
    """The dimensions of a product that a dimension of the mesh can split so that no device is idle."""
    yield ""
    *batch, m, n = sizes.out
    if m >= devices:
        yield "m"
    if n >= devices:
        yield "n"
    if sizes.a[-1] >= devices and not sizes.pinned:
        yield "k"
    yield from (i for i, size in enumerate(batch) if size >= devices)


def _priced(sizes: Sizes, axes: tuple[Axis, ...], a: tuple[Placement, ...], b: tuple[Placement, ...]) -> Split:
    ndim = len(sizes.out)
    to_a = tuple(_operand(axis, sizes.a, ndim, "m", "k") for axis in axes)
    to_b = tuple(_operand(axis, sizes.b, ndim, "k", "n") for axis in axes)
    partial = tuple(Partial() if axis == "k" else _result(axis, ndim) for axis in axes)
    out = scattered(partial, sizes.out, sizes.mesh)
    received, collectives = 0.0, 0
    parts = (
        (sizes.a, sizes.itemsize, a, to_a),
        (sizes.b, sizes.itemsize, b, to_b),
        (sizes.out, sizes.wide, partial, out),
    )
    for shape, itemsize, before, after in parts:
        moved, messages = _moved(sizes, prod(shape) * itemsize, before, after)
        received, collectives = received + moved, collectives + messages
    device_type = sizes.device if sizes.device in RATES else "cuda"
    devices = prod(size for size, axis in zip(sizes.mesh, axes) if axis != "")
    rate = RATES[device_type] * 2 / max(2, sizes.itemsize)
    operations = 2 * prod(sizes.out) * sizes.a[-1] / devices
    seconds = operations / rate + received / BANDWIDTH[device_type] + collectives * LATENCY[device_type]
    return Split(axes, to_a, to_b, partial, out, round(received), collectives, operations, seconds)


def _operand(axis: Axis, shape: tuple[int, ...], ndim: int, rows: str, columns: str) -> Placement:
    """The placement of an operand whose last two dimensions are ``rows`` and ``columns`` of the product."""
    if axis in (rows, columns):
        return Shard(len(shape) - (2 if axis == rows else 1))
    if isinstance(axis, int):
        own = axis - (ndim - len(shape))
        if own >= 0 and shape[own] != 1:
            return Shard(own)
    return Replicate()


def _result(axis: Axis, ndim: int) -> Placement:
    if isinstance(axis, int):
        return Shard(axis)
    return Shard(ndim - 2) if axis == "m" else Shard(ndim - 1) if axis == "n" else Replicate()


def scattered(partial: Sequence[Placement], shape: tuple[int, ...], mesh: tuple[int, ...]) -> tuple[Placement, ...]:
    """The placements after the addition of partial sums: scattered over rows or columns that are not yet split."""
    taken = {p.dim for p in partial if isinstance(p, Shard)}
    free = [dim for dim in (len(shape) - 2, len(shape) - 1) if dim not in taken]
    out: list[Placement] = []
    for placement, devices in zip(partial, mesh):
        if isinstance(placement, Partial):
            fits = next((dim for dim in free if shape[dim] >= devices), None)
            placement = Replicate() if fits is None else Shard(fits)
            free = [dim for dim in free if dim != fits]
        out.append(placement)
    return tuple(out)


def _moved(sizes: Sizes, size: float, before: tuple[Placement, ...], after: tuple[Placement, ...]) -> tuple[float, int]:
    """Bytes that one device receives where an array of ``size`` bytes changes its placements, and collectives.

    From one shard to another DTensors use all-to-all, except on CPUs, where gloo has none and they are gathered.
    """
    mesh = sizes.mesh
    received, messages = 0.0, 0
    share = size / prod(p for p, x in zip(mesh, after) if isinstance(x, Shard))
    for devices, old, new in zip(mesh, before, after):
        total = share * (
            devices if isinstance(new, Shard) else 1
        )  # of the array that this dimension of the mesh splits
        part = total * (devices - 1) / devices
        if old == new or devices == 1 or isinstance(old, Replicate):
            continue
        if isinstance(old, Partial):
            received += part if isinstance(new, Shard) else 2 * part
        elif isinstance(new, Shard):
            received += part if sizes.device == "cpu" else part / devices
        else:
            received += part
        messages += 1
    return received, messages
