"""The description of a GEMM, complete and immutable.

``out = scale_out * activation(alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias)`` with a (m, k), b (k, n), c and
out (m, n), each with the same leading batch dimensions (a stride of 0 where one is broadcast). A gated activation
(:mod:`gemmhub.epilogues`) computes one column of out from two of the product: out is (m, n / 2).

A grouped problem is many products in one, whose sizes offsets on the device define: see :class:`Groups`.

A :class:`GemmProblem` holds everything a backend may base a decision or a kernel on, and nothing of the data: two calls
with equal problems may use the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub._base.promises import pins_rows
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType, permits_tf32
from gemmhub.dtypes import compute_dtype as natural_compute_dtype
from gemmhub.dtypes import epilogue_dtype as natural_epilogue_dtype
from gemmhub.epilogues import columns
from gemmhub.layout import MatrixLayout
from gemmhub.operands import NO_OPERANDS, Described, Operands
from gemmhub.operands import Bias as Bias
from gemmhub.operands import Operand as Operand
from gemmhub.operands import Scale as Scale

_CANONICAL = 1024
"""Rows, columns and inner dimension of :attr:`GemmProblem.canonical`."""


@dataclass(frozen=True)
class Groups:
    """The division of one dimension of a product among groups, by offsets that are on the device.

    m, n and k of the problem are those of the whole arrays, the divided one too: its part beyond the last end belongs
    to no group. The operand that is not divided has a matrix for each group, as the only dimension of its layout's
    batch; where k is divided the result has them. :attr:`GemmProblem.batch` is empty. A :class:`Bias` or
    :class:`Scale` of each group has the stride from group to group as its ``batch_strides``; others are those of the
    whole arrays.

    A kernel gets one more operand, the address ``offsets`` of ``count`` dense elements of int32: cumulative ends,
    without a leading zero. Group i has the rows, columns or terms of sums from the end before its own to its own. An
    end that is below the one before it, or below 0, counts as equal to that, and one beyond the extent as the extent:
    offsets on a device are not checked, and no offsets make a kernel read or write outside of its operands. Rows or
    columns of the result beyond the last end are written as zeros, without the epilogue; those of operands enter no
    result, NaN or not. A group without terms, where k is divided, has the epilogue of zeros.
    """

    count: int
    """Number of groups, 1 or more."""
    divides: str
    """The divided dimension: "m" (a (m, k), b (count, k, n), out (m, n)), "k" (a (m, k), b (k, n), out (count, m, n))
    or "n" (a (count, m, k), b (k, n), out (m, n))."""

    def batch(self, name: str) -> tuple[int, ...]:
        """The batch dimensions of "a", "b" or "out"."""
        whole = {"m": "b", "n": "a", "k": "out"}[self.divides]
        return (self.count,) if name == whole else ()


@dataclass(frozen=True)
class GemmProblem:
    """A description of a GEMM. Hashable; build one with :func:`gemmhub._call.describe.describe` or by hand."""

    m: int
    """Rows of a and of the result."""
    n: int
    """Columns of b, and of the product; see :attr:`out_columns`."""
    k: int
    """Columns of a, rows of b."""
    a: Operand
    """The left operand, (..., m, k)."""
    b: Operand
    """The right operand, (..., k, n)."""
    out: Operand
    """The result, (..., m, out_columns)."""
    compute_dtype: DType
    """Dtype of the accumulator; see :attr:`epilogue_dtype`. On the CPU it is float64 (complex128) where alpha or beta
    is out of the range of float32's normal numbers, whatever the operands and the result are; on devices such scalars
    are refused."""
    batch: tuple[int, ...] = ()
    """Leading dimensions, broadcast; empty for matrices."""
    operands: Operands = NO_OPERANDS
    """The operands beside a, b and out, by name: rows of :data:`gemmhub.operands.OPERANDS`. There is no c where beta is
    0, because it is never read then. See :meth:`having`."""
    alpha_is_one: bool = True
    """True: alpha is always 1. False: it may be any number, 1 too (a plan's alpha may come from the data)."""
    activation: str | None = None
    """Name of the epilogue in :data:`gemmhub.epilogues.EPILOGUES` that is applied last; None for none."""
    precision: str = "ieee"
    """Always "ieee" unless ``compute_dtype`` is float32 with a float32 operand, or complex64."""
    reproducible: str | None = None
    """The promise on the bits of the result: "run", equal for equal calls; "batch", a row's bits depend on nothing but
    that row and b; the name of an order of sums (:attr:`gemmhub.backend.Candidate.order`), the same in that order; None
    for no promise."""
    device: Device = CPU
    """Where all operands and the result are."""
    symmetric: bool = False
    """The caller's promise that the product (m = n), and c, are symmetric: the lower triangle may be computed alone,
    and the result must be symmetric bit for bit."""
    packed_by: str | None = None
    """The backend that packed b; only that one may run the problem, and its kernel gets the packed form."""
    groups: Groups | None = None
    """The groups of a grouped product on a device; None for a plain one, and for a stack."""

    @property
    def c(self) -> Operand | None:
        """The addend."""
        c: Operand | None = self.operands.get("c")
        return c

    @property
    def bias(self) -> Bias | None:
        """The vector that is added to rows or columns."""
        bias: Bias | None = self.operands.get("bias")
        return bias

    def having(self, **operands: Described | None) -> GemmProblem:
        """Return the problem with these operands instead of its own of the same names; None removes one."""
        return replace(self, operands=Operands({**self.operands, **operands}))

    @property
    def matrices(self) -> dict[str, Operand]:
        """The :attr:`operands` that are matrices of the product's size, by name."""
        return {name: x for name, x in self.operands.items() if isinstance(x, Operand)}

    @property
    def out_columns(self) -> int:
        """Columns of the result: n, or half of them where the activation is gated."""
        return columns(self.activation, self.n)

    @property
    def pinned(self) -> bool:
        """Whether the bits of a row must depend on nothing but that row and b: not on m, its position, or the batch.

        Never where there are no sums: without elements, or with a k of 0.
        """
        return pins_rows(self.reproducible) and self.k > 0 and not self.empty

    @property
    def canonical(self) -> GemmProblem:
        """The product of 1024 x 1024 x 1024 of these dtypes, precision and device, which is asked about for all that
        are pinned: dense, without batch, groups and epilogue."""
        dense = MatrixLayout.contiguous(_CANONICAL, _CANONICAL)
        a, b, out = (replace(x, layout=dense, alignment=MAX_ALIGNMENT) for x in (self.a, self.b, self.out))
        return replace(
            self, m=_CANONICAL, n=_CANONICAL, k=_CANONICAL, a=a, b=b, out=out, batch=(), operands=NO_OPERANDS,
            alpha_is_one=True, activation=None, packed_by=None, groups=None,
        )  # fmt: skip

    @cached_property
    def plain(self) -> bool:
        """Just ``a @ b``: alpha 1, no other operands, no activation, no groups."""
        return self.alpha_is_one and not self.operands and self.activation is None and self.groups is None

    def with_rows(self, m: int) -> GemmProblem:
        """Return the problem with another m: more or fewer rows of a, out and c at the same strides."""

        def resized(x: Operand) -> Operand:
            return replace(x, layout=replace(x.layout, rows=m))

        others = {name: resized(x) for name, x in self.matrices.items()}
        return replace(self, m=m, a=resized(self.a), out=resized(self.out)).having(**others)

    @property
    def permits_tf32(self) -> bool:
        """Whether float32 operands may be rounded to tf32."""
        return permits_tf32(self.precision)

    @property
    def per_row(self) -> bool:
        """Whether a batch cannot be one matrix of more rows, because an operand differs from row to row of a matrix."""
        return any(x.per_row for x in self.operands.values())

    @property
    def batch_count(self) -> int:
        return prod(self.batch)

    @property
    def empty(self) -> bool:
        """Whether the result has no elements. With k == 0 it has: zeros and the epilogue."""
        return self.m == 0 or self.n == 0 or self.batch_count == 0

    @property
    def flops(self) -> float:
        """Multiplications and additions of the product; a complex one counts as four real ones. Groups count as if
        they filled the dimension that they divide."""
        real = 4.0 if self.compute_dtype.kind == "c" else 1.0
        return 2.0 * real * self.m * self.n * self.k * self.batch_count

    @property
    def nbytes(self) -> float:
        """Least memory traffic in bytes: each operand is read once, the result is written once."""
        a, b = (x.layout.distinct_elements * x.dtype.itemsize for x in (self.a, self.b))
        out = self.m * self.out_columns * self.batch_count * self.out.dtype.itemsize
        out *= self.groups.count if self.groups is not None and self.groups.divides == "k" else 1
        others = sum(x.layout.distinct_elements * x.dtype.itemsize for x in self.matrices.values())
        return float(a + b + out + others)

    @property
    def epilogue_dtype(self) -> DType:
        """The dtype that the epilogue is computed in: :func:`gemmhub.dtypes.epilogue_dtype`."""
        return natural_epilogue_dtype(self.compute_dtype, self.out.dtype)

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
                (f"bias_{self.bias.form.replace(' ', '_')}" if self.bias else "", self.bias is not None),
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
        parts += [f"reproducible={self.reproducible}"] * (self.reproducible is not None)
        parts += ["symmetric"] * self.symmetric
        parts += ["packed"] * (self.packed_by is not None)
        parts += [f"{name}={x.note}" for name, x in self.operands.items() if name not in ("c", "bias")]
        parts += [] if self.groups is None else [f"groups={self.groups.count}:{self.groups.divides}"]
        return " ".join(parts)

    def __str__(self) -> str:
        return f"{self.key} on {self.device}"
