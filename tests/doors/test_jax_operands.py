"""Operands and epilogues of products in functions that JAX traces: values, gradients, mapped dimensions, refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.operands import BLOCK, OPERANDS

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, which jax-tvm-ffi imports where it is installed
import jax.numpy as jnp  # noqa: E402

import gemmhub.jax as door  # noqa: E402

M, K, N = 3, 130, 132
"""Two blocks along k, and two along n, of which the last are short."""
FORMS = [
    {"scale_a": (1,), "scale_b": (2, N)},
    {"scale_a": (M,), "scale_b": ()},
    {"scale_a": (M, 2), "scale_b": (2, 2)},
    {"scale_a": (1, 2), "scale_b": (N,)},
    {"scale_a": (M, 1), "scale_b": (1, 2)},
]
"""Shapes of scales: every granularity of either operand."""


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def arrays(rng):
    """Every operand, in float64 but for factors."""
    shapes = {"a": (M, K), "b": (K, N), "c": (M, N), "bias": (N,)}
    factors = {"scale_a": (M,), "scale_b": (N,), "scale_out": (1,)}
    return {
        **{name: jnp.asarray(rng.standard_normal(shape) / 4) for name, shape in shapes.items()},
        **{name: jnp.asarray(rng.uniform(0.5, 2, shape), jnp.float32) for name, shape in factors.items()},
    }


def halves(function):
    return lambda x: function(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


AFTER = {
    None: lambda x: x, "relu": jax.nn.relu, "gelu": gelu, "gelu_tanh": jax.nn.gelu, "silu": jax.nn.silu,
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "relu_squared": lambda x: jax.nn.relu(x) ** 2,
    "leaky_relu": jax.nn.leaky_relu, "hardswish": jax.nn.hard_swish, "swiglu": halves(jax.nn.silu),
    "geglu": halves(gelu),
    "swiglu_interleaved": lambda x: jax.nn.silu(x[..., 0::2]) * x[..., 1::2],
}  # fmt: skip


def each(scale, shape, vector):
    """The factor of each element of an operand of this shape, float64."""
    scale = jnp.asarray(scale, jnp.float64)
    if scale.ndim < 2:
        scale = scale.reshape(vector)
    for axis, size in ((-2, shape[-2]), (-1, shape[-1])):
        if scale.shape[axis] not in (1, size):
            scale = jnp.take(scale, jnp.arange(size) // BLOCK, axis=axis)
    return scale


def formula(a, b, *, activation=None, pre_activation=None, alpha=1.0, beta=0.0, c=0.0, bias=0.0, scale_a=1.0,
            scale_b=1.0, scale_out=1.0):  # fmt: skip
    """JAX's own operations, of matrices."""
    a = a.astype(jnp.float64) * each(scale_a, a.shape, (-1, 1))
    b = b.astype(jnp.float64) * each(scale_b, b.shape, (1, -1))
    x = alpha * (a @ b) + beta * c + bias
    result = jnp.asarray(scale_out, jnp.float64).reshape(()) * AFTER[activation](x)
    return (result, x) if pre_activation else result


def close(x, y):
    x, y = jnp.asarray(x), jnp.asarray(y)
    assert x.shape == y.shape
    assert np.abs(np.asarray(y)).max(initial=1) > 0
    tolerance = 2.0**-20 if x.dtype == np.float32 else 1e-10  # gradients of factors are sums in float32
    largest = max(1.0, np.abs(np.asarray(y)).max(initial=0))
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance * largest)


def of(f, options):
    """``f`` as a function of one dict of its operands."""
    return lambda x: f(x["a"], x["b"], **{name: y for name, y in x.items() if name not in ("a", "b")}, **options)


def agree(options, operands, transform, expected=formula):
    """Products and ``expected`` agree after a transformation."""
    mine, theirs = (transform(of(f, options))(operands) for f in (door.matmul, expected))
    jax.tree.map(close, mine, theirs)


def total(f):
    """A scalar of every result of ``f``, of which each element counts by its own weight."""

    def summed(x):
        results = jax.tree.leaves(f(x))
        return sum((jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y).sum() for y in results)

    return summed


def gradient(f):
    return jax.grad(total(f))


def second(f):
    """The gradient of a sum of the gradients: of second order, in every pair of operands."""
    return jax.grad(total(gradient(f)))


def orders(f):
    """The value, the gradient and the second derivatives, in one compiled program."""
    return jax.jit(lambda x: (f(x), gradient(f)(x), second(f)(x)))


ALL = {"alpha": 1.5, "beta": -0.5}


