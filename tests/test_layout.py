"""gemmhub.layout against a strict BLAS model and numpy, on small integers in float64, so exactly.

Every operand is a view into poisoned flat memory. A lowered call gets only that memory, an offset and numbers:
no copy is possible, and a wrong leading dimension reads NaN, leaves the buffer, or writes outside of the
result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import gemmhub
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.capability import Refusal
from gemmhub.errors import InputError
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import BatchDim, BlasCall, collapse, fold_batch, lower
from gemmhub.operands import Operands
from gemmhub.problem import Bias, GemmProblem, Operand
from gemmhub.testing.strict_gemm import Flat, StrictGemmError, run_call

Array = Any
FLOAT64 = np.dtype(np.float64)
ORDERS = ("col", "row", "any")

property_test = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


# ---------------------------------------------------------------- views and problems


@dataclass
class Placed:
    """A view and its flat memory."""

    view: Array
    memory: Array

    @property
    def flat(self) -> Flat:
        return Flat(self.memory, (self.view.ctypes.data - self.memory.ctypes.data) // self.memory.itemsize)

    @property
    def layout(self) -> MatrixLayout:
        *batch_strides, row_stride, col_stride = (s // self.view.itemsize for s in self.view.strides)
        *batch, rows, cols = self.view.shape
        return MatrixLayout(rows, cols, row_stride, col_stride, tuple(batch), tuple(batch_strides))

    @property
    def operand(self) -> Operand:
        return Operand(self.view.dtype, self.layout, self.view.itemsize)

    @property
    def outside(self) -> Array:
        """Mask of the elements of the memory outside of the view."""
        index = np.full(self.view.shape, self.flat.offset)
        for axis, stride in enumerate(self.view.strides):
            shape = [1] * self.view.ndim
            shape[axis] = -1
            index = index + (np.arange(self.view.shape[axis]) * (stride // self.view.itemsize)).reshape(shape)
        mask = np.ones(self.memory.size, dtype=bool)
        mask[index.ravel()] = False
        return mask


def place(shape: tuple[int, ...], memory_order: tuple[int, ...], pads=None, starts=None, steps=None) -> Placed:
    """A view of ``shape`` whose axes are in memory in the order ``memory_order``, outermost first.

    Each axis is ``steps`` apart (0: broadcast), begins ``starts`` in and has ``pads`` unused entries behind.
    """
    zeros = (0,) * len(shape)
    pads, starts, steps = pads or zeros, starts or zeros, steps or (1,) * len(shape)
    held = [
        1 if steps[i] == 0 else starts[i] + max(shape[i] - 1, 0) * abs(steps[i]) + 1 + pads[i]
        for i in range(len(shape))
    ]
    memory = np.full(prod(held), np.nan)
    axes = memory.reshape([held[i] for i in memory_order]).transpose(np.argsort(memory_order))
    for i, step in enumerate(steps):
        if step != 0:
            axes = np.moveaxis(np.moveaxis(axes, i, 0)[starts[i] :: abs(step)][: shape[i]][:: np.sign(step)], 0, i)
    return Placed(np.broadcast_to(axes, shape) if 0 in steps else axes, memory)


def matrix(rows: int, cols: int, order: str, pad: int = 0, offset: int = 0) -> Placed:
    if order == "row":
        return place((rows, cols), (0, 1), pads=(0, pad), starts=(offset, offset))
    return place((rows, cols), (1, 0), pads=(pad, 0), starts=(offset, offset))


def fill(placed: Placed, rng: np.random.Generator) -> None:
    """Small integers in the view (through the memory, which is writable where a broadcast view is not)."""
    inside = ~placed.outside
    placed.memory[inside] = rng.integers(-4, 5, int(inside.sum()))


@dataclass
class Case:
    a: Placed
    b: Placed
    out: Placed
    c: Placed | None = None
    bias: Array | None = None
    bias_axis: str | None = None
    alpha: int = 1
    beta: int = 0

    def fill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for placed in (self.a, self.b, self.c):
            if placed is not None:
                fill(placed, rng)
        if self.bias is not None:
            self.bias[...] = rng.integers(-4, 5, self.bias.shape)

    @property
    def problem(self) -> GemmProblem:
        *batch, m, n = self.out.view.shape
        bias = None
        if self.bias is not None:
            bias = Bias(FLOAT64, self.bias_axis, self.bias.strides[0] // 8)
        return GemmProblem(
            m=m,
            n=n,
            k=self.a.view.shape[-1],
            a=self.a.operand,
            b=self.b.operand,
            out=self.out.operand,
            compute_dtype=FLOAT64,
            batch=tuple(batch),
            operands=Operands({"c": self.c.operand if self.c else None, "bias": bias}),
            alpha_is_one=self.alpha == 1,
        )

    def expected(self) -> Array:
        value = self.alpha * np.matmul(self.a.view, self.b.view)
        if self.c is not None:
            value = value + self.beta * self.c.view
        if self.bias is not None:
            value = value + (self.bias[:, np.newaxis] if self.bias_axis == "m" else self.bias)
        return value

    def run(self, call: BlasCall) -> None:
        run_call(
            call,
            self.a.flat,
            self.b.flat,
            self.out.flat,
            self.c.flat if self.c else None,
            alpha=self.alpha,
            beta=self.beta,
            bias=self.bias,
        )

    def check(self, call: BlasCall) -> None:
        """Run ``call``; the result must be numpy's, and nothing else may have changed."""
        expected = self.expected()
        operands = [x.memory for x in (self.a, self.b, self.c) if x is not None and x.memory is not self.out.memory]
        before = [x.copy() for x in operands]
        padding = self.out.memory[self.out.outside].copy()
        self.run(call)
        np.testing.assert_array_equal(self.out.view, expected)
        np.testing.assert_array_equal(self.out.memory[self.out.outside], padding)
        for memory, old in zip(operands, before):
            np.testing.assert_array_equal(memory, old)


