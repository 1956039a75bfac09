"""Spot check of products of Dask arrays: random sums that the workers compare, in O(n^2) operations.

The method is that of :mod:`gemmhub._check.freivalds`, in passes over the blocks: the columns fall into groups with
random weights, each block of b is summed over them, each block of a multiplied by those sums, and each block of the
result summed and compared. Only sums move between workers. Alpha and addends go through the sums. No element is
recomputed, so the threshold is deterministic: with weights of at most 1 a sum of a group of g columns differs by at
most the sum of their bounds, at most sqrt(g) times their 2-norm. A correct product is never called wrong.

With an activation, random rows and columns are recomputed instead: :mod:`gemmhub._doors.dask.sampled`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, sqrt
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from gemmhub import accuracy, dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._check import freivalds
from gemmhub._check.affine import OPERATIONS
from gemmhub._check.spot_check import SpotCheck, generator
from gemmhub._doors.dask import blocking, operands, sampled
from gemmhub._doors.dask.block import located
from gemmhub._doors.dask.packed import PackedBlocks
from gemmhub.accuracy import ErrorModel, gamma
from gemmhub.capability import CPU
from gemmhub.errors import DTypeError, InputError, ShapeError

Array = Any
_STEPS = 1024
"""Denominator of the weights, which are integers below it over it."""


@dataclass(frozen=True)
class _Rule:
    """The parameters that all tasks of one check share."""

    model: ErrorModel
    k: int
    bits: int
    """Number of bits of the modulus of an integer product; 0 for floating sums."""
    alpha: Any = 1
    beta: Any = 0
    addends: tuple[bool, bool] = (False, False)
    """Whether there are c and a bias."""

    @property
    def epilogue(self) -> bool:
        return self.alpha != 1 or any(self.addends)

    @property
    def relative(self) -> float:
        """The factor in front of S."""
        if not self.model.exact:
            return self.model.relative(self.k, OPERATIONS if self.epilogue else 0)
        operations = OPERATIONS if self.epilogue else int(self.model.output > self.model.epilogue)
        return gamma(operations, self.model.epilogue)

    @property
    def absolute(self) -> float:
        """The absolute error of underflow."""
        grown: float = max(1.0, abs(self.alpha))
        return grown * self.model.absolute(self.k, OPERATIONS if self.epilogue else 0)

    @property
    def working_dtype(self) -> Any:
        if self.bits:
            return np.int64
        return np.complex128 if self.model.complex else np.float64


@dataclass(frozen=True)
class _Weights:
    """The groups and weights of the columns of one block."""

    matrix: Array
    """(columns, groups): weights; or (columns, vectors): bits."""
    member: Array
    """(columns, groups): 1 for each column in its group."""


def spot_check(
    a: Any, b: Any, result: Any, *, points: Any = None, samples: Any = None, seed: Any = None, **options: Any
) -> Delayed:
    """A lazy :class:`gemmhub.SpotCheck`: ``compute()`` runs it on the workers. See :func:`gemmhub.spot_check`."""
    if points is not None or samples is not None:
        raise InputError(
            "points, samples", "given with Dask arrays", "neither: all of the result is examined",
            "compute those rows and columns, and check them",
        )  # fmt: skip
    if isinstance(b, PackedBlocks):
        raise InputError("b", "a packed operand", "an array", "pass b itself")
    rng = generator(seed)
    factors = [operands.facts(x, name) for x, name in ((a, "a"), (b, "b"))]
    shape, dtype = operands.facts(result, "result")
    try:
        out_dtype = dtypes.output_dtype(factors[0][1], factors[1][1], dtype)
    except DTypeError as error:
        raise DTypeError("result", error.given, error.allowed, "pass the product as it was computed") from None
    precision = options.get("precision") or "ieee"
    if options.get("out_dtype") is not None and dtypes.as_dtype(options["out_dtype"]) != out_dtype:
        raise DTypeError("result", f"dtype {out_dtype}", f"out_dtype, {options['out_dtype']}", "give it its own dtype")
    call = operands.describe(a, b, {**options, "precision": precision, "out_dtype": out_dtype})
    if shape != call.shape:
        raise ShapeError("result", f"shape {shape}", f"shape {call.shape}, that of the product")
    if sampled.needed(call.request, call.out_dtype):
        return sampled.spot_check(call, result, precision, rng)
    operand_dtypes = (factors[0][1], factors[1][1], out_dtype)
    rule = _rule(call, operand_dtypes, precision)
    chunks = {}
    for x, size in call.sizes.items():
        known = [y for y in (call.a.chunks(x), call.b.chunks(x)) if y is not None]
        chunks[x] = blocking.refined(known) if known else (size,)
    left, right = call.a.rechunked(chunks), call.b.rechunked(chunks)
    result_operand = operands.Operand(operands.as_dask(result, call.out_axes, chunks), call.out_axes).rechunked(chunks)
    addends = [x if x is None else x.rechunked(chunks) for x in (call.c, call.bias)]
    weights = _draw(call.sizes["n"], chunks["n"], rule, rng)
    cut = (left, right, result_operand, *addends)
    token = tokenize([x if x is None else x.name for x in cut], rule, [x.matrix for x in weights])
    name = f"gemmhub-spot-check-{token}"
    layer = _layer(call, rule, chunks, cut, weights, name)
    layer[name] = (_verdict, rule, ("m" in call.out_axes, True), [key for key in layer if key[0] == f"{name}-row"])
    sources = {x.name: x.array for x in cut if x is not None}
    return Delayed(name, HighLevelGraph.from_collections(name, layer, dependencies=list(sources.values())))


def _rule(call: operands.Product, operand_dtypes: tuple[Any, Any, Any], precision: str) -> _Rule:
    out, k = call.out_dtype, call.sizes["k"]
    request = call.request
    rest = (request.alpha, request.beta, (call.c is not None, call.bias is not None))
    if out.kind == "b":
        raise DTypeError("result", "bool", "numbers", "a sum of booleans is an or: check blocks by gemmhub.spot_check")
    compute = request.scaled(call.accumulator, out, CPU)
    model = accuracy.error_model(*operand_dtypes[:2], out, compute, precision)
    if not model.exact:
        return _Rule(model, k, 0, *rest)
    if out.kind in "iu":
        return _Rule(model, k, 8 * out.itemsize, *rest)
    if k * dtypes.info(operand_dtypes[0]).largest * dtypes.info(operand_dtypes[1]).largest >= 2.0**30:
        raise DTypeError("result", f"{out} of integers that may wrap", "integers", "check the int32 product")
    return _Rule(model, k, 0, *rest)


def _draw(n: int, chunks: tuple[int, ...], rule: _Rule, rng: np.random.Generator) -> list[_Weights]:
    """Weights for each block of columns."""
    if rule.bits:
        matrix: Array = rng.integers(0, 2, (n, freivalds.VECTORS), np.int8)
        member: Array = np.ones((n, 1), np.int8)
    else:
        groups = freivalds.Groups.draw(n, rng)
        matrix = groups.spread(groups.weight.astype(np.int16), slice(None))
        member = groups.spread(np.ones(n, np.int8), slice(None))
    ends = np.cumsum(chunks)
    return [_Weights(matrix[i - size : i], member[i - size : i]) for i, size in zip(ends, chunks)]


def _layer(
    call: operands.Product, rule: _Rule, chunks: dict[str, tuple[int, ...]],
    cut: tuple[Any, ...], weights: list[_Weights], stem: str,
) -> dict[Any, Any]:  # fmt: skip
    """The tasks of the passes: sums of b, of a with them, and of c; the last ones compare one block row each."""
    a, b, c, *addends = cut
    layer: dict[Any, Any] = {}
    a_vector, b_vector = len(a.axes) == 1, len(b.axes) == 1
    batch = [x for x in call.sizes if x not in ("m", "n", "k")]
    b_batch = [x for x in batch if x in b.axes]
    cols, steps = range(len(chunks["n"])), range(len(chunks["k"]))

    def block_indices(*axes: str) -> Iterator[tuple[tuple[int, ...], dict[str, int]]]:
        for position in product(*(range(len(chunks[x])) for x in axes)):
            yield position, {"m": 0, "n": 0, "k": 0, **dict(zip(axes, position))}

    drawn = [(f"{stem}-weights", j) for j in cols]
    layer.update(zip(drawn, weights))  # data that many tasks share: sent once
    sizes = _sizes(weights)
    for position, index in block_indices(*b_batch, "k"):
        for index["n"] in cols:
            part = (f"{stem}-b-block", *position, index["n"])
            layer[part] = (_sum_b, rule, b.key(index), b_vector, drawn[index["n"]])
            # One row of these blocks at a time is in memory; the sums of their columns are small.
            layer[(f"{stem}-b-columns", *position, index["n"])] = (_add, [part], (2, 3))
        layer[(f"{stem}-b", *position)] = (_add, [(f"{stem}-b-block", *position, j) for j in cols], (0, 1))
    for position, _ in block_indices(*b_batch):
        for j in cols:
            layer[(f"{stem}-columns", *position, j)] = (
                _add,
                [(f"{stem}-b-columns", *position, k, j) for k in steps],
                (0, 1),
            )
    for position, index in block_indices(*batch, "m"):
        shared = tuple(index[x] for x in b_batch)
        for index["k"] in steps:
            part = (f"{stem}-a-block", *position, index["k"])
            layer[part] = (_sum_a, rule, a.key(index), a_vector, (f"{stem}-b", *shared, index["k"]), sizes)
        rows = (f"{stem}-a", *position)
        layer[rows] = (_add, [(f"{stem}-a-block", *position, step) for step in steps], (0, 1, 2, 3, 4))
        parts = []
        for index["n"] in cols:
            part = (f"{stem}-c-block", *position, index["n"])
            columns = (f"{stem}-columns", *shared, index["n"])
            keys = [c.key(index), *(None if x is None else x.key(index) for x in addends)]
            layer[part] = (_sum_c, rule, keys, (a_vector, b_vector), drawn[index["n"]], rows, columns)
            parts.append(part)
        start = tuple(sum(chunks[x][: index[x]]) for x in (*batch, "m"))
        layer[(f"{stem}-row", *position)] = (_compare, rule, start, sizes, rows, parts)
    return layer


def _host(x: Array, rule: _Rule, *axes: int) -> Array:
    """A block as an ndarray in double precision (or int64), with the ``axes`` added that a vector lacks."""
    native = np.asarray(arrays_of(x, "block").to_host(x))
    for axis in axes:
        native = np.expand_dims(native, axis)
    return native.astype(rule.working_dtype)


def _factor(x: Array, rule: _Rule, *axes: int) -> Array:
    """A block of a or b; where alpha is 0 they are not read, as in BLAS."""
    host = _host(x, rule, *axes)
    return np.zeros_like(host) if rule.alpha == 0 else host


def _number(value: Any, rule: _Rule) -> Any:
    """alpha or beta in the arithmetic of the sums."""
    if rule.bits:
        return np.int64(int(complex(value).real))
    return value if isinstance(value, complex) else float(value)


def _addend(c: Array, bias: Array, rule: _Rule, vectors: tuple[bool, bool]) -> tuple[Array, Array]:
    """beta c + bias of one block, which broadcasts to the result's, and the sum of the finite absolute values."""
    value: Array = np.zeros((), rule.working_dtype)
    size: Array = np.zeros(())
    missing = [-1] * vectors[1] + [-2] * vectors[0] if not all(vectors) else [-1, -1]
    column = [-1] * (vectors[1] and not vectors[0])  # where b alone is a vector, a bias runs along m
    for x, factor, axes in ((c, rule.beta, missing), (bias, 1, column)):
        if x is not None:
            dims = [axis for axis in axes if -axis <= np.ndim(x) + 1]
            term = _number(factor, rule) * _host(x, rule, *dims)
            value, size = value + term, size + np.where(np.isfinite(term), np.abs(term), 0.0)
    return value, size


