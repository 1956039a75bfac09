"""The graph of a product: for each block of the result a chain over the blocks of k, with one accumulator.

A chain keeps one running sum in memory, of the accumulator's dtype, and rounds once at its end. Products that are
computed separately and then summed would need memory for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from gemmhub._doors.dask import block, cluster
from gemmhub._doors.dask.block import Step
from gemmhub._doors.dask.blocking import Blocking
from gemmhub._doors.dask.operands import QUERY_PLANNING, Array, Chunks, Dimension, Operand, Product

NAME = "gemmhub-matmul"
"""Prefix of the keys of products, by which dashboards and progress bars group tasks."""


class ProductLayer(MaterializedLayer):
    """The tasks of a product, with the bytes of each operand that one row (column) of blocks of the result needs."""

    panels: tuple[int, int]
    """Bytes of a, for one row of blocks, and of b, for one column."""


def build(call: Product, blocking: Blocking) -> Array:
    """The product as a lazy Dask array."""
    cut = {name: None if x is None else x.rechunked(blocking.chunks) for name, x in _named(call).items()}
    steps = _steps(call, blocking)
    if QUERY_PLANNING:
        return _by_expressions(call, blocking, cut, steps)
    names = [None if x is None else x.array.name for x in cut.values()]
    token = tokenize(
        names, blocking.chunks, blocking.chains, sorted(call.options.items()), cluster.version(), call.out_axes
    )
    name = f"{NAME}-{token}"
    layer = ProductLayer(dict(_layer(call, blocking, cut, steps, name, f"{NAME}-sum-{token}")))
    layer.panels = _panel(call.a, blocking), _panel(call.b, blocking)
    sources = {x.array.name: x.array for x in cut.values() if x is not None}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=list(sources.values()))
    chunks = tuple(blocking.chunks[axis] for axis in call.out_axes)
    return da.Array(graph, name, chunks, dtype=call.out_dtype, meta=_meta(call))


def _panel(x: Operand, blocking: Blocking) -> int:
    """Bytes of an operand that one block of the result needs: all of k, and one block of every other dimension."""
    sizes = (
        sum(blocking.chunks[axis]) if axis == "k" else max(blocking.chunks[axis], default=0) for axis in x.axes if axis
    )
    return int(prod(sizes) * x.array.dtype.itemsize)


def _named(call: Product) -> dict[str, Operand | None]:
    return {"a": call.a, "b": call.b, "c": call.c, "bias": call.bias}


def _meta(call: Product) -> Any:
    """An empty array of the type of the blocks."""
    meta = call.a.array._meta
    if not hasattr(meta, "__array_function__"):
        meta = np.empty(0)
    return da.utils.meta_from_array(meta, ndim=len(call.out_axes), dtype=call.out_dtype)


def _steps(call: Product, blocking: Blocking) -> dict[str, Step]:
    """The parameters of tasks by position: "whole" (k is one block), "first", "next" and "last" of a chain."""
    how = call.request.in_force
    version, out, total = cluster.version(), call.out_dtype, call.accumulator
    alpha, beta = call.request.alpha, call.request.beta
    end = {"activation": call.request.activation, "out_dtype": out}
    if blocking.steps == 1:
        return {"whole": Step(version, {**how, **end, "alpha": alpha, "beta": beta})}
    widened = total if call.c is not None else None
    if out.kind not in "biu" and total.kind in "biu":
        # Integers become floats after the whole sum: before, each partial sum would be rounded.
        adding = {**how, "out_dtype": total, "beta": 1}
        epilogue = {**how, **end, "beta": alpha}
        return {
            "first": Step(version, adding),
            "next": Step(version, adding),
            "last": Step(version, adding, None, epilogue),
        }
    adding = {**how, "alpha": alpha, "out_dtype": total, "beta": 1}
    return {
        "first": Step(version, {**adding, "beta": beta}, widened),
        "next": Step(version, adding),
        "last": Step(version, {**how, **end, "alpha": alpha, "beta": 1}),
    }


def spans(steps: int, chains: int) -> list[range]:
    """The blocks of k of each chain, whose numbers differ by at most one."""
    return [range(steps * i // chains, steps * (i + 1) // chains) for i in range(chains)]


def _layer(
    call: Product,
    blocking: Blocking,
    cut: Mapping[str, Operand | None],
    steps: Mapping[str, Step],
    name: str,
    part: str,
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The tasks, as pairs of key and task."""
    a, b = cut["a"], cut["b"]
    assert a is not None
    assert b is not None
    chains = spans(blocking.steps, blocking.chains)
    for position in product(*(range(len(blocking.chunks[axis])) for axis in call.out_axes)):
        index: dict[Dimension, int] = {"m": 0, "n": 0, **dict(zip(call.out_axes, position))}
        c, bias = (None if x is None else x.key(index) for x in (cut["c"], cut["bias"]))
        if blocking.steps == 1:
            index["k"] = 0
            yield (name, *position), (block.multiply, steps["whole"], a.key(index), b.key(index), c, bias)
            continue
        ends: list[tuple[Any, ...]] = []
        for chain in chains:
            before = c if chain.start == 0 else None
            for step in chain:
                index["k"] = step
                pair = a.key(index), b.key(index)
                if step == blocking.steps - 1:
                    yield (name, *position), (block.multiply, steps["last"], *pair, before, bias, *ends)
                else:
                    key = (part, *position, step)
                    role = "first" if step == chain.start and chain.start == 0 else "next"
                    yield key, (block.multiply, steps[role], *pair, before)
                    before = key
            if before is not None:
                ends.append(before)


