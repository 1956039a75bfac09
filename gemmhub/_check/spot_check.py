"""The check that a result is the product of ``a`` and ``b`` within its error bound, in O(n^2) operations.

Random sums (:mod:`gemmhub._check.freivalds`) and the pattern of NaN and infinities
(:mod:`gemmhub._check.nonfinite`) locate suspicious elements, which are recomputed in double precision. Only a
recomputed element that violates its deterministic bound (:mod:`gemmhub.accuracy`) makes the verdict "failed", so a
correct product is never called wrong. Alpha, scales and addends go through the sums; an activation does not: there
random rows and columns are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gemmhub import accuracy, dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.spec.operands import SpecArrays, without_data
from gemmhub._base import registered, units
from gemmhub._base.geometry import expand
from gemmhub._base.guard import memory_errors
from gemmhub._base.inner_products import TILE
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part
from gemmhub._call.describe import Call, describe
from gemmhub._call.options import ARRAYS, DEFAULTS, Options, Request, request, unknown
from gemmhub._check import chosen, freivalds, nonfinite
from gemmhub._check.affine import Affine
from gemmhub._check.chosen import generator as generator
from gemmhub._check.product import Product, product
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.operands import OPERANDS, WRITTEN

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any

_RECOMPUTE = 2**22
"""Maximum number of multiplications of a product that is recomputed entirely."""
_PAIRS = 64
"""Number of (row, group) pairs with the largest sums, or of elements of an integer product, always recomputed."""
_SUSPICIOUS = 256
"""Maximum number of (row, group) pairs beyond their threshold that are recomputed."""
_ROWS = 4
"""Maximum number of certainly wrong rows of an integer product that are recomputed."""
LINES = 32
"""Number of rows, and of columns, recomputed where sums carry no information. A row or column of which half
is wrong is missed with a probability of at most 2**-LINES; one that is wholly wrong never is.
"""


@dataclass(frozen=True, repr=False)
class SpotCheck(Report):
    """The verdict of :func:`spot_check`; true where ``ok``."""

    ok: bool
    method: str
    """Method of the check: "recomputed" (every element), "freivalds" (random sums), or "sampled": the elements that the
    caller chose, or random rows and columns of a product that has no sums (with an activation, or of booleans).
    """
    checked: int
    """Number of elements recomputed in double precision."""
    sums: int
    """Number of random sums compared: one per row and group of columns, or several per row of an integer product."""
    worst: float
    """Largest error over its bound among the recomputed elements; beyond 1 is wrong."""
    where: tuple[int, ...] | None
    """Index into the result of that element."""
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

    def _parts(self) -> Iterator[Part]:
        yield Facts([("verdict", f"{self.verdict} ({self.examined})"), ("reason", self.reason)], marked=("verdict",))

    @property
    def verdict(self) -> str:
        """ "passed" or "failed"."""
        return "passed" if self.ok else "failed"

    @property
    def examined(self) -> str:
        """The method, and the numbers of elements and sums."""
        sums = f", {self.sums} sums compared" if self.sums else ""
        return f"{self.method}: {self.checked} elements recomputed{sums}"


@memory_errors
def spot_check(
    a: Array,
    b: Array,
    result: Array,
    *,
    points: Sequence[Sequence[int]] | None = None,
    samples: int | None = None,
    seed: int | None = None,
    **options: Unpack[Options],
) -> SpotCheck:
    """Check that ``result`` is ``gemmhub.matmul(a, b, **options)`` within the error bound that its dtypes promise.

    By default all of ``result`` is examined: small products are recomputed; for larger ones random sums over groups of
    columns are compared (Freivalds 1977) and the most suspicious elements recomputed. Alpha, beta, c, bias and scales
    go through the sums. A correct product is always called right; ``detects`` is the size of an error that is detected.

    With an activation, whose result has no sums, and for booleans, 32 random rows and 32 random columns of a large
    result are recomputed, and the elements that are largest beside their operands: ``reason`` states what they miss,
    and how probably.

    Parameters
    ----------
    a, b : arrays of shapes that numpy.matmul accepts: (..., m, k) and (..., k, n), or vectors.
    result : the claimed result, in any dtype that ``out_dtype`` may have.
    points : indices into ``result``; only these elements are recomputed.
    samples : number of random elements; only these are recomputed (all, if the result has no more).
    seed : makes the random choices repeatable.
    options : those that the result was computed with, as of :func:`gemmhub.matmul`, without ``out``. ``c`` is the
        addend as it was before the call. ``precision`` is "ieee" where it is absent, whatever the settings are;
        ``backend`` and ``reproducible`` change no bound.

    Returns
    -------
    A :class:`SpotCheck`, true where ``result`` is right, with the reason and the worst element. Print it.

    Raises
    ------
    ShapeError, DTypeError : operands that do not multiply, or a ``result`` that cannot be their product.
    InputError : ragged sequences, a bad option, points outside ``result``, an invalid seed.

    See Also
    --------
    compare : run a product on every backend, and check each result.

    Notes
    -----
    The bound is derived in :mod:`gemmhub.accuracy`; no tolerance is chosen.

    References
    ----------
    R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977, pages 839 to 842.

    Examples
    --------
    >>> a, b = np.ones((40, 50), np.float32), np.ones((50, 60), np.float32)
    >>> gemmhub.spot_check(a, b, a @ b).ok
    True
    >>> bias = np.ones(60, np.float32)
    >>> gemmhub.spot_check(a, b, np.maximum(2 * (a @ b) + bias, 0), alpha=2, bias=bias, activation="relu").ok
    True
    """
    for name in options:
        if name not in DEFAULTS and name != "out":  # which has its own error
            raise unknown(name, ("points", "samples", "seed", *(x for x in DEFAULTS if x not in WRITTEN)))
    if registered.deferring or registered.doors:
        arguments: dict[str, Any] = {"points": points, "samples": samples, "seed": seed, **options}
        arrays = (a, b, result, *map(options.get, ARRAYS))
        deferred = registered.deferred("spot_check", (a, b, result), arguments, arrays)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    if "out" in options:
        raise InputError("out", "given to spot_check", "options of matmul but out", "pass the result after b")
    for name in WRITTEN:
        if options.get(name) is not None:
            raise InputError(name, "given to spot_check", "operands that are read", f"leave {name}= out")
    _finish(options.get("stream"), a)
    read = {name: x for name, x in options.items() if name in OPERANDS and name not in WRITTEN and x is not None}
    named = {"a": a, "b": b, "result": result, **read}
    native = {name: _native(x, name) for name, x in named.items()}
    a, b, result = (native.pop(name) for name in ("a", "b", "result"))
    precision = options.get("precision")
    there = {name: x for name, x in options.items() if name not in WRITTEN}
    there |= {**native, "precision": "ieee" if precision is None else precision, "stream": None}
    parsed = request(cast(Options, there))
    if parsed.out_dtype is not None and parsed.out_dtype != result.dtype:
        raise DTypeError("result", f"dtype {result.dtype}", f"out_dtype, {parsed.out_dtype}", "give it its own dtype")
    call = describe(a, b, None, _into(parsed, a, b, result.dtype))
    return examine(call, parsed, result, points=points, samples=samples, seed=seed)


def examine(
    call: Call,
    request: Request,
    result: Array,
    *,
    points: Sequence[Sequence[int]] | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> SpotCheck:
    """Check a ``result`` on the host of a ``call`` whose operands are there; see :func:`spot_check`."""
    if result.shape != call.out_shape:
        raise ShapeError("result", f"shape {result.shape}", f"shape {call.out_shape}, that of the product")
    if points is not None and samples is not None:
        raise InputError("points, samples", "both", "one of them")
    rng = generator(seed)
    ndims = call.a.ndim, call.b.ndim
    check = _Check(product(call, request), expand(result, *ndims))
    if points is not None:
        check.at(chosen.inside(points, call.out_shape))
    elif samples is not None:
        check.at(chosen.sample(samples, call.out_shape, rng))
    else:
        check.batches(rng)
    return check.verdict(*ndims)


def recompute(a: Array, b: Array, result: Array, **options: Unpack[Options]) -> SpotCheck:
    """Check every element of a ``result`` on the host, however large it is; see :func:`spot_check`."""
    parsed = request(options)
    call = describe(a, b, None, _into(parsed, a, b, result.dtype))
    check = _Check(product(call, parsed), expand(result, call.a.ndim, call.b.ndim))
    check.all()
    return check.verdict(call.a.ndim, call.b.ndim)


def _finish(stream: Any, x: Any) -> None:
    """Wait for the stream that computed the result: it is read on the current one."""
    if stream is not None:
        arrays = arrays_of(x, "a")
        if arrays.device.type == "cpu":
            raise InputError("stream", "given for CPU arrays", "None for CPU arrays")
        arrays.synchronize()


def _into(request: Request, a: Array, b: Array, dtype: dtypes.DType) -> Request:
    """``request`` for a result of ``dtype``; DTypeError where no product has that."""
    try:
        dtypes.output_dtype(a.dtype, b.dtype, dtype)
    except DTypeError as error:
        raise DTypeError("result", error.given, error.allowed, "pass the product as it was computed") from None
    return replace(request, out_dtype=dtype)


class _Check:
    """One claimed result, the elements recomputed so far and the worst of them."""

    def __init__(self, claimed: Product, c: Array) -> None:
        self.product, self.c, self.model = claimed, c, claimed.model
        self.a, self.b, self.batch = claimed.a, claimed.b, claimed.batch
        self.method, self.checked, self.sums = "recomputed", 0, 0
        self.unseen, self.unexamined, self.unjudged = 0, 0, 0
        self.detects: float | None = 1.0
        self.seen: float | None = None
        """Probability that a single wrong element is recomputed, where rows and columns are."""
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
                reason += power_of_lines(self.seen)
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

    def at(self, flat: Array) -> None:
        """Recompute the elements with these flat indices into the result."""
        self.method, self.detects = "sampled", None
        shape = self.c.shape
        index = np.stack(np.unravel_index(flat, shape), axis=-1) if len(flat) else np.empty((0, len(shape)), int)
        for batch in np.unique(index[:, :-2], axis=0):
            here = index[(index[:, :-2] == batch).all(axis=1)]
            self._points(tuple(int(i) for i in batch), here[:, -2:])

    def batches(self, rng: np.random.Generator) -> None:
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

    def all(self) -> None:
        """Recompute every element."""
        for batch in np.ndindex(*self.batch):
            self._block(batch, *map(np.arange, self.c.shape[-2:]))

    def _sums(self, batch: tuple[int, ...], rng: np.random.Generator) -> bool:
        """Compare random sums; False if they carry no information about such a product."""
        a, b, c = self.a[batch], self.b[batch], self.c[batch]
        # A sum of booleans is an "or", and a number that saturates has any value beyond.
        if not Affine.sums_inform(self.product) or c.dtype.kind == "b" or self.model.saturates:
            return False
        affine = Affine.of(self.product, batch)
        if not self.model.exact:
            self._floating(batch, affine, rng)
            return True
        if not dtypes.info(c.dtype).inexact:
            self._integral(batch, 8 * c.dtype.itemsize, affine, rng)
            return True
        # 8-bit operands, summed in int32, rounded, and finished in the result's dtype or in float32.
        peaks = [freivalds.Side.survey(x, 1).largest for x in (a, b)]
        size = a.shape[-1] * peaks[0] * peaks[1]
        if affine.plain and (c.dtype.itemsize == 8 or (c.dtype.itemsize == 4 and size <= 2.0**24)):
            self._points(batch, freivalds.not_int32(c))
            if self.worst <= 1.0:
                self._integral(batch, 32, affine, rng)
            return True
        if size < 2.0**31:  # else they wrap before they become floats
            self._floating(batch, affine, rng)
            return True
        return False

    def _lines(self, batch: tuple[int, ...], rng: np.random.Generator) -> None:
        """Recompute random rows and columns: of each other row, the elements in those columns, and the reverse."""
        m, n = self.c.shape[-2:]
        if self.c.dtype.kind in "fcV":
            self._points(batch, freivalds.outliers(self.product, batch, self.c[batch]))
        rows, cols = (rng.permutation(size)[:LINES] for size in (m, n))
        self._block(batch, rows, np.arange(n))
        self._block(batch, np.arange(m), cols)
        self.seen = 1.0 - (1.0 - len(rows) / m) * (1.0 - len(cols) / n)

    def _integral(self, batch: tuple[int, ...], bits: int, affine: Affine, rng: np.random.Generator) -> None:
        a, b, c = self.a[batch], self.b[batch], self.c[batch]
        m, n = c.shape
        sketch = freivalds.exact_sketch(a, b, c, bits, rng, affine)
        self.sums += sketch.sums
        self._block(batch, sketch.wrong[:_ROWS], np.arange(n))
        self._points(batch, np.stack([rng.integers(m, size=_PAIRS), rng.integers(n, size=_PAIRS)], axis=-1))

    def _floating(self, batch: tuple[int, ...], affine: Affine, rng: np.random.Generator) -> None:
        a, b, c = self.a[batch], self.b[batch], self.c[batch]
        sketch = freivalds.sketch(a, b, c, self.model, prod(self.batch), rng, affine)
        self.sums += sketch.ratio.size
        self.unexamined += sketch.unexamined
        for cells in sketch.suspects:
            self._points(batch, cells)
        ratio = sketch.ratio.ravel()
        first = np.argpartition(-ratio, min(_SUSPICIOUS, ratio.size - 1))[:_SUSPICIOUS]
        first = first[np.argsort(-ratio[first], kind="stable")]
        pairs = first[(np.arange(len(first)) < _PAIRS) | (ratio[first] > 1.0)]
        tainted = np.flatnonzero(sketch.tainted)
        size = int(sketch.groups.sizes.max())
        sampled = rng.permutation(tainted)[: max(_PAIRS, nonfinite.budget(a.shape[1]) // size)]
        self.unseen += len(tainted) - len(sampled) + max(0, int(np.count_nonzero(ratio > 1.0)) - _SUSPICIOUS)
        rows, groups = np.unravel_index(np.union1d(pairs, sampled), sketch.ratio.shape)
        for group in np.unique(groups):
            self._block(batch, np.unique(rows[groups == group]), np.flatnonzero(sketch.groups.member == group))
        if self.unseen or self.unexamined or not sketch.detects < inf:
            self.detects = None
        elif self.detects is not None:
            self.detects = max(self.detects, sketch.detects)

    def _block(self, batch: tuple[int, ...], rows: Array, cols: Array) -> None:
        """Recompute all elements in these rows and columns."""
        k = min(max(1, self.a.shape[-1] * self.product.per_column), 65536)
        step = max(1, TILE // k)
        width = max(1, min(step, len(cols)))
        step = max(1, min(step, TILE // width))
        for left in range(0, len(cols), width):
            some = cols[left : left + width]
            for top in range(0, len(rows), step):
                these = rows[top : top + step]
                index = np.stack(np.broadcast_arrays(these[:, None], some), axis=-1)
                reference = self.product.block(batch, these, some)
                self._judge(batch, index, reference, self.c[batch][np.ix_(these, some)])

    def _points(self, batch: tuple[int, ...], cells: Array) -> None:
        """Recompute single elements (i, j)."""
        step = max(1, TILE // max(1, self.a.shape[-1] * self.product.per_column))
        for start in range(0, len(cells), step):
            index = cells[start : start + step]
            c = self.c[batch][index[:, 0], index[:, 1]]
            self._judge(batch, index[:, None, None], self.product.points(batch, index), c[:, None, None])

    def _judge(self, batch: tuple[int, ...], index: Array, reference: accuracy.Reference, c: Array) -> None:
        ratio = reference.ratio(c)
        self.checked += ratio.size
        self.unjudged += int(np.count_nonzero(reference.unjudged))
        if not ratio.size or ratio.max() <= self.worst:
            return
        element = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        self.worst = float(ratio[element])
        self.where = batch + tuple(int(i) for i in index[element])
        self.got, self.expected = (_scalar(np.asarray(x)[element]) for x in (c, reference.value))
        self.bound = float(np.broadcast_to(reference.bound, ratio.shape)[element])


def power_of_lines(seen: float) -> str:
    """The power of random rows and columns, as part of a reason; ``seen``: the chance that one wrong element has."""
    return (
        f"; a row or a column of which half is wrong would have been seen but for a chance of 2**-{LINES}"
        f", and a single wrong element with a chance of {seen:.2g}"
    )


def _scalar(x: Any) -> Any:
    """``x`` as a Python number."""
    return x.item() if x.dtype.kind in "biu" else accuracy.widen(x).item()


def _native(x: object, argument: str) -> Array:
    """An operand as an ndarray of a supported dtype."""
    arrays = arrays_of(x, argument)
    if isinstance(arrays, SpecArrays):
        raise without_data()
    array = arrays.view(x, argument) if arrays.device.type == "cpu" else arrays.to_host(x)
    array = np.asarray(array)
    try:
        dtypes.info(array.dtype)
    except DTypeError:
        raise dtypes.unsupported(argument, array.dtype) from None
    return array