# ---------------------------------------------------------------- what may be refused, from first principles


def readable(view: Array, order: str) -> bool:
    """Whether some leading dimension puts every element where the view has it; found by trial, without rules."""
    *_, rows, cols = view.shape
    if view.size == 0:
        return True
    where = np.array([[i * view.strides[-2] + j * view.strides[-1] for j in range(cols)] for i in range(rows)]) // 8
    least = max(1, cols if order == "row" else rows)
    i, j = np.indices((rows, cols))
    far = int(np.abs(where).max()) + least
    return any(np.array_equal(where, i * ld + j if order == "row" else i + j * ld) for ld in range(least, far + 1))


def refusable(case: Case) -> str | None:
    """The documented cause for which a case may, and must, be refused."""
    for name in ("a", "b", "out", "c"):
        placed = getattr(case, name)
        if placed is not None and not (readable(placed.view, "row") or readable(placed.view, "col")):
            return name
    if case.c is not None and not any(readable(case.out.view, o) and readable(case.c.view, o) for o in ("row", "col")):
        return "orders"
    return None


def check_lowering(case: Case, order: str, seed: int) -> BlasCall | None:
    """Lower, then check the answer: a correct call, or a refusal with a documented cause."""
    case.fill(seed)
    call = lower(case.problem, order)
    cause = refusable(case)
    if isinstance(call, Refusal):
        assert cause is not None, call
        assert call.remedy
        named = "storage orders" if cause == "orders" else f"{cause} ("
        assert named in call.reason
        return None
    assert cause is None
    assert call.order == order or order == "any"
    assert not (order == "any" and call.swapped)
    assert len(call.batch) <= len(case.problem.batch)
    case.check(call)
    return call


# ---------------------------------------------------------------- strategies

sizes = st.sampled_from([2, 3, 1, 4, 2, 3, 1, 4, 0])
seeds = st.integers(0, 2**32 - 1)


