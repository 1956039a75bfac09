"""Spot check of products of Dask arrays whose results have no sums: random rows and columns, recomputed by the workers.

An activation, or an infinite alpha, leaves nothing to sum. Of every matrix the same random rows are recomputed in full,
and the same columns: each task holds those rows of a, and as many columns of b with all of k as fit, or the reverse.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from gemmhub._arrays.find import arrays_of
from gemmhub._call.options import Request
from gemmhub._check.spot_check import LINES, SpotCheck, power_of_lines, recompute
from gemmhub._doors.dask import operands
from gemmhub._doors.dask.block import located

Array = Any
_ELEMENTS = 2**22
"""Elements of the long operand of a task."""


def needed(asked: Request) -> bool:
    """Whether sums carry no information about the result of such a call."""
    return asked.activation is not None or not all(np.isfinite(complex(x)) for x in (asked.alpha, asked.beta))


def spot_check(asked: operands.Product, result: Any, precision: str, rng: np.random.Generator) -> Delayed:
    """A lazy :class:`gemmhub.SpotCheck` of the product."""
    whole = operands.Operand(operands.as_dask(result, asked.out_axes, {}), asked.out_axes)
    given = {"a": asked.a, "b": asked.b, "result": whole, "c": asked.c, "bias": asked.bias}
    cut = {name: x for name, x in given.items() if x is not None}
    request = asked.request
    options = {
        "alpha": request.alpha, "activation": request.activation, "precision": precision, "out_dtype": asked.out_dtype
    }  # fmt: skip
    options |= {"beta": request.beta} if "c" in cut else {}
    chosen = {x: np.sort(rng.permutation(asked.sizes[x])[:LINES]) for x in ("m", "n") if x in asked.out_axes}
    token = tokenize([x.name for x in cut.values()], options, list(chosen.values()))
    stem = f"gemmhub-spot-check-{token}"
    layer: dict[Any, Any] = {}
    sources: dict[str, Array] = {}
    for axis, lines in chosen.items() if chosen else [("", np.arange(1))]:
        _lines(asked, cut, axis, lines, options, f"{stem}-{axis}", layer, sources)
    missed = prod(1.0 - len(lines) / max(1, asked.sizes[axis]) for axis, lines in chosen.items())
    layer[stem] = (_verdict, 1.0 - missed if chosen else 1.0, list(layer))
    return Delayed(stem, HighLevelGraph.from_collections(stem, layer, dependencies=list(sources.values())))


def _lines(
    asked: operands.Product, cut: dict[str, operands.Operand], axis: str, lines: Array, options: dict[str, Any],
    stem: str, layer: dict[Any, Any], sources: dict[str, Array],
) -> None:  # fmt: skip
    """Add the tasks that recompute the rows (``axis`` "m") or columns ("n") ``lines`` to ``layer``."""
    other = {"m": "n", "n": "m"}.get(axis, "")
    batch = [x for x in asked.out_axes if x not in ("m", "n")]
    chunks = {x: (1,) * asked.sizes[x] or (0,) for x in batch}  # a matrix a task
    chunks |= {"k": (asked.sizes["k"],), axis: (len(lines),)}
    if other in asked.out_axes:
        size = asked.sizes[other]
        step = max(1, min(size, _ELEMENTS // max(1, asked.sizes["k"])))
        chunks[other] = (*(step,) * (size // step), *((size % step,) if size % step or not size else ()))
    parts = {name: _taken(x, axis, lines).rechunked(chunks) for name, x in cut.items()}
    sources |= {x.name: x.array for x in parts.values()}
    dims = [*batch, *((other,) if other in asked.out_axes else ())]
    ends = {x: np.cumsum((0, *chunks[x])) for x in dims}
    for place in product(*(range(len(chunks[x])) for x in dims)):
        index = {"m": 0, "n": 0, "k": 0, **dict(zip(dims, place))}
        places = {x: (int(ends[x][i]), None) for x, i in zip(dims, place)}
        places |= {axis: (0, lines)} if axis else {}
        keys = [x.key(index) for x in parts.values()]
        layer[(f"{stem}-lines", *place)] = (_recompute, list(parts), keys, options, [places[x] for x in asked.out_axes])


def _taken(x: operands.Operand, axis: str, lines: Array) -> operands.Operand:
    """The operand with these rows or columns alone; itself where it has none."""
    if axis not in x.axes:
        return x
    index = tuple(lines if y == axis else slice(None) for y in x.axes)
    return operands.Operand(x.array[index], x.axes)


@located
def _recompute(
    names: list[str], blocks: list[Array], options: dict[str, Any], places: list[tuple[int, Array | None]]
) -> SpotCheck:
    """The verdict on one part of the result; ``places`` are where its dimensions begin, or the lines that they are."""
    given: dict[str, Any] = {name: np.asarray(arrays_of(x, name).to_host(x)) for name, x in zip(names, blocks)}
    found = recompute(given.pop("a"), given.pop("b"), given.pop("result"), **given, **options)
    if found.where is None:
        return found
    where = tuple(start + i if lines is None else int(lines[i]) for i, (start, lines) in zip(found.where, places))
    return replace(found, where=where, reason=found.reason.replace(f"element {found.where}", f"element {where}", 1))


def _verdict(seen: float, parts: list[SpotCheck]) -> SpotCheck:
    """The verdict from all parts: that of the worst element."""
    checked = sum(x.checked for x in parts)
    found = max(parts, key=lambda x: x.worst if x.where is not None else -1.0)
    power = power_of_lines(seen) if found.ok and found.where is not None else ""
    return replace(found, method="sampled", checked=checked, detects=None, reason=found.reason + power)
