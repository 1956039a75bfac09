"""Products in functions that JAX traces: what they are without that, with gradients, mapped dimensions and shards."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import DTypeError, InputError, ShapeError

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, which jax-tvm-ffi imports where it is installed
import jax.numpy as jnp  # noqa: E402
from products import ratio  # noqa: E402

import gemmhub.jax as door  # noqa: E402
from gemmhub import epilogues  # noqa: E402


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def operands(rng):
    return tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((5, 8), (8, 6), (6,), (5, 6)))


def halves(function):
    def gated(x):
        gate, up = jnp.split(x, 2, axis=-1)
        return function(gate) * up

    return gated


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


AFTER = {
    None: lambda x: x, "relu": jax.nn.relu, "gelu": gelu, "gelu_tanh": jax.nn.gelu, "silu": jax.nn.silu,
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "relu_squared": lambda x: jax.nn.relu(x) ** 2,
    "leaky_relu": jax.nn.leaky_relu, "hardswish": jax.nn.hard_swish, "swiglu": halves(jax.nn.silu),
    "geglu": halves(gelu),
    "swiglu_interleaved": lambda x: jax.nn.silu(x[..., 0::2]) * x[..., 1::2],
}  # fmt: skip
"""JAX's own formulas."""


def full(x, w, bias, c, activation="gelu"):
    return gemmhub.matmul(x, w, bias=bias, c=c, alpha=2.0, beta=-0.5, activation=activation)


def plain(x, w, bias, c, activation="gelu"):
    return AFTER[activation](2 * x @ w - 0.5 * c + bias)


def close(x, y):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert np.abs(np.asarray(y)).max(initial=1) > 0
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", [None, *epilogues.ELEMENTWISE])
def test_derivatives(activation, operands, rng):
    from jax.test_util import check_grads

    # No sum is where a derivative jumps, as those of relu and hardswish do at 0, 3 and -3.
    while (np.abs(np.abs(plain(*operands, None))[..., None] - np.array([0, 3])) < 1e-3).any():
        operands = tuple(jnp.asarray(rng.standard_normal(x.shape)) for x in operands)

    def ours(*given):
        return full(*given, activation)

    close(jax.jit(ours)(*operands), plain(*operands, activation))
    # With the default step, 1 / 2048, the differences of gelu may err by more than the tolerance.
    check_grads(jax.jit(ours), operands, 2, modes=["fwd", "rev"], eps=1e-5)
    for transform in (jax.grad, lambda f, argnums: jax.jit(jax.grad(f, argnums))):
        mine = transform(lambda *x: ours(*x).sum(), (0, 1, 2, 3))(*operands)
        theirs = jax.grad(lambda *x: plain(*x, activation).sum(), (0, 1, 2, 3))(*operands)
        for got, expected in zip(mine, theirs):
            close(got, expected)


@pytest.mark.parametrize(
    "shapes",
    [((8,), (8, 6)), ((5, 8), (8,)), ((8,), (8,)), ((2, 1, 5, 8), (3, 8, 6)), ((3, 0), (0, 4)), ((0, 8), (8, 6))],
    ids=str,
)  # fmt: skip
def test_shapes(shapes, rng):
    a, b = (jnp.asarray(rng.standard_normal(shape)) for shape in shapes)
    close(jax.jit(gemmhub.matmul)(a, b), jnp.matmul(a, b))
    mine, theirs = (jax.grad(lambda a, b, f=f: f(a, b).sum(), (0, 1))(a, b) for f in (door.matmul, jnp.matmul))
    for got, expected in zip(mine, theirs):
        close(got, expected)


DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name, rng):
    a, b = (jnp.asarray(rng.standard_normal(shape) * 3).astype(name) for shape in ((7, 33), (33, 5)))
    wanted = "bfloat16" if name.startswith("float8") else None
    got = jax.jit(lambda a, b: gemmhub.matmul(a, b, out_dtype=wanted))(a, b)
    x, y = np.asarray(a), np.asarray(b)
    assert got.dtype == gemmhub.matmul(x, y, out_dtype=wanted).dtype
    assert wanted or ratio(np.asarray(got), x, y) <= 1
    eager = gemmhub.matmul(a, b, out_dtype=wanted)
    assert isinstance(eager, jax.Array)
    assert np.array_equal(np.asarray(eager), np.asarray(gemmhub.matmul(x, y, out_dtype=wanted)))


@pytest.mark.parametrize(("left", "right", "out"), [("bfloat16", "bfloat16", "float32"), ("float16", "float32", None)])
def test_gradients_have_the_dtypes_of_their_operands(left, right, out, rng):
    a, b = (
        jnp.asarray(rng.standard_normal((7, 33))).astype(left),
        jnp.asarray(rng.standard_normal((33, 5))).astype(right),
    )
    of_a, of_b = jax.grad(lambda a, b: gemmhub.matmul(a, b, out_dtype=out).sum(), (0, 1))(a, b)
    assert (of_a.dtype, of_b.dtype) == (left, right)
    exact = np.ones((7, 5)) @ np.asarray(b, np.float64).T
    np.testing.assert_allclose(np.asarray(of_a, np.float64), exact, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize(
    "dims", [(0, None, None, None), (None, 1, None, 0), (0, 0, 0, None), (None, None, 0, None)], ids=str
)
def test_mapped(dims, rng):
    shapes = ((5, 8), (8, 6), (6,), (5, 6))
    given = [
        jnp.asarray(rng.standard_normal(shape if dim is None else (*shape[:dim], 4, *shape[dim:])))
        for shape, dim in zip(shapes, dims)
    ]
    close(jax.vmap(full, dims)(*given), jax.vmap(plain, dims)(*given))
    mine, theirs = (jax.jit(jax.vmap(jax.grad(lambda *x, f=f: f(*x).sum(), 1), dims))(*given) for f in (full, plain))
    close(mine, theirs)


def test_second_derivatives_loops_and_donated_buffers(operands):
    x, w, *_ = operands

    def cubed(f):
        return lambda w: (gelu(f(x, w)) ** 3).sum()

    close(jax.hessian(cubed(gemmhub.matmul))(w), jax.hessian(cubed(jnp.matmul))(w))
    square = jnp.eye(3) * 1.1
    looped, _ = jax.lax.scan(lambda s, _: (gemmhub.matmul(s, s), None), square, None, length=5)
    np.testing.assert_allclose(np.asarray(looped), np.eye(3) * 1.1**32)
    close(jax.jit(lambda x: gemmhub.matmul(x, w), donate_argnums=0)(x + 0), x @ w)


def test_many_sizes_and_threads(rng):
    f = jax.jit(lambda a, b: gemmhub.matmul(a, b, alpha=3.0))
    pairs = [tuple(jnp.asarray(rng.standard_normal(s), np.float32) for s in ((m, 9), (9, m + 1))) for m in range(1, 17)]
    with ThreadPoolExecutor(4) as pool:
        for (a, b), got in zip(pairs, pool.map(lambda pair: f(*pair), pairs)):
            np.testing.assert_allclose(np.asarray(got), np.asarray(3 * a @ b), rtol=1e-4, atol=1e-4)


def test_mistakes(operands):
    x, w, _, c = operands
    f = gemmhub.matmul
    for call, kind, words in (
        (lambda x: f(x, x), ShapeError, "inner dimensions 8 and 5 differ"),
        (lambda x: f(x, w, bias=c), ShapeError, "bias: shape"),
        (lambda x: f(x, w, beta=2), InputError, "beta: 2 without c"),
        (lambda x: f(x, w, activation="swish"), InputError, "activation"),
        (lambda x: f(x, w, c=c), InputError, "c: given without beta"),
        (lambda x: f(x, w, c=c[:2], beta=1), ShapeError, "c: shape"),
        (lambda x: f(x, w, c=c.astype("float16"), beta=1), DTypeError, "c: dtype float16; allowed: float64"),
        (lambda x: f(x, w, alpha="2"), InputError, "alpha: '2' is not a number"),
        (lambda x: f(x, w, alpha=x[0, 0]), InputError, "alpha: an array that JAX traces"),
        (lambda x: f(x, w, c=c, beta=x[0, 0]), InputError, "beta: an array that JAX traces"),
        (lambda x: f(x, w, reproducible=1), InputError, "reproducible"),
        (lambda x: f(x, w, nonsense=1), TypeError, "nonsense"),
        (lambda x: f(jnp.stack([x, x]), jnp.stack([w, w, w])), ShapeError, "do not broadcast"),
        (lambda x: f(x, w, stream=1), InputError, "stream: given in a function that JAX traces"),
        (lambda x: f(x, w, out=c), InputError, "out: given in a function"),
        (lambda x: f(x + 1j, w), DTypeError, "complex numbers"),
    ):
        with pytest.raises(kind, match=words):
            jax.jit(call)(x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="NoBackendError: no backend may run this product"):
        jax.block_until_ready(jax.jit(lambda x: f(x, w, backend="cublas"))(x))
    close(jax.jit(lambda x: f(x, w))(x), x @ w)  # the runtime goes on
    for call in (gemmhub.explain, gemmhub.plan):
        with pytest.raises(InputError, match="traces a function"):
            jax.jit(lambda x, call=call: call(x, w))(x)


HALVES = ["float16", "bfloat16", "float32"]


def reached(got, a, b, out, **options):
    """Within the bound of one product of these operands with these options."""
    assert ratio(np.asarray(got), np.asarray(a), np.asarray(b), out_dtype=out, **options) <= 1


@pytest.mark.parametrize("name", HALVES)
def test_alpha_is_applied_to_the_sum_in_derivatives(name, rng):
    """Sums beyond float16's range, and gradients whose product with alpha alone is below it."""
    x, w = (jnp.asarray(rng.uniform(30, 90, shape), name) for shape in ((3, 100), (100, 2)))
    t = jnp.asarray(rng.uniform(30, 90, x.shape), name)
    _, tangent = jax.jvp(lambda x: door.matmul(x, w, alpha=1e-3), (x,), (t,))
    reached(tangent, t, w, tangent.dtype, alpha=1e-3)
    _, tangent = jax.jvp(lambda w: door.matmul(x, w, alpha=1e-3), (w,), (w,))
    reached(tangent, x, w, tangent.dtype, alpha=1e-3)
    a, g = jnp.asarray(rng.uniform(3e4, 6e4, (1000, 2)), name), jnp.asarray(rng.uniform(1e-3, 2e-3, (1000, 3)), name)
    for wrapped in (lambda f: f, jax.jit):
        (of_b,) = wrapped(lambda g: jax.vjp(lambda b: door.matmul(a, b, alpha=1e-6), jnp.ones((2, 3), name))[1](g))(g)
        reached(of_b, a.T, g, of_b.dtype, alpha=1e-6)
        (of_a,) = wrapped(lambda g: jax.vjp(lambda x: door.matmul(x, a.T, alpha=1e-6), jnp.ones((3, 2), name))[1](g))(
            g.T
        )
        reached(of_a, g.T, a, of_a.dtype, alpha=1e-6)
    stacked = jax.vmap(jax.grad(lambda b, g: (door.matmul(a, b, alpha=1e-6) * g).astype(jnp.float32).sum()), (None, 0))
    reached(stacked(jnp.ones((2, 3), name), g[None])[0], a.T, g, of_b.dtype, alpha=1e-6)


@pytest.mark.parametrize("name", HALVES)
def test_beta_and_sums_of_gradients_are_rounded_once(name, rng):
    a, one = jnp.ones((1000, 1), name), jnp.ones((1, 1), name)
    g = jnp.asarray(rng.uniform(1e-2, 2e-2, (1000, 1)), name)
    for c in (jnp.ones((1, 1), name), jnp.ones(1, name)):
        (of_c,) = jax.vjp(lambda c: door.matmul(a, one, c=c, beta=1e-6), c)[1](g)
        reached(of_c.reshape(1, 1), g.T, a, g.dtype, alpha=1e-6)
    (of_bias,) = jax.vjp(lambda bias: door.matmul(a, one, bias=bias), jnp.ones(1, name))[1](g)
    reached(of_bias[None], g.T, a, g.dtype)
    c = jnp.full((2, 2), 1e-3, name)
    _, tangent = jax.jvp(lambda c: door.matmul(c, c, alpha=0, c=c, beta=1e-3), (c,), (c,))
    reached(tangent, jnp.zeros_like(c), c, g.dtype, c=np.asarray(c), beta=1e-3)
    with jax.enable_x64(False):
        small = jnp.full((2, 2), 1e-15, jnp.float32)
        _, tangent = jax.jvp(lambda c: door.matmul(small, small, c=c, beta=2.0**133), (small,), (small,))
    reached(tangent, np.zeros((2, 2), np.float32), small, "float32", c=np.asarray(small), beta=2.0**133)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", HALVES)
def test_alpha_0_ignores_the_product_in_derivatives_too(name, value):
    x, one = jnp.full((2, 2), value, name), jnp.ones((2, 2), name)

    def total(a, b, **options):
        return door.matmul(a, b, alpha=0, **options).astype(jnp.float32).sum()

    for found in (
        jax.grad(lambda b: total(x, b))(one), jax.grad(lambda a: total(a, x))(one),
        jax.jvp(lambda b: door.matmul(x, b, alpha=0), (one,), (one,))[1],
        jax.jit(jax.grad(lambda b: total(x, b, c=one, beta=1)))(one),
        jax.vmap(jax.grad(lambda b: total(x, b)))(jnp.stack([one, one])),
        jax.grad(lambda c: door.matmul(one, one, c=c, beta=0).astype(jnp.float32).sum())(x),
    ):  # fmt: skip
        assert not found.any()
    # An operand without a tangent is not multiplied by zeros.
    _, tangent = jax.jvp(lambda b: door.matmul(one, one, bias=b), (jnp.ones(2, name),), (jnp.ones(2, name),))
    assert (tangent == 1).all()


@pytest.mark.parametrize("activation", [None, *epilogues.ELEMENTWISE])
@pytest.mark.parametrize(("name", "big"), [("float16", 2048.0), ("bfloat16", 256.0), ("float32", 2.0**24)])
def test_a_mapped_bias_is_added_in_the_accumulator(name, big, activation, rng):
    a, b, c = (jnp.full((1, 1), x, name) for x in (-1, big, big))
    bias = jnp.asarray(rng.uniform(1, 2, (3, 1)), name)
    options = {"beta": 1.0, "activation": activation}
    for call in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        found = call(lambda bias: door.matmul(a, b, c=c, bias=bias, **options))(bias)
        for got, added in zip(found, bias):
            reached(got, a, b, a.dtype, c=np.asarray(c), bias=np.asarray(added), **options)
    h, d = jnp.full((1, 1), 1000, name), jnp.full((1, 1), -100, name)
    found = jax.vmap(lambda bias: door.matmul(h, d, c=h, bias=bias, beta=100.0))(bias)
    for got, added in zip(found, bias):
        reached(got, h, d, h.dtype, c=np.asarray(h), bias=np.asarray(added), beta=100.0)


def test_what_no_program_can_do_is_done_at_once(rng):
    x, y = (jnp.asarray(rng.standard_normal(s) + 1j * rng.standard_normal(s)) for s in ((3, 4), (4, 5)))
    for call in (door.matmul, gemmhub.matmul):
        got = call(x, y)
        assert isinstance(got, jax.Array)
        reached(got, x, y, got.dtype)
    reached(door.matmul(x.real, y.real, out_dtype="complex128"), x.real, y.real, "complex128")
    scale = jnp.full(1, 0.5, jnp.float32)
    close(door.matmul(x.real, y.real, scale_a=scale), 0.5 * (x.real @ y.real))
    packed = gemmhub.pack(np.asarray(y.real))
    assert np.array_equal(np.asarray(door.matmul(x.real, packed)), np.asarray(gemmhub.matmul(x.real, packed)))


def test_results_of_64_bits_without_x64(rng):
    """They are of 32 bits, as those of jax.numpy."""
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        x, y = rng.standard_normal((5, 4)), rng.standard_normal((4, 3))
        operands = {
            "f8": x,
            "f4": x.astype(np.float32),
            "i8": rng.integers(-9, 9, (5, 4)),
            "u4": np.full((5, 4), 3, np.uint32),
        }
        others = {"f4": y.astype(np.float32), "i4": rng.integers(-9, 9, (4, 3), np.int32), "c16": y + 1j * y}
        for (left, a), (right, b) in itertools.product(operands.items(), others.items()):
            calls = (door.matmul,) if right == "c16" else (door.matmul, jax.jit(door.matmul), jax.jit(gemmhub.matmul))
            for call in calls:
                result, expected = call(a, b), jnp.matmul(a, b)
                assert result.dtype == expected.dtype, (left, right)
                read = (np.asarray(jnp.asarray(x)) for x in (a, b))
                assert ratio(np.asarray(result), *read, out_dtype=result.dtype) <= 1
        i, f = jnp.ones((2, 2), jnp.int32), jnp.ones((2, 2), jnp.float32)
        assert door.matmul(i, f, out_dtype="float32").dtype == np.float32
        of_f = jax.grad(lambda f: door.matmul(i, f, activation="silu").sum())(f)
        assert of_f.dtype == np.float32


def test_a_result_of_64_bits_that_is_named_without_x64():
    """The warning of jax.numpy."""
    with jax.enable_x64(False):
        i, f, c = (jnp.ones((2, 2), x) for x in ("int32", "float32", "complex64"))
        for x, wanted, enabled in ((f, "float64", "float32"), (i, "int64", "int32"), (c, "complex128", "complex64")):
            text = f"Explicitly requested dtype {wanted} requested in .* truncated to dtype {enabled}"
            with pytest.warns(UserWarning, match=text):
                assert door.matmul(x, x, out_dtype=wanted).dtype == enabled
            with pytest.warns(UserWarning, match=text):
                assert jnp.matmul(x, x, preferred_element_type=wanted).dtype == enabled
        with pytest.warns(UserWarning, match="requested in gemmhub.matmul"):
            assert jax.jit(lambda x: door.matmul(x, x, out_dtype="float64"))(f).dtype == np.float32
    assert door.matmul(f, f, out_dtype="float64").dtype == np.float64


def test_a_new_activation_has_gradients(monkeypatch, operands):
    """From its formula and its derivative in the table of epilogues alone."""
    relu = epilogues.EPILOGUES["relu"]
    planted = replace(
        relu, name="twice_tanh", formula=lambda x, f: 2 * f.tanh(x), gradient=lambda x, f: 2 - 2 * f.tanh(x) ** 2,
        from_result=False,
    )  # fmt: skip
    monkeypatch.setitem(epilogues.EPILOGUES, "twice_tanh", planted)
    x, w, bias, _ = operands

    def wanted(x, bias):
        return 2 * jnp.tanh(x @ w + bias)

    def found(x, bias):
        return gemmhub.matmul(x, w, bias=bias, activation="twice_tanh")

    close(jax.vmap(found, (None, 0))(x, bias[None]), wanted(x, bias)[None])
    for call in (lambda f: f, jax.jit):
        mine, theirs = (jax.hessian(call(lambda x, f=f: f(x, bias).sum()))(x) for f in (found, wanted))
        close(mine, theirs)


SHARDS = """
import jax, jax.numpy as jnp, numpy as np, gemmhub
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("i",))
x, w = jnp.asarray(np.random.default_rng(0).standard_normal((8, 16)), jnp.float32), jnp.ones((16, 4), jnp.float32)
def rows(x, w):
    return gemmhub.matmul(x, w, activation="relu")
def inner(x, w):
    return jax.lax.psum(gemmhub.matmul(x, w), "i")
for f, specs, out in ((rows, (P("i"), P()), P("i")), (inner, (P(None, "i"), P("i")), P())):
    sharded = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))
    expected = jax.nn.relu(x @ w) if f is rows else x @ w
    np.testing.assert_allclose(sharded(x, w), expected, rtol=1e-5, atol=1e-5)
print(len(jax.devices()), "devices")
"""


def test_local_blocks_of_sharded_arrays():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARDS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 devices" in done.stdout


def test_without_a_way_to_call_python(monkeypatch, operands):
    monkeypatch.setitem(sys.modules, "jax_tvm_ffi", None)
    x, w, *_ = operands
    with pytest.raises(InputError, match=r"without jax-tvm-ffi.*jax 0.9.1 or later.*Python 3.11.*\[jax\]"):
        jax.jit(lambda x: gemmhub.matmul(x, w, alpha=1.25))(x)


def test_a_jax_that_refuses_the_functions_of_this_jax_tvm_ffi(monkeypatch, operands):
    """As jax before 0.9.1 does those of jax-tvm-ffi 0.1.3."""
    import jax_tvm_ffi

    from gemmhub._doors.jax import target

    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: API version (0.3) is incompatible with (0.2)")

    monkeypatch.setattr(target, "_register", target._register.__wrapped__)  # the function under the cache
    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", refuse)
    x, w, *_ = operands
    words = r"with jax \S+, jax-tvm-ffi \S+, apache-tvm-ffi \S+ \({}\); allowed: jax 0.9.1 or later.*pip install 'jax>="
    with pytest.raises(InputError, match=words.format("jax refuses its functions: INV.*")):
        jax.jit(lambda x: gemmhub.matmul(x, w, alpha=1.75))(x)
    for bridge, library, lack in (("0.1.2", "0.1.15.post2", "no float64"), ("0.1.3", "0.1.12", "gives no addresses")):
        found = {"jax": "0.9.1", "jax-tvm-ffi": bridge, "apache-tvm-ffi": library}
        monkeypatch.setattr(target, "_version", found.get)
        with pytest.raises(InputError, match=words.format(f".*{lack}.*")):
            jax.jit(lambda x: gemmhub.matmul(x, w, alpha=1.75))(x)
    monkeypatch.undo()
    close(jax.jit(lambda x: gemmhub.matmul(x, w, alpha=1.75))(x), 1.75 * (x @ w))


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_spot_check_takes_the_options_of_a_product(activation, rng):
    a, b, c, bias = (jnp.asarray(rng.standard_normal(x, np.float32)) for x in ((90, 80), (80, 70), (90, 70), (70,)))
    options = {"c": c, "beta": -2, "bias": bias, "alpha": 0.5, "activation": activation}
    right = gemmhub.matmul(a, b, **options)
    assert gemmhub.spot_check(a, b, right, **options)
    for name, value in (("alpha", 1), ("beta", 2), ("bias", None), ("activation", "silu")):
        assert not gemmhub.spot_check(a, b, right, **{**options, name: value}), name


def test_the_products_of_a_compiled_program_are_tuned(rng, operands):
    """Also where it was compiled before, and JAX runs it when the function has returned."""
    a, b, *_ = operands
    program = jax.jit(lambda x: jax.grad(lambda y: door.matmul(door.matmul(y, b), b.T).sum())(x))
    program(a).block_until_ready()
    result = gemmhub.tune(program, a)
    assert sum(product.calls for product in result.products) >= 2
    assert all(product.rows for product in result.products)
    eager = gemmhub.tune(gemmhub.matmul, a, b)
    assert [product.calls for product in eager.products] == [1]