@pytest.mark.parametrize("activation", AFTER)
def test_gradients_of_every_operand(activation, arrays):
    agree({**ALL, "activation": activation, "pre_activation": True}, arrays, orders)


def test_gradients_of_the_result_alone(arrays):
    agree({**ALL, "activation": "swiglu"}, arrays, orders)


@pytest.mark.parametrize("shapes", FORMS, ids=str)
def test_gradients_of_scales_of_every_form(shapes, arrays, rng):
    scales = {name: jnp.asarray(rng.uniform(0.5, 2, shape), jnp.float32) for name, shape in shapes.items()}
    agree({"alpha": 2.0}, {"a": arrays["a"], "b": arrays["b"], **scales}, orders)


def test_tangents(arrays, rng):
    tangents = {name: jnp.asarray(rng.standard_normal(x.shape), x.dtype) for name, x in arrays.items()}
    options = {**ALL, "activation": "swiglu", "pre_activation": True}
    agree(options, arrays, lambda f: lambda x: jax.jvp(f, (x,), (tangents,)))
    for name in arrays:

        def alone(f, name=name):
            return lambda x: jax.jvp(lambda y: f({**x, name: y}), (x[name],), (tangents[name],))

        agree(options, arrays, alone)


def test_one_product_serves_both_results_and_gradients(arrays):
    """A gradient takes the product of the forward pass and one for each operand."""
    a, b = arrays["a"], arrays["b"]
    for pre in (None, True):
        f = of(door.matmul, {"activation": "silu", "pre_activation": pre})
        text = str(jax.make_jaxpr(gradient(f))({"a": a, "b": b}))
        assert text.count("gemmhub_matmul[") == 1
        assert text.count("gemmhub_product[") == 2


SIZE = 2
MAPPED = [("a",), ("b",), ("c",), ("bias",), ("scale_a",), ("scale_b",), ("scale_out",), ("c", "bias"),
          ("a", "scale_a"), ("b", "c", "scale_out"), ("scale_a", "scale_b", "bias"),
          ("a", "b", "c", "bias", "scale_a", "scale_b", "scale_out")]  # fmt: skip


@pytest.mark.parametrize("names", MAPPED, ids="+".join)
def test_mapped(names, arrays):
    ramp = 1 + jnp.arange(SIZE, dtype=jnp.float32)
    given = {name: jnp.multiply.outer(ramp.astype(x.dtype), x) if name in names else x for name, x in arrays.items()}
    dims = ({name: 0 if name in names else None for name in arrays},)
    options = {**ALL, "activation": "geglu", "pre_activation": True}
    agree(options, given, lambda f: jax.jit(lambda x: (jax.vmap(f, dims)(x), jax.vmap(gradient(f), dims)(x))))


def test_mapped_twice(arrays):
    options = {**ALL, "activation": "geglu", "pre_activation": True}
    given = {name: jnp.stack([x, 2 * x]) for name, x in arrays.items()}
    others = {name: x for name, x in given.items() if name not in ("a", "scale_a", "bias")}

    def twice(f):
        inner = jax.vmap(f, ({name: None if name in others else 0 for name in given},))
        return jax.vmap(inner, ({name: 0 if name in others else None for name in given},))

    agree(options, given, twice)


def test_a_product_that_is_the_same_for_all_is_computed_once(arrays):
    a, b, bias = arrays["a"], arrays["b"], arrays["bias"]
    f = jax.vmap(lambda bias: door.matmul(a, b, bias=bias, activation="silu"))
    text = str(jax.make_jaxpr(f)(jnp.stack([bias] * 4)))
    assert re.search(rf"f64\[1,{M},{N}\] = gemmhub_matmul\[", text)


STACKS = [
    {"a": (2, M, K), "b": (K, N), "c": (M, 1), "scale_a": (2, M, 1)},
    {"a": (M, K), "b": (2, K, N), "c": (2, 1, N), "scale_a": (2, M, 2), "scale_b": (2, 2, N)},
    {"a": (K,), "b": (K, N), "c": (N,), "bias": (1, N), "scale_a": (1, 2), "scale_b": (2, 2)},
    {"a": (2, 1, M, K), "b": (3, K, N), "scale_a": (3, 1, 1), "scale_b": (1, N), "scale_out": ()},
]


def of_matrices(a, b, **options):
    """The formula, also where a is a vector."""
    result = formula(jnp.atleast_2d(a), b, **options)
    return result[0] if a.ndim == 1 else result


