"""Benchmarks: backends timed on one product, against a baseline of the same run.

Each case draws random operands, checks every contender's result once, and then times all of them in
interleaved rounds (:mod:`gemmhub._base.timing`) on operands that rotate past the cache: by the host's clock on the
CPU, by the device's own events elsewhere. The results are medians and their ratios to the baseline; absolute times of
different runs are not comparable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, cast

import numpy as np

import gemmhub
from gemmhub._base import units
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._base.timing import Timing, host_times, interleave, rotation
from gemmhub._call.options import Options
from gemmhub.array_library import ArrayLibrary
from gemmhub.cli import by_name, contenders, operands
from gemmhub.cli.contenders import LIBRARY_MATMULS, Contender, Excluded, Product
from gemmhub.cli.operands import random_operand
from gemmhub.cli.options import matmul_options
from gemmhub.dtypes import DType, as_dtype
from gemmhub.errors import AllocationError, InputError

Array = Any

_MOST_BYTES = 8 * 2**30
"""Memory limit, in bytes, of all sets of operands together, unless one set alone takes more."""
ORDERS = tuple("".join(letters) for letters in itertools.product("rc", repeat=3))
"""Storage orders of a, b and the result, a letter each: "r" row-major, "c" column-major."""
_COPIED_CACHES = 4
"""Size of the copy whose bandwidth is measured, in multiples of the cache's size."""


@dataclass(frozen=True)
class Measurement:
    """One contender in one case. Times are seconds a call; None where it was not timed (see ``remark``)."""

    name: str
    kernel: str
    verdict: str
    """Verdict on its result: "passed", "failed" (then it is not timed), or "" where it did not run."""
    median: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    samples: tuple[float, ...] = ()
    gflops: float | None = None
    """Rate in 1e9 floating-point (or integer) operations a second, from the median."""
    ratio: float | None = None
    """Median of the baseline over the contender's own: above 1 is faster than the baseline."""
    remark: str = ""
    check: str = ""
    """Method by which its first result was checked: "recomputed" (every element), "freivalds" or "sampled"."""

    @property
    def label(self) -> str:
        """The printed name: "numpy (through gemmhub)" beside "numpy.matmul"."""
        return contenders.label(self.name)

    def cells(self, scale: float) -> tuple[str, str, str, str, str]:
        """Median, range, rate (GFLOP/s times ``scale``), ratio and remarks, formatted."""
        spread, rate = "-", "-"
        if self.minimum is not None and self.maximum is not None and self.gflops is not None:
            spread = f"{units.duration(self.minimum)} .. {units.duration(self.maximum)}"
            rate = units.number(self.gflops * scale)
        remark = f"failed: {self.remark}" if self.verdict == "failed" else self.remark
        return units.duration(self.median), spread, rate, units.multiple(self.ratio), remark


@dataclass(frozen=True)
class HostTime:
    """Seconds that the host spends in one warm call, without the device's time."""

    name: str
    call: str
    """Kind of call: "matmul" (``gemmhub.matmul(a, b, out=out)``), "plan" (``plan(a, b, out)``), or "itself"."""
    seconds: float
    """Least of several batches' means."""
    ratio: float | None
    """Seconds of the baseline, measured in turn with this call, over ``seconds``."""


@dataclass(frozen=True, repr=False)
class Case(Report):
    """All contenders on one product, fastest first."""

    problem: str
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    flops: float
    nbytes: float
    """Bytes of the operands and the result, each counted once."""
    device: str
    library: str
    """Name of the operands' array library."""
    clock: str
    """Name of the clock: "host" or "device events"."""
    operand_sets: int
    """Number of copies of the operands that calls rotate through."""
    baseline: str
    rows: tuple[Measurement, ...]
    host: tuple[HostTime, ...] = ()
    orders: str = "rrr"
    """Storage orders, one of :data:`ORDERS`."""

    @property
    def timed(self) -> tuple[Measurement, ...]:
        return tuple(row for row in self.rows if row.median is not None)

    def _parts(self) -> Iterator[Part]:
        unit, scale = units.rate_unit(row.gflops for row in self.timed)
        header = ("contender", "median", "range", unit, f"vs {contenders.label(self.baseline)}", "remarks")
        rows = [(row.label, *row.cells(scale)) for row in self.rows]
        yield Facts([("problem", self.problem)])
        yield Table(header, rows, right=header[1:5])


