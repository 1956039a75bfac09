"""The check that ``c`` is the product of ``a`` and ``b`` within its error bound, in O(n^2) operations.

Random sums (:mod:`gemmhub._check.freivalds`) and the pattern of NaN and infinities
(:mod:`gemmhub._check.nonfinite`) locate
suspicious elements, which are recomputed in double precision. Only a recomputed element that violates its
deterministic bound (:mod:`gemmhub.accuracy`) makes the verdict "wrong", so a correct product is never called wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from operator import index as as_index
from typing import Any

import numpy as np
import numpy.random

from gemmhub import accuracy, dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._base import registered, units
from gemmhub._base.geometry import as_matrix, expand
from gemmhub._base.guard import memory_errors
from gemmhub._base.inner_products import TILE
from gemmhub._call.describe import product_shapes
from gemmhub._check import freivalds, nonfinite
from gemmhub.dtypes import PRECISIONS
from gemmhub.errors import DTypeError, InputError, ShapeError

Array = Any

_RECOMPUTE = 2**22
"""Multiplications up to which a whole product is recomputed."""
_PAIRS = 64
"""Number of (row, group) pairs with the largest sums, or of elements of an integer product, always recomputed."""
_SUSPICIOUS = 256
"""The most (row, group) pairs beyond their threshold that are recomputed."""
_ROWS = 4
"""The most rows of an integer product, of those that are certainly wrong, that are recomputed."""
_LINES = 32
"""Number of whole rows, and of whole columns, recomputed where sums carry no information. A row or column of which half
is wrong is missed with a probability of at most 2**-_LINES; one that is wholly wrong never is.
"""


@dataclass(frozen=True)
class SpotCheck:
    """The verdict of :func:`spot_check`; true where ``ok``."""

    ok: bool
    method: str
    """Method of the check: "recomputed" (every element), "freivalds" (random sums), or "sampled": the elements that the
    caller chose, or whole random rows and columns of a product that has no sums (of booleans).
    """
    checked: int
    """Number of elements recomputed in double precision."""
    sums: int
    """Number of random sums compared: one per row and group of columns, or several per row of an integer product."""
    worst: float
    """Largest error over its bound among the recomputed elements; beyond 1 is wrong."""
    where: tuple[int, ...] | None
    """Index into c of that element."""
    got: Any
    expected: Any
    bound: float
    detects: float | None
    """Size of a single error, over the root mean square of its group's bounds, that is missed with a probability of one
    in a million; None where only samples of some elements were checked."""
    reason: str
    """Reason for the verdict."""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self._verdict} ({self._examined})\n{self.reason}"

    def _repr_html_(self) -> str:
        """The HTML that notebooks display."""
        from gemmhub._base import markup

        header = ("verdict", "method", "reason")
        return markup.table(header, [(self._verdict, self._examined, self.reason)], marked=header[:1])

    @property
    def _verdict(self) -> str:
        return "right" if self.ok else "wrong"

    @property
    def _examined(self) -> str:
        sums = f", {self.sums} sums compared" if self.sums else ""
        return f"{self.method}: {self.checked} elements recomputed{sums}"


@memory_errors
def spot_check(
    a: Array,
    b: Array,
    c: Array,
    *,
    precision: str | None = None,
    points: Sequence[Sequence[int]] | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> SpotCheck:
    """Check that ``c`` is a plain ``a @ b`` within the error bound that its dtypes and ``precision`` promise.

    By default all of ``c`` is examined: small products are recomputed; for larger ones random sums over groups of
    columns are compared (Freivalds 1977) and the most suspicious elements recomputed. A correct product is always
    called right; ``detects`` is the size of an error that is found. Of a large product of booleans, whose sums are no
    sums, random rows and columns are recomputed: ``reason`` states what they miss, and how probably.

    A product with alpha, beta, a bias, scales or an activation is not ``a @ b`` and is called wrong. Check it by
    :func:`gemmhub.compare`, or against :func:`gemmhub.accuracy.reference`.

    Parameters
    ----------
    a, b : arrays of shapes that numpy.matmul accepts: (..., m, k) and (..., k, n), or vectors.
    c : the claimed product, of numpy.matmul's result shape, in any dtype that ``out_dtype`` may have.
    precision : "ieee" (default), "bf16x3", "tf32" or "bf16": what float32 operands may have been rounded to.
    points : indices into ``c``; only these elements are recomputed.
    samples : number of random elements; only these are recomputed (all, if ``c`` has no more).
    seed : makes the random choices repeatable.

    Returns
    -------
    A :class:`SpotCheck`, true where ``c`` is right, with the reason and the worst element. Print it.

    Raises
    ------
    ShapeError, DTypeError : operands that do not multiply, or a ``c`` that cannot be their product.
    InputError : ragged sequences, an unknown precision, points outside ``c``, an invalid seed.

    Examples
    --------
    >>> a, b = np.ones((40, 50), np.float32), np.ones((50, 60), np.float32)
    >>> gemmhub.spot_check(a, b, a @ b).ok
    True
    """
    if registered.deferring or registered.doors:
        options = {"precision": precision, "points": points, "samples": samples, "seed": seed}
        deferred = registered.deferred("spot_check", (a, b, c), options)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    given = {name: _native(x, name) for name, x in (("a", a), ("b", b), ("c", c))}
    *_, out_shape = product_shapes(given["a"].shape, given["b"].shape)
    a_ndim, b_ndim = given["a"].ndim, given["b"].ndim
    if given["c"].shape != out_shape:
        raise ShapeError("c", f"shape {given['c'].shape}", f"shape {out_shape}, that of numpy.matmul(a, b)")
    product = _Product(
        as_matrix(given["a"], "a"),
        as_matrix(given["b"], "b"),
        expand(given["c"], a_ndim, b_ndim),
        _model(given["a"].dtype, given["b"].dtype, given["c"].dtype, precision),
    )
    if points is not None and samples is not None:
        raise InputError("points, samples", "both", "one of them")
    rng = generator(seed)
    if points is not None:
        product.at(_inside(points, out_shape), out_shape)
    elif samples is not None:
        product.at(_sample(samples, out_shape, rng), out_shape)
    else:
        product.whole(rng)
    return product.verdict(a_ndim, b_ndim)


class _Product:
    """One claimed product, the elements recomputed so far and the worst of them."""

    def __init__(self, a: Array, b: Array, c: Array, model: accuracy.ErrorModel) -> None:
        self.batch: tuple[int, ...] = c.shape[:-2]
        self.a = np.broadcast_to(a, self.batch + a.shape[-2:])
        self.b = np.broadcast_to(b, self.batch + b.shape[-2:])
        self.c, self.model = c, model
        self.method, self.checked, self.sums = "recomputed", 0, 0
        self.unseen, self.unexamined, self.unjudged = 0, 0, 0
        self.detects: float | None = 1.0
        self.seen: float | None = None
        """Probability that a single wrong element is recomputed, where whole rows and columns are."""
        self.worst = -1.0
        self.where: tuple[int, ...] = ()
        self.got: Any = None
        self.expected: Any = None
        self.bound = 0.0

    def verdict(self, a_ndim: int, b_ndim: int) -> SpotCheck:
        ok = self.worst <= 1.0
        where: tuple[int, ...] | None = None
        if self.worst >= 0.0:
            kept = [True] * len(self.batch) + [a_ndim > 1, b_ndim > 1]
            where = tuple(i for i, keep in zip(self.where, kept) if keep)
        if where is None:
            reason = "there are no elements"
        elif ok:
            reason = f"every recomputed element is within its bound, the worst at {self.worst:.3g} of it"
            if self.unjudged:
                reason += f"; {self.unjudged} of them have bounds beyond float64, so that any value passes"
            if self.unseen:
                reason += f"; {self.unseen} sums contain overflowed or suspicious elements and were not looked at"
            if self.unexamined:
                reason += f"; {self.unexamined} further elements that are NaN or infinite were not looked at"
            if self.seen is not None:
                reason += (
                    f"; a row or a column of which half is wrong would have been seen but for a chance of 2**-{_LINES}"
                )
                reason += f", and a single wrong element with a chance of {self.seen:.2g}"
            if self.detects is not None and self.method == "freivalds":
                chance = f"; a wrong row would have been seen, but for a chance of 2**-{freivalds.VECTORS}"
                power = f"; a single error above {self.detects:.3g} bounds would have been seen"
                reason += power if self.detects else chance
        else:
            got, expected = (units.resolved(x, self.bound) for x in (self.got, self.expected))
            reason = f"element {where} is {got}, expected {expected}"
            reason += f" within {self.bound:.3g}" if np.isfinite(self.expected) else ""
        return SpotCheck(
            ok, self.method, self.checked, self.sums, max(self.worst, 0.0), where,
            self.got, self.expected, self.bound, self.detects, reason,
        )  # fmt: skip

    def at(self, flat: Array, out_shape: tuple[int, ...]) -> None:
        """Recompute the elements with these flat indices into c."""
        self.method, self.detects = "sampled", None
        shape = self.c.shape
        index = np.stack(np.unravel_index(flat, shape), axis=-1) if len(flat) else np.empty((0, len(shape)), int)
        for batch in np.unique(index[:, :-2], axis=0):
            here = index[(index[:, :-2] == batch).all(axis=1)]
            self._points(tuple(int(i) for i in batch), here[:, -2:])

    def whole(self, rng: np.random.Generator) -> None:
        """Examine every matrix of the batch; stop at the first wrong one."""
        m, n = self.c.shape[-2:]
        k = self.a.shape[-1]
        if m * n * k > _RECOMPUTE:
            self.method, self.detects = "freivalds", 0.0
        for batch in np.ndindex(*self.batch):
            if m * n * k <= _RECOMPUTE:
                self._block(batch, np.arange(m), np.arange(n))
            elif not self._sums(batch, rng):
                self.method, self.detects = "sampled", None
                self._lines(batch, rng)
            if self.worst > 1.0:
                return

    def _sums(self, batch: tuple[int, ...], rng: np.random.Generator) -> bool:
        """Compare random sums; False if they carry no information about such a product."""
        a, b, c = self.a[batch], self.b[batch], self.c[batch]
        if c.dtype.kind == "b":  # a sum is an "or"
            return False
        if not self.model.exact:
            self._floating(batch, rng)
            return True
        if c.dtype.kind != "f":
            self._integral(batch, 8 * c.dtype.itemsize, rng)
            return True
        # 8-bit operands, summed in int32 and rounded once.
        peaks = [freivalds.Side.survey(x, 1).largest for x in (a, b)]
        size = a.shape[-1] * peaks[0] * peaks[1]
        if c.dtype.itemsize == 8 or size <= 2.0**24:
            self._points(batch, freivalds.not_int32(c))
            if self.worst <= 1.0:
                self._integral(batch, 32, rng)
            return True
        if size < 2.0**31:  # else they wrap before they become floats
            self._floating(batch, rng)
            return True
        return False

    def _lines(self, batch: tuple[int, ...], rng: np.random.Generator) -> None:
        """Recompute random rows and columns: of each other row, the elements in those columns, and the reverse."""
        m, n = self.c.shape[-2:]
        rows, cols = (rng.permutation(size)[:_LINES] for size in (m, n))
        self._block(batch, rows, np.arange(n))
        self._block(batch, np.arange(m), cols)
        self.seen = 1.0 - (1.0 - len(rows) / m) * (1.0 - len(cols) / n)

    def _integral(self, batch: tuple[int, ...], bits: int, rng: np.random.Generator) -> None:
        a, b, c = self.a[batch], self.b[batch], self.c[batch]
        m, n = c.shape
        found = freivalds.exact_sketch(a, b, c, bits, rng)
        self.sums += found.sums
        self._block(batch, found.wrong[:_ROWS], np.arange(n))
        self._points(batch, np.stack([rng.integers(m, size=_PAIRS), rng.integers(n, size=_PAIRS)], axis=-1))

    def _floating(self, batch: tuple[int, ...], rng: np.random.Generator) -> None:
        a, b, c = self.a[batch], self.b[batch], self.c[batch]
        found = freivalds.sketch(a, b, c, self.model, prod(self.batch), rng)
        self.sums += found.ratio.size
        self.unexamined += found.unexamined
        for cells in found.suspects:
            self._points(batch, cells)
        ratio = found.ratio.ravel()
        first = np.argpartition(-ratio, min(_SUSPICIOUS, ratio.size - 1))[:_SUSPICIOUS]
        first = first[np.argsort(-ratio[first], kind="stable")]
        pairs = first[(np.arange(len(first)) < _PAIRS) | (ratio[first] > 1.0)]
        tainted = np.flatnonzero(found.tainted)
        size = int(found.groups.sizes.max())
        chosen = rng.permutation(tainted)[: max(_PAIRS, nonfinite.budget(a.shape[1]) // size)]
        self.unseen += len(tainted) - len(chosen) + max(0, int(np.count_nonzero(ratio > 1.0)) - _SUSPICIOUS)
        rows, groups = np.unravel_index(np.union1d(pairs, chosen), found.ratio.shape)
        for group in np.unique(groups):
            self._block(batch, np.unique(rows[groups == group]), np.flatnonzero(found.groups.member == group))
        if self.unseen or self.unexamined or not found.detects < inf:
            self.detects = None
        elif self.detects is not None:
            self.detects = max(self.detects, found.detects)

    def _block(self, batch: tuple[int, ...], rows: Array, cols: Array) -> None:
        """Recompute all elements in these rows and columns."""
        k = min(max(1, self.a.shape[-1]), 65536)
        step = max(1, TILE // k)
        width = max(1, min(step, len(cols)))
        step = max(1, min(step, TILE // width))
        for left in range(0, len(cols), width):
            some = cols[left : left + width]
            b = self.b[batch][:, some]
            for top in range(0, len(rows), step):
                these = rows[top : top + step]
                index = np.stack(np.broadcast_arrays(these[:, None], some), axis=-1)
                self._judge(batch, index, self.a[batch][these], b, self.c[batch][np.ix_(these, some)])

    def _points(self, batch: tuple[int, ...], cells: Array) -> None:
        """Recompute single elements (i, j)."""
        step = max(1, TILE // max(1, self.a.shape[-1]))
        for start in range(0, len(cells), step):
            index = cells[start : start + step]
            a = self.a[batch][index[:, 0]][:, None, :]
            b = self.b[batch][:, index[:, 1]].T[:, :, None]
            c = self.c[batch][index[:, 0], index[:, 1]]
            self._judge(batch, index[:, None, None], a, b, c[:, None, None])

    def _judge(self, batch: tuple[int, ...], index: Array, a: Array, b: Array, c: Array) -> None:
        reference = accuracy.reference(a, b, model=self.model, out_dtype=c.dtype)
        ratio = reference.ratio(c)
        self.checked += ratio.size
        self.unjudged += int(np.count_nonzero(reference.unjudged))
        if not ratio.size or ratio.max() <= self.worst:
            return
        place = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        self.worst = float(ratio[place])
        self.where = batch + tuple(int(i) for i in index[place])
        self.got, self.expected = (_scalar(np.asarray(x)[place]) for x in (c, reference.value))
        self.bound = float(np.broadcast_to(reference.bound, ratio.shape)[place])


def _scalar(x: Any) -> Any:
    """``x`` as a Python number."""
    return x.item() if x.dtype.kind in "biu" else accuracy.widen(x).item()


def _native(x: object, argument: str) -> Array:
    """An operand as an ndarray of a supported dtype."""
    arrays = arrays_of(x, argument)
    array = arrays.view(x, argument) if arrays.device.kind == "cpu" else arrays.to_host(x)
    array = np.asarray(array)
    try:
        dtypes.info(array.dtype)
    except DTypeError:
        raise dtypes.unsupported(argument, array.dtype) from None
    return array


def _model(a: dtypes.DType, b: dtypes.DType, c: dtypes.DType, precision: str | None) -> accuracy.ErrorModel:
    precision = "ieee" if precision is None else precision
    if precision not in PRECISIONS:
        raise InputError("precision", repr(precision), ", ".join(PRECISIONS))
    try:
        out = dtypes.output_dtype(a, b, c)
    except DTypeError as error:
        raise DTypeError("c", error.given, error.allowed, "pass the product as it was computed") from None
    return accuracy.error_model(a, b, out, dtypes.compute_dtype(a, b, out), precision)


def generator(seed: Any) -> np.random.Generator:
    """A generator of random numbers; InputError for an invalid seed."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError("seed", f"{seed!r:.80}", "None, or an integer of at least 0") from None


def _inside(points: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Array:
    """Flat indices of ``points``; InputError for invalid indices of an array of ``shape``."""
    flat = []
    try:
        points = tuple(points)
    except TypeError:
        raise InputError("points", repr(points), f"a sequence of tuples of {len(shape)} integers") from None
    for point in points:
        try:
            index = tuple(as_index(i) for i in point)
        except TypeError:
            raise InputError("points", repr(point), f"tuples of {len(shape)} integers") from None
        if len(index) != len(shape) or not all(0 <= i < size for i, size in zip(index, shape)):
            raise InputError("points", f"{index}", f"{len(shape)} indices inside the shape {shape} of c")
        flat.append(int(np.ravel_multi_index(index, shape)) if shape else 0)
    return np.array(flat, dtype=np.intp)


def _sample(samples: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    try:
        count = as_index(samples)
    except TypeError:
        count = 0
    if count < 1:
        raise InputError("samples", repr(samples), "an integer of at least 1")
    size = prod(shape)
    return np.arange(size) if size <= count else rng.choice(size, count, replace=False)