@pytest.mark.parametrize("shapes", STACKS, ids=str)
def test_shapes(shapes, rng):
    given = {name: rng.uniform(0.5, 1, shape) for name, shape in shapes.items()}
    given = {name: jnp.asarray(x, np.float32 if name.startswith("scale") else None) for name, x in given.items()}
    options = {"beta": 0.5, "activation": "swiglu"} if "c" in given else {"activation": "swiglu"}
    agree(options, given, lambda f: jax.jit(lambda x: (f(x), gradient(f)(x))), of_matrices)


def test_column_vectors(rng):
    given = {
        name: jnp.asarray(rng.uniform(0.5, 1, size)) for name, size in (("a", (M, K)), ("b", (K,)), ("bias", (M,)))
    }
    given["scale_a"] = jnp.asarray(rng.uniform(0.5, 1, M), jnp.float32)

    def by_hand(a, b, bias, scale_a, **_):
        return gelu(scale_a.astype(jnp.float64) * (a @ b) + bias)

    for transform in (jax.jit, gradient):
        agree({"activation": "gelu"}, given, transform, by_hand)


VALUES = [
    *zip(["bfloat16", "float16", "float32", "int8", "float64"], FORMS),
    *[(name, {"scale_out": (1,)}) for name in ("bfloat16", "int8")],
    *[(name, {"c": (M, N), "bias": (N,), **FORMS[2], "scale_out": (1,)}) for name in ("bfloat16", "float32")],
]


@pytest.mark.parametrize(("name", "shapes"), VALUES, ids=str)
@pytest.mark.parametrize("activation", [None, "gelu", "swiglu"])
def test_values(name, shapes, activation, rng):
    """Within the bound, of every result: the program's, the one beside a gradient, and a mapped one."""
    a, b = (jnp.asarray(rng.uniform(-3, 3, shape)).astype(name) for shape in ((M, K), (K, N)))
    out = np.dtype(np.float32) if name == "int8" else np.dtype(a.dtype)
    others = {
        other: jnp.asarray(rng.uniform(0.5, 2, shape), np.float32 if other.startswith("scale") else out)
        for other, shape in shapes.items()
    }
    options = {"alpha": 0.5, "beta": 2.0 if "c" in others else 0, "activation": activation, "out_dtype": out}

    def f(others):
        return door.matmul(a, b, **options, **others)

    stacked = jax.tree.map(lambda x: x[None], others)
    for found in jax.jit(lambda x, y: (f(x), jax.vjp(f, x)[0], jax.vmap(f)(y)[0]))(others, stacked):
        within(found, a, b, others, options)


def within(found, a, b, others, options):
    a, b = np.asarray(a), np.asarray(b)
    out = options["out_dtype"]
    model = accuracy.error_model(a.dtype, b.dtype, out, dtypes.compute_dtype(a.dtype, b.dtype, out))
    others = {name: np.asarray(x) for name, x in others.items()}
    reference = accuracy.reference(a, b, model=model, **options, **others)
    assert found.dtype == out
    assert np.max(reference.ratio(np.asarray(found))) <= 1


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_the_pre_activation_is_the_sum(name, rng):
    a, b = (jnp.asarray(rng.standard_normal(shape)).astype(name) for shape in ((M, K), (K, N)))
    scale = jnp.asarray(rng.uniform(0.5, 2, M), jnp.float32)
    for wrap in (lambda f: f, jax.jit):
        for f in (door.matmul, gemmhub.matmul):
            result, before = wrap(lambda a, f=f: f(a, b, scale_a=scale, activation="geglu", pre_activation=True))(a)
            within(result, a, b, {"scale_a": scale}, {"activation": "geglu", "out_dtype": np.dtype(a.dtype)})
            within(before, a, b, {"scale_a": scale}, {"activation": None, "out_dtype": np.dtype(a.dtype)})


def test_factors_of_integers_have_gradients(rng):
    a, b = (jnp.asarray(rng.integers(-9, 9, shape), jnp.int8) for shape in ((M, K), (K, N)))
    scales = {"scale_a": jnp.ones(M, jnp.float32) / 8, "scale_b": jnp.ones((2, 2), jnp.float32) / 8}

    def by_hand(scale_a, scale_b):
        return formula(a, b, scale_a=scale_a, scale_b=scale_b, activation="gelu")

    def ours(scale_a, scale_b):
        return door.matmul(a, b, scale_a=scale_a, scale_b=scale_b, activation="gelu", out_dtype="float64")

    for transform in (jax.jit, gradient):
        mine, theirs = (transform(lambda x, f=f: f(**x))(scales) for f in (ours, by_hand))
        jax.tree.map(close, mine, theirs)