def _by_expressions(
    call: Product, blocking: Blocking, cut: Mapping[str, Operand | None], steps: Mapping[str, Step]
) -> Array:
    """The same chains by ``blockwise``, one array for each step: the only public interface of expressions."""
    a, b, c, bias = cut.values()
    assert a is not None
    assert b is not None
    edges = np.cumsum((0, *blocking.chunks["k"])).tolist()
    numbers = {axis: i for i, axis in enumerate((*call.out_axes, "k"))}
    inner = len(numbers)

    def part(x: Operand, step: int) -> list[Any]:
        where = slice(edges[step], edges[step + 1])
        array = (
            x.array if blocking.steps == 1 else x.array[tuple(where if axis == "k" else slice(None) for axis in x.axes)]
        )
        return [array, indices(x.axes)]

    def indices(axes: tuple[Dimension | None, ...]) -> tuple[int, ...]:
        return tuple(inner + 1 + i if axis is None else numbers[axis] for i, axis in enumerate(axes))

    out = tuple(numbers[axis] for axis in call.out_axes)

    def task(step: int, role: str, dtype: Any, addend: list[Any], rest: list[Any], token: str) -> Array:
        pairs = [*part(a, step), *part(b, step), *addend, *rest]
        return da.blockwise(
            _unwrapped, out, *pairs, how=steps[role], addends=(bool(addend), bool(rest)), token=token,
            dtype=dtype, meta=da.utils.meta_from_array(np.empty(0), ndim=len(out), dtype=dtype),
            concatenate=False, align_arrays=False, adjust_chunks=dict(zip(out, chunks)),
        )  # fmt: skip

    chunks: list[Chunks] = [blocking.chunks[axis] for axis in call.out_axes]
    start = [] if c is None else [c.array, indices(c.axes)]
    end = [] if bias is None else [bias.array, indices(bias.axes)]
    if blocking.steps == 1:
        return task(0, "whole", call.out_dtype, start, end, NAME)
    total = task(0, "first", call.accumulator, start, [], f"{NAME}-sum")
    for step in range(1, blocking.steps - 1):
        total = task(step, "next", call.accumulator, [total, out], [], f"{NAME}-sum")
    return task(blocking.steps - 1, "last", call.out_dtype, [total, out], end, NAME)


def _unwrapped(*blocks: Any, how: Step, addends: tuple[bool, bool]) -> Any:
    """:func:`block.multiply` for the arguments of ``blockwise``: a summed or broadcast index comes as a list of one."""
    plain = []
    for x in blocks:
        while isinstance(x, list):
            (x,) = x
        plain.append(x)
    a, b, *rest = plain
    c = rest.pop(0) if addends[0] else None
    return block.multiply(how, a, b, c, rest[0] if addends[1] else None)