def _matmul(x: Array, y: Array) -> Array:
    """``x @ y``; for integers modulo 2**64, by einsum."""
    return np.einsum("...ik,...ks->...is", x, y) if x.dtype.kind == "i" else np.matmul(x, y)


def _add(parts: list[tuple[Array, ...]], which: tuple[int, ...]) -> tuple[Array, ...]:
    """The sums, over blocks, of the arrays ``which``; integer products have one array."""
    return tuple(sum(part[i] for part in parts) for i in which if i < len(parts[0]))


@located
def _sum_b(rule: _Rule, b: Array, vector: bool, weights: _Weights) -> tuple[Array, ...]:
    """The sums of a block of b.

    They are, for its rows, weighted sums and sums of squares over the groups; for its columns, the number of elements
    that are not finite and the squared 2-norms.
    """
    x = _factor(b, rule, *([-1] if vector else []))
    if rule.bits:
        return (_matmul(x, weights.matrix.astype(np.int64)),)
    with np.errstate(all="ignore"):
        good = np.isfinite(x)
        x = np.where(good, x, 0.0)
        squares = np.square(np.abs(x))
        sums = np.matmul(x, weights.matrix / _STEPS)
        return sums, np.matmul(squares, weights.member.astype(np.float64)), (~good).sum(-2), squares.sum(-2)