@st.composite
def placements(draw, shape: tuple[int, ...], writable: bool = False) -> Placed:
    """Any layout of a numpy view, mostly one that BLAS takes."""
    ndim = len(shape)
    axes = list(range(ndim))
    inner = draw(st.sampled_from([ndim - 1, ndim - 1, ndim - 2, ndim - 2, *axes]))
    rest = [i for i in axes if i != inner]
    memory_order = (*draw(st.sampled_from([rest, draw(st.permutations(rest))])), inner)
    pads = tuple(draw(st.sampled_from([0, 0, 0, 1, 3])) for _ in axes)
    starts = tuple(draw(st.sampled_from([0, 0, 0, 2])) for _ in axes)
    batch_steps = [1, 1, 1, 2, -1] + [0] * (not writable)
    matrix_steps = [1] * 12 + [2, -1] + [0] * (not writable)
    steps = tuple(draw(st.sampled_from(batch_steps if i < ndim - 2 else matrix_steps)) for i in axes)
    placed = place(shape, memory_order, pads, starts, steps)
    # The stride of a dimension without neighbours may be anything.
    strides = tuple(
        8 * draw(st.sampled_from([stride // 8, 0, -5, 1000])) if size == 1 else stride
        for size, stride in zip(placed.view.shape, placed.view.strides)
    )
    view = np.lib.stride_tricks.as_strided(placed.view, shape, strides, writeable=writable)
    return Placed(view, placed.memory)


@st.composite
def cases(draw) -> Case:
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    batch = tuple(draw(st.lists(st.sampled_from([2, 3, 1, 2, 3, 0]), max_size=3)))
    a, b = draw(placements((*batch, m, k))), draw(placements((*batch, k, n)))
    out = draw(placements((*batch, m, n), writable=True))
    case = Case(a, b, out, alpha=draw(st.sampled_from([1, 1, -1, 2, 0])))
    addend = draw(st.sampled_from(["none", "own", "same order", "in place"]))
    if addend != "none":
        case.beta = draw(st.sampled_from([1, -2]))
        case.c = out
        if addend == "own":
            case.c = draw(placements((*batch, m, n)))
        elif addend == "same order":
            memory = out.memory.copy()
            start = memory[out.flat.offset :] if out.view.size else memory
            case.c = Placed(np.lib.stride_tricks.as_strided(start, out.view.shape, out.view.strides), memory)
    case.bias_axis = draw(st.sampled_from([None, "m", "n"]))
    if case.bias_axis is not None:
        length = m if case.bias_axis == "m" else n
        case.bias = np.full(3 * length, np.nan)[:: draw(st.sampled_from([1, 2, -1, -3]))][:length]
    return case


# ---------------------------------------------------------------- lower


@settings(property_test, max_examples=1200)
@given(case=cases(), order=st.sampled_from(ORDERS), seed=seeds)
def test_any_view_is_lowered_exactly_or_refused_for_a_documented_cause(case, order, seed):
    call = check_lowering(case, order, seed)
    event("refused" if call is None else "swapped" if call.swapped else "direct")
    if call is not None:
        event(f"{len(call.batch)} batch dimensions")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", list(product((1, 3), (1, 4), (1, 2))), ids=str)
def test_every_combination_of_orders_bias_and_addend(order, shape):
    m, n, k = shape
    reached = set()
    for orders in product(("row", "col"), repeat=4):
        for axis, with_c, pad in product((None, "m", "n"), (False, True), (0, 2)):
            case = Case(
                matrix(m, k, orders[0], pad, 1), matrix(k, n, orders[1], pad), matrix(m, n, orders[2], pad, 2), alpha=2
            )
            if with_c:
                case.c, case.beta = matrix(m, n, orders[3], pad), -1
            if axis is not None:
                case.bias, case.bias_axis = np.empty(m if axis == "m" else n), axis
            call = check_lowering(case, order, seed=m + 10 * n)
            reached.add("refused" if call is None else (call.swapped, call.trans_a, call.trans_b))
    if min(m, n) > 1:
        assert "refused" in reached
        # Every call a library of one order can be given was given.
        wanted = 4 if order == "any" else 8
        assert k == 1 or len(reached) == wanted + 1


def test_a_swapped_call_exchanges_everything():
    case = Case(
        place((2, 5, 3), (0, 1, 2), pads=(0, 0, 1)),  # a: row-major, leading dimension 4, batch stride 20
        place((2, 3, 4), (0, 2, 1), pads=(0, 2, 0)),  # b: column-major, leading dimension 5, batch stride 20
        place((2, 5, 4), (0, 1, 2), pads=(1, 1, 3)),  # out: row-major, leading dimension 7, batch stride 42
        bias=np.empty(4),
        bias_axis="n",
    )
    case.b.view[...] = 0
    call = check_lowering(case, "col", seed=3)
    assert call == BlasCall(
        order="col",
        swapped=True,
        m=4,
        n=5,
        k=3,
        trans_a=True,
        trans_b=False,
        lda=5,
        ldb=4,
        ldc=7,
        ldd=7,
        bias_axis="m",
        batch=(BatchDim(2, 20, 20, 42, 42),),
    )


def test_a_one_row_result_takes_the_reading_of_its_addend():
    case = Case(matrix(1, 3, "row"), matrix(3, 4, "row"), matrix(1, 4, "row"), matrix(1, 4, "col", pad=2), beta=1)
    assert case.c.layout.order == "col"
    for order in ORDERS:
        assert check_lowering(case, order, seed=1) is not None


def test_k_zero_gives_the_epilogue_whatever_the_strides_of_nothing():
    for order, strides in product(ORDERS, ((0, 0), (0, 8), (-8, 8), (24, 16))):
        case = Case(matrix(3, 0, "row"), matrix(0, 2, "col"), matrix(3, 2, "row"), bias=np.empty(2), bias_axis="n")
        case.a.view = np.lib.stride_tricks.as_strided(case.a.memory, (3, 0), strides)
        call = check_lowering(case, order, seed=5)
        assert call.k == 0
        np.testing.assert_array_equal(case.out.view, np.broadcast_to(case.bias, (3, 2)))


def test_overlapping_and_broadcast_rows_are_refused_but_overlapping_matrices_are_not():
    memory = np.zeros(30)
    windows = np.lib.stride_tricks.sliding_window_view(memory, 4)  # each row one element further: (27, 4)
    b, out = matrix(4, 2, "row"), matrix(27, 2, "row")
    assert check_lowering(Case(Placed(windows, memory), b, out), "row", seed=6) is None
    rows = np.broadcast_to(memory[:4], (27, 4))
    assert check_lowering(Case(Placed(rows, memory), b, out), "row", seed=7) is None
    stack = windows[:, np.newaxis, :]  # 27 overlapping matrices of one row are a legal strided batch
    case = Case(Placed(stack, memory), place((27, 4, 2), (0, 1, 2), steps=(0, 1, 1)), place((27, 1, 2), (0, 1, 2)))
    call = check_lowering(case, "row", seed=8)
    assert call.batch == (BatchDim(27, 1, 0, 2, 2),)


@pytest.mark.parametrize("order", ORDERS)
def test_batch_dimensions_that_a_layout_lacks_are_broadcast(order):
    case = Case(place((2, 3, 2, 4), (0, 1, 2, 3)), matrix(4, 5, "col"), place((2, 3, 2, 5), (0, 1, 2, 3)))
    call = check_lowering(case, order, seed=10)
    assert call.batch == (BatchDim(6, *((0, 8) if call.swapped else (8, 0)), 10, 10),)
    assert fold_batch(case.problem).m == 12


def test_an_unknown_order_is_an_input_error():
    case = Case(matrix(2, 2, "row"), matrix(2, 2, "row"), matrix(2, 2, "row"))
    with pytest.raises(InputError, match="order"):
        lower(case.problem, "C")


@pytest.mark.parametrize(
    "change",
    [
        {"swapped": False},
        {"m": 3, "n": 2},
        {"k": 3},
        {"k": 5},
        {"trans_a": False},
        {"trans_b": True},
        {"lda": 6},
        {"lda": 8},
        {"ldb": 4},
        {"ldb": 6},
        {"ldc": 3},
        {"ldc": 5},
        {"ldd": 3},
        {"ldd": 5},
        {"trans_a": False, "trans_b": True},
        {"bias_axis": "n"},
        {"order": "row"},
        {"batch": ()},
        {"batch": (BatchDim(1, 14, 20, 12, 12),)},
        {"batch": (BatchDim(2, 13, 20, 12, 12),)},
        {"batch": (BatchDim(2, 14, 19, 12, 12),)},
        {"batch": (BatchDim(2, 14, 20, 11, 12),)},
        {"batch": (BatchDim(2, 14, 20, 12, 13),)},
        {"batch": (BatchDim(2, 20, 14, 12, 12),)},
    ],
    ids=str,
)
def test_the_check_notices_every_wrong_field(change):
    """A lowering with one wrong number must fail."""
    case = Case(
        place((2, 3, 4), (0, 1, 2), pads=(0, 1, 1)),
        place((2, 4, 2), (0, 2, 1), pads=(1, 3, 0)),
        place((2, 3, 2), (0, 1, 2), pads=(1, 0, 2)),
        place((2, 3, 2), (0, 1, 2), pads=(1, 0, 2)),
        np.empty(2),
        "n",
        beta=-2,
    )
    call = check_lowering(case, "col", seed=9)
    assert call.swapped
    assert (call.lda, call.ldb, call.ldc, call.ldd) == (7, 5, 4, 4)
    assert call.batch == (BatchDim(2, 14, 20, 12, 12),)
    assert all(getattr(call, name) != value for name, value in change.items())
    case.out.memory[:] = np.nan
    with pytest.raises((StrictGemmError, AssertionError)):
        case.check(replace(call, **change))


def test_elements_that_are_not_aligned_are_refused():
    """Fields of a structured array may have strides that are no whole number of elements: no BLAS call has these."""
    records = np.zeros(3, dtype=[("x", "f8", (3, 3)), ("t", "f4")])
    problem = describe(records["x"], np.eye(3), None, request({})).problem
    assert 0 not in problem.a.layout.batch_strides  # it is not the same matrix three times
    for order in ("col", "row", "any"):
        refusal = lower(problem, order)
        assert isinstance(refusal, Refusal)
        assert refusal.reason.startswith("a has elements that are not aligned")
    assert np.array_equal(gemmhub.matmul(records["x"], np.eye(3)), records["x"])


# ---------------------------------------------------------------- collapse and fold_batch


@st.composite
def evenly_spaced(draw) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    operands = []
    for _ in range(draw(st.integers(1, 3))):
        strides: list[int] = []
        step = draw(st.sampled_from([0, 1, 6, -2]))
        for size in reversed(shape):
            strides.insert(0, step)
            step = draw(st.sampled_from([step * size, step * size, step * size, step * size + 3, 0]))
        operands.append(tuple(strides))
    return shape, operands


def offsets_of(shape, strides) -> list[int]:
    return [sum(i * s for i, s in zip(index, strides)) for index in np.ndindex(*shape)]


@settings(property_test, max_examples=400)
@given(evenly_spaced())
def test_collapse_visits_the_same_matrices_in_the_same_order_in_fewest_dimensions(given_strides):
    shape, operands = given_strides
    dims = collapse(shape, *operands)
    counts = [count for count, _ in dims]
    assert 1 not in counts
    assert len(dims) <= len(shape)
    for which, strides in enumerate(operands):
        assert offsets_of(counts, [steps[which] for _, steps in dims]) == offsets_of(shape, strides)
    if prod(shape):
        for (_, outer), (count, inner) in pairwise(dims):
            assert any(o != i * count for o, i in zip(outer, inner)), "two dimensions could have been one"


def test_collapse_by_example():
    assert collapse(()) == ()
    assert collapse((1, 1), (5, 7)) == ()
    assert collapse((2, 3), (18, 6), (0, 0)) == ((6, (6, 0)),)
    assert collapse((2, 1, 3), (18, -9, 6)) == ((6, (6,)),)
    assert collapse((2, 3), (18, 6), (0, 4)) == ((2, (18, 0)), (3, (6, 4)))
    with pytest.raises(ValueError, match="shorter"):
        collapse((2, 3), (18, 6), (4,))


def test_offsets_keep_the_innermost_dimensions():
    call = BlasCall("col", False, 1, 1, 1, False, False, 1, 1, 1, 1)
    assert list(call.offsets()) == [(0, 0, 0, 0)]
    call = replace(call, batch=(BatchDim(2, 100, 0, 7, 9), BatchDim(3, 10, 1, 2, 3)))
    assert list(call.offsets()) == [(0, 0, 0, 0), (100, 0, 7, 9)]
    assert list(call.offsets(keep=2)) == list(call.offsets(keep=3)) == [(0, 0, 0, 0)]
    assert list(call.offsets(keep=0))[-2:] == [(110, 1, 9, 12), (120, 2, 11, 15)]


@st.composite
def shared_b_cases(draw) -> Case:
    m, n, k = draw(st.tuples(*[st.sampled_from([1, 2, 3])] * 3))
    batch = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3)))
    nothing = (0,) * len(batch)
    dense = tuple(range(len(batch) + 2))
    b_order = draw(st.sampled_from([dense, (*dense[:-2], dense[-1], dense[-2])]))
    b = place((*batch, k, n), b_order, steps=(*nothing, 1, 1))

    def rows(cols: int, writable: bool) -> Placed:
        if draw(st.booleans()):
            return place((*batch, m, cols), dense, pads=(*nothing, 0, draw(st.sampled_from([0, 2]))))
        if draw(st.booleans()):  # a column-major matrix of batch*m rows, cut into a stack
            return place((*batch, m, cols), (dense[-1], *dense[:-1]))
        return draw(placements((*batch, m, cols), writable))

    case = Case(rows(k, False), b, rows(n, True))
    if draw(st.booleans()):
        case.c, case.beta = rows(n, False), 2
    if draw(st.booleans()):
        case.bias, case.bias_axis = np.empty(n), "n"
    return case


