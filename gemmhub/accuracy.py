"""The accuracy contract: how far a correct result may be from the exact one.

``out = scale_out * activation(x)`` with ``x = alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias``. For every
element, with S = |alpha| |scale_a| |A| |B| |scale_b| + |beta| |C| + |bias| (a matrix of the result's shape)::

    |computed x - x|   <=  relative(k) * S + tiny
    |computed out - out| <= slope * (that) + evaluation * |x| + u_out * |out| + tiny_out

- ``relative(k)`` compounds the errors of rounding the operands (bf16x3, tf32 and bf16 only), of short partial sums
  (fp8 only) and ``gamma(K, u) = exp(K u) - 1``, which bounds any order of summation, with or without
  FMA, for K = k + 2 plus the operations of the epilogue and any length of k (:func:`gamma`). It bounds sums of the
  scaled products of blocks of k, too.
- ``u`` is the unit roundoff of the accumulator, enlarged where tensor cores add by aligning and truncating.
- ``slope`` bounds the derivative of the activation, ``evaluation`` the error of computing it. A gated activation
  multiplies two such errors by the other factor of its pair, and costs a rounding, as ``scale_out`` does.
- ``u_out`` is the rounding to a result dtype narrower than the accumulator. A result of float8 is compared with the
  exact one within the range of its dtype, as it saturates.
- ``tiny`` covers results below the normal range of the accumulator, ``tiny_out`` below that of the result. Scales
  and alpha may be multiplied in any order: a partial product that underflows counts with all factors above 1.

Integer products are exact (modulo the width of the result): their bound is 0. docs/accuracy.md derives every
constant and states the rules for NaN, infinities and overflow. The bound holds for all data; typical errors
grow like sqrt(k), not k.
"""

from __future__ import annotations

from cmath import isfinite
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np

from gemmhub._base import inner_products
from gemmhub._base.error_model import ErrorModel as ErrorModel
from gemmhub._base.error_model import error_model as error_model
from gemmhub._base.error_model import gamma as gamma
from gemmhub._base.inner_products import widen as widen
from gemmhub.dtypes import DType, as_dtype, compute_dtype, epilogue_dtype, info
from gemmhub.epilogues import EPILOGUES, NUMPY
from gemmhub.errors import ShapeError
from gemmhub.operands import BLOCK, OPERANDS
from gemmhub.problem import GemmProblem
from gemmhub.scale_layouts import spread

Array = Any

_REFERENCE_ROUNDOFF = 2.0**-53


def problem_model(problem: GemmProblem) -> ErrorModel:
    """Return the error model that a backend promises when it accepts ``problem``."""
    return error_model(problem.a.dtype, problem.b.dtype, problem.out.dtype, problem.compute_dtype, problem.precision)


def activate(x: Array, activation: str | None) -> Array:
    """Apply an activation function as gemmhub defines it, in the precision of ``x`` (..., columns), a float array.

    NaN stays NaN; at minus infinity all functions are 0. The result of a gated one has half as many columns.
    """
    if activation is None:
        return x
    if activation not in EPILOGUES:
        raise ValueError(f"activation {activation!r} is unknown; allowed: {', '.join(EPILOGUES)}, None")
    return EPILOGUES[activation](x)


