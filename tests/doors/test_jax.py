"""Products in functions that JAX traces: what they are without that, with gradients, mapped dimensions and shards."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def operands(rng):
    return tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((5, 8), (8, 6), (6,), (5, 6)))


def full(x, w, bias, c, activation="gelu"):
    return gemmhub.matmul(x, w, bias=bias, c=c, alpha=2.0, beta=-0.5, activation=activation)


def plain(x, w, bias, c, activation="gelu"):
    after = {
        "gelu": lambda x: jax.nn.gelu(x, approximate=True),
        "silu": jax.nn.silu,
        "relu": jax.nn.relu,
        None: lambda x: x,
    }
    return after[activation](2 * x @ w - 0.5 * c + bias)


def close(x, y):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert np.abs(np.asarray(y)).max(initial=1) > 0
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_derivatives(activation, operands):
    from jax.test_util import check_grads

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
        return lambda w: (jax.nn.gelu(f(x, w), approximate=True) ** 3).sum()

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
        (lambda x: f(x, x), ShapeError, "as many columns of a as rows of b"),
        (lambda x: f(x, w, bias=c), ShapeError, "bias: shape"),
        (lambda x: f(x, w, beta=2), InputError, "beta: 2 without c"),
        (lambda x: f(x, w, activation="tanh"), InputError, "activation"),
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
    with pytest.raises(InputError, match=r"without jax-tvm-ffi.*Python 3.11, jax 0.7.2.*\[jax\]"):
        jax.jit(lambda x: gemmhub.matmul(x, w, alpha=1.25))(x)