@settings(property_test, max_examples=600)
@given(case=shared_b_cases(), order=st.sampled_from(ORDERS), seed=seeds)
def test_a_folded_batch_gives_the_batched_result(case, order, seed):
    case.fill(seed)
    folded = fold_batch(case.problem)
    event("folded" if folded else "not folded")
    if folded is None:
        return
    assert folded.batch == ()
    assert (folded.m, folded.n, folded.k) == (case.problem.m * case.problem.batch_count, case.problem.n, case.problem.k)
    call = lower(folded, order)
    if isinstance(call, Refusal):
        assert refusable(case) is not None, "folding lost a problem that can be lowered"
        return
    assert call.batch == ()
    case.check(call)


def stacked(a_steps=(1, 1, 1), b_steps=(0, 1, 1), m: int = 2) -> Case:
    return Case(
        place((3, m, 4), (0, 1, 2), steps=a_steps),
        place((3, 4, 5), (0, 1, 2), steps=b_steps),
        place((3, m, 5), (0, 1, 2)),
    )


def test_what_folds():
    case = stacked()
    folded = fold_batch(case.problem)
    assert (folded.m, folded.batch, folded.a.layout.row_stride, folded.b.layout.batch) == (6, (), 4, ())
    case.bias, case.bias_axis = np.empty(5), "n"
    assert fold_batch(case.problem) is not None
    case.c, case.beta = place((3, 2, 5), (0, 1, 2), pads=(0, 0, 3)), 1
    assert fold_batch(case.problem).c.layout.row_stride == 8
    assert fold_batch(stacked(m=1).problem) is not None
    unit = MatrixLayout(4, 5, 5, 1, (1, 3), (99, 0))  # the stride of a dimension of size 1 says nothing
    two = {
        name: replace(operand, layout=replace(operand.layout, batch=(1, 3), batch_strides=(-7, step)))
        for name, operand, step in (("a", stacked().problem.a, 8), ("out", stacked().problem.out, 10))
    }
    assert fold_batch(replace(stacked().problem, batch=(1, 3), b=Operand(FLOAT64, unit), **two)).m == 6


