"""Grouped products of JAX: ragged_dot against jax.lax.ragged_dot, gradients, and every form in traced functions."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import DTypeError, InputError, ShapeError

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, which jax-tvm-ffi imports where it is installed
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

sys.path.append(str(Path(__file__).parents[1]))

from grouped import FORMS, operands, sizes_of, worst  # noqa: E402
from products import BF16, F32, F64  # noqa: E402

import gemmhub.jax as door  # noqa: E402


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_compiled_programs(form, dtype, rng):
    a, b, ends = operands(rng, form, dtype, [3, *sizes_of(rng, 3)])
    x, y = jnp.asarray(a), jnp.asarray(b)
    offsets = None if ends is None else jnp.asarray(ends)
    compiled = jax.jit(gemmhub.grouped_matmul)
    for got in (compiled(x, y, offsets), gemmhub.grouped_matmul(x, y, offsets)):
        assert isinstance(got, jax.Array)
        assert worst(form, a, b, ends, np.asarray(got)) <= 1
    got = jax.jit(lambda x, y: gemmhub.grouped_matmul(x, y, ends, alpha=-2, out_dtype="float64"))(x, y)
    assert worst(form, a, b, ends, np.asarray(got), alpha=-2, out_dtype=F64) <= 1


@pytest.mark.parametrize("sizes", [[3, 0, 5], [0, 0, 0], [8, 0, 0]], ids=str)
def test_ragged_dot_is_that_of_jax(sizes, rng):
    a, b, _ = operands(rng, "ragged m", F64, sizes)
    x, w, groups = jnp.asarray(a), jnp.asarray(b), jnp.asarray(sizes, jnp.int32)

    def loss(product):
        return lambda x, w: jnp.sin(product(x, w, groups)).sum()

    for transform in (lambda f: f, jax.jit):
        got = transform(jax.value_and_grad(loss(door.ragged_dot), (0, 1)))(x, w)
        expected = transform(jax.value_and_grad(loss(jax.lax.ragged_dot), (0, 1)))(x, w)
        jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-10, atol=1e-10), got, expected)
    narrow = door.ragged_dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), groups, preferred_element_type=jnp.float32)
    assert narrow.dtype == jnp.float32


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_every_form_and_of_gradients(form, rng):
    a, b, ends = operands(rng, form, F64, [2, 0, 1], m=2, n=2, k=2, beyond=1)
    offsets = None if ends is None else jnp.asarray(ends)
    f = lambda x, y: gemmhub.grouped_matmul(x, y, offsets, alpha=0.5)  # noqa: E731
    check_grads(jax.jit(f), (jnp.asarray(a), jnp.asarray(b)), order=2, modes=["rev"])


def test_gradients_have_the_dtypes_of_their_operands(rng):
    a, b, _ = operands(rng, "ragged m", BF16, [3, 5])
    x, y = jnp.asarray(a), jnp.asarray(b).astype(jnp.float32)
    grads = jax.grad(lambda x, y: door.ragged_dot(x, y, jnp.asarray([3, 5])).sum(), (0, 1))(x, y)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.float32]
    assert not np.any(np.asarray(grads[0][8:]))


def test_what_is_beyond_the_last_end_is_not_read(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 3], beyond=2)
    a[5:] = np.nan
    got = jax.jit(gemmhub.grouped_matmul)(jnp.asarray(a), jnp.asarray(b), jnp.asarray(ends))
    assert worst("ragged m", a, b, ends, np.asarray(got)) <= 1


def test_mistakes_are_named(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 3])
    x, w = jnp.asarray(a), jnp.asarray(b)

    def traced(**options):
        return jax.jit(lambda x: gemmhub.grouped_matmul(x, w, ends, **options))(x)

    with pytest.raises(InputError, match=r"activation: given to a grouped product in a function that JAX traces"):
        traced(activation="relu")
    with pytest.raises(InputError, match="precision"):
        traced(precision="half")
    with pytest.raises(DTypeError):
        traced(out_dtype="int8")
    with pytest.raises(ShapeError, match="3 ends for 2 groups"):
        jax.jit(lambda x: gemmhub.grouped_matmul(x, w, jnp.asarray([1, 2, 3])))(x)
    with pytest.raises(TypeError, match="'activaton'; did you mean activation"):
        traced(activaton="relu")
    with pytest.raises(InputError, match="mask what is beyond the last end"):
        traced(bias=w[0, 0])
    with pytest.raises(InputError, match=r"add beta \* c to the result; rows beyond the last end are zeros"):
        traced(c=x @ w[0], beta=1)
    with pytest.raises(ShapeError, match=r"lhs, rhs: shapes \(8, 7\) and \(7, 6\)"):
        door.ragged_dot(x, w[0], jnp.asarray([1, 2]))
    with pytest.raises(InputError, match="group_sizes: dtype float"):
        door.ragged_dot(x, w, jnp.asarray([1.0, 2.0]))
    with pytest.raises(TypeError, match="group_offset is not implemented"):
        door.ragged_dot(x, w, jnp.asarray([1, 2]), group_offset=jnp.asarray([0]))
    with pytest.raises(InputError, match="a dimension that vmap maps over"):
        jax.vmap(lambda x: door.ragged_dot(x, w, jnp.asarray([1, 2])))(x[None])


def test_mistakes_of_ragged_dot_speak_of_sizes(rng):
    a, b, _ = operands(rng, "ragged m", F32, [3, 5], beyond=0)
    x, w = jnp.asarray(a), jnp.asarray(b)
    remedy = "pass the number of rows of each group"
    beyond = "group_sizes: group 1: the sum of the sizes up to it, 9, is beyond the 8 rows of lhs; allowed: sizes of 0 "
    below = "group_sizes: group 1: the sum of the sizes up to it, 2, is below 3, that of the groups before it"
    for sizes, words in (([2, 7], beyond), ([3, -1], below)):
        for given in (sizes, np.asarray(sizes), jnp.asarray(sizes)):
            with pytest.raises(InputError, match=f"{words}.*{remedy}"):
                door.ragged_dot(x, w, given)
        for function in (door.ragged_dot, jax.grad(lambda x, w, s: door.ragged_dot(x, w, s).sum(), 1)):
            with pytest.raises(jax.errors.JaxRuntimeError, match=words):
                jax.block_until_ready(jax.jit(function)(x, w, jnp.asarray(sizes)))
    for wrong, words in (([1, 2, 3], "group_sizes: 3 sizes for 2 groups"), ([[1, 2]], r"group_sizes: shape \(1, 2\)")):
        for function in (door.ragged_dot, jax.jit(door.ragged_dot)):
            with pytest.raises(ShapeError, match=f"{words}.*{remedy}"):
                function(x, w, jnp.asarray(wrong))


@pytest.mark.parametrize("dtype", ["uint32", "int16", "float32", "bool"])
def test_offsets_of_other_dtypes_are_refused_wherever_they_are(dtype, rng):
    a, b, _ = operands(rng, "ragged m", F32, [2, 3])
    x, w, wrong = jnp.asarray(a), jnp.asarray(b), np.asarray([2, 5]).astype(dtype)
    for function in (gemmhub.grouped_matmul, jax.jit(gemmhub.grouped_matmul)):
        with pytest.raises(DTypeError, match=f"offsets: dtype {dtype}; allowed: int32, int64"):
            function(x, w, jnp.asarray(wrong))
    with pytest.raises(DTypeError, match=f"offsets: dtype {dtype}; allowed: int32, int64"):
        jax.jit(lambda x: gemmhub.grouped_matmul(x, w, wrong))(x)


@pytest.mark.parametrize("x64", [True, False])
def test_ends_beyond_32_bits_do_not_wrap(x64, rng):
    a, b, _ = operands(rng, "ragged m", F32, [10, 10, 10])
    beyond = "is (beyond|below)"
    with jax.enable_x64(x64):
        x, w = jnp.asarray(a), jnp.asarray(b)
        with pytest.raises(InputError, match=beyond):
            jax.jit(lambda x: gemmhub.grouped_matmul(x, w, np.array([10, 20, 2**32 + 30])))(x)
        for sizes in (
            np.array([10, 2**32, 20]),
            np.array([10, 2**32 - 5, 10], np.uint32),
            np.array([2**63, 0, 5], "u8"),
        ):
            for function in (
                door.ragged_dot,
                lambda x, w, sizes=sizes: jax.jit(lambda x: door.ragged_dot(x, w, sizes))(x),
            ):
                arguments = (x, w, sizes) if function is door.ragged_dot else (x, w)
                with pytest.raises(InputError, match=beyond):
                    function(*arguments)
            if x64 or sizes.dtype == np.uint32:  # JAX itself wraps arguments of 64 bits to 32
                with pytest.raises((InputError, jax.errors.JaxRuntimeError), match=beyond):
                    jax.jit(door.ragged_dot)(x, w, sizes).block_until_ready()
        for largest in (2**31 - 1, -1):
            sizes = jnp.asarray([10, largest, 20], jnp.int32)
            with pytest.raises(jax.errors.JaxRuntimeError, match=beyond):
                jax.jit(door.ragged_dot)(x, w, sizes).block_until_ready()
    if x64:
        with pytest.raises(jax.errors.JaxRuntimeError, match=beyond):
            jax.jit(gemmhub.grouped_matmul)(x, w, jnp.asarray([10, 20, 2**32 + 30])).block_until_ready()