def run_case(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    out_dtype: str | None = None,
    precision: str | None = None,
    backends: Sequence[str] = (),
    baseline: str | None = None,
    device: str = "cpu",
    library: str | None = None,
    orders: str = "rrr",
    host: bool = False,
    rounds: int = 7,
    warmup: int = 1,
    iterations: int | None = None,
    seed: int | None = None,
    further: Mapping[str, Any] | None = None,
    progress: Callable[[], None] | None = None,
) -> Case:
    """Time ``backends`` (all capable ones, if none is named) and ``baseline`` on one random product.

    ``baseline`` is the name of a backend, or of the array library's own function ("numpy.matmul", "cupy.matmul",
    "torch.matmul"), which is the default; where there is none, the backend that matmul would choose. ``device`` is
    "cpu", "cuda", "cuda:1", "musa"; ``library`` ("torch", "cupy", or one that a plugin provides) is imported to reach
    it. ``orders`` is one of :data:`ORDERS`: "rcr" stores b as n x k. Each call runs ``warmup`` times untimed, then
    ``iterations`` times in each of ``rounds`` rounds (by default for 2 ms). ``host`` adds host times. A backend that
    refuses, fails or is wrong appears with a remark and without times. ``further`` names a form or a file of each
    further operand ("scale_a": "row"), and beta; the array library's function computes the product without them.
    ``progress`` is called after each round. Raises InputError for unknown names, DeviceError without the device,
    DTypeError for dtypes that do not multiply, AllocationError for lack of memory, BackendError when the device fails.
    """
    if orders not in ORDERS:
        raise InputError("orders", repr(orders), ", ".join(ORDERS), "pass one letter each for a, b and the result")
    arrays = by_name.arrays_for(device, library)
    own = contenders.library_matmul_name(arrays)
    baseline = own if baseline is None else baseline
    error = contenders.unknown_baseline(baseline, arrays) if baseline is not None else None
    if error is not None:
        raise error
    options: Options = {}
    if out_dtype is not None:
        options["out_dtype"] = out_dtype
    if precision is not None:
        options["precision"] = cast("Any", precision)  # checked by the calls
    with by_name.entered(arrays):
        rng = np.random.default_rng(seed)
        product = _draw((m, n, k), as_dtype(dtype, "dtype"), orders, arrays, options, further or {}, rng)
        options = product.options
        problem = product.problem
        if baseline is None:
            baseline = gemmhub.explain(product.a, product.b, out=product.out, **options).chosen or ""
        with contenders.rounding_of_torch(arrays, problem.precision):
            ready: list[Contender] = []
            rows: list[Measurement] = []
            for name in _names(product, backends, baseline):
                contender = contenders.library_matmul(product) if name == own else contenders.backend(name, product)
                if isinstance(contender, Excluded):
                    rows.append(
                        Measurement(contender.name, contender.kernel, contender.verdict, remark=contender.remark)
                    )
                else:
                    ready.append(contender)
            clock = arrays.clock()
            sets = _sets(product, [x.out_dtype for x in ready], clock.cache_bytes) if ready else []
            timings = interleave(
                [_rotating([x.bind(a, b, outs[x.out_dtype]) for a, b, outs in sets]) for x in ready],
                clock=clock, rounds=rounds, warmup=warmup, iterations=iterations, progress=progress,
            )  # fmt: skip
            host_rows = _host_times(product, ready, baseline) if host else []
    rows += _measured(ready, timings, problem.flops, baseline)
    rows.sort(key=lambda row: (row.median is None, row.median or 0.0))
    return Case(
        problem=str(problem),
        m=m,
        n=n,
        k=k,
        dtype=problem.a.dtype.name,
        out_dtype=problem.out.dtype.name,
        flops=problem.flops,
        nbytes=problem.nbytes,
        device=str(arrays.device),
        library=arrays.name,
        clock=clock_name(arrays),
        operand_sets=len(sets),
        baseline=baseline,
        orders=orders,
        rows=tuple(rows),
        host=tuple(host_rows),
    )


def clock_name(arrays: ArrayLibrary) -> str:
    """The name of the clock for calls on such arrays: "host" or "device events"."""
    return "host" if arrays.device.type == "cpu" else "device events"


def copy_bandwidth(arrays: ArrayLibrary, rounds: int = 5) -> float:
    """Bytes a second that a large copy on the device reads and writes in total, the best of ``rounds``.

    On the CPU every core copies a part.
    """
    with by_name.entered(arrays):
        clock = arrays.clock()
        nbytes = int(_COPIED_CACHES * clock.cache_bytes)
        source = by_name.place(np.ones(nbytes, np.uint8), arrays)
        into = arrays.clone(source)
        if arrays.device.type == "cpu":
            from concurrent.futures import ThreadPoolExecutor

            from gemmhub.numpy_backend.probe import cores

            parts = np.array_split(into, cores()), np.array_split(source, cores())
            with ThreadPoolExecutor(cores()) as pool:
                (timing,) = interleave([lambda: list(pool.map(np.copyto, *parts))], clock=clock, rounds=rounds)
        else:
            device: Any = arrays
            (timing,) = interleave([lambda: device.copy(into, source)], clock=clock, rounds=rounds)
    return 2.0 * nbytes / timing.minimum


