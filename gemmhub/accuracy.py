"""The accuracy contract: how far a correct result may be from the exact one.

``out = activation(x)`` with ``x = alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias``. For every element, with
S = |alpha| |scale_a| |A| |B| |scale_b| + |beta| |C| + |bias| (a matrix of the result's shape)::

    |computed x - x|   <=  relative(k) * S + tiny
    |computed out - out| <= slope * (that) + evaluation * |x| + u_out * |out| + tiny_out

- ``relative(k)`` compounds the errors of rounding the operands (bf16x3, tf32 and bf16 only), of short partial sums
  (fp8 only) and ``gamma(K, u) = exp(K u) - 1``, which bounds any order of summation, with or without
  FMA, for K = k + 2 plus the operations of the epilogue and any length of k (:func:`gamma`).
- ``u`` is the unit roundoff of the accumulator, enlarged where tensor cores add by aligning and truncating.
- ``slope`` bounds the derivative of the activation, ``evaluation`` the error of computing it.
- ``u_out`` is the rounding to a result dtype narrower than the accumulator.
- ``tiny`` covers results below the normal range of the accumulator, ``tiny_out`` below that of the result. Scales
  and alpha may be multiplied in any order: a partial product that underflows counts with all factors above 1.

Integer products are exact (modulo the width of the result): their bound is 0. docs/accuracy.md derives every
constant and states the rules for NaN, infinities and overflow. The bound holds for all data; typical errors
grow like sqrt(k), not k.
"""

from __future__ import annotations

from cmath import isfinite
from dataclasses import dataclass
from math import expm1, inf, sqrt
from typing import Any

import numpy as np

from gemmhub._base import inner_products
from gemmhub._base.inner_products import widen as widen
from gemmhub.dtypes import DType, compute_dtype, info
from gemmhub.epilogues import ACTIVATIONS
from gemmhub.problem import GemmProblem

Array = Any

_ROUNDOFF = {"float32": 2.0**-24, "complex64": 2.0**-24, "float64": 2.0**-53, "complex128": 2.0**-53}
_TENSOR_CORE = 2.5
"""Truncation doubles u; a block of b >= 4 products costs b + 1 truncations: 2 * (1 + 1/4)."""
_FP8_CHUNK = 128
"""Products that fp8 units may add up before the sum moves to a float32 accumulator."""
_FP8_ROUNDOFF = 1.25 * 2.0**-13
"""fp8 units keep 14 significant bits of a partial sum and truncate, in blocks as above."""
_GAMMA_LIMIT = 500.0
"""Greatest exponent in gamma: 1e217 times any product of two float32 numbers is beyond float32's range."""
_REFERENCE_ROUNDOFF = 2.0**-53


def gamma(count: int, roundoff: float) -> float:
    """Bound the relative error of ``count`` successive roundings: exp(count * roundoff) - 1.

    Every term of a sum of products passes through at most ``count`` roundings, so it is multiplied by at most
    ``count`` factors 1 + d with abs(d) <= ``roundoff`` (Higham, Accuracy and Stability of Numerical Algorithms,
    2nd ed., 3.1), whose product differs from 1 by at most (1 + roundoff)**count - 1 <= expm1(count * roundoff). This
    holds for every count. Higham's n u / (1 - n u), which is larger, holds only while n u < 1: that range ends at
    k = 2**24 - 3 for float32.
    """
    return expm1(min(count * roundoff, _GAMMA_LIMIT))


def _compound(*errors: float) -> float:
    """The relative error of factors (1 + e) multiplied."""
    total = 0.0
    for error in errors:
        total += error + total * error if error else 0.0
    return total


