"""Lowers a problem to the kernel's operands, strides and form, or returns a refusal. No driver is called.

The kernel multiplies a (m x k) by b (k x n). Either may be K-major (contiguous along K) or MN-major, and d contiguous
along N or, *transposed*, along M. So every problem has two lowerings: as it is, and with swapped operands (swap-AB), as
d^T = b^T a^T, where the kernel's m is the problem's n. The cost model chooses: where the result is narrow, the kernel's
n should be the narrow side. Each may have one more in which the kernel's a goes through registers and so needs no
copy (of 16-bit and tf32 elements also where TMA cannot take its rows), and for float32 one in which its b is split in
shared memory and needs none either. 8-bit operands have only the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from gemmhub_nvidia import scales
from gemmhub_nvidia.scales import ScaleAccess

from gemmhub.capability import Refusal
from gemmhub.epilogues import EPILOGUES
from gemmhub.layout import MatrixLayout, strides_over
from gemmhub.lowering import SINGLE, BatchDim, BlasCall, collapse, fold_batch, lower
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.lowering import complex_operands, f16_planes, float8_results
from gemmhub_hopper.lowering.operands import (
    FEWEST_SHIFTED,
    TMA_ALIGNMENT,
    OperandAccess,
    access,
    in_registers,
    name_of,
    packed_form,
    stored,
)
from gemmhub_hopper.variants.config import (
    BF16X3,
    EIGHT_BIT_DTYPES,
    F16X3,
    FLOAT8_RESULTS,
    GATED,
    INT32,
    OUTPUTS,
    Form,
    form_of,
    letters,
)
from gemmhub_hopper.variants.tensor_map import Stored

LONGEST = 2**31 - 512
"""Largest number of elements along a side: coordinates are 32-bit, and a tile may overhang."""

SECOND_HALF = "copied: its second half"
"""First words of the reason for a copy of a b that TMA could read, but not from its second half on."""
BEFORE = "pre_activation"
"""Name of the operand that gets what the activation is applied to."""


@dataclass(frozen=True)
class Lowering:
    """A problem as the kernel runs it: ``m``, ``n``, ``a`` and ``b`` are the kernel's own."""

    swapped: bool
    """Whether the kernel's a is the problem's b, and its b the problem's a."""
    m: int
    n: int
    k: int
    """At least 1: a product whose K is 0 runs as one of zeros, times 0."""
    k_is_zero: bool
    """Whether the problem's K is 0."""
    has_alpha: bool
    """Whether the product is multiplied by another alpha than 1."""
    batch: int
    """Matrices of the batch, without the folded ones."""
    a: OperandAccess
    b: OperandAccess
    form: Form
    d: Stored
    """The result as TMA stores it; meaningful where ``form.tma_store``."""
    d_ld: int
    """Leading dimension of d in elements; ``d_batch`` is its batch stride, and likewise for c."""
    d_batch: int
    c_ld: int
    c_batch: int
    pairs: bool
    """Whether two contiguous elements of d may be stored at once, without TMA."""
    row_scales: ScaleAccess | None = None
    """The quantization scales of the kernel's a; None where there are none."""
    column_scales: ScaleAccess | None = None
    """The quantization scales of the kernel's b."""
    groups: int = 0
    """The groups that divide :attr:`Form.divided` of the form; 0 where there are none."""
    before_ld: int = 0
    """Leading dimension of what the activation is applied to, where that is stored, and its batch stride."""
    before_batch: int = 0
    bias_group: int = 0
    """Elements from the bias of one group to that of the next; 0 where all share one."""

    @cached_property
    def k_blocks(self) -> int:
        """Blocks of K, each of a stage."""
        return -(-self.k // self.form.block_k)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the kernel moves at least."""
        element = self.form.stored_planes * self.form.input_bytes
        split = self.form.stored_planes > 1
        of_a, of_b = (4 if x and split else element for x in (self.form.registers_a, self.form.split_planes_b))
        operands = self.a.elements * of_a + self.b.elements * of_b
        return operands + self.results * (self.form.stored_bytes + self.form.addend_bytes)

    @property
    def results(self) -> int:
        """Elements of the result."""
        return self.m * self.out_n * self.batch

    @property
    def out_n(self) -> int:
        """Columns of the result: n, or half of them where the activation is gated."""
        return self.n // self.form.arity

    @property
    def packed(self) -> bool:
        """Whether an operand was prepared by pack()."""
        return self.a.packed or self.b.packed

    @cached_property
    def copied(self) -> tuple[OperandAccess, ...]:
        """The operands that a pre-pass copies."""
        return tuple(x for x in (self.a, self.b) if x.direct is None)


class Scheme(NamedTuple):
    """A code path for a problem: what the tensor cores multiply, and where the operands are split or copied."""

    input: str
    """A key of ``config.INPUTS``."""
    registers: bool
    """Whether the kernel's a goes through registers."""
    split_b: bool
    """Whether the kernel's b is split in shared memory."""
    swapped: bool
    """Whether the kernel's a is the problem's b."""


def lowerings(problem: GemmProblem) -> tuple[Lowering, ...] | Refusal:
    """Return the lowerings of ``problem``, whose result has elements, or the reason why the kernel does not take it.

    The first is the problem as it is, the second swapped. Where possible, others follow: both with the kernel's a
    through registers, and with its b split in shared memory besides; and float32 by float16 planes, of both operands or
    with a through registers; and with the precision "bf16x3" by two planes of bfloat16. Complex operands, and those of
    two dtypes, have some of these only.
    """
    result = one_by_one(problem)
    return result if isinstance(result, Refusal) else tuple(result)


def one_by_one(problem: GemmProblem, only: tuple[str, bool] | None = None) -> Iterator[Lowering] | Refusal:
    """Return :func:`lowerings` as an iterator, which creates each lowering on demand.

    ``only``: the letters of a candidate's name, and whether operands are swapped. Other lowerings are left out.
    """
    if problem.groups is not None:
        return Refusal("the problem has groups", "use the lowerings of groups.py")
    refusal = check_types(problem)
    if refusal is not None:
        return refusal
    folded = None if problem.symmetric else fold_batch(problem)
    if folded is not None and folded.m <= LONGEST:
        problem = folded
    call = lower(problem)
    if isinstance(call, Refusal):  # a and b may have any strides: what the kernel cannot read is copied
        call = lower(replace(problem, a=_dense(problem.a), b=_dense(problem.b)))
    if isinstance(call, Refusal):
        return call
    refusal = _check_sizes(problem, call)
    if refusal is not None:
        return refusal
    order, dim = _order(problem), call.batch[0] if call.batch else SINGLE
    refusal = _check_before(problem, order)
    if refusal is not None:
        return refusal
    if name_of(problem.a.dtype) == complex_operands.DTYPE:
        expanded = complex_operands.as_real(problem, order)
        refusal = _check_sizes(expanded, call)
        if refusal is not None:
            return refusal
        dim = BatchDim(dim.count, 2 * dim.stride_a, 2 * dim.stride_b, dim.stride_c, 2 * dim.stride_d)
        schemes = _schemes(problem, expanded, only)
        return by_schemes(expanded, order, dim, schemes, is_complex=True)
    return by_schemes(problem, order, dim, _schemes(problem, problem, only), is_complex=False)


def _schemes(problem: GemmProblem, real: GemmProblem, only: tuple[str, bool] | None) -> list[Scheme]:
    """Return the schemes for ``problem``, in the order of :func:`lowerings`; ``real``: as it is multiplied.

    ``only``: the letters and the orientation of the requested ones.
    """
    input_type = input_type_of(real)
    if _is_gated(real):
        input_type = BF16X3 if input_type == "split" else input_type
        wanted = only is None or only == (letters(input_type, False, False), False)
        return [Scheme(input_type, False, False, False)] * wanted
    is_complex, is_mixed = problem is not real, problem.a.dtype != problem.b.dtype
    options = [(False, False), (True, False)] + [(True, True)] * (input_type == "split")
    if is_complex:  # only planes of float16 are made of these
        options = []
    elif real.a.dtype.itemsize == 1:
        options = [(False, False)]
    elif is_mixed and real.k >= f16_planes.FEWEST_K:
        # Only planes are made of the 16-bit operand, and the other one needs none in registers.
        options = [(True, False)]
    schemes = [(input_type, *option) for option in options]
    if input_type == "split" and real.k >= f16_planes.FEWEST_K:
        schemes.append((F16X3, False, False))
        few = min(real.m, real.n) < f16_planes.FEWEST_ROWS
        if not (is_complex or is_mixed or few) and real.c is None:  # a result may be computed twice
            schemes.append((F16X3, True, False))
    if input_type == "split" and real.precision == BF16X3 and not (is_complex or is_mixed or real.packed_by):
        schemes.append((BF16X3, False, False))
    if only is not None:
        return [Scheme(*scheme, only[1]) for scheme in schemes if letters(*scheme) == only[0]]
    return [Scheme(*scheme, swapped) for scheme in schemes for swapped in (False, True)]


def _is_gated(problem: GemmProblem) -> bool:
    """Return whether the result has a column for each two of the product.

    Such a problem has one lowering, as it is: the two columns of a pair are of the kernel's b.
    """
    return problem.activation in GATED


_EIGHT_BIT = {dtype: name for name, dtype in EIGHT_BIT_DTYPES.items()}
"""Formats of 8-bit operands in the names of inputs, by their dtype."""


def _exchanged(input_type: str) -> str:
    """Return the input of swapped operands: of 8 bits their formats change places."""
    return ".".join(reversed(input_type.split(".")))


def by_schemes(
    problem: GemmProblem, order: str, dim: BatchDim, schemes: Sequence[Scheme], is_complex: bool = False
) -> Iterator[Lowering]:
    """Yield the lowerings by ``schemes``. ``dim``: the batch; ``order``: that of the result."""
    out, size, output = problem.out, problem.out.dtype.itemsize, name_of(problem.out.dtype)
    d_ld, d = stored(out.layout, order, size, dim.count, dim.stride_d)
    c_ld = problem.c.layout.leading_dimension(order) if problem.c else 0
    # TMA stores whole units of 16 bytes, also where the last one of a row ends behind the result.
    units = d.inner * size, d.ld, d.stride, out.alignment
    tma_store = not any(nbytes % TMA_ALIGNMENT for nbytes in units)
    pairs = not (d_ld % 2 or dim.stride_d % 2) and out.alignment >= 2 * size
    operands = {"a": (problem.a, dim.stride_a), "b": (problem.b, dim.stride_b)}
    before = problem.matrices.get(BEFORE)
    read: dict[tuple[str, str, bool], OperandAccess | None] = {}

    def operand(name: str, scheme: Scheme, registers: bool) -> OperandAccess | None:
        """Return how the operand is read, through registers or not; None where it cannot go through them."""
        key = name, scheme.input, registers
        if key not in read:
            form, look = form_of(False, False, scheme.input, output), in_registers if registers else access
            operand_access = look(problem, name, operands[name][0], dim.count, operands[name][1], form)
            if is_complex and operand_access is not None:
                operand_access = complex_operands.read(operand_access, order)
            read[key] = operand_access
        return read[key]

    for scheme in schemes:
        names = ("b", "a") if scheme.swapped else ("a", "b")
        first, second = operand(names[0], scheme, scheme.registers), operand(names[1], scheme, scheme.split_b)
        if first is None or second is None or (problem.symmetric and first.shifted):
            continue
        if scheme.input == F16X3 and scheme.registers and second.mn_major:
            second = replace(second, mn_major=False)  # planes of a tile of any width fill whole boxes
        if _is_gated(problem):
            second = _by_halves(second, problem, form_of(False, False, scheme.input, output))
        bias = problem.bias.axis if problem.bias else None
        form = form_of(
            first.mn_major,
            second.mn_major,
            _exchanged(scheme.input) if scheme.swapped else scheme.input,
            output,
            # A symmetric result is its own transpose.
            transposed_d=not problem.symmetric and (order == "col") != scheme.swapped,
            tma_store=tma_store and not first.shifted,
            addend=name_of(problem.c.dtype) if problem.c else None,
            bias={"m": "n", "n": "m", None: None}[bias] if scheme.swapped else bias,
            bias_type=name_of(problem.bias.dtype) if problem.bias else "float32",
            activation=problem.activation,
            registers_a=scheme.registers,
            split_planes_b=scheme.split_b,
            scales=scales.use(problem),
            shifted_columns=first.shifted and first.mn_major,
            stores_before=before is not None,
            symmetric=problem.symmetric,
        )
        m, n = (problem.n, problem.m) if scheme.swapped else (problem.m, problem.n)
        yield Lowering(
            scheme.swapped, m, n, max(problem.k, 1), problem.k == 0, not problem.alpha_is_one, dim.count,
            first, second, form, d, d_ld, dim.stride_d, c_ld, dim.stride_c, pairs,
            scales.access(problem, names[0]), scales.access(problem, names[1]),
            before_ld=before.layout.leading_dimension(order) if before else 0,
            before_batch=_batch_stride(before.layout, problem.batch) or 0 if before else 0,
        )  # fmt: skip


def _by_halves(access: OperandAccess, problem: GemmProblem, form: Form) -> OperandAccess:
    """Return the access to a b of which tiles begin in either half of the columns.

    TMA reads from any line of an operand on, but within a line only from multiples of 16 bytes on. Where the second
    half begins elsewhere, a copy that is contiguous along K is read.
    """
    halves = EPILOGUES[problem.activation or ""].gate == "halves"
    if not (halves and access.mn_major and problem.n // 2 * form.input_bytes % TMA_ALIGNMENT):
        return access
    why = f"{SECOND_HALF} begins {problem.n // 2} columns into rows, which TMA reads by {TMA_ALIGNMENT} bytes"
    return replace(access, mn_major=False, direct=None, why=access.why or why)


def with_rows(lowering: Lowering, rows: int) -> Lowering | None:
    """Return the lowering of the same problem with another m, at the same strides (:attr:`Kernel.with_rows`).

    None where it would be another one: of a batch, of a or a result whose rows are not its outer dimension, and where
    rows are too few or too many for this scheme; and of a symmetric result, whose n is m.
    """
    swapped, form = lowering.swapped, lowering.form
    old = lowering.n if swapped else lowering.m
    of_rows, other = (lowering.b, lowering.a) if swapped else (lowering.a, lowering.b)
    if form.symmetric:
        return None
    if lowering.batch != 1 or lowering.k_is_zero or min(old, rows) < 2 or rows > LONGEST or of_rows.count > 1:
        return None
    if of_rows.strides[1] != 1 or of_rows.mn_major or form.transposed_d != swapped:
        return None
    if of_rows.shifted and rows < FEWEST_SHIFTED:
        return None
    if form.input == F16X3:
        few = [min(x, other.rows) < f16_planes.FEWEST_ROWS for x in (old, rows)]
        if few[0] != few[1]:
            return None

    def resized(x: Stored) -> Stored:
        return Stored(x.inner, rows, x.count, x.ld, max(TMA_ALIGNMENT, x.ld * rows))

    direct = None if of_rows.direct is None else resized(of_rows.direct)
    access = replace(of_rows, rows=rows, direct=direct)
    d = resized(lowering.d)
    if swapped:
        return replace(lowering, n=rows, b=access, d=d)
    return replace(lowering, m=rows, a=access, d=d)


def by_bfloat16_planes(lowering: Lowering) -> Lowering:
    """Return the lowering for operands of ``lowering`` that float16 planes do not hold accurately enough."""
    form = _by_bfloat16_planes(lowering.form)
    a, b = (replace(x, direct=packed_form(form, x.rows, x.k)) if x.packed else x for x in (lowering.a, lowering.b))
    return replace(lowering, form=form, a=a, b=b)


@lru_cache(maxsize=1024)
def _by_bfloat16_planes(form: Form) -> Form:
    return replace(form, input="split", rescaled=form.registers_a)


def check_types(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of dtypes or an epilogue that there is no kernel for."""
    a, b, out = (name_of(x.dtype) for x in (problem.a, problem.b, problem.out))
    if problem.symmetric and (a != b or a not in ("bfloat16", "float16", "float32")):
        return Refusal(
            f"there is no kernel for symmetric products of {a} by {b}",
            "leave symmetric= out, or pass two float16, bfloat16 or float32 operands",
        )
    if a == b == complex_operands.DTYPE:
        return complex_operands.refusal(problem)
    if a in _EIGHT_BIT and b in _EIGHT_BIT:
        return _check_eight_bit(problem, a, b, out)
    if any(name in problem.operands for name in scales.NAMES.values()):
        return Refusal(f"{a} by {b} has no quantization scales", "scale the result, or pass 8-bit operands")
    if {a, b} in ({"bfloat16", "float32"}, {"float16", "float32"}) and problem.packed_by is None:
        if problem.k < f16_planes.FEWEST_K:
            return Refusal(f"k is {problem.k}; {a} by {b} needs {f16_planes.FEWEST_K}", "convert the narrower operand")
    elif a != b or a not in ("bfloat16", "float16", "float32"):
        return Refusal(
            f"there is no kernel for {a} by {b}",
            "pass two float16, bfloat16, float32 or int8 operands, or float8_e4m3fn and float8_e5m2",
        )
    return _check_epilogue(problem, out)


def _check_eight_bit(problem: GemmProblem, a: str, b: str, out: str) -> Refusal | None:
    """Return a refusal of 8-bit operands, or of scales or an epilogue, that there is no kernel for."""
    if (a == "int8") != (b == "int8"):
        return Refusal(f"there is no kernel for {a} by {b}", "pass two int8 operands, or two of 8-bit floats")
    use = scales.use(problem)
    if a == "int8" and use == "blocks":
        return Refusal("int8 operands have scales for blocks of k", "pass scales of rows of a and of columns of b")
    if a == "int8" and out == INT32:
        plain = problem.alpha_is_one and not problem.operands and problem.activation is None
        remedy = "ask for a float32 result, or apply alpha, c, bias, scales and activation afterwards"
        return None if plain else Refusal("an int32 result has no epilogue", remedy)
    return scales.refusal(problem) or _check_epilogue(problem, out)


def _check_gate(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of what no kernel with a gated activation has."""
    if problem.c is not None:
        return Refusal(
            f"{problem.activation} has no kernel with c, which has a column for each of the product",
            "omit c, or add it and apply the activation afterwards",
        )
    plain = problem.a.dtype == problem.b.dtype and problem.packed_by is None  # two planes are made of float32 alone
    if input_type_of(problem) == "split" and not (plain and problem.precision == BF16X3):
        packed = " and a packed b" * (problem.packed_by is not None)
        return Refusal(
            f"{problem.activation} has no kernel for {problem.a.dtype} by {problem.b.dtype} with "
            f"precision={problem.precision!r}{packed}",
            'pass 16-bit or 8-bit operands, or two float32 operands, not packed, with precision="tf32" or "bf16x3"; or '
            "apply the activation afterwards",
        )
    return None


def _check_before(problem: GemmProblem, order: str) -> Refusal | None:
    """Return a refusal of a matrix for what the activation is applied to that no kernel writes."""
    before = problem.matrices.get(BEFORE)
    if before is None:
        return None
    if _is_gated(problem):
        return Refusal(f"{BEFORE} of {problem.activation} has no kernel", "apply the activation afterwards")
    if before.dtype != problem.out.dtype:
        return Refusal(
            f"{BEFORE} is {before.dtype}, the result {problem.out.dtype}", f"pass one of {name_of(problem.out.dtype)}"
        )
    if before.alignment < before.dtype.itemsize or not before.layout.stored(order):
        return Refusal(
            f"{BEFORE} is not stored as the result is, {order}-major", f"pass a contiguous {BEFORE} in the order of out"
        )
    if _batch_stride(before.layout, problem.batch) is None:
        return Refusal(f"the matrices of {BEFORE} are not evenly spaced", f"pass a contiguous {BEFORE}")
    return None


def _batch_stride(layout: MatrixLayout, batch: tuple[int, ...]) -> int | None:
    """Return the elements from a matrix of the batch to the next; None where it is not the same for all."""
    dims = collapse(batch, strides_over(layout, batch))
    return 0 if not dims else dims[0][1][0] if len(dims) == 1 else None


def _check_epilogue(problem: GemmProblem, out: str) -> Refusal | None:
    """Return a refusal of a result or an epilogue that there is no kernel for."""
    if _is_gated(problem):
        refusal = _check_gate(problem)
        if refusal is not None:
            return refusal
    if out not in OUTPUTS and out not in FLOAT8_RESULTS:
        allowed = ", ".join((*OUTPUTS, *FLOAT8_RESULTS))
        return Refusal(f"there is no kernel for a result of {out}", f"give out_dtype= one of {allowed}")
    refusal = float8_results.refusal(problem)
    if refusal is not None:
        return refusal
    if problem.c is not None and name_of(problem.c.dtype) not in OUTPUTS:
        return Refusal(f"c is {problem.c.dtype}", f"convert it to one of {', '.join(OUTPUTS)}")
    if problem.bias is not None and name_of(problem.bias.dtype) not in OUTPUTS:
        return Refusal(f"the bias is {problem.bias.dtype}", f"convert it to one of {', '.join(OUTPUTS)}")
    if problem.bias is not None and problem.bias.stride != 1:
        return Refusal(
            f"the bias has a stride of {problem.bias.stride} elements: the kernel takes contiguous ones",
            "pass a contiguous copy of the bias",
        )
    return None


def input_type_of(problem: GemmProblem) -> str:
    """Return what the tensor cores multiply: a key of ``config.INPUTS``. Where K is 0, any would do."""
    name = name_of(problem.a.dtype)
    if name in _EIGHT_BIT:
        return f"{_EIGHT_BIT[name]}.{_EIGHT_BIT[name_of(problem.b.dtype)]}"
    if name != name_of(problem.b.dtype):
        return "split"
    if name != "float32":
        return name
    return "tf32" if problem.permits_tf32 or problem.k == 0 else "split"


def _dense(operand: Operand) -> Operand:
    """Return the operand as if its rows were contiguous."""
    layout = replace(operand.layout, row_stride=max(1, operand.layout.cols), col_stride=1)
    return replace(operand, layout=layout)


def _check_sizes(problem: GemmProblem, call: BlasCall) -> Refusal | None:
    if max(problem.m, problem.n, problem.k, problem.batch_count) > LONGEST:
        return Refusal(f"a side is longer than {LONGEST} elements", "multiply in parts")
    if len(call.batch) > 1:
        return Refusal(
            f"the matrices of the batch are not evenly spaced (they take {len(call.batch)} strides)",
            "pass operands whose batch dimensions are contiguous, or loop over the outer one",
        )
    for dim in call.batch:
        if dim.stride_d < 0:
            return Refusal("the batch stride of the result is negative", "pass a contiguous out, or none")
    return None


def _order(problem: GemmProblem) -> str:
    """Return the order of out and c: :func:`lower` found that there is one. A single column is column-major."""
    orders = ("row", "col") if problem.out_columns > 1 else ("col", "row")
    layouts = [x.layout for x in (problem.out, problem.c) if x is not None]
    return next(order for order in orders if all(layout.stored(order) for layout in layouts))