def test_what_does_not_fold():
    assert fold_batch(Case(matrix(2, 2, "row"), matrix(2, 2, "row"), matrix(2, 2, "row")).problem) is None
    assert fold_batch(stacked(b_steps=(1, 1, 1)).problem) is None, "b differs"
    assert fold_batch(stacked(a_steps=(0, 1, 1)).problem) is None, "a does not step"
    assert fold_batch(stacked(a_steps=(2, 1, 1)).problem) is None, "a steps over matrices"
    biased = stacked()
    biased.bias, biased.bias_axis = np.empty(2), "m"
    assert fold_batch(biased.problem) is None, "the bias differs from row to row"
    addend = stacked()
    addend.c, addend.beta = place((3, 2, 5), (1, 0, 2)), 1
    assert fold_batch(addend.problem) is None, "c steps otherwise"


def test_folding_never_loses_a_problem_that_can_be_lowered():
    """Matrices of one row: as a stack they may be broadcast or reversed, as rows of one matrix they may not."""
    for steps in ((0, 1, 1), (-1, 1, 1)):
        case = stacked(a_steps=steps, m=1)
        assert not isinstance(lower(case.problem), Refusal)
        assert fold_batch(case.problem) is None
    mixed = stacked(m=1)
    mixed.c, mixed.beta = place((3, 1, 5), (2, 1, 0)), 1  # its rows form a column-major matrix, those of out not
    assert not isinstance(lower(mixed.problem), Refusal)
    assert fold_batch(mixed.problem) is None


