"""A problem in the kernel's words, or what stands in the way. No driver is called.

The kernel multiplies a (m x k) by b (k x n); either may be stored with neighbours along k ("K-major") or along m (n),
and d with neighbours along n or, "transposed", along m. So every problem can be said in two ways: as it is, and
*swapped*, as d^T = b^T a^T, where the kernel's m is the problem's n. The cost model chooses: narrow results want the
narrow side to be the kernel's n. Each way may have a variant in which the kernel's a goes through registers, and so
needs no copy; and one of float32 in which its b is split in shared memory, and needs none either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gemmhub.capability import Refusal
from gemmhub.lowering import BlasCall, fold_batch, lower
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.config import OUTPUTS, Form
from gemmhub_hopper.operands import TMA_ALIGNMENT, Reading, in_registers, reading, stored
from gemmhub_hopper.tensor_map import Stored

LONGEST = 2**31 - 512
"""Elements along a side: coordinates are 32-bit, and a tile may overhang."""


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

    @cached_property
    def k_blocks(self) -> int:
        return -(-self.k // self.form.block_k)

    @cached_property
    def nbytes(self) -> int:
        """That the kernel must move at least."""
        element = self.form.planes * self.form.input_bytes
        of_a, of_b = (4 if once else element for once in (self.form.a_registers, self.form.b_split))
        operands = self.a.elements * of_a + self.b.elements * of_b
        results = self.m * self.n * self.batch * (2 if self.form.addend else 1)
        return operands + results * self.form.output_bytes

    @property
    def packed(self) -> bool:
        return self.a.packed or self.b.packed

    @cached_property
    def copied(self) -> tuple[Reading, ...]:
        """Operands that a pre-pass copies."""
        return tuple(x for x in (self.a, self.b) if x.direct is None)


def lowered(problem: GemmProblem) -> tuple[Lowered, ...] | Refusal:
    """``problem``, whose result has elements: as it is, swapped, both with the kernel's a through registers, and with
    its b split in shared memory besides, where that can be. Or why the kernel does not take it.
    """
    refusal = check_types(problem)
    if refusal is not None:
        return refusal
    folded = fold_batch(problem)
    if folded is not None and folded.m <= LONGEST:
        problem = folded
    # a and b may lie anyhow: where the kernel cannot read them they are copied.
    call = lower(replace(problem, a=_dense(problem.a), b=_dense(problem.b)))
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
    out, order = problem.out, _order(problem)
    size = out.dtype.itemsize
    plain = Form(False, False, _kind(problem), out.dtype.name)
    a = reading(problem, "a", problem.a, count, stride_a, plain)
    b = reading(problem, "b", problem.b, count, stride_b, plain)
    from_a = in_registers(problem, "a", problem.a, count, stride_a, plain)
    from_b = in_registers(problem, "b", problem.b, count, stride_b, plain)
    d_ld, d = stored(out.layout, order, size, count, stride_d)
    c_ld = problem.c.layout.leading_dimension(order) if problem.c else 0
    # TMA stores whole units of 16 bytes, also where the last one of a row is behind the result's end.
    units = d.inner * size, d.ld, d.stride, out.alignment
    tma_store = not any(nbytes % TMA_ALIGNMENT for nbytes in units)
    pairs = not (d_ld % 2 or stride_d % 2) and out.alignment >= 2 * size
    ways = []
    for registers, split, swapped, first, second in (
        (False, False, False, a, b), (False, False, True, b, a),
        (True, False, False, from_a, b), (True, False, True, from_b, a),
        (True, True, False, from_a, from_b), (True, True, True, from_b, from_a),
    ):  # fmt: skip
        if first is None or second is None or (split and plain.input != "split"):
            continue
        transposed = (order == "col") != swapped
        bias = problem.bias.axis if problem.bias else None
        form = Form(
            a_mn=first.mn_major,
            b_mn=second.mn_major,
            input=plain.input,
            output=out.dtype.name,
            transposed=transposed,
            tma_store=tma_store,
            scaled=not problem.alpha_is_one or problem.k == 0,
            addend=problem.c.dtype.name if problem.c else None,
            bias={"m": "n", "n": "m", None: None}[bias] if swapped else bias,
            bias_type=problem.bias.dtype.name if problem.bias else "float32",
            activation=problem.activation,
            a_registers=registers,
            b_split=split,
        )
        m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        ways.append(
            Lowered(
                swapped, m, n, max(problem.k, 1), problem.k == 0, count, first, second, form, d, d_ld, stride_d, c_ld,
                stride_c, pairs,
            )
        )  # fmt: skip
    return tuple(ways)


def check_types(problem: GemmProblem) -> Refusal | None:
    """What of dtypes and epilogue there is no kernel for."""
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    if a != b or a not in ("bfloat16", "float16", "float32"):
        return Refusal(f"there is no kernel for {a} by {b}", "pass two float16, two bfloat16 or two float32 operands")
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
    """What the tensor cores multiply. (Without k it does not matter: nothing is multiplied.)"""
    name = problem.a.dtype.name
    if name != "float32":
        return name
    return "split" if problem.precision == "ieee" and problem.k > 0 else "tf32"


def _dense(operand: Operand) -> Operand:
    """The operand as if its rows were dense."""
    layout = replace(operand.layout, row_stride=max(1, operand.layout.cols), col_stride=1)
    return replace(operand, layout=layout)


def _check_sizes(problem: GemmProblem, call: BlasCall) -> Refusal | None:
    if max(problem.m, problem.n, problem.k, problem.batch_count) > LONGEST:
        return Refusal(f"a side is longer than {LONGEST}", "multiply in parts")
    if len(call.batch) > 1:
        return Refusal(
            f"the matrices of the batch are not evenly spaced (they take {len(call.batch)} strides)",
            "pass operands whose batch dimensions are contiguous, or loop over the outer one",
        )
    for dim in call.batch:
        if dim.stride_d < 0:
            return Refusal("the matrices of the result run backwards in memory", "pass a contiguous out, or none")
    return None


def _order(problem: GemmProblem) -> str:
    """The order in which out and c are read: :func:`lower` found that there is one. A single column is read as one."""
    orders = ("row", "col") if problem.n > 1 else ("col", "row")
    layouts = [x.layout for x in (problem.out, problem.c) if x is not None]
    return next(order for order in orders if all(layout.stored(order) for layout in layouts))