@located
def _sum_a(rule: _Rule, a: Array, vector: bool, sums: tuple[Array, ...], sizes: Array) -> tuple[Array, ...]:
    """The sums of a block of a.

    They are its product with the sums of b; 2-norms over groups of |a| |b|, and of the loss through underflowing
    operands; for its rows, the number of elements that are not finite and the squared 2-norms.
    """
    x = _factor(a, rule, *([-2] if vector else []))
    if rule.bits:
        return (_matmul(x, sums[0]),)
    with np.errstate(all="ignore"):
        good = np.isfinite(x)
        x = np.where(good, x, 0.0)
        absolute, norms = np.abs(x), np.sqrt(sums[1])
        one, _ = rule.model.reading(rule.k)
        lost = one * (absolute.sum(-1)[..., None] * np.sqrt(sizes) + norms.sum(-2)[..., None, :])
        return np.matmul(x, sums[0]), np.matmul(absolute, norms), lost, (~good).sum(-1), np.square(absolute).sum(-1)


@located
def _sum_c(
    rule: _Rule, blocks: list[Array], vectors: tuple[bool, bool], weights: _Weights, rows: tuple[Array, ...],
    columns: tuple[Array, ...],
) -> tuple[Array, ...]:  # fmt: skip
    """The sums of a block of c.

    They are its weighted sums, less those of the addends, and sums of squares over the groups, the mask of sums without
    information, the mask of rows with an element that is certainly wrong, and the sums of squares of the addends.
    """
    c, added, bias = blocks
    missing = [-1] * vectors[1] + [-2] * vectors[0] if not all(vectors) else [-1, -1]
    x = _host(c, rule, *missing)
    addend, size = _addend(added, bias, rule, vectors)
    if rule.bits:
        return (_matmul(x - addend, weights.matrix.astype(np.int64)),)
    with np.errstate(all="ignore"):
        good = np.isfinite(x)
        clean = (rows[3] == 0)[..., :, None] & (columns[0] == 0)[..., None, :] & np.isfinite(addend)
        # By Cauchy and Schwarz no sum of absolute values is larger.
        largest = np.sqrt(rows[4])[..., :, None] * np.sqrt(columns[1])[..., None, :]
        largest = max(1.0, abs(rule.alpha)) * largest + size
        limit = min(rule.model.largest, rule.model.accumulator_largest) / 2.0
        wrong = np.where(clean, ~good & (largest < limit) & (rule.model.input_largest == inf), good)
        member = weights.member.astype(np.float64)
        unseen = np.matmul((~good | ~clean).astype(np.float64), member) > 0
        x = np.where(good & clean, x, 0.0)
        squares = [np.matmul(np.square(np.where(good & clean, y, 0.0)), member) for y in (np.abs(x), size)]
        x = x - np.where(good & clean, addend, 0.0)
        return np.matmul(x, weights.matrix / _STEPS), squares[0], unseen, wrong.any(-1), squares[1]


