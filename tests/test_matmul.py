"""gemmhub.matmul: numpy.matmul's shapes, every layout, out= and the epilogue."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from products import BF16, F16, F32, F64, I8, I32, I64, draw, product_shape, ratio, relaid

import gemmhub
from gemmhub import Backend, BackendDescription, Device, Kernel, Ready
from gemmhub._choice import registry
from gemmhub.backend import BASIC
from gemmhub.dtypes import PRECISIONS
from gemmhub.errors import OutputError, ShapeError
from gemmhub.numpy_backend.backend import NumpyBackend

SEEDS = st.integers(0, 2**32 - 1)
MULTIPLYING = hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", min_side=0, max_side=4, max_dims=3)
ANY_SHAPE = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
PATHS = (F32, F16, I8, I64)
"""One dtype for each way that the built-in backend has: BLAS, converted blocks, exact blocks, loops."""


@contextlib.contextmanager
def quiet():
    """Ignore NumPy's warnings of overflow and NaN in its own products."""
    with np.errstate(all="ignore"):
        yield


# Shapes


@given(MULTIPLYING, st.sampled_from(PATHS), SEEDS)
def test_shapes_are_those_of_numpy(shapes, dtype, seed):
    rng = np.random.default_rng(seed)
    a, b = (draw(rng, shape, dtype) for shape in shapes.input_shapes)
    got = gemmhub.matmul(a, b)
    assert got.shape == shapes.result_shape
    assert type(got) is (np.ndarray if got.shape else got.dtype.type)
    assert ratio(got, a, b) <= 1


@pytest.mark.parametrize("dtype", [*PATHS, np.dtype(bool)], ids=str)
def test_as_many_dimensions_as_arrays_have(dtype, rng):
    """numpy.broadcast_shapes ends at 32; arrays have up to 64 since NumPy 2."""
    most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
    a, b = draw(rng, (2, *[1] * (most - 4), 3, 4, 5), dtype), draw(rng, (3, 5, 6), dtype)
    expected = (*a.shape[:-1], 6)
    for _ in range(2):
        got = gemmhub.matmul(a, b)
        assert got.shape == expected
        assert ratio(got, a, b) <= 1
    assert gemmhub.plan(a, b)(a, b).shape == expected
    assert gemmhub.spot_check(a, b, got)
    assert gemmhub.matmul(a, b[0, :, 0]).shape == expected[:-1]
    assert gemmhub.matmul(b[0, :, 0], np.swapaxes(a, -1, -2)).shape == expected[:-1]
    result = gemmhub.matmul(a, b, c=got[:, ..., :1, :], beta=1, bias=got[(0,) * (most - 1)])
    assert ratio(result, a, b, c=got[:, ..., :1, :], beta=1, bias=got[(0,) * (most - 1)]) <= 1
    with pytest.raises(ShapeError, match="do not broadcast"):
        gemmhub.matmul(a, draw(rng, (4, 5, 6), dtype))
    assert gemmhub.compare(a, b)


@given(ANY_SHAPE, ANY_SHAPE, st.sampled_from(PATHS))
@example((), (3,), F32)
@example((3,), (), F16)
@example((0,), (1,), F32)
@example((2, 0), (1, 2), I8)
@example((2, 3, 4), (3, 4, 5), F32)
def test_raises_exactly_where_numpy_raises(a_shape, b_shape, dtype):
    a, b = np.zeros(a_shape, dtype), np.zeros(b_shape, dtype)
    try:
        expected = np.matmul(a, b).shape
    except ValueError:
        expected = None
    for _ in range(2):
        if expected is None:
            with pytest.raises(ShapeError) as raised:
                gemmhub.matmul(a, b)
            assert raised.value.given
            assert raised.value.allowed
        else:
            assert gemmhub.matmul(a, b).shape == expected


