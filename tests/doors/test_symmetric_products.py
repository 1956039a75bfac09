"""symmetric=True through torch and JAX: results symmetric bit for bit, gradients of the plain product."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import InputError


def is_symmetric(x):
    x = np.asarray(x)
    bits = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    return np.array_equal(bits, np.swapaxes(bits, -1, -2))


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def drawn(torch, *shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_tensors(torch):
    for n in (3, 300):
        for dtype in (torch.float32, torch.float16, torch.float64):
            a = torch.randn(n, 7).to(dtype)
            for _ in range(3):
                assert is_symmetric(gemmhub.matmul(a, a.t().contiguous(), symmetric=True))


def test_gradients_are_those_of_the_plain_product(torch):
    a, b, c = drawn(torch, 300, 5), drawn(torch, 5, 300), drawn(torch, 300, 300)
    with torch.no_grad():
        b.copy_(a.t())
        c.copy_(c + c.t())
    weight = torch.randn(300, 300, dtype=torch.float64)  # not symmetric
    found = gemmhub.matmul(a, b, symmetric=True, c=c, beta=0.5, alpha=2)
    assert is_symmetric(found.detach())
    got = torch.autograd.grad((found * weight).sum(), (a, b, c))
    wanted = torch.autograd.grad(((2 * a @ b + 0.5 * c) * weight).sum(), (a, b, c))
    for x, y in zip(got, wanted):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_promise_that_holds_for_the_gradient_of_one_operand(torch):
    """a @ a.T of one tensor, whose gradient has both parts."""
    a = drawn(torch, 6, 4)
    assert torch.autograd.gradcheck(lambda x: gemmhub.matmul(x, x.t(), symmetric=True), (a,), atol=1e-4)


def test_the_operator_and_transforms(torch):
    """opcheck, torch.compile, vmap and torch.func.grad."""
    import gemmhub.torch

    a = torch.randn(300, 5, dtype=torch.float64)
    b = a.t().contiguous()
    torch.library.opcheck(torch.ops.gemmhub.matmul.default, (a, b), {"symmetric": True})

    def product(x, y):
        return gemmhub.matmul(x, y, symmetric=True)

    assert is_symmetric(torch.compile(product, backend="aot_eager")(a, b))
    stack = torch.randn(3, 300, 5, dtype=torch.float64)
    found = torch.func.vmap(product)(stack, stack.mT)
    assert is_symmetric(found)
    torch.testing.assert_close(found, stack @ stack.mT)
    got = torch.func.grad(lambda x: (product(x, b) ** 2).sum())(a)
    torch.testing.assert_close(got, torch.func.grad(lambda x: ((x @ b) ** 2).sum())(a))


def test_jax():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    door = pytest.importorskip("gemmhub.jax")
    jnp = jax.numpy
    a = jnp.asarray(np.random.default_rng().standard_normal((300, 5)), np.float32)
    b = jnp.asarray(np.asarray(a).T.copy())

    def product(x, y):
        return door.matmul(x, y, symmetric=True)

    weight = jnp.asarray(np.random.default_rng().standard_normal((300, 300)), np.float32)
    assert is_symmetric(product(a, b))
    assert is_symmetric(jax.jit(product)(a, b))
    assert is_symmetric(jax.vmap(product)(jnp.stack([a, 2 * a]), jnp.stack([b, 2 * b])))
    value, pulled = jax.vjp(product, a, b)
    assert is_symmetric(value)
    for x, y in zip(pulled(weight), (weight @ b.T, a.T @ weight)):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-3)
    with pytest.raises(gemmhub.ShapeError, match="symmetric"):
        jax.jit(product)(a, b[:, :4])


def test_dask_refuses():
    array = pytest.importorskip("dask.array", reason="dask is not installed")
    a = array.ones((8, 4), chunks=4)
    with pytest.raises(InputError, match="symmetric: given with arrays of Dask"):
        gemmhub.matmul(a, a.T, symmetric=True)