# ---------------------------------------------------------------- MatrixLayout


@settings(property_test, max_examples=400)
@given(st.data())
def test_stored_means_that_some_leading_dimension_describes_it(data):
    placed = data.draw(placements((data.draw(sizes), data.draw(sizes))))
    layout = placed.layout
    for order in ("row", "col"):
        assert layout.stored(order) == readable(placed.view, order)
        assert layout.transposed.stored(order) == layout.stored("col" if order == "row" else "row")
        if layout.stored(order):
            inner = layout.cols if order == "row" else layout.rows
            assert layout.leading_dimension(order) >= max(1, inner)
    expected = next((o for o in ("row", "col") if readable(placed.view, o)), None)
    assert layout.order == expected
    assert layout.transposed.transposed == layout


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 1), (0, 3), (2, 0)])
def test_contiguous(order, batch, shape):
    layout = MatrixLayout.contiguous(*shape, batch, order)
    view = np.empty((*batch, *shape)) if order == "row" else np.empty((*batch, *shape[::-1])).swapaxes(-1, -2)
    if view.size:
        assert (*layout.batch_strides, layout.row_stride, layout.col_stride) == tuple(s // 8 for s in view.strides)
    assert layout.stored(order)
    assert layout.leading_dimension(order) == max(1, shape[1] if order == "row" else shape[0])


@pytest.mark.parametrize("strides", [(-4, 1), (0, 1), (4, -1), (4, 0), (8, 2), (3, 1), (0, 0), (1, 1)])
def test_negative_zero_overlapping_and_strided_matrices_have_no_order(strides):
    layout = MatrixLayout(3, 4, *strides)
    assert layout.order is None
    assert replace(layout, rows=0).order == "row"
    assert replace(layout, batch=(0,), batch_strides=(1,)).order == "row"


def test_elements_are_counted_once():
    assert MatrixLayout(3, 4, 4, 1, (2, 5), (0, 12)).distinct_elements == 60
    assert MatrixLayout(3, 4, 0, 1).distinct_elements == 4
    assert MatrixLayout(3, 4, 4, 1, (0,), (0,)).distinct_elements == 0
    assert MatrixLayout(3, 4, 4, 1, (2, 5), (0, 12)).broadcast
    assert not MatrixLayout(3, 4, 4, 1, (1, 5), (0, 12)).broadcast


def test_strides_without_effect_are_not_essential():
    layout = MatrixLayout(3, 4, 9, 2, (2, 5), (100, 50))
    assert layout.essential == layout
    assert replace(layout, rows=1).essential == replace(layout, rows=1, row_stride=0)
    assert replace(layout, cols=1).essential == replace(layout, cols=1, col_stride=0)
    assert replace(layout, batch=(1, 5)).essential.batch_strides == (0, 50)
    assert replace(layout, batch_strides=(50,)).essential.batch_strides == (0, 50)
    for empty in (replace(layout, rows=0), replace(layout, cols=0), replace(layout, batch=(2, 0))):
        assert empty.essential == replace(empty, row_stride=0, col_stride=0, batch_strides=(0, 0))
