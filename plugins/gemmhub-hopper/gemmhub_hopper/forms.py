"""A problem in the kernel's words, or what stands in the way. No driver is called.

The kernel multiplies a (m x k) by b (k x n); either may be stored with neighbours along k ("K-major") or along m (n),
and d with neighbours along n or, "transposed", along m. So every problem can be said in two ways: as it is, and
*swapped*, as d^T = b^T a^T, where the kernel's m is the problem's n. The cost model chooses: narrow results want the
narrow side to be the kernel's n.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub.capability import Refusal
from gemmhub.layout import BlasCall, MatrixLayout, fold_batch, lower
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.config import OUTPUTS, Form
from gemmhub_hopper.tensor_map import Stored

TMA_ALIGNMENT = 16
"""Bytes that addresses and strides are multiples of, but for those between neighbours."""
LONGEST = 2**31 - 512
"""Elements along a side: coordinates are 32-bit, and a tile may overhang."""
_FURTHEST = 2**40
"""Bytes: strides of tensor maps are smaller."""


@dataclass(frozen=True)
class Reading:
    """An operand as TMA reads it."""

    stored: Stored
    mn_major: bool
    step: int
    """From one matrix of the batch to the next, in matrices; 0 where one serves all."""


@dataclass(frozen=True)
class Lowered:
    """One way to say a problem to the kernel. ``m`` and ``n`` are the kernel's."""

    swapped: bool
    """The kernel's a is the problem's b, its b the problem's a."""
    m: int
    n: int
    k: int
    """At least 1. A product without k is one of a matrix of zeros, times 0."""
    without_k: bool
    batch: int
    a: Reading
    b: Reading
    form: Form
    d: Stored
    """Meaningful where ``form.tma_store``."""
    d_ld: int
    d_batch: int
    c_ld: int
    c_batch: int
    pairs: bool
    """Two neighbours of a row of d may be stored at once."""

    @property
    def k_blocks(self) -> int:
        return -(-self.k // self.form.block_k)

    @property
    def nbytes(self) -> int:
        """That must move at least."""
        operands = sum(x.stored.inner * x.stored.outer * x.stored.count for x in (self.a, self.b))
        results = self.m * self.n * self.batch * (2 if self.form.addend else 1)
        return operands * self.form.input_bytes + results * self.form.output_bytes


def lowered(problem: GemmProblem) -> tuple[Lowered, Lowered] | Refusal:
    """``problem``, whose result has elements, as it is and swapped; or why the kernel does not take it."""
    refusal = check_types(problem)
    if refusal is not None:
        return refusal
    problem = fold_batch(problem) or problem
    call = lower(problem)
    if isinstance(call, Refusal):
        return call
    refusal = _check_sizes(problem, call)
    if refusal is not None:
        return refusal
    count, stride_a, stride_b, stride_c, stride_d = 1, 0, 0, 0, 0
    for dim in call.batch:
        count, stride_a, stride_b, stride_c, stride_d = (
            dim.count, dim.stride_a, dim.stride_b, dim.stride_c, dim.stride_d,
        )  # fmt: skip
    kind = _kind(problem)
    a = _reading(problem, "a", problem.a, count, stride_a, kind)
    b = _reading(problem, "b", problem.b, count, stride_b, kind)
    if isinstance(a, Refusal):
        return a
    if isinstance(b, Refusal):
        return b
    out, order = problem.out, _order(problem)
    size = out.dtype.itemsize
    d_ld, d = _stored(out.layout, order, size, count, stride_d)
    c_ld = problem.c.layout.leading_dimension(order) if problem.c else 0
    tma_store = size == 2 and out.alignment >= TMA_ALIGNMENT and not d.ld % TMA_ALIGNMENT and not d.stride % 16
    pairs = not (d_ld % 2 or stride_d % 2) and out.alignment >= 2 * size
    ways = []
    for swapped in (False, True):
        first, second = (b, a) if swapped else (a, b)
        transposed = (order == "col") != swapped
        bias = problem.bias.axis if problem.bias else None
        form = Form(
            a_mn=first.mn_major,
            b_mn=second.mn_major,
            input=kind,
            output=out.dtype.name,
            transposed=transposed,
            tma_store=tma_store,
            scaled=not problem.alpha_is_one or problem.k == 0,
            addend=problem.c is not None,
            bias={"m": "n", "n": "m", None: None}[bias] if swapped else bias,
            bias_type=problem.bias.dtype.name if problem.bias else "float32",
            activation=problem.activation,
        )
        m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        ways.append(
            Lowered(
                swapped, m, n, max(problem.k, 1), problem.k == 0, count, first, second, form, d, d_ld, stride_d, c_ld,
                stride_c, pairs,
            )
        )  # fmt: skip
    return ways[0], ways[1]


def check_types(problem: GemmProblem) -> Refusal | None:
    """What of dtypes and epilogue there is no kernel for."""
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    if a != b or a not in ("bfloat16", "float16", "float32"):
        return Refusal(
            f"there is no kernel for {a} by {b}", "pass two float16, two bfloat16 or two float32 operands (tf32)"
        )
    if a == "float32" and problem.precision == "ieee":
        return Refusal(
            "float32 operands are multiplied in tf32 only, which precision='ieee' does not allow",
            "pass precision='tf32' if its error will do",
        )
    if out not in OUTPUTS:
        return Refusal(f"there is no kernel for a result of {out}", f"give out_dtype= one of {', '.join(OUTPUTS)}")
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(f"c is {problem.c.dtype}, the result {out}", f"convert c to {out}")
    if problem.bias is not None and problem.bias.dtype.name not in OUTPUTS:
        return Refusal(f"the bias is {problem.bias.dtype}", f"convert it to one of {', '.join(OUTPUTS)}")
    if problem.bias is not None and problem.bias.stride != 1:
        return Refusal(
            f"the bias has a stride of {problem.bias.stride} elements: the kernel takes contiguous ones",
            "pass a contiguous copy of the bias",
        )
    return None


def _kind(problem: GemmProblem) -> str:
    return "tf32" if problem.a.dtype.name == "float32" else problem.a.dtype.name


def _check_sizes(problem: GemmProblem, call: BlasCall) -> Refusal | None:
    if max(problem.m, problem.n, problem.k, problem.batch_count) > LONGEST:
        return Refusal(f"a side is longer than {LONGEST}", "multiply in parts")
    if len(call.batch) > 1:
        return Refusal(
            f"the matrices of the batch are not evenly spaced (they take {len(call.batch)} strides)",
            "pass operands whose batch dimensions are contiguous, or loop over the outer one",
        )
    for dim in call.batch:
        if min(dim.stride_a, dim.stride_b, dim.stride_d) < 0:
            return Refusal("a stack of matrices runs backwards in memory", "pass a contiguous copy of it")
    return None


def _order(problem: GemmProblem) -> str:
    """The order in which out and c are read: :func:`lower` found that there is one. A single column is read as one."""
    orders = ("row", "col") if problem.n > 1 else ("col", "row")
    layouts = [x.layout for x in (problem.out, problem.c) if x is not None]
    return next(order for order in orders if all(layout.stored(order) for layout in layouts))


def _stored(layout: MatrixLayout, order: str, size: int, count: int, stride: int) -> tuple[int, Stored]:
    """(leading dimension in elements, the stack as a tensor map says it).

    A single row has no next one: the distance to it is chosen to suit TMA, and so is that of a single matrix.
    """
    inner, outer = (layout.cols, layout.rows) if order == "row" else (layout.rows, layout.cols)
    elements = layout.leading_dimension(order)
    ld = elements * size if outer > 1 else -(-inner * size // 16) * 16
    return elements, Stored(inner, outer, count, ld, stride * size if count > 1 else max(16, ld * outer))


def _reading(
    problem: GemmProblem, name: str, operand: Operand, count: int, stride: int, kind: str
) -> Reading | Refusal:
    """Operand ``name`` as TMA reads it: with neighbours along k if there is a choice."""
    if problem.k == 0:
        side = problem.m if name == "a" else problem.n
        return Reading(Stored(16 // operand.dtype.itemsize, min(side, 8), 1, 16, 16 * 8), False, 0)
    layout, size = operand.layout, operand.dtype.itemsize
    k_major = "row" if name == "a" else "col"
    orders = [order for order in (k_major, "col" if k_major == "row" else "row") if layout.stored(order)]
    if operand.alignment < TMA_ALIGNMENT:
        return Refusal(
            f"{name} begins at an address that is a multiple of {operand.alignment} bytes; TMA reads from multiples "
            f"of {TMA_ALIGNMENT}",
            f"pass a copy of {name}, or a view that begins at a multiple of {TMA_ALIGNMENT // size} elements",
        )
    if kind == "tf32":
        orders = [order for order in orders if order == k_major]
        if not orders:
            along = "m" if name == "a" else "n"
            return Refusal(
                f"neighbours of {name} in memory are neighbours along {along}: tensor cores take tf32 operands only "
                "with neighbours along k",
                "pass a contiguous a" if name == "a" else "pass b as the transpose of a contiguous (n, k) array",
            )
    ways = []
    for order in orders:
        shared = count == 1 or stride == 0
        _, stored = _stored(layout, order, size, 1 if shared else count, stride)
        ways.append(Reading(stored, order != k_major, 0 if shared else 1))
    for way in ways:
        stored = way.stored
        if not stored.ld % TMA_ALIGNMENT and not stored.stride % TMA_ALIGNMENT and stored.stride < _FURTHEST:
            return way
    stored = ways[0].stored
    what, nbytes = ("leading dimension", stored.ld) if stored.ld % TMA_ALIGNMENT else ("batch stride", stored.stride)
    if stored.stride >= _FURTHEST:
        return Refusal(f"{name} spans {stored.stride} bytes; TMA takes less than 2**40", "multiply in parts")
    return Refusal(
        f"{name} has a {what} of {nbytes // size} elements ({nbytes} bytes): TMA takes multiples of {TMA_ALIGNMENT}",
        f"pad {name}: a slice of an array whose {what} is a multiple of {TMA_ALIGNMENT // size} elements",
    )
