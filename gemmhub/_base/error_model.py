"""The constants of the bound of gemmhub.accuracy, by dtypes and precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import expm1, inf, sqrt

from gemmhub.dtypes import DType, epilogue_dtype, info, saturates

_ROUNDOFF = {"float32": 2.0**-24, "complex64": 2.0**-24, "float64": 2.0**-53, "complex128": 2.0**-53}
_TENSOR_CORE = 2.5
"""Truncation doubles u; a block of b >= 4 products costs b + 1 truncations: 2 * (1 + 1/4)."""
_FP8_CHUNK = 128
"""Products that fp8 units may add up before the sum moves to a float32 accumulator."""
_FP8_ROUNDOFF = 1.25 * 2.0**-13
"""fp8 units keep 14 significant bits of a partial sum and truncate, in blocks as above."""
_GAMMA_LIMIT = 500.0
"""Greatest exponent in gamma: 1e217 times any product of two float32 numbers is beyond float32's range."""


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
    """Largest finite result; beyond it an infinity is correct, and itself where results saturate."""
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
    saturates: bool = False
    """Whether results beyond :attr:`largest` become it, with their sign (float8)."""

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

    def of_result(self, dtype: DType) -> ErrorModel:
        """The same arithmetic with results of another dtype."""
        result = info(dtype)
        return replace(
            self,
            output=_output(dtype, self.accumulate),
            output_underflow=result.smallest_normal * result.unit_roundoff,
            largest=result.largest,
            saturates=saturates(dtype),
        )

    def of_epilogue(self, compute: DType, dtype: DType) -> ErrorModel:
        """The arithmetic of the epilogue of sums in ``compute`` whose result has this dtype: of exact sums, that of the
        dtype that they are converted to.
        """
        if not self.exact:
            return self
        wide = epilogue_dtype(compute, dtype)
        facts = info(wide)
        epilogue = replace(
            self, accumulate=facts.unit_roundoff, output=0.0, output_underflow=0.0, underflow=facts.smallest_normal,
            accumulator_largest=facts.largest,
        )  # fmt: skip
        return epilogue if wide == dtype else epilogue.of_result(dtype)

    @property
    def epilogue(self) -> float:
        """The unit roundoff of the epilogue's operations: of exact sums that of a result of 32 bits or more, else
        float32's.
        """
        return min(self.output, _ROUNDOFF["float32"]) if self.exact else self.accumulate

    @property
    def rounding_underflow(self) -> float:
        """``output_underflow`` as an error of the modulus of a complex number."""
        return self.output_underflow * (sqrt(2.0) if self.complex else 1.0)


def _output(dtype: DType, accumulate: float) -> float:
    """The relative error of a result that is narrower than its accumulator, else 0."""
    roundoff = info(dtype).unit_roundoff
    return roundoff if roundoff > accumulate else 0.0


def error_model(a: DType, b: DType, out: DType, compute: DType, precision: str = "ieee") -> ErrorModel:
    """Return the error model for operands ``a`` and ``b``, result ``out``, accumulated in ``compute``.

    ``precision`` matters only where an operand is float32 or complex64 and ``compute`` is one of them.
    """
    infos = info(a), info(b)
    result = info(out)
    if compute.name not in _ROUNDOFF:
        # Exact integers; only a conversion of the result to a float rounds.
        narrow = result.smallest_normal * result.unit_roundoff if result.unit_roundoff > _ROUNDOFF["float32"] else 0.0
        return ErrorModel(0.0, 0.0, result.unit_roundoff, 0.0, narrow, result.largest, exact=True)
    roundoff = _ROUNDOFF[compute.name]
    single = compute.name in ("float32", "complex64")
    rounds = single and precision != "ieee" and any(x.name in ("float32", "complex64") for x in infos)
    # tf32 operands may be truncated to 11 significant bits, bf16 ones are rounded to 8. For bf16x3 each factor loses
    # 2**-17 as a sum of two bfloat16 numbers, and the product that is left out, at most 2**-16, counts for both.
    u = {"bf16x3": 2.0**-16, "tf32": 2.0**-10, "bf16": 2.0**-8}[precision] if rounds else 0.0
    tensor_core = single and (rounds or all(x.itemsize <= 2 for x in infos))
    return ErrorModel(
        input=_compound(u, u),
        accumulate=roundoff * (_TENSOR_CORE if tensor_core else 1.0),
        output=_output(out, roundoff),
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
        saturates=saturates(out),
    )