@pytest.mark.parametrize("dtype", [F32, F16, I8, I64, BF16], ids=str)
@pytest.mark.parametrize(("a_shape", "b_shape"), [((3, 0), (0, 4)), ((0,), (0,)), ((2, 3, 0), (0,)), ((0,), (5, 0, 2))])
def test_an_empty_sum_is_zero_plus_the_epilogue(a_shape, b_shape, dtype, rng):
    a, b = np.empty(a_shape, dtype), np.empty(b_shape, dtype)
    shape = product_shape(a_shape, b_shape)
    out_dtype = I32 if dtype == I8 else dtype
    out = draw(rng, shape, out_dtype) if shape else None
    got = gemmhub.matmul(a, b, out=out)
    assert np.array_equal(got, np.zeros(shape, out_dtype))
    c = draw(rng, shape, out_dtype)
    assert np.array_equal(gemmhub.matmul(a, b, c=np.asarray(c), beta=1), c)


# Layouts


@given(MULTIPLYING, st.sampled_from((*PATHS, BF16, F64)), SEEDS)
def test_operands_in_any_layout(shapes, dtype, seed):
    rng = np.random.default_rng(seed)
    a, b = (draw(rng, shape, dtype) for shape in shapes.input_shapes)
    (left, _), (right, _) = relaid(rng, a), relaid(rng, b)
    with quiet():
        for _ in range(2):
            assert ratio(gemmhub.matmul(left, right), a, b) <= 1
            assert ratio(gemmhub.matmul(a, right), a, b) <= 1


