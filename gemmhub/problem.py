"""One kind of GEMM, described completely and immutably.

``out = activation(alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias)`` with a (m, k), b (k, n), c and out (m, n),
each with the same leading batch dimensions (a stride of 0 where one is broadcast). A :class:`GemmProblem` holds
everything a backend may base a decision or a kernel on, and nothing of the data: two calls with equal
problems may use the same kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod

from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType, permits_tf32
from gemmhub.dtypes import compute_dtype as natural_compute_dtype
from gemmhub.layout import MatrixLayout


@dataclass(frozen=True)
class Operand:
    """One matrix (or stack of matrices) of a problem."""

    dtype: DType
    """Dtype of the elements."""
    layout: MatrixLayout
    """Rows, columns, batch dimensions and strides."""
    alignment: int = 16
    """Largest power of two, up to 256, that divides the address in bytes. Of CPU arrays: the itemsize, or 1 where
    elements are not aligned or strides are no multiples of the itemsize."""


@dataclass(frozen=True)
class Bias:
    """A vector added to every row (``axis`` "n", length n) or to every column (``axis`` "m", length m)."""

    dtype: DType
    """Dtype of the elements: the result's or the accumulator's."""
    axis: str
    """The dimension that it runs along: "n" or "m"."""
    stride: int = 1
    """Stride in elements."""


@dataclass(frozen=True)
class Scale:
    """float32 factors of an operand: for each row of a (``axis`` "m") or column of b ("n"), or one for all (None)."""

    axis: str | None
    stride: int = 1
    """Stride in elements."""

    def __str__(self) -> str:
        return {"m": "rows", "n": "columns", None: "one"}[self.axis]


def added(what: str) -> dict[str, str]:
    """Metadata of a field of :class:`GemmProblem` that came after contract 1. ``what``: its noun, for refusals.

    Its default, None, is neutral. Where it is set, gemmhub itself refuses for every backend whose
    :attr:`~gemmhub.backend.Backend.takes` does not name it.
    """
    return {"what": what}


@dataclass(frozen=True)
class GemmProblem:
    """A kind of GEMM. Hashable; build one with :func:`gemmhub._call.describe.describe` or by hand in tests."""

    m: int
    """Rows of a and of the result."""
    n: int
    """Columns of b and of the result."""
    k: int
    """Columns of a, rows of b."""
    a: Operand
    """The left operand, (..., m, k)."""
    b: Operand
    """The right operand, (..., k, n)."""
    out: Operand
    """The result, (..., m, n)."""
    compute_dtype: DType
    """Dtype of the accumulator and of the epilogue (which is computed in the result's dtype where integers make a
    floating one). On the CPU it is float64 (complex128) where alpha or beta is out of the range of float32's normal
    numbers, whatever the operands and the result are; on devices such scalars are refused."""
    batch: tuple[int, ...] = ()
    """Leading dimensions, broadcast; empty for matrices."""
    c: Operand | None = None
    """The addend; None where beta is 0, because it is never read then."""
    bias: Bias | None = None
    """The vector that is added to rows or columns; None where there is none."""
    alpha_is_one: bool = True
    """True: alpha is always 1. False: it may be any number, 1 too (a plan's alpha may come from the data)."""
    activation: str | None = None
    """"relu", "gelu" or "silu", applied last; None for none."""
    precision: str = "ieee"
    """Always "ieee" unless ``compute_dtype`` is float32 with a float32 operand, or complex64."""
    deterministic: bool = False
    """Whether results must be bitwise equal from run to run."""
    device: Device = CPU
    """Where all operands and the result are."""
    packed_by: str | None = None
    """The backend that packed b; only that one may run the problem, and its kernel gets the packed form."""
    scale_a: Scale | None = field(default=None, metadata=added("scales of operands"))
    """Factors of the rows of a. Set only where the result is real and floating, as is ``scale_b``."""
    scale_b: Scale | None = field(default=None, metadata=added("scales of operands"))
    """Factors of the columns of b."""

    @cached_property
    def demands(self) -> Mapping[str, str]:
        """The fields of :func:`added` that are set, and their nouns."""
        listed = {x.name: x.metadata["what"] for x in fields(self) if "what" in x.metadata}
        return {name: what for name, what in listed.items() if getattr(self, name) is not None}

    @cached_property
    def plain(self) -> bool:
        """Just ``a @ b``: alpha 1, no c, no bias, no activation, no demands."""
        without = self.c is None and self.bias is None and self.activation is None and not self.demands
        return self.alpha_is_one and without

    def with_rows(self, m: int) -> GemmProblem:
        """Return the problem with another m: more or fewer rows of a, out and c at the same strides."""

        def resized(x: Operand) -> Operand:
            return replace(x, layout=replace(x.layout, rows=m))

        c = None if self.c is None else resized(self.c)
        return replace(self, m=m, a=resized(self.a), out=resized(self.out), c=c)

    @property
    def permits_tf32(self) -> bool:
        """Whether float32 operands may be rounded to tf32."""
        return permits_tf32(self.precision)

    @property
    def per_row(self) -> bool:
        """Whether a vector has an element for each row of a matrix: the batch is then no matrix with more rows."""
        return any(x is not None and x.axis == "m" for x in (self.bias, self.scale_a))

    @property
    def batch_count(self) -> int:
        return prod(self.batch)

    @property
    def empty(self) -> bool:
        """Whether the result has no elements. With k == 0 it has: zeros and the epilogue."""
        return self.m == 0 or self.n == 0 or self.batch_count == 0

    @property
    def flops(self) -> float:
        """Multiplications and additions of the product; a complex one counts as four real ones."""
        real = 4.0 if self.compute_dtype.kind == "c" else 1.0
        return 2.0 * real * self.m * self.n * self.k * self.batch_count

    @property
    def nbytes(self) -> float:
        """Least memory traffic in bytes: each operand is read once, the result is written once."""
        a, b = (x.layout.distinct_elements * x.dtype.itemsize for x in (self.a, self.b))
        out = self.m * self.n * self.batch_count * self.out.dtype.itemsize
        c = self.c.layout.distinct_elements * self.c.dtype.itemsize if self.c else 0
        return float(a + b + c + out)

    @cached_property
    def key(self) -> str:
        """A stable name for tuning records: sizes, dtypes, orders, epilogue, accuracy; no addresses."""
        batch = "x".join(map(str, self.batch)) or "1"
        orders = "".join((x.layout.order or "strided")[0] for x in (self.a, self.b, self.out))
        broadcast = "".join("ab"[i] for i, x in enumerate((self.a, self.b)) if self.batch and x.layout.broadcast)
        epilogue = "+".join(
            part
            for part, used in (
                ("alpha", not self.alpha_is_one),
                ("c", self.c is not None),
                (f"bias_{self.bias.axis}" if self.bias else "", self.bias is not None),
                (self.activation or "", self.activation is not None),
            )
            if used
        )
        parts = [
            f"{self.m}x{self.n}x{self.k}",
            f"batch={batch}" + (f":{broadcast}" if broadcast else ""),
            f"{self.a.dtype.name},{self.b.dtype.name}->{self.out.dtype.name}",
            f"order={orders}",
            f"epilogue={epilogue or 'none'}",
            f"precision={self.precision}",
        ]
        natural = natural_compute_dtype(self.a.dtype, self.b.dtype, self.out.dtype)
        parts += [f"compute={self.compute_dtype.name}"] * (self.compute_dtype != natural)
        parts += ["deterministic"] * self.deterministic + ["packed"] * (self.packed_by is not None)
        parts += [f"{name}={getattr(self, name)}" for name in self.demands]
        return " ".join(parts)

    def __str__(self) -> str:
        return f"{self.key} on {self.device}"