@located
def _compare(
    rule: _Rule, start: tuple[int, ...], sizes: Array, rows: tuple[Array, ...],
    parts: list[tuple[Array, ...]],
) -> tuple[Any, ...]:  # fmt: skip
    """The result for one block row: sums compared, worst ratio to the limit, its position, sums skipped, detects."""
    total = sum(part[0] for part in parts)
    residual = total - _number(rule.alpha, rule) * rows[0]
    if rule.bits:
        if rule.bits < 64:
            residual = residual & ((1 << rule.bits) - 1)
        wrong = np.argwhere((residual != 0).any(-1))
        position = None if not len(wrong) else tuple(int(i) + j for i, j in zip(wrong[0], start))
        return residual.size, inf if len(wrong) else 0.0, position, 0, 0.0
    with np.errstate(all="ignore"):
        model, u = rule.model, rule.model.output
        relative, (_, both) = rule.relative, model.reading(rule.k)
        result, root = np.sqrt(sum(part[1] for part in parts)), np.sqrt(sizes)
        alpha = abs(rule.alpha)
        size = alpha * rows[1] + np.sqrt(sum(part[4] for part in parts))
        tiny = alpha * (rows[2] + rule.k * both * root) + rule.absolute * root
        bound = (1.0 + u) * (relative * size + (1.0 + relative) * tiny) + u * result
        bound = (bound + model.rounding_underflow * root) / (1.0 - u)
        terms, norm = (2, sqrt(2.0)) if model.complex else (1, 1.0)
        own = np.array([norm * gamma(terms * (rule.k + int(x) + 16), 2.0**-53) * sqrt(x) for x in sizes])
        own = own * (size + result)
        ratio = np.abs(residual) / (root * bound + own)
        unseen = np.logical_or.reduce([part[2] for part in parts]) | ~np.isfinite(bound)
        ratio = np.where(residual == 0, 0.0, np.where(np.isfinite(ratio), ratio, inf))
        ratio = np.where(unseen, 0.0, ratio)
        ratio[np.logical_or.reduce([part[3] for part in parts]), 0] = inf
        power = root * (2.0 * root + 2.0 * own / bound) * (_STEPS / 785)
        power = float(np.max(np.where(bound > 0.0, power, 0.0), initial=0.0))
    if not ratio.size:
        return 0, 0.0, None, 0, 0.0
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    position = tuple(int(i) + j for i, j in zip(index[:-1], start))
    return ratio.size, float(ratio[index]), position, int(np.count_nonzero(unseen)), power


