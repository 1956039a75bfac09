"""The operands as the kernel reads them: in place, or in a copy that a pre-pass makes.

TMA reads operands whose address and rows are aligned to 16 bytes, and tensor cores take tf32 operands from shared
memory only where they are contiguous along K. Any other operand is copied beforehand. Float32 operands that keep
float32's accuracy are split into bfloat16 planes, whatever their strides. Copies are dense, with rows aligned to 16
bytes. The kernel's a needs no copy where it goes through registers: there it may be contiguous along M, float32 is
split, and rows may be any number of elements apart: of tf32 elements, and of 16-bit ones that are contiguous along K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gemmhub.dtypes import DType
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.variants.config import BF16X3, Form
from gemmhub_hopper.variants.tensor_map import Stored

TMA_ALIGNMENT = 16
"""Alignment of addresses and strides for TMA, in bytes; the innermost stride is one element."""
REAL, INTERLEAVED, EXPANDED, FROM_BF16, FROM_F16 = range(5)
"""Formats of kernels/source_element.cuh."""
_SOURCES = {"bfloat16": FROM_BF16, "float16": FROM_F16}
FEWEST_SHIFTED = 64
"""Fewest rows, and elements of K, of an operand of shifted rows: one tile of the kernel."""
LONGEST_ROW = 2**27
"""Elements between shifted rows, at most: eight rows may be one line of a tensor map, whose coordinates are 32-bit."""
_FURTHEST = 2**40
"""Bound of the strides of a tensor map, in bytes."""


@lru_cache(maxsize=64)
def name_of(dtype: DType) -> str:
    """Return the name of a dtype. NumPy composes it at each access."""
    return dtype.name


@dataclass(frozen=True)
class OperandAccess:
    """The access of the kernel to an operand."""

    name: str
    """The problem's name of it: "a" or "b"."""
    rows: int
    """Elements along the kernel's M (of a) or N (of b)."""
    k: int
    """Elements along K."""
    count: int
    """Distinct matrices of the batch."""
    step: int
    """Step from one matrix of the batch to the next, in matrices; 0 where one serves all."""
    strides: tuple[int, int, int]
    """Strides of the operand in elements: along M (N), K and the batch. Those of the plain copy where it is packed."""
    size: int
    """Bytes of an element."""
    alignment: int
    """Alignment of its address, in bytes."""
    mn_major: bool
    """Whether what the kernel reads, the operand or its copy, is contiguous along M (N); else along K."""
    direct: Stored | None
    """The operand as TMA reads it; None where a copy is read."""
    why: str = ""
    """The reason for a copy; empty where there is none."""
    packed: bool = False
    """Whether the operand was prepared by pack()."""
    shifted: bool = False
    """Whether rows or columns that are no multiple of 16 bytes apart are read in place (kernels/shifted_rows.cuh)."""
    source_format: int = 0
    """Format of elements that are read as float32 (kernels/source_element.cuh)."""
    unsplit: bool = False
    """Whether a copy has float32 elements, which the kernel splits; else planes where there are any."""

    def k_bytes(self, k: int) -> int:
        """Return the bytes from an element to that ``k`` elements further along K; of complex ones an even number."""
        return k * self.strides[1] * self.size // (2 if self.source_format in (INTERLEAVED, EXPANDED) else 1)

    @property
    def elements(self) -> int:
        """Elements of all distinct matrices."""
        return self.rows * self.k * self.count

    def copy(self, form: Form, k: int) -> Stored:
        """Return the layout of a copy of ``k`` elements along K: each plane is a matrix of its own."""
        inner, outer = (self.rows, k) if self.mn_major else (k, self.rows)
        planes = 1 if self.unsplit else form.stored_planes
        return _dense(inner, outer, planes * self.count, self.copied_size(form))

    def copied_size(self, form: Form) -> int:
        """Return the bytes of an element of a copy, or of one of its planes."""
        return self.size if self.unsplit else form.input_bytes

    def stored(self, form: Form, k: int) -> Stored:
        """Return what the tensor map describes; copies have ``k`` elements along K."""
        return self.direct or self.copy(form, k)

    def copy_bytes(self, form: Form, k: int) -> int:
        """Return the bytes of a copy of ``k`` elements along K; 0 where there is none."""
        if self.direct is not None:
            return 0
        layout = self.copy(form, k)
        return layout.count * layout.stride