def test_alpha_0_ignores_scales_too(arrays):
    nan = jnp.full(M, np.nan, jnp.float32)
    f = lambda x: door.matmul(arrays["a"], arrays["b"], alpha=0, scale_a=x, bias=arrays["bias"])  # noqa: E731
    assert np.array_equal(jax.jit(f)(nan), np.broadcast_to(arrays["bias"], (M, N)))
    assert not gradient(f)(nan).any()


SLOPES = {
    "tanh": lambda x: (0, 0),
    "sigmoid": lambda x: (0, 0),
    "leaky_relu": lambda x: (1 if x > 0 else 0.01, 0),
    "relu_squared": lambda x: (2 * max(x, 0), 2 * (x > 0)),
}
"""First and second derivatives far from 0, of activations that are not x or 0 there."""


@pytest.mark.parametrize("activation", EPILOGUES)
def test_infinities_have_no_derivatives_that_are_nan(activation):
    """Of the function of an element: infinity times 0 is NaN in JAX's derivative of the formula."""
    gated = EPILOGUES[activation].arity == 2
    one = jnp.ones((1, 1))
    for value in (np.inf, -np.inf, 1e200, -1e200):
        bias = jnp.asarray([value, 0.0]) if gated else jnp.asarray([value])
        b = jnp.ones((1, bias.size))

        def f(bias, b=b):
            return door.matmul(one, b, bias=bias, activation=activation)[0, 0]

        slope, second = SLOPES.get(activation, lambda x: (float(x > 0), 0))(value)
        found = jax.grad(f)(bias)[0]
        assert found == slope or abs(found - slope) < 2.0**-60  # beyond 50 the slope is that of 50
        assert jax.hessian(f)(bias)[0, 0] == second


def test_without_x64(rng):
    with jax.enable_x64(False):
        a, b = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((M, K), (K, N)))
        scale = jnp.full((M, 2), 0.5, jnp.float32)
        options = {"scale_a": scale, "activation": "swiglu", "pre_activation": True}
        results = jax.jit(lambda a: door.matmul(a, b, **options))(a)
        assert [x.dtype for x in results] == [jnp.float32] * 2
        of_a, of_scale = jax.grad(
            lambda a, scale: door.matmul(a, b, scale_a=scale, activation="swiglu").sum(), (0, 1)
        )(a, scale)  # fmt: skip
        assert (of_a.dtype, of_scale.dtype) == (jnp.float32, jnp.float32)
        i = jnp.ones((2, 2), jnp.int32)
        of_bias = jax.grad(lambda x: door.matmul(i, i, bias=x, out_dtype="float32", activation="silu").sum())
        assert of_bias(jnp.zeros(2, jnp.float32)).dtype == jnp.float32


def test_mistakes(arrays):
    a, b, one = arrays["a"], arrays["b"], jnp.zeros(1, jnp.float32)
    i = jnp.ones((4, 4), jnp.int32)
    for options, kind, words in (
        (
            {"amax": one},
            InputError,
            r"amax: .*take abs\(result\)\.max",
        ),
        ({"pre_activation": jnp.zeros((M, N))}, InputError, "pre_activation: an array to write.*pass True"),
        ({"pre_activation": False}, InputError, "pre_activation: False"),
        ({"scale_a": jnp.ones(M)}, DTypeError, "scale_a: dtype float64; allowed: float32"),
        ({"scale_a": jnp.ones(5, jnp.float32)}, ShapeError, r"scale_a: shape \(5,\); allowed: one element"),
        ({"scale_b": jnp.ones((3, N), jnp.float32)}, ShapeError, r"scale_b: shape \(3, 132\)"),
        ({"scale_out": jnp.ones(2, jnp.float32)}, ShapeError, "scale_out: shape"),
        ({"activation": "swish"}, InputError, "activation: 'swish'"),
    ):
        for f in (door.matmul, jax.jit(lambda a, b, options=options: gemmhub.matmul(a, b, **options))):
            with pytest.raises(kind, match=words):
                f(a, b, **options) if f is door.matmul else f(a, b)
    with pytest.raises(ShapeError, match="activation: swiglu with 131 columns"):
        door.matmul(a, b[:, 1:], activation="swiglu")
    with pytest.raises(ShapeError, match="activation: swiglu with a vector b"):
        door.matmul(a, b[:, 0], activation="swiglu")
    with pytest.raises(DTypeError, match="scale_a: given for a result of int32"):
        door.matmul(i, i, scale_a=one)


def test_every_operand_of_the_table_is_known_here(arrays):
    """Those that are read have gradients above; those that are written are refused, or returned."""
    read = {name for name, row in OPERANDS.items() if not row.written}
    assert read == arrays.keys() - {"a", "b"}
    assert set(AFTER) == {None, *EPILOGUES}
