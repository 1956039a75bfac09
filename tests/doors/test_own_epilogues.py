"""Epilogues that a program registers, through the doors: gradients, traced functions, layers, clusters."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import InputError


def softsign(x, functions):
    near = functions.clip(x, -1e30, 1e30)
    return near / (1 + abs(near))


def softsign_gradient(x, functions):
    return (1 / (1 + abs(functions.clip(x, -1e30, 1e30)))) ** 2


def register(name, **changes):
    bounds = {"slope": 1, "evaluation": 4, "accurate": True}
    return gemmhub.register_epilogue(name, softsign, **{"gradient": softsign_gradient, **bounds, **changes})


@pytest.fixture
def forward():
    """The name of one without a gradient."""
    yield register("door_forward", gradient=None)
    gemmhub.unregister_epilogue("door_forward")


@pytest.fixture(params=[None, "halves", "interleaved"])
def own(request):
    """The name of a registered epilogue, gated or not."""
    name = register(f"door_{request.param or 'plain'}", gate=request.param)
    yield name
    if name in EPILOGUES:
        gemmhub.unregister_epilogue(name)


def split(name, x):
    """The gate, and what it multiplies."""
    first, *up = EPILOGUES[name].split(x)
    return first, up[0] if up else 1


def test_torch(own):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def product(a, b):
        return gemmhub.matmul(a, b, activation=own)

    def expected(a, b):
        gate, up = split(own, a @ b)
        return torch.nn.functional.softsign(gate) * up

    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 7), (7, 6)))
    torch.testing.assert_close(product(a, b), expected(a, b))
    assert torch.autograd.gradcheck(product, (a, b))
    assert torch.autograd.gradgradcheck(product, (a, b))
    compiled = torch.compile(product, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), expected(a, b))
    cotangent = torch.randn_like(expected(a, b))
    for x, y in zip(
        torch.autograd.grad(compiled(a, b), (a, b), cotangent), torch.autograd.grad(expected(a, b), (a, b), cotangent)
    ):
        torch.testing.assert_close(x, y)
    single = [x.detach().float().requires_grad_() for x in (a, b)]
    torch.library.opcheck(torch.ops.gemmhub.matmul.default, tuple(single), {"activation": own})
    layer = gemmhub.torch.Linear(7, 6, bias=False, activation=own, dtype=torch.float64)
    torch.testing.assert_close(layer(a), expected(a, layer.weight.t()))


def test_torch_after_it_is_unregistered(own):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a = torch.randn(4, 4, requires_grad=True)
    result = gemmhub.matmul(a, a, activation=own)
    compiled = torch.compile(lambda a: gemmhub.matmul(a, a, activation=own), backend="aot_eager")
    layer = gemmhub.torch.Linear(4, 4, activation=own)
    for call in (lambda: compiled(a), lambda: layer(a)):
        call()
    gemmhub.unregister_epilogue(own)
    for call in (lambda: compiled(a), lambda: layer(a), lambda: result.sum().backward()):
        with pytest.raises(InputError, match=f"activation: '{own}'; allowed: relu"):
            call()


def test_torch_without_a_gradient(forward):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    result = gemmhub.matmul(a, b, activation=forward)
    torch.testing.assert_close(result, torch.nn.functional.softsign(a @ b))
    with pytest.raises(InputError, match=r"door_forward, which has no gradient.*gemmhub.register_epilogue"):
        result.sum().backward()


def test_jax(own, rng):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    pytest.importorskip("jax_tvm_ffi", reason="jax is not installed")

    def total(function):
        return jax.grad(lambda a, b: (function(a, b) ** 2).sum(), argnums=(0, 1))

    def product(a, b):
        return gemmhub.matmul(a, b, activation=own)

    def expected(a, b):
        gate, up = split(own, a @ b)
        return jax.nn.soft_sign(gate) * up

    a, b = (jax.numpy.asarray(rng.standard_normal(shape), np.float32) for shape in ((2, 5, 7), (2, 7, 6)))
    for function in (jax.jit(product), jax.vmap(product)):
        np.testing.assert_allclose(function(a, b), expected(a, b), rtol=1e-4, atol=1e-4)
    for x, y in zip(total(product)(a, b), total(expected)(a, b)):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


def test_jax_without_a_gradient(forward, rng):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    pytest.importorskip("jax_tvm_ffi", reason="jax is not installed")
    a = jax.numpy.asarray(rng.standard_normal((4, 4)), np.float32)
    result = gemmhub.matmul(a, a, activation=forward)
    np.testing.assert_allclose(result, jax.nn.soft_sign(a @ a), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="door_forward, which has no gradient"):
        jax.grad(lambda a: gemmhub.matmul(a, a, activation=forward).sum())(a)


def test_dask(forward, rng):
    da = pytest.importorskip("dask.array", reason="Dask is not installed")
    a = rng.standard_normal((20, 20))
    distant = da.from_array(a, chunks=7)
    result = gemmhub.matmul(distant, distant, activation=forward)
    np.testing.assert_allclose(result.compute(), a @ a / (1 + abs(a @ a)), atol=1e-12)
    assert gemmhub.spot_check(distant, distant, result, activation=forward).compute()
    gated = register("door_gated", gate="halves")
    try:
        with pytest.raises(InputError, match="door_gated, which takes pairs of columns"):
            gemmhub.matmul(distant, distant, activation=gated)
    finally:
        gemmhub.unregister_epilogue(gated)
