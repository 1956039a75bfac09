"""Rows of products that JAX traces have the bits of one product in memory, where they are promised."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import InputError

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, which jax-tvm-ffi imports where it is installed
import jax.numpy as jnp  # noqa: E402
from rowwise import Rowwise, chain, registered  # noqa: E402

import gemmhub.jax as door  # noqa: E402

PINNED = {"reproducible": "batch", "backend": "rowwise"}


@pytest.fixture
def rowwise():
    with registered(Rowwise()) as backend:
        yield backend


@pytest.fixture
def operands(rng):
    return tuple(rng.standard_normal(shape, np.float32) for shape in ((23, 40), (40, 17), (17,), (23, 17)))


def same(x, y):
    return np.array_equal(np.asarray(x), np.asarray(y))


def test_compiled_products_have_the_bits_of_one_product(rowwise, operands, rng):
    x, w, bias, c = operands
    options = {"bias": bias, "activation": "relu", "alpha": 0.3, "beta": 0.5}
    whole = gemmhub.matmul(x, w, c=c, **options, **PINNED)
    f = jax.jit(lambda x, c: door.matmul(x, w, c=c, **options, **PINNED))
    assert same(f(x, c), whole)
    for rows in (rng.integers(0, 23, 5), rng.integers(0, 23, 1), np.arange(23)[::-1]):
        assert same(f(x[rows], c[rows]), whole[rows])
        assert same(jax.vmap(f)(x[rows], c[rows]), whole[rows])
    vector = jax.jit(lambda row: door.matmul(row, w, **PINNED))
    assert same(vector(x[3]), chain(x, w)[3])


def test_settings_hold_that_are_in_force_where_it_is_traced(rowwise, operands):
    x, w, *_ = operands
    with gemmhub.use(**PINNED):
        f = jax.jit(lambda x: door.matmul(x, w))
        assert same(f(x), chain(x, w))
    assert same(f(x), chain(x, w))
    assert same(jax.jit(lambda x: door.matmul(x, 1 * w))(x), gemmhub.matmul(x, w))


def test_gradients(rowwise, operands, rng):
    """The result, and the gradient with respect to x, whose rows are a product of rows."""
    x, w, bias, cotangent = operands

    def f(x, w):
        return door.matmul(x, w, bias=bias, activation="relu", **PINNED)

    result, pull = jax.vjp(jax.jit(f), x, w)
    assert same(result, f(x, w))
    of_x, of_w = pull(jnp.asarray(cotangent))
    through = np.where(np.asarray(result) > 0, cotangent, 0)
    assert same(of_x, chain(through, w.T))
    assert same(of_w, chain(x.T, through))
    rows = rng.integers(0, 23, 4)
    part, pull = jax.vjp(jax.jit(f), x[rows], w)
    assert same(part, np.asarray(result)[rows])
    assert same(pull(jnp.asarray(cotangent[rows]))[0], np.asarray(of_x)[rows])
    assert all(problem.reproducible == "batch" for _, problem in rowwise.calls)


def test_results_under_grad_are_not_computed_by_xla(rowwise, operands):
    """Its exponential functions promise no bits, and here the backend has another relu than the formula."""
    x, w, *_ = operands

    class Marked(Rowwise):
        name = "marked"

        def prepare(self, problem, candidate, workspace_limit):
            kernel = super().prepare(problem, candidate, workspace_limit)

            def run(a, b, out, *rest, **others):
                kernel.run(a, b, out, *rest, **others)
                out[...] += problem.activation is not None

            return type(kernel)(run, "marked")

    def f(x, pinned):
        return door.matmul(x, w, activation="relu", backend="marked", reproducible="batch" if pinned else None)

    with registered(Marked()):
        assert same(jax.vjp(lambda x: f(x, True), x)[0], f(x, True))
        assert same(jax.jvp(lambda x: f(x, True), (x,), (x,))[0], np.maximum(chain(x, w), 0) + 1)


def test_mapped_operands(rowwise, operands):
    x, w, bias, c = operands
    f = lambda x, bias: door.matmul(x, w, bias=bias, **PINNED)  # noqa: E731
    with pytest.raises(InputError, match=r"bias: mapped by vmap, with reproducible=.*XLA.*jax\.lax\.map"):
        jax.vmap(f, (None, 0))(x, jnp.stack([bias, 2 * bias]))
    mapped = jax.lax.map(lambda bias: f(x, bias), jnp.stack([bias, 2 * bias]))
    assert same(mapped[1], f(x, 2 * bias))
    added = jax.vmap(lambda c: door.matmul(x, w, c=c, beta=2, **PINNED))(jnp.stack([c, -c]))
    assert same(added[1], gemmhub.matmul(x, w, c=-c, beta=2, **PINNED))


def test_refusals(operands):
    x, w, *_ = operands
    with pytest.raises(InputError, match="reproducible: 'bach'"):
        jax.jit(lambda x: door.matmul(x, w, reproducible="bach"))(x)
    with pytest.raises(Exception, match="none of its candidates adds in an order that it states"):
        jax.jit(lambda x: door.matmul(x, w, reproducible="batch", backend="numpy"))(x).block_until_ready()


def test_integers(rng):
    x, w = rng.integers(-128, 128, (9, 500), np.int8), rng.integers(-128, 128, (500, 7), np.int8)
    f = jax.jit(lambda x: door.matmul(x, w, reproducible="batch"))
    assert same(f(x), x.astype(np.int32) @ w.astype(np.int32))


SHARDS = """
import jax, numpy as np, gemmhub, gemmhub.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from rowwise import Rowwise, chain, registered
mesh, rng = Mesh(np.array(jax.devices()), ("i",)), np.random.default_rng(0)
x, w = rng.standard_normal((8, 16), np.float32), rng.standard_normal((16, 4), np.float32)
f = lambda x, w: gemmhub.jax.matmul(x, w, reproducible="batch", backend="rowwise")
with registered(Rowwise()):
    for specs in ((P("i"), P()), (P(), P(None, "i")), (P(None, "i"), P("i"))):
        placed = [jax.device_put(y, NamedSharding(mesh, spec)) for y, spec in zip((x, w), specs)]
        assert np.array_equal(jax.jit(f)(*placed), chain(x, w)), specs
    for specs, out in (((P("i"), P()), P("i")), ((P(), P(None, "i")), P(None, "i"))):
        sharded = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))
        assert np.array_equal(sharded(x, w), chain(x, w)), specs
print(len(jax.devices()), "devices")
"""


def test_shards():
    """An array whose k is sharded is gathered; a shard_map multiplies blocks of rows or columns."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARDS], env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 devices" in done.stdout


def test_off_undoes_a_setting(operands):
    x, w, *_ = operands
    with gemmhub.use(reproducible="batch", backend="numpy"):
        product = jax.jit(lambda x: door.matmul(x, w, reproducible="off"))(x)
    assert same(product, gemmhub.matmul(x, w, backend="numpy"))