@dataclass(frozen=True)
class ErrorModel:
    """The constants of the bound for one combination of dtypes and precision."""

    input: float
    """Relative error of a product from rounding its two factors."""
    accumulate: float
    """Unit roundoff of the accumulator, with the allowance for tensor cores."""
    output: float
    """Unit roundoff of a narrower result dtype, else 0."""
    underflow: float
    """Absolute error of one underflowing operation: the smallest normal number, which permits flushing to zero."""
    output_underflow: float
    """Absolute error of an underflowing result."""
    largest: float
    """Largest finite result; beyond it an infinity is correct."""
    accumulator_largest: float = inf
    """Largest finite partial sum; where sums of absolute values exceed it, some order of summation may overflow."""
    input_underflow: float = 0.0
    """Absolute error of an operand that underflows when it is read or rounded."""
    input_smallest: float = 0.0
    """Least magnitude that an operand counts with in the bound: tensor cores align products by the exponents of their
    factors, and a subnormal half number has the exponent of the smallest normal one.
    """
    input_largest: float = inf
    """Largest operand that rounding cannot turn into an infinity."""
    partial: float = 0.0
    """Unit roundoff of sums of up to 128 products that precede the accumulator (fp8), else 0."""
    complex: bool = False
    exact: bool = False

    def relative(self, k: int, extra: int = 0) -> float:
        """The factor in front of S for inner dimension ``k`` and ``extra`` operations of the epilogue."""
        if self.exact:
            return 0.0
        # A component of a complex product is a real dot product of 2k terms. The 2-norm of the two sums of
        # absolute values, |re||re| + |im||im| and |re||im| + |im||re|, is at most sqrt(2) |a||b|.
        terms, norm = (2, sqrt(2.0)) if self.complex else (1, 1.0)
        partial = gamma(terms * min(k, _FP8_CHUNK), self.partial)
        return norm * _compound(self.input, partial, gamma(terms * (k + 2 + extra), self.accumulate))

    def absolute(self, k: int, extra: int = 0) -> float:
        """The absolute error of underflow in ``k`` multiplications, ``k`` additions and the epilogue; 0 when k is 0."""
        terms = 2.0 * sqrt(2.0) if self.complex else 1.0
        return terms * 2.0 * (k + extra) * self.underflow

    def reading(self, k: int) -> tuple[float, float]:
        """The errors from operands below the normal range: one relative to the other factor of each product, and an
        absolute one for each product of two such operands.
        """
        if self.input_smallest:
            aligned = gamma(k + 2, self.accumulate) * self.input_smallest
            return aligned, aligned * self.input_smallest
        lost = self.input_underflow * (2.0 if self.complex else 1.0)
        return lost, lost * lost

    @property
    def rounding_underflow(self) -> float:
        """``output_underflow`` as an error of the modulus of a complex number."""
        return self.output_underflow * (sqrt(2.0) if self.complex else 1.0)


def error_model(a: DType, b: DType, out: DType, compute: DType, precision: str = "ieee") -> ErrorModel:
    """Return the error model for operands ``a`` and ``b``, result ``out``, accumulated in ``compute``.

    ``precision`` matters only where an operand is float32 or complex64 and ``compute`` is one of them.
    """
    infos = info(a), info(b)
    result = info(out)
    if compute.name not in _ROUNDOFF:
        # Exact integers; only a conversion of the result to a float rounds.
        return ErrorModel(0.0, 0.0, result.unit_roundoff, 0.0, 0.0, result.largest, exact=True)
    roundoff = _ROUNDOFF[compute.name]
    single = compute.name in ("float32", "complex64")
    rounds = single and precision != "ieee" and any(x.name in ("float32", "complex64") for x in infos)
    # tf32 operands may be truncated to 11 significant bits, bf16 ones are rounded to 8. For bf16x3 each factor loses
    # 2**-17 as a sum of two bfloat16 numbers, and the product that is left out, at most 2**-16, counts for both.
    u = {"bf16x3": 2.0**-16, "tf32": 2.0**-10, "bf16": 2.0**-8}[precision] if rounds else 0.0
    tensor_core = single and (rounds or all(x.itemsize <= 2 for x in infos))
    narrower = result.unit_roundoff > roundoff
    return ErrorModel(
        input=_compound(u, u),
        accumulate=roundoff * (_TENSOR_CORE if tensor_core else 1.0),
        output=result.unit_roundoff if narrower else 0.0,
        underflow=info(compute).smallest_normal,
        output_underflow=result.smallest_normal * result.unit_roundoff,
        largest=result.largest,
        accumulator_largest=info(compute).largest,
        # The bfloat16 instructions of x86 read subnormal operands as 0.
        input_underflow=2.0**-126 if single and (rounds or any(x.name == "bfloat16" for x in infos)) else 0.0,
        input_smallest=2.0**-14 if tensor_core and all(x.name == "float16" for x in infos) else 0.0,
        input_largest=2.0**128 * (1.0 - 2.0**-8) if rounds else inf,
        partial=_FP8_ROUNDOFF if all(x.kind == "float8" for x in infos) and single else 0.0,
        complex=compute.kind == "c",
    )