@pytest.mark.parametrize("dtype", PATHS, ids=str)
def test_operands_with_strides_of_zero(dtype, rng):
    row, column = draw(rng, (1, 5), dtype), draw(rng, (5, 1), dtype)
    a, b = np.broadcast_to(row, (4, 3, 5)), np.broadcast_to(column, (3, 5, 2)[-2:])
    assert ratio(gemmhub.matmul(a, b), a, b) <= 1
    a = np.broadcast_to(draw(rng, (), dtype), (4, 5))
    assert ratio(gemmhub.matmul(a, b), a, b) <= 1
    # The warm path of one layout serves another.
    for other in (a.copy(), np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        assert ratio(gemmhub.matmul(other, b), a, b) <= 1


@pytest.mark.parametrize("dtype", PATHS, ids=str)
def test_broadcast_batches_after_a_call_that_was_folded(dtype, rng):
    """(B, m, k) @ (k, n), contiguous or not, and (B, k, n) in place of (k, n)."""
    a, b = draw(rng, (6, 20, 30), dtype), draw(rng, (30, 12), dtype)
    out = np.empty((6, 20, 12), gemmhub.matmul(a, b).dtype)
    turned = np.ascontiguousarray(a.transpose(2, 0, 1)).transpose(1, 2, 0)
    for left in (a, turned, a[::-1], np.broadcast_to(a[:1], a.shape)):
        for right in (b, np.asfortranarray(b), b[::-1, ::-1]):
            assert ratio(gemmhub.matmul(left, right), left, right) <= 1
            for target in (out, out[::-1], np.asfortranarray(out), np.repeat(out, 2, axis=1)[:, ::2]):
                target[...] = 0
                assert gemmhub.matmul(left, right, out=target) is target
                assert ratio(target, left, right) <= 1
    stack = np.broadcast_to(b, (6, 30, 12))
    for right in (stack, draw(rng, (6, 30, 12), dtype)):
        assert ratio(gemmhub.matmul(a, right), a, right) <= 1


# out=


@given(MULTIPLYING, st.sampled_from((*PATHS, BF16)), SEEDS)
def test_out_in_any_layout_and_nothing_beside_it(shapes, dtype, seed):
    rng = np.random.default_rng(seed)
    a, b = (draw(rng, shape, dtype) for shape in shapes.input_shapes)
    poison = draw(rng, shapes.result_shape, I32 if dtype == I8 else dtype)
    out, memory = relaid(rng, np.asarray(poison))
    before = memory.copy()
    for _ in range(2):
        assert gemmhub.matmul(a, b, out=out) is out
        assert ratio(out, a, b) <= 1
    out[...] = poison
    assert np.array_equal(memory, before)


@pytest.mark.parametrize("dtype", [F32, F16, I8, F64], ids=str)
@pytest.mark.parametrize("fill", [np.nan, 1e300, -1])
def test_what_out_held_does_not_matter(dtype, fill, rng):
    a, b = draw(rng, (7, 9), dtype), draw(rng, (9, 6), dtype)
    out_dtype = I32 if dtype == I8 else dtype
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = np.full((7, 6), np.float64(fill).astype(out_dtype))
    gemmhub.matmul(a, b, out=out)
    assert ratio(out, a, b) <= 1


@pytest.mark.parametrize(
    "shapes", [((1, 3, 4), (4,)), ((4,), (1, 4, 3)), ((1, 4), (1, 4, 1)), ((1, 2, 4), (4, 3))], ids=str
)
def test_a_product_is_not_repeated_into_a_larger_out(shapes, rng):
    """As a ufunc would: NumPy takes the outermost dimensions of out for a larger stack."""
    a, b = (draw(rng, shape, F32) for shape in shapes)
    shape = np.matmul(a, b).shape
    for _ in range(3):
        gemmhub.matmul(a, b, out=np.empty(shape, F32))
        larger = np.full((5, *shape[1:]), 7, F32)
        assert larger.strides == np.empty(shape, F32).strides
        with pytest.raises(OutputError):
            gemmhub.matmul(a, b, out=larger)
        assert np.all(larger == 7)


def test_the_dtype_of_out_is_the_result_dtype(rng):
    a, b = draw(rng, (7, 9), F16), draw(rng, (9, 6), F16)
    for dtype in (F16, BF16, F32, F64):
        out = np.zeros((7, 6), dtype)
        for options in ({}, {}, {"out_dtype": dtype}):
            gemmhub.matmul(a, b, out=out, **options)
            assert ratio(out, a, b, out_dtype=dtype) <= 1
    # and a call without out= is not impressed by one with it
    assert gemmhub.matmul(a, b).dtype == F16


class Eager(Backend):
    """Writes garbage into out before it reads anything, as a kernel of many small steps may."""

    name = "eager"
    takes = BASIC

    def probe(self):
        return Ready((Device(),))

    def offer(self, problem):
        return gemmhub.Offer()

    def prepare(self, problem, candidate, workspace_limit):
        inner = NumpyBackend().prepare(problem, "default", workspace_limit).run

        def run(a, b, out, alpha, beta, stream, **operands):
            c, bias = operands.get("c"), operands.get("bias")
            in_place = c is not None and c.ctypes.data == out.ctypes.data and c.strides == out.strides
            for operand in (a, b, bias, *([] if in_place else [c])):
                assert operand is None or not np.shares_memory(out, operand)
            if not in_place:
                out[...] = 77
            inner(a, b, out, alpha, beta, stream, **operands)

        return Kernel(run, "eager")


def _window(buffer, data, rows, cols, dtype, name):
    """A rows x cols matrix of ``dtype`` somewhere in ``buffer``, read in some direction."""
    size = rows * cols * dtype.itemsize
    spread = data.draw(st.sampled_from([1, 2]), label=f"{name} step")
    size *= spread
    offset = data.draw(st.integers(0, buffer.nbytes - size), label=f"{name} offset")
    flat = buffer[offset : offset + size].view(dtype)[::spread]
    direction = data.draw(st.sampled_from(["C", "F", "reversed"]), label=f"{name} direction")
    if direction == "F":
        return flat.reshape(cols, rows).T
    return flat.reshape(rows, cols)[::-1, ::-1] if direction == "reversed" else flat.reshape(rows, cols)


@given(st.data(), st.sampled_from([F32, F16, I8, I64, BF16]), st.sampled_from(["numpy", "eager"]), SEEDS)
def test_out_may_overlap_everything(data, dtype, backend, seed):
    """All five operands are windows of one small buffer, at any offset and in any direction."""
    if registry.registry().find("eager") is None:
        registry.registry().add(BackendDescription("eager", Eager, "for tests", contract=2), "eager", "gemmhub-eager")
    m, n, k = (data.draw(st.integers(1, 5), label=name) for name in "mnk")
    rng = np.random.default_rng(seed)
    result = I32 if dtype == I8 else dtype
    buffer = np.ascontiguousarray(draw(rng, 600 // result.itemsize, result)).view(np.uint8)
    a = _window(buffer, data, m, k, dtype, "a")
    b = _window(buffer, data, k, n, dtype, "b")
    out = _window(buffer, data, m, n, result, "out")
    options = {"backend": backend}
    if data.draw(st.booleans(), label="with c"):
        c = out if data.draw(st.booleans(), label="c is out") else _window(buffer, data, m, n, result, "c")
        options |= {"c": c, "beta": data.draw(st.sampled_from([1, 2, 0]), label="beta")}
    if data.draw(st.booleans(), label="with bias"):
        options["bias"] = _window(buffer, data, 1, n, result, "bias")
    whole = buffer.copy()
    kept = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in options.items()}
    del kept["backend"]
    operands = a.copy(), b.copy()
    with quiet():
        for _ in range(2):  # decided, then warm
            buffer[...] = whole
            gemmhub.matmul(a, b, out=out, **options)
            assert ratio(out, *operands, **kept) <= 1
            out[...] = 0
            zeroed = buffer.copy()
            buffer[...] = whole
            out[...] = 0
            assert np.array_equal(buffer, zeroed), "something beside out was written"


@pytest.mark.parametrize("dtype", [F32, F16, I64, F64], ids=str)
def test_out_is_an_operand(dtype, rng):
    values = draw(rng, (6, 6), dtype)
    other = draw(rng, (6, 6), dtype)
    for turn in (lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[:, ::-1]):
        for _ in range(2):
            x = values.copy()
            gemmhub.matmul(x, other, out=turn(x))
            assert ratio(turn(x), values, other) <= 1
            x = values.copy()
            gemmhub.matmul(other, x, out=turn(x))
            assert ratio(turn(x), other, values) <= 1
            x = values.copy()
            gemmhub.matmul(x, x, out=turn(x))
            assert ratio(turn(x), values, values) <= 1


@pytest.mark.parametrize("dtype", [F32, F16, I8, C := np.dtype(np.complex64)], ids=str)
def test_accumulating_in_place(dtype, rng):
    a, b = draw(rng, (70, 30), dtype), draw(rng, (30, 40), dtype)
    start = draw(rng, (70, 40), I32 if dtype == I8 else dtype)
    for layout in (np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(x, 2, axis=0)[::-2][::-1]):
        out = layout(start.copy())
        begun = out.copy()
        assert gemmhub.matmul(a, b, out=out, c=out, beta=3, alpha=2) is out
        assert ratio(out, a, b, alpha=2, beta=3, c=begun) <= 1


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1), (5, 4)])
def test_accumulating_in_place_needs_no_temporary(shape, rng):
    a, b = draw(rng, (shape[0], 3), F16), draw(rng, (3, shape[1]), F16)
    out = draw(rng, shape, F16)
    assert not gemmhub.explain(a, b, out=out, c=out, beta=1).copies
    assert gemmhub.explain(a, b, out=out, c=out[::-1], beta=1).copies or shape[0] == 1