def _up(nbytes: int) -> int:
    return -(-nbytes // TMA_ALIGNMENT) * TMA_ALIGNMENT


@lru_cache(maxsize=256)
def _dense(inner: int, outer: int, count: int, size: int) -> Stored:
    """Return the layout of dense matrices; preparing a product needs the same ones many times."""
    ld = _up(inner * size)
    return Stored(inner, outer, count, ld, ld * outer)


def stored(layout: MatrixLayout, order: str, size: int, count: int, stride: int) -> tuple[int, Stored]:
    """Return the leading dimension in elements, and the stack of matrices as a tensor map describes it.

    The leading dimension of a single row and the batch stride of a single matrix are not used: they are set to what TMA
    takes.
    """
    inner, outer = (layout.cols, layout.rows) if order == "row" else (layout.rows, layout.cols)
    elements = layout.leading_dimension(order)
    ld = elements * size if outer > 1 else _up(inner * size)
    return elements, Stored(inner, outer, count, ld, stride * size if count > 1 else max(16, ld * outer))


def access(problem: GemmProblem, name: str, operand: Operand, count: int, stride: int, form: Form) -> OperandAccess:
    """Return how the kernel reads operand ``name``, with ``count`` matrices that are ``stride`` elements apart."""
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
        return OperandAccess(name, rows, 1, 1, 0, (0, 0, 0), size, 16, False, direct)
    if name == "b" and problem.packed_by is not None:
        return _packed(rows, problem.k, size, form)
    strides = (along, deep, stride)
    if form.stored_planes > 1:
        # A side of one element has any order.
        mn_major = problem.k == 1 or (rows > 1 and abs(along) < abs(deep))
        planes = {"split": "three bfloat16", BF16X3: "two bfloat16"}.get(form.input, "two float16")
        why = f"split into {planes} planes, which the tensor cores multiply"
        source = _SOURCES.get(name_of(operand.dtype), REAL)
        return OperandAccess(
            name,
            rows,
            problem.k,
            count,
            step,
            strides,
            size,
            operand.alignment,
            mn_major,
            None,
            why,
            source_format=source,
        )
    orders = [order for order in _orders(name) if layout.stored(order)]
    if form.only_k_major:
        orders = [order for order in orders if order == _orders(name)[0]]
    why = ""
    for order in orders:
        _, direct = stored(layout, order, size, count, stride)
        obstacle = _obstacle(operand, direct, size)
        if not obstacle:
            mn_major = order != _orders(name)[0]
            return OperandAccess(name, rows, problem.k, count, step, strides, size, operand.alignment, mn_major, direct)
        why = why or obstacle
    mn_major = not form.only_k_major and rows > 1 and abs(along) < abs(deep)
    if not why:
        what = "8-bit" if form.input_bytes == 1 else form.input
        sides = "along K" if form.only_k_major else "along one side"
        why = f"tensor cores take only {what} operands that are contiguous {sides}"
    return OperandAccess(
        name, rows, problem.k, count, step, strides, size, operand.alignment, mn_major, None, f"copied: {why}"
    )


def in_registers(
    problem: GemmProblem, name: str, operand: Operand, count: int, stride: int, form: Form
) -> OperandAccess | None:
    """Return :func:`access` of an operand that goes through registers; None where it cannot, or saves no copy.

    Of a pinned problem float32 that TMA cannot take is copied, so that one lowering serves all layouts of an operand.
    """
    usual = access(problem, name, operand, count, stride, form)
    if usual.packed and form.input == "split":
        ld = usual.strides[0] * usual.size
        return replace(usual, direct=Stored(usual.k, usual.rows, 1, ld, ld * usual.rows))
    if usual.direct is not None or (form.num_planes > 1 and usual.source_format != REAL):
        return None
    if form.num_planes == 1 and form.input != "tf32":
        return _shifted(problem, operand, usual)
    orders = _orders(name) if form.num_planes > 1 else _orders(name)[1:]
    for order in (order for order in orders if operand.layout.stored(order)):
        _, direct = stored(operand.layout, order, usual.size, usual.count, usual.strides[2])
        if not _obstacle(operand, direct, usual.size):
            return replace(usual, mn_major=order != _orders(name)[0], direct=direct, why="")
    if form.input == "tf32":
        return _shifted(problem, operand, usual)
    if problem.pinned and form.input == "split" and problem.a.dtype == problem.b.dtype:
        why = "copied: TMA takes addresses and rows that are aligned to 16 bytes, contiguous along one side"
        return replace(usual, mn_major=False, unsplit=True, why=why)
    return None


def _shifted(problem: GemmProblem, operand: Operand, usual: OperandAccess) -> OperandAccess | None:
    """Return the access of a matrix whose rows TMA cannot take, contiguous along K, or of tf32 along either side.

    None of another one.
    """
    along, deep, _ = usual.strides
    mn_major = deep != 1
    contiguous, ld = (along, deep) if mn_major else (deep, along)
    if not operand.layout.stored(_orders(usual.name)[mn_major]) or (mn_major and usual.size != 4) or contiguous != 1:
        return None
    if operand.alignment < TMA_ALIGNMENT or usual.count > 1:
        return None
    if not 0 < ld <= LONGEST_ROW or min(usual.rows, problem.k) < FEWEST_SHIFTED:
        return None
    inner, outer = (usual.rows, usual.k) if mn_major else (usual.k, usual.rows)
    direct = Stored(inner, outer, 1, ld * usual.size, max(TMA_ALIGNMENT, ld * usual.size * outer))
    return replace(usual, mn_major=mn_major, direct=direct, why="", shifted=True)


def _orders(name: str) -> tuple[str, str]:
    """Return the orders of an operand's layout: first the one that is contiguous along K."""
    return ("row", "col") if name == "a" else ("col", "row")


def _obstacle(operand: Operand, direct: Stored, size: int) -> str:
    """Return why TMA does not read the operand in place; empty where it does."""
    if operand.alignment < TMA_ALIGNMENT:
        return f"its address is aligned to {operand.alignment} bytes, and TMA needs {TMA_ALIGNMENT}"
    if direct.stride < 0:
        return "the stride of its batch is negative"
    if direct.stride >= _FURTHEST:
        return f"its batch stride is {direct.stride} bytes, and TMA takes less than 2**40"
    for what, nbytes in (("leading dimension", direct.ld), ("batch stride", direct.stride)):
        if nbytes % TMA_ALIGNMENT:
            return (
                f"its {what} is {nbytes // size} elements ({nbytes} bytes), and TMA takes multiples of {TMA_ALIGNMENT}"
            )
    return ""


def obstacle(name: str, operand: Operand, count: int, stride: int) -> str:
    """Return why TMA reads the operand in place along neither side; empty where it does along one."""
    size, obstacles = operand.dtype.itemsize, ["it is contiguous along neither side"]
    for order in (order for order in _orders(name) if operand.layout.stored(order)):
        _, direct = stored(operand.layout, order, size, count if stride else 1, stride)
        obstacles.append(_obstacle(operand, direct, size))
    return "" if "" in obstacles else obstacles[-1]


def packed_form(form: Form, rows: int, k: int) -> Stored:
    """Return the layout of a packed operand, which is contiguous along K."""
    ld = _up(k * form.input_bytes)
    return Stored(k, rows, form.num_planes, ld, ld * rows)


def _packed(rows: int, k: int, size: int, form: Form) -> OperandAccess:
    plain = _up(k * size) // size
    direct = packed_form(form, rows, k)
    return OperandAccess("b", rows, k, 1, 0, (plain, 1, 0), size, TMA_ALIGNMENT, False, direct, packed=True)
