"""linear, einsum, tensordot, vecdot and bmm of tensors of torch, arrays of JAX and of Dask: values and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import DeviceError, DTypeError, ShapeError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
jax = pytest.importorskip("jax", reason="JAX is not installed")
da = pytest.importorskip("dask.array", reason="Dask is not installed")
import jax.numpy as jnp  # noqa: E402

from gemmhub.torch import use  # noqa: E402

EQUATIONS = (
    "...ij,...jk->...ik", "acb,dc->abd", "i,i->", "i,j->ij", "ij,jk->", "ii,ij->j", "ij->i", "ij,jk,kl->il", "b,bi->ib",
    "ijk,kji->",
)  # fmt: skip


def operands(rng, equation):
    """Random float64 operands; an ellipsis is a dimension of 2, of the first operand one of 1."""
    sizes = {x: int(rng.integers(1, 5)) for x in "abcdijkl"}
    texts = equation.partition("->")[0].split(",")
    given = [rng.standard_normal([2] * ("..." in text) + [sizes[x] for x in text.strip(".")]) for text in texts]
    return [given[0][:1] if "..." in equation else given[0], *given[1:]]


CALLS = {
    **{equation: (lambda *x, equation=equation: gemmhub.einsum(equation, *x)) for equation in EQUATIONS},
    "tensordot": lambda a, b: gemmhub.tensordot(a, b, ((1, 2), (2, 0))),
    "vecdot": lambda a, b: gemmhub.vecdot(a[0], b[:, 0].T, axis=0),
    "bmm": lambda a, b: gemmhub.bmm(a, b.swapaxes(0, 1)),
    "linear": lambda a, b: gemmhub.linear(a[0], b[0, :, : a.shape[2]], b[0, :, 0]),
}
REFERENCES = {
    **{equation: (lambda xp, *x, equation=equation: xp.einsum(equation, *x)) for equation in EQUATIONS},
    "tensordot": lambda xp, a, b: xp.tensordot(a, b, ((1, 2), (2, 0))),
    "vecdot": lambda xp, a, b: (a[0] * b[:, 0].T).sum(0),
    "bmm": lambda xp, a, b: xp.matmul(a, b.swapaxes(0, 1)),
    "linear": lambda xp, a, b: xp.matmul(a[0], b[0, :, : a.shape[2]].T) + b[0, :, 0],
}
SHAPES = {"tensordot": ((2, 3, 4), (4, 5, 3)), "vecdot": ((2, 4, 3), (3, 2, 4)), "bmm": ((2, 3, 4), (4, 2, 5)),
          "linear": ((2, 3, 4), (2, 5, 4))}  # fmt: skip


def drawn(rng, name):
    return operands(rng, name) if name in EQUATIONS else [rng.standard_normal(shape) for shape in SHAPES[name]]


def close(got, expected, dtype=np.float64):
    """Within the error of sums of at most a hundred products of normal numbers."""
    np.testing.assert_allclose(
        np.asarray(got), expected, rtol=1e3 * np.finfo(dtype).eps, atol=1e3 * np.finfo(dtype).eps
    )


@pytest.mark.parametrize("name", CALLS)
def test_torch(name, rng):
    given = drawn(rng, name)
    tensors = [torch.from_numpy(x) for x in given]
    got = CALLS[name](*tensors)
    assert type(got) is torch.Tensor
    expected = REFERENCES[name](np, *given)
    assert tuple(got.shape) == np.shape(expected)
    close(got, expected)
    for x in tensors:
        x.requires_grad_()
    assert torch.autograd.gradcheck(CALLS[name], tensors)
    assert torch.autograd.gradgradcheck(CALLS[name], tensors)
    with torch.no_grad():
        mapped = torch.func.vmap(CALLS[name])(*(torch.stack([x, 2 * x]) for x in tensors))
    close(mapped[0], expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", ["ij,jk->", "ii,ij->j", "ij,jk,kl->il", "i,j->ij", *SHAPES])
def test_torchs_compiler_traces_one_graph(name, dtype, dynamic, rng):
    given = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in drawn(rng, name)]
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=dynamic, backend="eager")
    got, expected = compiled(*given), CALLS[name](*given)
    assert got.dtype == expected.dtype
    close(got, expected.numpy(), np.dtype(dtype))


def test_a_linear_layer_of_torch_is_looked_up(monkeypatch):
    """A repeated call takes the weight as it is; under autograd it is recorded."""
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    expected = torch.nn.functional.linear(x, weight, bias)
    for _ in range(3):
        close(gemmhub.linear(x, weight, bias), expected, np.float32)
    from gemmhub._contractions import linear

    with monkeypatch.context() as patch:
        patch.setattr(linear, "_linear", None)  # the path of calls that are not looked up
        close(gemmhub.linear(x, weight, bias), expected, np.float32)
    weight.requires_grad_()
    assert gemmhub.linear(x, weight, bias).requires_grad
    with pytest.raises(ShapeError, match="bias"):
        gemmhub.linear(x, weight, bias[:, None])


def test_a_block_takes_an_ellipsis():
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    with use(precision="ieee"):
        got = torch.einsum("...ij,jk->...ik", a, b)
    torch.testing.assert_close(got, a @ b)


def test_complex_tensors_are_conjugated():
    a, b = torch.randn(3, 4, dtype=torch.complex128), torch.randn(4, dtype=torch.complex128)
    torch.testing.assert_close(gemmhub.vecdot(a, b), torch.linalg.vecdot(a, b))
    assert torch.autograd.gradcheck(gemmhub.vecdot, (a.requires_grad_(), b.requires_grad_()))


def test_half_precision_of_torch_is_rounded_once():
    x, small = torch.full((1, 1), 300.0, dtype=torch.float16), torch.full((1, 1), 1e-3, dtype=torch.float16)
    got = gemmhub.einsum("ij,jk,kl->il", x, x, small)
    assert got.dtype == torch.float16
    assert got.item() == (90000 * small.float()).half().item()
    assert gemmhub.einsum("ij,ij->ij", x.to(torch.int8), x.to(torch.int8)).dtype == torch.int32
    assert gemmhub.einsum("ij->i", x, out_dtype=torch.float64).dtype == torch.float64
    with pytest.raises(DTypeError, match="out_dtype"):
        gemmhub.einsum("ij->i", x, out_dtype=torch.int32)


def test_libraries_do_not_mix():
    x = np.ones((2, 2))
    for a, b in ((x, torch.ones(2, 2)), (torch.ones(2, 2), x), (torch.ones(2, 2), jnp.ones((2, 2)))):
        for equation in ("ij,ij->ij", "ij,jk->ik"):
            with pytest.raises(DeviceError, match=r"operands\[0\] is an? .*operands\[1\] is an?"):
                gemmhub.einsum(equation, a, b)


@pytest.mark.parametrize("name", CALLS)
def test_jax(name, rng):
    """Eager, compiled, mapped and differentiated."""
    given = [jnp.asarray(x, jnp.float32) for x in drawn(rng, name)]
    expected = REFERENCES[name](jnp, *given)
    for call in (CALLS[name], jax.jit(CALLS[name])):
        got = call(*given)
        assert isinstance(got, jax.Array)
        assert got.shape == expected.shape
        close(got, expected, np.float32)
    mapped = jax.jit(jax.vmap(CALLS[name]))(*(jnp.stack([x, 2 * x]) for x in given))
    close(mapped[0], expected, np.float32)
    places = tuple(range(len(given)))
    ours = jax.grad(lambda *x: CALLS[name](*x).sum(), places)(*given)
    theirs = jax.grad(lambda *x: REFERENCES[name](jnp, *x).sum(), places)(*given)
    for got, expected in zip(ours, theirs):
        close(got, expected, np.float32)


@pytest.mark.parametrize("name", CALLS)
def test_dask(name, rng):
    """Lazy, whatever the chunks."""
    given = drawn(rng, name)
    lazy = [da.from_array(x, chunks=tuple(int(rng.integers(1, size + 1)) for size in x.shape)) for x in given]
    got = CALLS[name](*lazy)
    assert isinstance(got, da.Array)
    expected = REFERENCES[name](np, *given)
    assert got.shape == np.shape(expected)
    close(got.compute(), expected)