# The epilogue


@given(
    MULTIPLYING,
    st.sampled_from((F32, F16, BF16, F64, I8, I64)),
    st.sampled_from([1, -1, 2.5, 0, -0.375]),
    st.sampled_from([None, 0, 1, -2, 0.75]),
    st.booleans(),
    st.sampled_from([None, "relu", "gelu", "silu"]),
    SEEDS,
)
def test_every_epilogue(shapes, dtype, alpha, beta, with_bias, activation, seed):
    rng = np.random.default_rng(seed)
    a, b = (draw(rng, shape, dtype) for shape in shapes.input_shapes)
    result = I32 if dtype == I8 else dtype
    if dtype.kind == "i":
        alpha, beta = int(alpha), None if beta is None else int(beta)
        activation = activation and "relu"
    options = {"alpha": alpha, "activation": activation}
    if beta is not None:
        shape = [size if rng.random() < 0.7 else 1 for size in shapes.result_shape]
        c = draw(rng, shape[int(rng.integers(0, len(shape) + 1)) :], result)
        options |= {"beta": beta, "c": relaid(rng, np.asarray(c))[0]}
    if with_bias:
        m = 1 if a.ndim == 1 else a.shape[-2]
        n = 1 if b.ndim == 1 else b.shape[-1]
        choices = [(m,)] if b.ndim == 1 and a.ndim > 1 else [(n,), (1, n), (m, 1)]
        shape = choices[int(rng.integers(len(choices)))]
        options["bias"] = relaid(rng, draw(rng, shape, result))[0]
    with quiet():
        for _ in range(2):
            assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1
        out = draw(rng, shapes.result_shape, result)
        if shapes.result_shape:
            assert gemmhub.matmul(a, b, out=out, **options) is out
            assert ratio(out, a, b, **options) <= 1


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_beta_of_zero_never_reads_c(dtype, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    c = np.full((5, 7), np.nan).astype(dtype)
    for beta in (0, 0.0, -0.0, np.float32(0)):
        assert ratio(gemmhub.matmul(a, b, c=c, beta=beta), a, b) <= 1
        assert ratio(gemmhub.matmul(a, b, c=c, beta=beta, out=c.copy()), a, b) <= 1
    assert np.isnan(gemmhub.matmul(a, b, c=c, beta=1)).all()
    out = c.copy()
    gemmhub.matmul(a, b, c=out, beta=0, out=out)
    assert ratio(out, a, b) <= 1


def test_c_and_bias_in_the_accumulator_dtype(rng):
    a, b = draw(rng, (5, 6), F16), draw(rng, (6, 7), F16)
    c, bias = draw(rng, (5, 7), F32), draw(rng, (5, 1), F32)
    options = {"c": c, "beta": 0.5, "bias": bias, "activation": "silu"}
    assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1
    x, y = draw(rng, (5, 6), I8), draw(rng, (6, 7), I8)
    options = {"c": draw(rng, (5, 7), I32), "beta": 2, "alpha": 0.25, "out_dtype": F32, "bias": draw(rng, (7,), F32)}
    assert ratio(gemmhub.matmul(x, y, **options), x, y, **options) <= 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scalars_that_are_not_finite(value, rng):
    a, b, c = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32), draw(rng, (3, 5), F32)
    for options in ({"alpha": value}, {"alpha": 1, "beta": value, "c": c}):
        assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1