def _sizes(weights: list[_Weights]) -> Array:
    """The number of columns of each group."""
    return np.sum([x.member.sum(0, dtype=np.int64) for x in weights], axis=0)


def _verdict(rule: _Rule, out_ndims: tuple[bool, bool], rows: list[tuple[Any, ...]]) -> SpotCheck:
    """The verdict from all block rows."""
    sums = sum(row[0] for row in rows)
    worst = max((row[1] for row in rows), default=0.0)
    position = next((row[2] for row in rows if row[1] == worst and row[2] is not None), None)
    if position is not None and not out_ndims[0]:
        position = position[:-1]
    unseen = sum(row[3] for row in rows)
    detects = max((row[4] for row in rows), default=0.0)
    ok = worst <= 1.0
    if not sums:
        reason = "there are no elements"
    elif not ok:
        reason = f"row {position} is wrong: a random sum of its elements is beyond what rounding can make"
    elif rule.bits:
        reason = f"every sum is exact; a wrong row would have been seen, but for a chance of 2**-{freivalds.VECTORS}"
    else:
        reason = f"every sum is within what rounding can make, the worst at {worst:.3g} of it"
        reason += f"; a single error above {detects:.3g} bounds would have been seen" if not unseen else ""
    if unseen:
        reason += f"; {unseen} sums contain elements that are not finite and were not looked at"
    return SpotCheck(
        ok, "freivalds", 0, int(sums), worst, position, None, None, 0.0, None if unseen else detects, reason
    )
