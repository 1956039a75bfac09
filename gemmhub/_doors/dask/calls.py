"""Implementation of the public calls for Dask arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part
from gemmhub._doors.dask import blocking, cluster, cost_estimate, graph, operands, packed
from gemmhub._doors.dask.operands import Array, Product
from gemmhub.errors import InputError, ShapeError
from gemmhub.verdict import Decision


def take(call: str, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a call with Dask arrays."""
    if call == "matmul":
        return matmul(*arrays, **options)
    if call == "explain":
        return explain(*arrays, **options)
    if call == "plan":
        return DaskPlan(*arrays, **options)
    if call == "pack":
        return packed.pack(*arrays, **options)
    if call == "spot_check":
        from gemmhub._doors.dask.check import spot_check

        return spot_check(*arrays, **options)
    if call == "tune":
        from gemmhub._doors.dask.tune import tune

        return tune(*arrays, **options)
    if call.endswith("_grouped") or call == "grouped_matmul":
        raise InputError(
            "a, b", "Dask arrays", "arrays in memory: grouped products of Dask arrays are not implemented",
            "multiply the groups by gemmhub.matmul, or pass x.compute()",
        )  # fmt: skip
    return NotImplemented


def matmul(a: Any, b: Any, **options: Any) -> Array:
    """The product as a lazy Dask array; see :func:`gemmhub.matmul`."""
    call = operands.describe(a, b, options)
    return graph.build(call, blocking.choose(call, cluster.present()))


def explain(a: Any, b: Any, **options: Any) -> Decision:
    """The blocks of the product and their estimated cost; see :func:`gemmhub.explain`."""
    call, workers = operands.describe(a, b, options), cluster.present()
    return cost_estimate.estimate(call, blocking.choose(call, workers), workers)


class DaskPlan(Report):
    """The result of :func:`gemmhub.plan` for Dask arrays: blocks are chosen once, for every later product.

    Attributes: ``decision``, the result of :func:`gemmhub.explain`.
    """

    def __init__(self, a: Any, b: Any, **options: Any) -> None:
        self._call = operands.describe(a, b, options)
        workers = cluster.present()
        self._blocking = blocking.choose(self._call, workers)
        self.decision = cost_estimate.estimate(self._call, self._blocking, workers)
        self._options = {name: x for name, x in options.items() if name not in operands.ADDENDS}
        self._addends = {name for name in operands.ADDENDS if options.get(name) is not None}

    def __call__(self, a: Any, b: Any, **addends: Any) -> Array:
        """The lazy product of other operands of the same shapes and dtypes; ``c`` and ``bias`` as they were planned."""
        if addends.keys() != self._addends:
            allowed = " and ".join(sorted(self._addends)) or "no c and no bias"
            raise InputError("c, bias", f"{', '.join(addends) or 'none'}", allowed, "plan again for other addends")
        call = operands.describe(a, b, {**self._options, **addends})
        if _signature(call) != _signature(self._call):
            raise ShapeError("a, b", _signature(call), _signature(self._call), "plan again for other operands")
        return graph.build(call, self._blocking)

    def _parts(self) -> Iterator[Part]:
        yield Facts([("plan for", _signature(self._call))])
        yield from self.decision._parts()


def _signature(call: Product) -> str:
    return ", ".join(f"{x.array.dtype} {tuple(map(int, x.array.shape))}" for x in call.operands)