def test_complex_scalars(rng):
    a, b, c = (draw(rng, shape, np.complex64) for shape in ((3, 4), (4, 5), (3, 5)))
    options = {"alpha": 2 - 1j, "beta": 0.5j, "c": c, "bias": draw(rng, (5,), np.complex64)}
    assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1


@pytest.mark.parametrize("kind", [int, float, np.float32, np.int8, np.float64, bool, np.array])
def test_kinds_of_number(kind, rng):
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    assert ratio(gemmhub.matmul(a, b, alpha=kind(1)), a, b) <= 1
    assert ratio(gemmhub.matmul(a, b, alpha=kind(0)), a, b, alpha=0) <= 1


def test_a_warm_call_takes_other_numbers(rng):
    """The decision depends on whether alpha is 1 and beta 0; the numbers themselves are those of each call."""
    a, b, c = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32), draw(rng, (3, 5), F32)
    for alpha, beta in [(2.0, 3.0), (0.5, -1.0), (1, 0), (1.0, 1), (0, 0.0), (7, 1.0), (1, 0)]:
        assert ratio(gemmhub.matmul(a, b, alpha=alpha, beta=beta, c=c), a, b, alpha=alpha, beta=beta, c=c) <= 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [F32, F16, F64, np.dtype(np.complex64), I8], ids=str)
def test_precision_and_determinism(precision, dtype, rng):
    a, b = draw(rng, (30, 400), dtype), draw(rng, (400, 20), dtype)
    options = {"precision": precision, "reproducible": "run", "backend": "numpy"}
    got = gemmhub.matmul(a, b, **options)
    assert ratio(got, a, b, precision=precision) <= 1
    assert np.array_equal(got, gemmhub.matmul(a, b, **options))


def test_operands_are_not_changed(rng):
    for dtype in PATHS:
        result = I32 if dtype == I8 else dtype
        a, b, c = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype), draw(rng, (5, 7), result)
        bias = draw(rng, (7,), result)
        kept = [x.copy() for x in (a, b, c, bias)]
        gemmhub.matmul(a, b, c=c, beta=2, bias=bias, alpha=3, activation="relu")
        assert all(np.array_equal(x, y) for x, y in zip((a, b, c, bias), kept))