def _draw(
    size: tuple[int, int, int],
    dtype: DType,
    orders: str,
    arrays: ArrayLibrary,
    options: Options,
    further: Mapping[str, Any],
    rng: np.random.Generator,
) -> Product:
    m, n, k = size
    a_host, b_host = random_operand(rng, (m, k), dtype), random_operand(rng, (k, n), dtype)
    names = {"r": "row", "c": "col"}
    a = by_name.place(a_host, arrays, names[orders[0]], "a")
    b = by_name.place(b_host, arrays, names[orders[1]], "b")
    chosen: dict[str, Any] = {**options, **further}
    host = operands.further(chosen, None, a_host, b_host, partial(random_operand, rng))
    placed = {name: by_name.place(x, arrays, argument=name) for name, x in host.items()}
    options = matmul_options(**chosen, **placed)
    problem = gemmhub.explain(a, b, **options).problem
    out = None
    if orders[2] == "c":
        out = _by_columns(arrays, (m, n), problem.out.dtype)
        problem = gemmhub.explain(a, b, out=out, **options).problem
    return Product(arrays, a, b, a_host, b_host, problem, options, out, placed, host)


def _by_columns(arrays: ArrayLibrary, shape: tuple[int, int], dtype: DType) -> Array:
    return arrays.empty(shape[::-1], dtype).T


def _result(product: Product, dtype: DType) -> Array:
    """New memory for a result, in the storage order of the product's result."""
    shape = product.problem.m, product.problem.n
    make = product.arrays.empty if product.out is None else partial(_by_columns, product.arrays)
    return make(shape, dtype)


def _names(product: Product, backends: Sequence[str], baseline: str) -> list[str]:
    """The contenders' names, the baseline among them."""
    verdicts = gemmhub.explain(product.a, product.b, out=product.out, **product.options).verdicts
    names = list(dict.fromkeys(backends)) or [v.backend for v in verdicts if v.status in ("chosen", "eligible")]
    return names if baseline in names else [*names, baseline]


def _sets(
    product: Product, out_dtypes: Sequence[DType], cache_bytes: float
) -> list[tuple[Array, Array, dict[DType, Array]]]:
    """Copies of the operands, and memory for results, that together exceed the cache where memory permits."""
    arrays, problem = product.arrays, product.problem

    def one(a: Array, b: Array) -> tuple[Array, Array, dict[DType, Array]]:
        return a, b, {dtype: _result(product, dtype) for dtype in out_dtypes}

    nbytes = product.a_host.nbytes + product.b_host.nbytes
    nbytes += sum(problem.m * problem.n * dtype.itemsize for dtype in set(out_dtypes))
    count = min(rotation(problem.nbytes, cache_bytes), max(1, _MOST_BYTES // max(1, nbytes)))
    sets = [one(product.a, product.b)]
    for _ in range(count - 1):
        try:
            sets.append(one(arrays.clone(product.a), arrays.clone(product.b)))
        except AllocationError:  # the case reports their number
            break
    return sets


def _rotating(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    turn = cycle(calls)
    return lambda: next(turn)()


def _measured(ready: Sequence[Contender], timings: Sequence[Timing], flops: float, baseline: str) -> list[Measurement]:
    medians = {c.name: t.median * c.scale for c, t in zip(ready, timings)}
    return [
        Measurement(
            name=c.name,
            kernel=c.kernel,
            verdict="passed",
            median=medians[c.name],
            minimum=t.minimum * c.scale,
            maximum=t.maximum * c.scale,
            samples=tuple(sample * c.scale for sample in t.samples),
            gflops=flops / medians[c.name] / 1e9,
            ratio=medians[baseline] / medians[c.name] if baseline in medians else None,
            remark=c.remark,
            check=c.check,
        )
        for c, t in zip(ready, timings)
    ]


def _host_times(product: Product, ready: Sequence[Contender], baseline: str) -> list[HostTime]:
    """Host times of each backend's matmul and plan, in turn with the baseline; the baseline itself last."""
    arrays, a, b = product.arrays, product.a, product.b
    times: list[HostTime] = []
    base = next((c for c in ready if c.name == baseline), None)
    of_base: list[float] = []

    def bound(contender: Contender) -> Callable[[], object]:
        return contender.bind(a, b, _result(product, contender.out_dtype))

    for contender in ready:
        if contender.name in LIBRARY_MATMULS:
            continue
        out = _result(product, contender.out_dtype)
        beside_it: Any = {name: x for name, x in product.options.items() if name in (*product.operands, "beta")}
        calls: list[Callable[[], object]] = [partial(gemmhub.matmul, a, b, out=out, **beside_it), bound(contender)]
        calls += [bound(base)] if base is not None else []
        with gemmhub.use(backend=contender.name, precision=product.problem.precision):
            matmul, plan, *rest = host_times(calls, synchronize=partial(by_name.synchronize, arrays))
        beside = rest[0] * base.scale if base is not None else None
        of_base += [] if beside is None else [beside]
        for call, seconds in (("matmul", matmul), ("plan", plan)):
            times.append(HostTime(contender.name, call, seconds, None if beside is None else beside / seconds))
    if base is not None and base.name in LIBRARY_MATMULS and of_base:
        times.append(HostTime(base.name, "itself", min(of_base), 1.0))
    return times
