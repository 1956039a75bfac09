"""Predicted cost of a product on many devices: bytes, memory and seconds of each algorithm, and the lower bound.

The algorithms are those of existing engines: 1D (one operand is gathered, or partial results are scattered), SUMMA on a
grid (van de Geijn and Watts, Concurrency: Practice and Experience 9, 1997), and 2.5D, which splits k over layers of
such grids (Solomonik and Demmel, Euro-Par 2011). Operands begin, and the result ends, evenly spread over the devices.
Byte counts are those of the device that receives the most: exact where the mesh divides the sizes, else a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np

from gemmhub import api, dtypes
from gemmhub._base import units
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table, bars
from gemmhub.dtypes import DType
from gemmhub.errors import GemmhubError, InputError


@dataclass(frozen=True)
class Forecast:
    """One algorithm on one mesh. ``bytes`` are those that the busiest device receives."""

    algorithm: str
    """Name: "1D rows" (b is gathered), "1D columns" (a is), "1D k" (partial results are scattered), "SUMMA", "2.5D"."""
    mesh: tuple[int, int, int]
    """Numbers of devices along m and n, and of layers along k."""
    bytes: int
    """Bytes that one device receives over its link."""
    memory: int
    """Peak memory of one device in bytes: its shares, received data, and its partial result."""
    compute: float
    """Seconds of the products of one device."""
    transfer: float
    """Seconds of its link: latency of each message, and bytes over bandwidth."""
    seconds: float
    efficiency: float
    """Parallel efficiency: time of one device over the total time of all devices, at the same rate."""

    @property
    def devices(self) -> int:
        rows, cols, layers = self.mesh
        return rows * cols * layers


@dataclass(frozen=True, repr=False)
class Prediction(Report):
    """The result of :func:`predict`: forecasts, the fastest first. Prints as text; :meth:`to_dict` for programs."""

    problem: str
    devices: int
    forecasts: tuple[Forecast, ...]
    lower_bound: int
    """Bytes that some device must receive under any algorithm whose devices have the memory of the fastest one."""
    rate: str
    """Source of the seconds of products."""

    @property
    def best(self) -> Forecast:
        return self.forecasts[0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return asdict(self)

    def _parts(self) -> Iterator[Part]:
        yield Facts([("product", f"{self.problem} on {self.devices} devices"), ("rate", self.rate)])
        header = ("algorithm", "mesh", "received", "memory", "time", "", "efficiency")
        rows = [
            (
                x.algorithm, "x".join(map(str, x.mesh if x.mesh[2] > 1 else x.mesh[:2])), _size(x.bytes),
                _size(x.memory), units.duration(x.seconds), bar, f"{x.efficiency:.0%}",
            )
            for x, bar in zip(self.forecasts, bars([x.seconds for x in self.forecasts]))
        ]  # fmt: skip
        yield Table(header, rows, right=("received", "memory", "time", "efficiency"))
        yield Facts([("lower bound", f"{_size(self.lower_bound)} received")])


def predict(
    m: int, n: int, k: int, mesh: int | Sequence[int], dtype: Any = "float32", *, rate: float | None = None,
    bandwidth: float = 1.25e9, latency: float = 5e-5, memory: int | str | None = None, overlap: bool = False,
) -> Prediction:  # fmt: skip
    """Predict the cost of the product of (m, k) by (k, n) on ``mesh``, for each algorithm.

    Nothing is measured, and no device is needed.

    Parameters
    ----------
    m, n, k : sizes of the product.
    mesh : number of devices, in the best arrangement for each algorithm; or their arrangement, (rows,
        columns) or (rows, columns, layers along k).
    dtype : of both operands.
    rate : operations a second of one device, 2 m n k of them for a product; by default the estimate of the backend that
        this process would choose for the product of one device.
    bandwidth : bytes a second that one device receives; the default is for a network of 10 Gbit/s.
    latency : seconds of one message.
    memory : bytes of one device, or text such as "80GiB"; algorithms that need more are left out.
    overlap : whether transfers overlap with the products (the time is the longer of the two) or precede them (the sum).

    Returns
    -------
    A :class:`Prediction`: forecasts, the fastest first, and the lower bound of Kwasniewski et al. (Red-Blue Pebbling
    Revisited: Near Optimal Parallel Matrix-Matrix Multiplication, SC 2019), the algorithm of COSMA.

    Raises
    ------
    InputError : sizes or a mesh that are not positive integers; no algorithm fits in ``memory``.
    DTypeError : a dtype outside the table.

    See Also
    --------
    gemmhub.distributed.measure : measure the speeds that a prediction takes.

    Examples
    --------
    >>> from gemmhub.distributed import predict
    >>> prediction = predict(8192, 8192, 8192, 16, "float32", rate=1e11)
    >>> prediction.best.algorithm, prediction.best.mesh
    ('2.5D', (2, 4, 2))
    """
    for name, size in (("m", m), ("n", n), ("k", k)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(name, f"{size!r}", "a positive int")
    limit = None if memory is None else units.memory(memory, "memory")
    operand_dtype = dtypes.as_dtype(dtype, "dtype")
    out = (
        np.dtype(np.float32)
        if dtypes.info(operand_dtype).kind == "float8"
        else dtypes.result_dtype(operand_dtype, operand_dtype)
    )
    accumulator = dtypes.compute_dtype(operand_dtype, operand_dtype, out)
    meshes = list(_meshes(mesh))
    devices = meshes[0][0] * meshes[0][1] * meshes[0][2]
    alone, source = _seconds(m, n, k, operand_dtype, rate)
    forecasts: dict[str, Forecast] = {}
    for arranged in meshes:
        for name, received, held, messages in _costs(m, n, k, arranged, operand_dtype.itemsize, accumulator.itemsize):
            rows, cols, layers = arranged
            compute, _ = _seconds(ceil(m / rows), ceil(n / cols), ceil(k / layers), operand_dtype, rate)
            transfer = messages * latency + received / bandwidth
            seconds = max(compute, transfer) if overlap else compute + transfer
            forecast = Forecast(
                name,
                arranged,
                received,
                held,
                compute,
                transfer,
                seconds,
                alone / (devices * seconds) if seconds else 1.0,
            )
            if (limit is None or held <= limit) and (
                name not in forecasts or _order(forecast) < _order(forecasts[name])
            ):
                forecasts[name] = forecast
    if not forecasts:
        raise InputError("memory", f"{limit} bytes a device", "at least what one algorithm needs", "use more devices")
    ranked = tuple(sorted(forecasts.values(), key=_order))
    bound = lower_bound(m, n, k, devices, ranked[0].memory // operand_dtype.itemsize) * operand_dtype.itemsize
    return Prediction(f"{m}x{n}x{k} {operand_dtype}->{out}", devices, ranked, int(bound), source)


def lower_bound(m: int, n: int, k: int, devices: int, memory: int) -> float:
    """Return the elements that some device must receive, where each holds ``memory`` elements at a time.

    A device that does its share of the products accesses at least min(2 m n k / (p sqrt(S)) + S, 3 (m n k / p)**(2/3))
    elements; its even share of operands and result need not move.
    """
    share = m * n * k / devices
    accessed = min(2 * share / sqrt(max(1, memory)) + memory, 3 * share ** (2 / 3))
    return max(0.0, float(accessed) - (m * k + k * n + m * n) / devices)


def _order(forecast: Forecast) -> tuple[float, int, int]:
    return forecast.seconds, forecast.bytes, forecast.memory


def _meshes(mesh: int | Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The possible arrangements."""
    extents = (mesh,) if isinstance(mesh, int) else tuple(mesh)
    if not 1 <= len(extents) <= 3 or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in extents):
        raise InputError("mesh", f"{mesh!r}", "a number of devices, (rows, columns) or (rows, columns, layers)")
    if len(extents) > 1:
        rows, cols, layers = (*extents, 1)[:3]
        yield rows, cols, layers
        return
    for rows in _divisors(extents[0]):
        for cols in _divisors(extents[0] // rows):
            yield rows, cols, extents[0] // rows // cols


def _divisors(count: int) -> list[int]:
    return [x for x in range(1, count + 1) if count % x == 0]


def _costs(
    m: int, n: int, k: int, mesh: tuple[int, int, int], size: int, wide: int
) -> Iterator[tuple[str, int, int, int]]:
    """Yield (algorithm, bytes received, bytes held, messages) of the busiest device, for each algorithm on the mesh."""
    rows, cols, layers = mesh
    p = rows * cols * layers
    depth = ceil(k / layers)
    height, width = ceil(m / rows), ceil(n / cols)
    # A device owns an even part of the panel of a for its row, and of the panel of b for its column.
    a_received = height * (depth - depth // cols) * size
    b_received = (depth - depth // rows) * width * size
    result = height * width
    partial = ceil(result * (layers - 1) / layers) * wide if layers > 1 else 0
    shares = (height * ceil(depth / cols) + ceil(depth / rows) * width) * size
    held = shares + a_received + b_received + result * wide + partial
    messages = (cols - 1) + (rows - 1) + (layers - 1)
    if p == 1 or (cols == 1 and layers == 1):
        yield "1D rows", b_received, held, messages
    elif rows == 1 and layers == 1:
        yield "1D columns", a_received, held, messages
    elif rows == 1 and cols == 1:
        yield "1D k", partial, held, messages
    elif layers == 1:
        yield "SUMMA", a_received + b_received, held, messages
    else:
        yield "2.5D", a_received + b_received + partial, held, messages


def _seconds(m: int, n: int, k: int, dtype: DType, rate: float | None) -> tuple[float, str]:
    """Seconds of one product on one device, and their source."""
    if rate is not None:
        return 2.0 * m * n * k / rate, f"{rate:.3g} operations a second of one device"
    left, right = (np.broadcast_to(np.zeros((), dtype), shape) for shape in ((m, k), (k, n)))
    try:
        wanted = {"out_dtype": "float32"} if dtypes.info(dtype).kind == "float8" else {}
        decision = api.explain(left, right, **wanted)  # type: ignore[arg-type]
        if decision.chosen is not None and (seconds := decision[decision.chosen].seconds) is not None:
            return float(seconds), f"seconds of one device as backend {decision.chosen!r} estimates here"
    except GemmhubError:
        pass
    raise InputError("rate", "None, and no backend here estimates this product", "operations a second of one device")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