def quantization_bound(x: Array, scale: Array, dtype: object) -> Array:
    """Return the bound of ``|x - q * scale|``, element for element, for what :func:`gemmhub.quantize` returns.

    It is ``max(u |x|, h scale) + 2**-22 |x| + 2**-126``: u is the unit roundoff of ``dtype`` (0 for int8), h half the
    distance of its smallest numbers (1/2 for int8). The second term covers the division, the rounding of the scale
    and a conversion by way of float32, the third an x that is flushed to zero. Where x is not finite, or beyond the
    largest number of ``dtype`` times the scale, where q saturates, there is no bound (inf).

    Parameters
    ----------
    x, scale : arrays, the scale as :func:`gemmhub.quantize` returns it.
    dtype : the dtype of q, or its name.

    Raises
    ------
    DTypeError : an unknown dtype.
    ShapeError : a scale that is neither one element nor one for each row, column or block of 128 of x.
    """
    facts = info(as_dtype(dtype, "dtype"))
    _check_scale(np.shape(scale), np.shape(x))
    half = facts.unit_roundoff * facts.smallest_normal if facts.inexact else 0.5
    with np.errstate(all="ignore"):
        size, factor = np.abs(widen(np.asarray(x))), spread(widen(np.asarray(scale)), np.shape(x))
        bound = np.maximum(facts.unit_roundoff * size, half * factor) + 2.0**-22 * size + 2.0**-126
        return np.where(size <= facts.largest * factor * (1 + 2.0**-22), bound, inf)


