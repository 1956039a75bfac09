"""Implementation of the public calls for Dask arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmhub._doors.dask import blocking, cluster, graph, operands, outlook, packed
from gemmhub._doors.dask.operands import Array, Product
from gemmhub.errors import InputError, ShapeError


def take(call: str, given: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a call with Dask arrays."""
    if call == "matmul":
        return matmul(*given, **options)
    if call == "explain":
        return explain(*given, **options)
    if call == "plan":
        return DaskPlan(*given, **options)
    if call == "pack":
        return packed.pack(*given, **options)
    if call == "spot_check":
        from gemmhub._doors.dask.check import spot_check

        return spot_check(*given, **options)
    if call == "tune":
        from gemmhub._doors.dask.tune import tune

        return tune(*given, **options)
    return NotImplemented


def matmul(a: Any, b: Any, **options: Any) -> Array:
    """The product as a lazy Dask array; see :func:`gemmhub.matmul`."""
    asked = operands.describe(a, b, options)
    return graph.build(asked, blocking.choose(asked, cluster.present()))


def explain(a: Any, b: Any, **options: Any) -> outlook.Outlook:
    """The blocks of the product and their estimated cost; see :func:`gemmhub.explain`."""
    asked, workers = operands.describe(a, b, options), cluster.present()
    return outlook.outlook(asked, blocking.choose(asked, workers), workers)


class DaskPlan:
    """The result of :func:`gemmhub.plan` for Dask arrays: blocks are chosen once, for every later product.

    Attributes: ``decision``, the result of :func:`gemmhub.explain`.
    """

    def __init__(self, a: Any, b: Any, **options: Any) -> None:
        self._asked = operands.describe(a, b, options)
        workers = cluster.present()
        self._way = blocking.choose(self._asked, workers)
        self.decision = outlook.outlook(self._asked, self._way, workers)
        self._options = {name: x for name, x in options.items() if name not in operands.ADDENDS}
        self._addends = {name for name in operands.ADDENDS if options.get(name) is not None}

    def __call__(self, a: Any, b: Any, **addends: Any) -> Array:
        """The lazy product of other operands of the same shapes and dtypes; ``c`` and ``bias`` as they were planned."""
        if addends.keys() != self._addends:
            allowed = " and ".join(sorted(self._addends)) or "no c and no bias"
            raise InputError("c, bias", f"{', '.join(addends) or 'none'}", allowed, "plan again for other addends")
        asked = operands.describe(a, b, {**self._options, **addends})
        if _kind(asked) != _kind(self._asked):
            raise ShapeError("a, b", _kind(asked), _kind(self._asked), "plan again for other operands")
        return graph.build(asked, self._way)

    def __repr__(self) -> str:
        return f"<DaskPlan of {_kind(self._asked)}>"


def _kind(asked: Product) -> str:
    return ", ".join(f"{x.array.dtype} {tuple(map(int, x.array.shape))}" for x in asked.operands)
