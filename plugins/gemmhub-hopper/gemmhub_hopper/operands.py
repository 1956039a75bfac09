"""a and b as the kernel reads them: where they lie, or in a copy that a pre-pass makes.

TMA reads operands at multiples of 16 bytes with rows at multiples of 16 bytes, and tensor cores take tf32 operands only
with neighbours along k. Any other operand is copied beforehand; float32 operands that keep float32's accuracy are split
into planes, whatever their strides. Copies are dense, with rows at multiples of 16 bytes. The kernel's a needs no copy
where TMA takes it: through registers it may have neighbours along m, and is split there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.config import Form
from gemmhub_hopper.tensor_map import Stored

TMA_ALIGNMENT = 16
"""Bytes that addresses and strides are multiples of, but for those between neighbours."""
_FURTHEST = 2**40
"""Bytes: strides of tensor maps are smaller."""


@dataclass(frozen=True)
class Reading:
    """An operand in the kernel's words."""

    name: str
    """The problem's: "a" or "b"."""
    rows: int
    """Along m (n)."""
    k: int
    count: int
    """Matrices that there are."""
    step: int
    """From one matrix of the batch to the next, in matrices; 0 where one serves all."""
    strides: tuple[int, int, int]
    """Of the operand, in elements: along m (n), k and the batch. Of one that is packed: those of its plain copy."""
    size: int
    """Bytes of an element."""
    alignment: int
    """Bytes that divide its address."""
    mn_major: bool
    """Neighbours along m (not k) are neighbours in memory, in the copy if there is one."""
    direct: Stored | None
    """As TMA reads it; None where a copy is read."""
    why: str = ""
    """What the copy is for."""
    packed: bool = False
    """It was prepared by pack()."""

    @property
    def elements(self) -> int:
        return self.rows * self.k * self.count

    def copy(self, form: Form, k: int) -> Stored:
        """How a copy of ``k`` elements along k lies in memory: planes are matrices of their own."""
        inner, outer = (self.rows, k) if self.mn_major else (k, self.rows)
        ld = _up(inner * form.input_bytes)
        return Stored(inner, outer, form.planes * self.count, ld, ld * outer)

    def stored(self, form: Form, k: int) -> Stored:
        """What the tensor map describes; copies are of ``k`` elements along k."""
        return self.direct or self.copy(form, k)

    def copy_bytes(self, form: Form, k: int) -> int:
        """Of a copy of ``k`` elements along k; 0 where none is made."""
        if self.direct is not None:
            return 0
        made = self.copy(form, k)
        return made.count * made.stride