def problem_model(problem: GemmProblem) -> ErrorModel:
    """Return the error model that a backend promises when it accepts ``problem``."""
    return error_model(problem.a.dtype, problem.b.dtype, problem.out.dtype, problem.compute_dtype, problem.precision)


def activate(x: Array, activation: str | None) -> Array:
    """Apply an activation function as gemmhub defines it, in the precision of ``x`` (a float array).

    gelu is the tanh form of Hendrycks and Gimpel (arXiv:1606.08415), silu is x / (1 + exp(-x)). NaN stays
    NaN; at minus infinity all three are 0.
    """
    if activation is None:
        return x
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is unknown; allowed: {', '.join(ACTIVATIONS)}, None")
    return ACTIVATIONS[activation].formula(x)


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
            error = np.abs(got - self.value)
            ratio = np.where(error == 0.0, 0.0, error / self.bound)
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
            return np.where(excused, 0.0, ratio)


def reference(
    a: Array,
    b: Array,
    *,
    model: ErrorModel,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: str | None = None,
    out_dtype: DType | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
) -> Reference:
    """Compute the product in double precision, with the bound that ``model`` gives for it.

    ``a`` (..., m, k), ``b`` (..., k, n), ``c`` and ``bias`` broadcastable to the result: numpy arrays of
    any supported dtype. Integer problems are computed in 64 bits, modulo ``out_dtype`` (int64 if None).
    ``scale_a`` and ``scale_b`` are vectors; there is no bound for elements whose scales are not finite.
    """
    if alpha == 0:  # as in BLAS, the product is then ignored, NaN or not
        a, b, scale_a, scale_b = np.zeros_like(a), np.zeros_like(b), None, None
    scales = inner_products.Scales(scale_a, scale_b)
    if model.exact:
        with np.errstate(all="ignore"):
            return _exact_reference(a, b, alpha, beta, c, bias, activation, out_dtype, model, scales)
    k = a.shape[-1]
    # NumPy 1.26 makes arrays of objects of ints beyond 64 bits.
    alpha, beta = (x if isinstance(x, complex) else float(x) for x in (alpha, beta))
    with np.errstate(all="ignore"):
        value, size, lost, clean, risky, loose = inner_products.products(a, b, model)
        loose = loose | risky
        norm = sqrt(2.0) if model.complex else 1.0
        extra = 0
        # A scalar may be rounded to the accumulator's dtype: one more operation than its multiplication.
        scale = abs(alpha)
        if not isfinite(alpha):
            # As in IEEE arithmetic; where the sign of the sum is uncertain, infinity and NaN are equally correct.
            relative = model.relative(k) + norm * gamma((2 if model.complex else 1) * (2 * k + 4), _REFERENCE_ROUNDOFF)
            risky = risky | (np.abs(value) <= relative * size + lost + model.absolute(k))
            scale, clean = 1.0, np.zeros_like(size, np.bool_)
        grown = scales.grown(size, scale)
        overflow = np.maximum(size * max(1.0, scale), grown) if scales.count else size * max(1.0, scale)
        loose = loose | scales.extreme(scale, model.underflow, model.accumulator_largest)
        value, size, lost = value * alpha * scales.factor, size * scale * scales.size, lost * scale * scales.size
        extra += scales.count
        if alpha != 1:
            extra += 2
        addends = [] if c is None or beta == 0 else [(beta, widen(c), 3)]
        addends += [] if bias is None else [(1.0, widen(bias), 1)]
        for factor, term, operations in addends:
            value = value + factor * term
            clean = clean & np.isfinite(term)
            if not isfinite(factor):
                factor, clean = 1.0, np.zeros_like(size, np.bool_)
            absolute = abs(factor) * np.where(np.isfinite(term), np.abs(term), 0.0)
            size, overflow = size + absolute, overflow + absolute
            extra += operations
        own = norm * gamma((2 if model.complex else 1) * (2 * k + 4 + extra), _REFERENCE_ROUNDOFF)
        relative = model.relative(k, extra)
        tiny = lost + model.absolute(k, extra) * grown
        bound = (relative + own) * size + (1.0 + relative) * tiny
        overflow = risky | ~(overflow * (1.0 + relative + own) < model.accumulator_largest)
        upward: Array = np.True_
        downward: Array = np.True_
        plain = extra == 0 and activation is None
        if plain and not model.complex and np.any(overflow):  # the signs of complex infinities are not compared
            limit = model.accumulator_largest / (1.0 + relative + own)
            upward, downward = (side >= limit for side in inner_products.sides(a, b, model.input_largest))
        if activation is not None:
            function = ACTIVATIONS[activation]
            per_argument = function.evaluation * (model.accumulate + _REFERENCE_ROUNDOFF)
            # Where the result is narrower, libraries may use approximations of that accuracy.
            per_argument += model.output if function.evaluation else 0.0
            bound = function.slope * bound + per_argument * (np.abs(value) + bound) + model.underflow
            if function.evaluation:
                overflow = overflow | np.isneginf(value)  # -inf times 0: the limit is 0, the computed value NaN
            value = activate(value, activation)
        bound = bound + model.output * (np.abs(value) + bound) + model.rounding_underflow
        if plain and np.isinf(size).any():
            far = inner_products.beyond_float64(a, b, relative + own, model.output)
            value, bound = (np.where(np.isinf(size), *pair) for pair in zip(far, (value, bound)))
        bound = np.where(np.isnan(bound), inf, bound)  # 0 times a bound that is beyond float64
    return Reference(value, bound, size, model, clean, overflow, activation, upward, downward, loose)


