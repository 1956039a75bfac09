"""Spot check of products of Dask arrays whose results have no sums: random rows and columns, recomputed by the workers.

An activation, an infinite alpha, or a result that saturates leaves nothing to sum. Of every matrix the same random rows
are recomputed in full, and the same columns: each task holds those rows of a, and as many columns of b with all of k as
fit, or the reverse.
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
from gemmhub.dtypes import DType, saturates

Array = Any
_ELEMENTS = 2**22
"""Elements of the long operand of a task."""


def needed(request: Request, out_dtype: DType) -> bool:
    """Whether sums carry no information about the result of such a call."""
    finite = all(np.isfinite(complex(x)) for x in (request.alpha, request.beta))
    return request.activation is not None or not finite or saturates(out_dtype)


def spot_check(call: operands.Product, result: Any, precision: str, rng: np.random.Generator) -> Delayed:
    """A lazy :class:`gemmhub.SpotCheck` of the product."""
    result_operand = operands.Operand(operands.as_dask(result, call.out_axes, {}), call.out_axes)
    arrays = {"a": call.a, "b": call.b, "result": result_operand, "c": call.c, "bias": call.bias}
    cut = {name: x for name, x in arrays.items() if x is not None}
    request = call.request
    options = {
        "alpha": request.alpha, "activation": request.activation, "precision": precision, "out_dtype": call.out_dtype
    }  # fmt: skip
    options |= {"beta": request.beta} if "c" in cut else {}
    chosen = {x: np.sort(rng.permutation(call.sizes[x])[:LINES]) for x in ("m", "n") if x in call.out_axes}
    token = tokenize([x.name for x in cut.values()], options, list(chosen.values()))
    stem = f"gemmhub-spot-check-{token}"
    layer: dict[Any, Any] = {}
    sources: dict[str, Array] = {}
    for axis, lines in chosen.items() if chosen else [("", np.arange(1))]:
        _lines(call, cut, axis, lines, options, f"{stem}-{axis}", layer, sources)
    missed = prod(1.0 - len(lines) / max(1, call.sizes[axis]) for axis, lines in chosen.items())
    layer[stem] = (_verdict, 1.0 - missed if chosen else 1.0, list(layer))
    return Delayed(stem, HighLevelGraph.from_collections(stem, layer, dependencies=list(sources.values())))


def _lines(
    call: operands.Product, cut: dict[str, operands.Operand], axis: str, lines: Array, options: dict[str, Any],
    stem: str, layer: dict[Any, Any], sources: dict[str, Array],
) -> None:  # fmt: skip
    """Add the tasks that recompute the rows (``axis`` "m") or columns ("n") ``lines`` to ``layer``."""
    other = {"m": "n", "n": "m"}.get(axis, "")
    batch = [x for x in call.out_axes if x not in ("m", "n")]
    chunks = {x: (1,) * call.sizes[x] or (0,) for x in batch}  # a matrix a task
    chunks |= {"k": (call.sizes["k"],), axis: (len(lines),)}
    if other in call.out_axes:
        size = call.sizes[other]
        step = max(1, min(size, _ELEMENTS // max(1, call.sizes["k"])))
        chunks[other] = (*(step,) * (size // step), *((size % step,) if size % step or not size else ()))
    parts = {name: _taken(x, axis, lines).rechunked(chunks) for name, x in cut.items()}
    sources |= {x.name: x.array for x in parts.values()}
    dims = [*batch, *((other,) if other in call.out_axes else ())]
    ends = {x: np.cumsum((0, *chunks[x])) for x in dims}
    for position in product(*(range(len(chunks[x])) for x in dims)):
        index = {"m": 0, "n": 0, "k": 0, **dict(zip(dims, position))}
        origins = {x: (int(ends[x][i]), None) for x, i in zip(dims, position)}
        origins |= {axis: (0, lines)} if axis else {}
        keys = [x.key(index) for x in parts.values()]
        layer[(f"{stem}-lines", *position)] = (
            _recompute,
            list(parts),
            keys,
            options,
            [origins[x] for x in call.out_axes],
        )


def _taken(x: operands.Operand, axis: str, lines: Array) -> operands.Operand:
    """The operand with these rows or columns alone; itself where it has none."""
    if axis not in x.axes:
        return x
    index = tuple(lines if y == axis else slice(None) for y in x.axes)
    return operands.Operand(x.array[index], x.axes)


@located
def _recompute(
    names: list[str], blocks: list[Array], options: dict[str, Any], origins: list[tuple[int, Array | None]]
) -> SpotCheck:
    """The verdict on one part of the result; ``origins`` are the starts of its dimensions, or their lines."""
    arrays: dict[str, Any] = {name: np.asarray(arrays_of(x, name).to_host(x)) for name, x in zip(names, blocks)}
    verdict = recompute(arrays.pop("a"), arrays.pop("b"), arrays.pop("result"), **arrays, **options)
    if verdict.where is None:
        return verdict
    where = tuple(start + i if lines is None else int(lines[i]) for i, (start, lines) in zip(verdict.where, origins))
    return replace(
        verdict, where=where, reason=verdict.reason.replace(f"element {verdict.where}", f"element {where}", 1)
    )


def _verdict(seen: float, parts: list[SpotCheck]) -> SpotCheck:
    """The verdict from all parts: that of the worst element."""
    checked = sum(x.checked for x in parts)
    worst = max(parts, key=lambda x: x.worst if x.where is not None else -1.0)
    power = power_of_lines(seen) if worst.ok and worst.where is not None else ""
    return replace(worst, method="sampled", checked=checked, detects=None, reason=worst.reason + power)