def _check_scale(scale: tuple[int, ...], x: tuple[int, ...]) -> None:
    """Raise ShapeError for a shape of scales that :func:`gemmhub.quantize` does not return for such an ``x``."""
    if all(n == 1 for n in scale):
        return
    stack = len(scale) == len(x) >= 2 and all(n in (1, size) for n, size in zip(scale[:-2], x[:-2]))
    if not (stack and all(n in (1, size, -(-size // BLOCK)) for n, size in zip(scale[-2:], x[-2:]))):
        rows, columns = (f"1, {-(-size // BLOCK)} or {size}" for size in x[-2:]) if len(x) > 1 else ("", "")
        allowed = f"one element, or (..., {rows}; {columns})" if rows else "one element"
        raise ShapeError("scale", f"shape {scale} for x of shape {x}", allowed, "pass that of gemmhub.quantize")


@dataclass(frozen=True)
class Reference:
    """A reference result: ``value`` in double precision (or exact integers), and its error ``bound``."""

    value: Array
    bound: Array
    """Allowed difference of a correct result, element for element; the reference's own error is included."""
    magnitude: Array
    """S over the finite operands."""
    model: ErrorModel
    clean: Array = True
    """Mask of the elements whose operands are all finite."""
    overflow: Array = False
    """Mask of the elements whose S exceeds the accumulator's range, so that some order of summation overflows."""
    activation: str | None = None
    upward: Array = np.True_
    """Mask of the elements that may overflow to +infinity: the positive terms alone exceed the accumulator's range."""
    downward: Array = np.True_
    """Mask of the elements that may overflow to -infinity."""
    loose: Array = False
    """Mask of the elements for which NaN is correct as well: an infinity is multiplied by a subnormal that may be read
    as 0, or an operand may become infinite when rounded.
    """
    pre: Reference | None = None
    """The argument of the activation, as ``pre_activation`` gets it; None without ``pre_dtype``."""
    amax: Reference | None = None
    """The largest magnitude of the activation's result, one element; None without ``amax``."""

    @property
    def unjudged(self) -> Array:
        """Mask of the finite elements whose value or bound is beyond float64: any result is accepted."""
        return self.clean & (np.isnan(self.value) | ~np.isfinite(self.bound))

    def ratio(self, computed: Array) -> Array:
        """Return |computed - exact| / bound, element for element; at most 1 is correct.

        The ratio is 0 where both are NaN or the same infinity, and where overflow excuses the element; it is inf
        where one is finite and the other is not, or where an exact result differs.
        """
        computed = np.asarray(computed)
        if self.model.exact and computed.dtype.kind in "biu":
            return np.where(computed == self.value, 0.0, np.inf)
        got, model = widen(computed), self.model
        with np.errstate(all="ignore"):
            value = np.clip(self.value, -model.largest, model.largest) if model.saturates else self.value
            error = np.abs(got - value)
            ratio = np.where(error == 0.0, 0.0, error / self.bound)
            wrong: Array = np.False_
            if model.saturates:  # the largest number stands for infinity, which is no result
                wrong, got = np.isinf(got), np.where(np.abs(got) == model.largest, got * inf, got)
            strange, nan = ~np.isfinite(got), np.isnan(got)
            if got.dtype.kind == "c":
                same = strange  # which part is NaN or infinite depends on the order of operations
                beyond = strange & (self.overflow | (np.abs(self.value) + self.bound >= model.largest))
            else:
                # An infinite term stays, or becomes NaN beside one of the other sign: it never changes its sign.
                same = (got == self.value) | (nan & (np.isnan(self.value) | self.overflow | self.loose))
                either = self.upward | self.downward | self.loose
                direction = np.where(nan, either, np.where(got > 0, self.upward, self.downward))
                beyond = np.isinf(got) & (np.sign(got) * self.value + self.bound >= model.largest)
                beyond = beyond | (strange & self.overflow & direction)
            if self.activation is not None:  # it may have turned a partial sum's -inf into 0
                same, beyond = same | self.overflow, beyond | self.overflow
            excused = np.where(self.clean, beyond | self.unjudged, same)
            ratio = np.where(np.isnan(ratio) | ~np.asarray(self.clean), np.inf, ratio)
            return np.where(wrong, np.inf, np.where(excused, 0.0, ratio))


Term = tuple[complex, Array, int]
"""An addend: its factor, its values, and the operations that it costs (a factor may be rounded and then multiplies)."""


def reference(
    a: Array,
    b: Array,
    *,
    model: ErrorModel,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    activation: str | None = None,
    out_dtype: DType | None = None,
    pre_dtype: DType | None = None,
    amax: bool = False,
    **operands: Array | None,
) -> Reference:
    """Compute the product in double precision, with the bound that ``model`` gives for it.

    ``a`` (..., m, k), ``b`` (..., k, n) and the operands that a call reads, by their names in
    :data:`gemmhub.operands.OPERANDS`: numpy arrays of any supported dtype. Addends broadcast to the product; scales
    have the shapes that :func:`gemmhub.matmul` takes. There is no bound for elements whose scales are not finite.
    Integer problems are computed in 64 bits, modulo ``out_dtype`` (int64 if None).

    With ``pre_dtype`` the result has :attr:`Reference.pre`, the argument of the activation in that dtype, and with
    ``amax`` it has :attr:`Reference.amax`.
    """
    arrays = {name: np.asarray(x) for name, x in operands.items() if x is not None}
    unknown = [name for name in arrays if name not in OPERANDS or OPERANDS[name].written]
    if unknown:
        raise TypeError(f"no operands that a product reads: {', '.join(unknown)}")
    if alpha == 0:  # as in BLAS, the product is then ignored, NaN or not
        a, b = np.zeros_like(a), np.zeros_like(b)
        arrays.pop("scale_a", None), arrays.pop("scale_b", None)
    terms: list[Term] = []
    for name, array in arrays.items():
        if OPERANDS[name].role == "term" and (name != "c" or beta != 0):
            terms.append((beta, array, 3) if name == "c" else (1, array, 1))
    parts = inner_products.scaled(a, b, arrays.get("scale_a"), arrays.get("scale_b"), BLOCK)
    scale, plain = arrays.get("scale_out"), activation is None and "scale_out" not in arrays
    wanted = np.dtype(np.int64) if out_dtype is None else out_dtype
    with np.errstate(all="ignore"):
        if not model.exact:
            x = _argument(a, b, parts, alpha, terms, model, plain)
        elif info(wanted).inexact:
            x = _exact_argument(parts, alpha, terms, compute_dtype(a.dtype, b.dtype, wanted), model, wanted)
        else:
            x = _integers(a, b, alpha, terms, wanted, model)
            result = replace(x, value=activate(x.value, activation))
            return replace(result, pre=None if pre_dtype is None else replace(x, value=x.value.astype(pre_dtype)))
        arithmetic = model.of_epilogue(compute_dtype(a.dtype, b.dtype, wanted), wanted) if model.exact else model
        result = x if activation is None else _activated(x, activation, arithmetic)
        pre = None if pre_dtype is None else _rounded(x, arithmetic.of_result(pre_dtype))
        largest = _largest(result, arithmetic.of_result(np.dtype(np.float32))) if amax else None
        if scale is not None:
            result = _scaled(result, float(widen(scale).reshape(())), arithmetic)
        return replace(_rounded(result, arithmetic), pre=pre, amax=largest)


def _argument(
    a: Array, b: Array, parts: list[tuple[Array, Array, inner_products.Factors]], alpha: complex, terms: list[Term],
    model: ErrorModel, plain: bool,
) -> Reference:  # fmt: skip
    """The argument of the activation, before it is rounded; ``plain`` if there is neither that nor a scale of it."""
    k = a.shape[-1]
    # NumPy 1.26 makes arrays of objects of ints beyond 64 bits.
    alpha, *scalars = (x if isinstance(x, complex) else float(x) for x in (alpha, *(term[0] for term in terms)))
    norm, sums = (sqrt(2.0), 2) if model.complex else (1.0, 1)
    scales = parts[0][2].count
    # A scalar may be rounded to the accumulator's dtype: one more operation than its multiplication.
    operations = scales + 2 * (alpha != 1) + sum(term[2] for term in terms)
    own = norm * gamma(sums * (2 * k + 4 + operations), _REFERENCE_ROUNDOFF)
    relative = model.relative(k, operations)
    scale = abs(alpha) if isfinite(alpha) else 1.0
    value: Array = 0.0
    size: Array = 0.0
    tiny: Array = 0.0
    reach: Array = 0.0
    clean: Array = True
    finite: Array = np.True_
    risky: Array = np.False_
    loose: Array = np.False_
    for left, right, factor in parts:
        sum_, sizes, lost, *masks = inner_products.products(left, right, model, k)
        grown = factor.grown(sizes, scale)
        value, size = value + sum_ * factor.value, size + sizes * factor.size
        tiny = tiny + lost * scale * factor.size + model.absolute(left.shape[-1], operations) * grown
        reach = reach + (grown if scales else sizes * max(1.0, scale))
        clean, risky, loose = clean & masks[0], risky | masks[1], loose | masks[2]
        loose = loose | factor.extreme(scale, model.underflow, model.accumulator_largest)
        finite = finite & factor.finite
    loose = loose | risky
    if not isfinite(alpha):
        # As in IEEE arithmetic; where the sign of the sum is uncertain, infinity and NaN are equally correct.
        risky = risky | (np.abs(value) <= (relative + own) * size + tiny)
        clean = np.zeros_like(size, np.bool_)
    value, size = value * alpha, size * scale
    for scalar, (_, x, _) in zip(scalars, terms):
        term = widen(x)
        value = value + scalar * term
        clean = clean & np.isfinite(term)
        if not isfinite(scalar):
            scalar, clean = 1.0, np.zeros_like(size, np.bool_)
        absolute = abs(scalar) * np.where(np.isfinite(term), np.abs(term), 0.0)
        size, reach = size + absolute, reach + absolute
    bound = (relative + own) * size + (1.0 + relative) * tiny
    overflow = risky | ~(reach * (1.0 + relative + own) < model.accumulator_largest)
    upward: Array = np.True_
    downward: Array = np.True_
    if plain and operations == 0:
        if not model.complex and np.any(overflow):  # the signs of complex infinities are not compared
            limit = model.accumulator_largest / (1.0 + relative + own)
            upward, downward = (side >= limit for side in inner_products.sides(a, b, model.input_largest))
        if np.isinf(size).any():
            far = inner_products.beyond_float64(a, b, relative + own)
            value, bound = (np.where(np.isinf(size), *pair) for pair in zip(far, (value, bound)))
    return Reference(value, np.where(finite, bound, inf), size, model, clean, overflow, None, upward, downward, loose)


def _exact_argument(
    parts: list[tuple[Array, Array, inner_products.Factors]], alpha: complex, terms: list[Term], accumulator: DType,
    model: ErrorModel, wanted: DType,
) -> Reference:  # fmt: skip
    """The argument of the activation where exact integer sums are rounded to the epilogue's dtype, for a result in the
    dtype ``wanted``.
    """
    epilogue = info(epilogue_dtype(accumulator, wanted))
    scale, scales = complex(alpha).real, parts[0][2].count
    # Each sum is rounded, scaled, and added to the others.
    operations = len(parts) + scales + 2 * (alpha != 1) + sum(term[2] for term in terms)
    value: Array = 0.0
    magnitude: Array = 0.0
    reach: Array = 0.0
    finite: Array = np.True_
    for left, right, factor in parts:
        product = np.matmul(left.astype(np.int64), right.astype(np.int64)).astype(accumulator).astype(np.float64)
        term = product * factor.value * scale
        value, magnitude = value + term, magnitude + np.abs(term)
        reach = reach + (factor.grown(np.abs(product), abs(scale)) if scales else 1.0)
        finite = finite & factor.finite
    for scalar, x, _ in terms:
        term = widen(x) * complex(scalar).real
        value, magnitude = value + term, magnitude + np.abs(term)
    roundings = gamma(operations, epilogue.unit_roundoff) + gamma(operations, _REFERENCE_ROUNDOFF)
    # Finite scalars and addends may overflow or underflow in an epilogue computed in the result's dtype.
    bound = roundings * magnitude + operations * epilogue.smallest_normal * reach
    overflow = ~(np.maximum(magnitude, reach) * (1.0 + roundings) < epilogue.largest)
    return Reference(
        value, np.where(finite, bound, inf), magnitude, model, np.isfinite(magnitude) | ~finite, overflow
    )  # fmt: skip


def _integers(a: Array, b: Array, alpha: complex, terms: list[Term], wanted: DType, model: ErrorModel) -> Reference:
    """An integer result before the activation: computed modulo 2**64, then reduced to its width."""
    if wanted == np.bool_:
        # A sum is an "or". alpha and beta are 0 or 1; with an alpha of 0, a and b are zeros by now.
        value = np.matmul(a.astype(np.bool_), b.astype(np.bool_))
        for _, x, _ in terms:
            value = value | x.astype(np.bool_)
        return Reference(value, np.zeros(value.shape), value.astype(np.float64), model)
    product = np.matmul(a.astype(np.int64), b.astype(np.int64)).astype(compute_dtype(a.dtype, b.dtype, wanted))
    parts = [product.astype(np.int64) * int(complex(alpha).real)]
    parts += [x.astype(np.int64) * int(complex(factor).real) for factor, x, _ in terms]
    value = sum(parts[1:], parts[0]).astype(wanted)  # it wraps before the activation sees its sign
    return Reference(value, np.zeros(value.shape), sum(np.abs(x.astype(np.float64)) for x in parts), model)


def _activated(x: Reference, activation: str, model: ErrorModel) -> Reference:
    """The result of an activation of ``x``, before it is rounded."""
    function, roundoff = EPILOGUES[activation], model.accumulate + _REFERENCE_ROUNDOFF
    # Libraries may use approximations of a 16-bit result's accuracy; of float8's and of integers' they use none.
    approximate = function.evaluation and not (model.saturates or model.exact)
    evaluation = function.evaluation * roundoff + (model.output if approximate else 0.0)
    masks = (np.broadcast_to(mask, np.shape(x.value)) for mask in (x.clean, x.overflow, x.loose))
    parts, errors, clean, overflow, loose = map(function.split, (x.value, x.bound, *masks))
    bound = function.bound(parts, errors, evaluation, roundoff, model.underflow)
    value = function(x.value)
    # At an infinite argument a finite limit that is rounded is compared with its bound, unless the argument may be NaN.
    limit = np.isinf(parts[0]) & np.isfinite(function.formula(parts[0], NUMPY)) & bool(function.evaluation)
    clean = (clean[0] | limit, *clean[1:])
    if function.degree > 1:  # the power of a finite argument may be beyond the accumulator
        beyond = np.isfinite(parts[0]) & ~(np.abs(value) + bound < model.accumulator_largest)
        overflow = (overflow[0] | beyond, *overflow[1:])
    uncertain = np.logical_or.reduce(overflow) | (limit & loose[0])
    if function.evaluation and not function.accurate:
        uncertain = uncertain | np.isneginf(parts[0])  # -inf times 0: the limit is 0, the computed value NaN
    if function.gate is not None:
        # An infinite factor is NaN where the other may be 0, and its sign is that of the other.
        first = function.formula(parts[0], NUMPY), parts[1]
        exact = function.bound(parts[:1], errors[:1], evaluation, roundoff, model.underflow), errors[1]
        for one, other, error in zip(first, first[::-1], exact[::-1]):
            uncertain = uncertain | (~np.isfinite(one) & ~(np.abs(other) > error))
    return Reference(
        value, bound, function.split(x.magnitude)[0], x.model, np.logical_and.reduce(clean), uncertain, activation,
        loose=np.logical_or.reduce(loose),
    )  # fmt: skip


def _scaled(x: Reference, scale: float, model: ErrorModel) -> Reference:
    """``x`` times the scale of the result, before it is rounded."""
    if not isfinite(scale):
        return replace(x, bound=np.full(np.shape(x.value), inf), clean=True)
    value, error = x.value * scale, x.bound * abs(scale)
    bound = error + (model.accumulate + _REFERENCE_ROUNDOFF) * (np.abs(value) + error) + model.underflow
    beyond = np.isfinite(x.value) & ~(np.abs(x.value) + x.bound < model.accumulator_largest)
    return replace(x, value=value, bound=bound, overflow=x.overflow | beyond, upward=np.True_, downward=np.True_)


def _rounded(x: Reference, model: ErrorModel) -> Reference:
    """``x`` rounded to the result of ``model``."""
    error, largest = x.bound, np.abs(x.value) + x.bound
    if model.saturates:  # what is beyond the range by more than its error is the largest number
        error = np.maximum(0.0, error - np.maximum(0.0, np.abs(x.value) - model.largest))
        largest = np.minimum(largest, model.largest)
    bound = error + model.output * largest + model.rounding_underflow
    bound = np.where(np.isinf(x.value), x.bound, bound)
    return replace(x, bound=np.where(np.isnan(bound), inf, bound), model=model)  # 0 times one that is beyond float64


def _largest(x: Reference, model: ErrorModel) -> Reference:
    """The largest magnitude of ``x`` as one element of the dtype of ``model``'s result.

    It is between the largest that some element has at least, and the largest that one may have. An element that may
    have overflowed may be NaN or infinite, and need not equal its value.
    """
    size, bound = np.abs(x.value), np.where(np.isnan(x.bound), inf, x.bound)
    excused = np.broadcast_to(x.overflow | np.asarray(x.loose), size.shape)
    clean = np.broadcast_to(x.clean, size.shape)
    unbounded = ~np.isfinite(bound) & (clean | np.isfinite(size)) | clean & np.isnan(size)
    strange = size[~clean & ~excused & ~np.isfinite(size)]  # NaN, or infinite, whatever the others are
    finite = np.isfinite(size)
    low = float(np.max(size - bound, initial=0.0, where=finite & ~excused & ~unbounded))
    high = float(np.max(size + bound, initial=0.0, where=finite & ~unbounded))
    value = np.max(strange, initial=0.0) if strange.size else low + (high - low) / 2
    error = inf if unbounded.any() else (high - low) / 2
    largest = Reference(np.float64(value), np.float64(error), size, model, not strange.size, excused.any())
    return _rounded(largest, model)