def _up(nbytes: int) -> int:
    return -(-nbytes // TMA_ALIGNMENT) * TMA_ALIGNMENT


def stored(layout: MatrixLayout, order: str, size: int, count: int, stride: int) -> tuple[int, Stored]:
    """(leading dimension in elements, the stack as a tensor map says it).

    A single row has no next one: the distance to it is chosen to suit TMA, and so is that of a single matrix.
    """
    inner, outer = (layout.cols, layout.rows) if order == "row" else (layout.rows, layout.cols)
    elements = layout.leading_dimension(order)
    ld = elements * size if outer > 1 else _up(inner * size)
    return elements, Stored(inner, outer, count, ld, stride * size if count > 1 else max(16, ld * outer))


def reading(problem: GemmProblem, name: str, operand: Operand, count: int, stride: int, form: Form) -> Reading:
    """Operand ``name`` of a lowered problem with ``count`` matrices, ``stride`` elements apart."""
    layout, size = operand.layout, operand.dtype.itemsize
    rows, along, deep = (
        (layout.rows, layout.row_stride, layout.col_stride)
        if name == "a"
        else (layout.cols, layout.col_stride, layout.row_stride)
    )
    shared = count == 1 or stride == 0
    if shared:
        count, stride = 1, 0
    step = 0 if shared else 1
    if problem.k == 0:
        direct = Stored(16 // size, min(rows, 8), 1, 16, 16 * 8)
        return Reading(name, rows, 1, 1, 0, (0, 0, 0), size, 16, False, direct)
    if name == "b" and problem.packed_by is not None:
        return _packed(rows, problem.k, size, form)
    strides = (along, deep, stride)
    if form.input == "split":
        # A side of one element has no neighbours.
        mn_major = problem.k == 1 or (rows > 1 and abs(along) < abs(deep))
        why = "split into three planes of bfloat16, which the tensor cores multiply"
        return Reading(name, rows, problem.k, count, step, strides, size, operand.alignment, mn_major, None, why)
    orders = [order for order in _orders(name) if layout.stored(order)]
    if form.input == "tf32":
        orders = [order for order in orders if order == _orders(name)[0]]
    why = ""
    for order in orders:
        _, direct = stored(layout, order, size, count, stride)
        obstacle = _obstacle(operand, direct, size)
        if not obstacle:
            mn_major = order != _orders(name)[0]
            return Reading(name, rows, problem.k, count, step, strides, size, operand.alignment, mn_major, direct)
        why = why or obstacle
    mn_major = form.input != "tf32" and rows > 1 and abs(along) < abs(deep)
    if not why:
        what = "with neighbours along k" if form.input == "tf32" else "with neighbours along one side"
        why = f"tensor cores take {form.input} operands only {what}"
    return Reading(
        name, rows, problem.k, count, step, strides, size, operand.alignment, mn_major, None, f"copied: {why}"
    )


def in_registers(
    problem: GemmProblem, name: str, operand: Operand, count: int, stride: int, form: Form
) -> Reading | None:
    """As :func:`reading`, of an operand that goes through registers; None where it cannot, or would gain nothing."""
    usual = reading(problem, name, operand, count, stride, form)
    if usual.packed and form.input == "split":
        ld = usual.strides[0] * usual.size
        return replace(usual, direct=Stored(usual.k, usual.rows, 1, ld, ld * usual.rows))
    if usual.direct is not None or form.input not in ("tf32", "split"):
        return None
    orders = _orders(name) if form.input == "split" else _orders(name)[1:]
    for order in (order for order in orders if operand.layout.stored(order)):
        _, direct = stored(operand.layout, order, usual.size, usual.count, usual.strides[2])
        if not _obstacle(operand, direct, usual.size):
            return replace(usual, mn_major=order != _orders(name)[0], direct=direct, why="")
    return None


def _orders(name: str) -> tuple[str, str]:
    """Of an operand's layout: that with neighbours along k, the other one."""
    return ("row", "col") if name == "a" else ("col", "row")


def _obstacle(operand: Operand, direct: Stored, size: int) -> str:
    """Why TMA does not read it where it lies; empty when it does."""
    if operand.alignment < TMA_ALIGNMENT:
        return (
            f"its address is a multiple of {operand.alignment} bytes, and TMA reads from multiples of {TMA_ALIGNMENT}"
        )
    if direct.stride < 0:
        return "its stack of matrices runs backwards"
    if direct.stride >= _FURTHEST:
        return f"it spans {direct.stride} bytes; TMA takes less than 2**40"
    for what, nbytes in (("leading dimension", direct.ld), ("batch stride", direct.stride)):
        if nbytes % TMA_ALIGNMENT:
            return (
                f"its {what} is {nbytes // size} elements ({nbytes} bytes), and TMA takes multiples of {TMA_ALIGNMENT}"
            )
    return ""


def packed_form(form: Form, rows: int, k: int) -> Stored:
    """A packed operand, with neighbours along k."""
    ld = _up(k * form.input_bytes)
    return Stored(k, rows, form.planes, ld, ld * rows)


def _packed(rows: int, k: int, size: int, form: Form) -> Reading:
    plain = _up(k * size) // size
    direct = packed_form(form, rows, k)
    return Reading("b", rows, k, 1, 0, (plain, 1, 0), size, TMA_ALIGNMENT, False, direct, packed=True)