def _exact_reference(
    a: Array,
    b: Array,
    alpha: complex,
    beta: complex,
    c: Array | None,
    bias: Array | None,
    activation: str | None,
    out_dtype: DType | None,
    model: ErrorModel,
    scales: inner_products.Scales,
) -> Reference:
    """Compute integer products modulo 2**64, then reduce them to the width of the accumulator and the result."""
    wanted = np.dtype(np.int64) if out_dtype is None else out_dtype
    if wanted == np.bool_:
        # A sum is an "or". alpha and beta are 0 or 1; with an alpha of 0, a and b are zeros by now.
        value = np.matmul(a.astype(np.bool_), b.astype(np.bool_))
        for term in (c if beta != 0 else None, bias):
            value = value if term is None else value | term.astype(np.bool_)
        return Reference(value, np.zeros(value.shape), value.astype(np.float64), model)
    product = np.matmul(a.astype(np.int64), b.astype(np.int64))
    product = product.astype(compute_dtype(a.dtype, b.dtype, wanted))
    rounded = wanted.kind == "f"
    # A floating result takes floating alpha, beta and bias; an integer one wraps throughout.
    working = np.dtype(np.float64 if rounded else np.int64)
    scalars = [x.real if rounded else int(x.real) for x in (complex(alpha), complex(beta))]
    grown = scales.grown(np.abs(product.astype(np.float64)), abs(scalars[0])) if scales.count else 1.0
    terms = [product.astype(working) * scalars[0]]
    if scales.count:
        terms[0] = terms[0] * scales.factor
    operations = 1 + 2 * (alpha != 1) + scales.count
    if c is not None and beta != 0:
        terms.append(c.astype(working) * scalars[1])
        operations += 3
    if bias is not None:
        terms.append(np.broadcast_to(bias.astype(working), product.shape))
        operations += 1
    value = sum(terms[1:], terms[0])
    magnitude = sum(np.abs(term.astype(np.float64)) for term in terms)
    if not rounded:
        # The result wraps before the activation sees its sign.
        return Reference(activate(value.astype(wanted), activation), np.zeros(value.shape), magnitude, model)
    roundings = gamma(operations, model.output) + gamma(operations, _REFERENCE_ROUNDOFF)
    # Finite scalars and addends may overflow or underflow in an epilogue computed in the result's dtype.
    bound = roundings * magnitude + operations * info(wanted).smallest_normal * grown
    overflow = ~(np.maximum(magnitude, grown) * (1.0 + roundings) < model.largest)
    if activation is not None:
        function = ACTIVATIONS[activation]
        per_argument = function.evaluation * (model.output + _REFERENCE_ROUNDOFF)
        bound = function.slope * bound + per_argument * (np.abs(value) + bound)
        value = activate(value, activation)
    clean = np.isfinite(magnitude) | ~scales.finite  # the bound of an infinite factor is infinite, too
    return Reference(value, bound, magnitude, model, clean, overflow, activation)
