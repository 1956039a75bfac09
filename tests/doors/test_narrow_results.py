"""Results of float8, and 16-bit results of 8-bit integers, through torch, JAX and Dask; and quantized layers there."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, E4M3, E5M2, F32, F64, draw
from products import ratio as plain_ratio

import gemmhub
from gemmhub import accuracy, dtypes, scale_layouts
from gemmhub.errors import DTypeError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
jax = pytest.importorskip("jax", reason="jax is not installed")
da = pytest.importorskip("dask.array", reason="dask is not installed")
import gemmhub.torch  # noqa: E402

jnp = jax.numpy

KINDS = [("bfloat16", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("int8", "bfloat16"), ("int8", "float16")]


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def pair(rng, kind, k=96):
    return draw(rng, (24, k), dtypes.as_dtype(kind)), draw(rng, (k, 16), dtypes.as_dtype(kind))


def tensor(x):
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))


def host(x):
    """The bits of an array of any library."""
    if isinstance(x, torch.Tensor):
        return x.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return np.asarray(x).tobytes()


def large(rng, n=16):
    """A bias that saturates float8 in some columns, with both signs."""
    bias = (draw(rng, n, F32) * np.where(np.arange(n) % 3, 1, 1e6)).astype(F32)
    bias[[0, 3]] = 1e6, -1e6
    return bias


# Values


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_torch_has_the_bits_of_numpy(kinds, rng):
    """Eager, by the operators, compiled, and written into a tensor."""
    a, b = pair(rng, kinds[0])
    given = {"bias": large(rng), "scale_out": np.array([0.25], F32), "activation": "relu"}
    expected = gemmhub.matmul(a, b, out_dtype=kinds[1], **given)
    assert kinds[0] == "int8" or (np.abs(expected.astype(F64)) == dtypes.info(expected.dtype).largest).any()
    out_dtype = getattr(torch, kinds[1])
    left, right = tensor(a), tensor(b)
    given |= {name: torch.from_numpy(x) for name, x in given.items() if name != "activation"}
    out = torch.empty(24, 16, dtype=out_dtype)
    compiled = torch.compile(lambda x, y: gemmhub.matmul(x, y, out_dtype=out_dtype, **given), backend="aot_eager")
    for got in (
        gemmhub.matmul(left, right, out_dtype=out_dtype, **given),
        torch.ops.gemmhub.matmul(left, right, out_dtype=out_dtype, **given),
        compiled(left, right), gemmhub.matmul(left, right, out=out, **given),
    ):  # fmt: skip
        assert got.dtype is out_dtype
        assert host(got) == expected.tobytes()


@pytest.mark.parametrize("kinds", [x for x in KINDS if x[0] != "float8_e4m3fn"], ids=str)
def test_the_operators_are_what_torch_checks_them_for(kinds, rng):
    left, right = map(tensor, pair(rng, kinds[0]))  # torch's own check computes with operands, and not with float8
    options = {"out_dtype": getattr(torch, kinds[1]), "scale_out": torch.tensor([0.5]), "activation": "gelu"}
    for name in ("matmul", "matmul_pre_activation"):
        found = torch.library.opcheck(getattr(torch.ops.gemmhub, name).default, (left, right), options)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_the_dtype_of_a_pre_activation_is_the_same_in_every_library(kinds, rng):
    a, b = pair(rng, kinds[0])
    given = {"out_dtype": kinds[1], "activation": "relu", "pre_activation": True}
    _, before = gemmhub.matmul(a, b, **given)
    traced = torch.compile(lambda x, y: gemmhub.matmul(x, y, **given), backend="aot_eager")
    for _, other in (
        gemmhub.matmul(tensor(a), tensor(b), **given), traced(tensor(a), tensor(b)),
        jax.jit(lambda x, y: gemmhub.jax.matmul(x, y, **given))(jnp.asarray(a), jnp.asarray(b)),
    ):  # fmt: skip
        assert str(other.dtype).rpartition(".")[2] == before.dtype.name
        assert host(other) == before.tobytes()


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_jax_has_the_bits_of_numpy(kinds, rng):
    a, b = pair(rng, kinds[0])
    bias = large(rng)
    expected = gemmhub.matmul(a, b, out_dtype=kinds[1], bias=bias)
    for call in (gemmhub.jax.matmul, jax.jit(gemmhub.jax.matmul, static_argnames="out_dtype")):
        got = call(jnp.asarray(a), jnp.asarray(b), out_dtype=kinds[1], bias=jnp.asarray(bias))
        assert got.dtype == expected.dtype
        assert host(got) == expected.tobytes()


@pytest.mark.parametrize("out", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_vmap_computes_after_the_sum_saturates_too(library, out, rng):
    """A bias of each product follows the sum, where torch's and JAX's own conversions give NaN."""
    a, b = pair(rng, "bfloat16")
    biases = np.stack([large(rng), large(rng), -large(rng)])
    expected = np.stack([gemmhub.matmul(a, b, out_dtype=out, bias=x) for x in biases])
    if library == "jax":
        function = jax.vmap(lambda x: gemmhub.jax.matmul(jnp.asarray(a), jnp.asarray(b), out_dtype=out, bias=x))
        got = np.asarray(function(jnp.asarray(biases)))
    else:
        left, right = tensor(a), tensor(b)
        function = torch.vmap(lambda x: gemmhub.matmul(left, right, out_dtype=getattr(torch, out.name), bias=x))
        got = np.frombuffer(host(function(torch.from_numpy(biases))), out).reshape(expected.shape)
    assert np.array_equal(got.astype(F32), expected.astype(F32))
    assert (np.abs(got.astype(F32)) == dtypes.info(out).largest).any()


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("chunk", [96, 32])
def test_blocks_of_dask(kinds, chunk, rng):
    """Partial sums of blocks of k are rounded once."""
    a, b = pair(rng, kinds[0])
    a = (a * BF16.type(128)).astype(BF16) if kinds[0] == "bfloat16" else a  # most elements of float8 saturate
    with np.errstate(all="ignore"):
        x = gemmhub.matmul(
            da.from_array(a, chunks=(8, chunk)), da.from_array(b, chunks=(chunk, 16)), out_dtype=kinds[1]
        )
        got = x.compute(scheduler="sync")
        assert plain_ratio(got, a, b, out_dtype=got.dtype) <= 1
        assert got.dtype == kinds[1]
        assert gemmhub.spot_check(da.from_array(a), da.from_array(b), x).compute(scheduler="sync").ok
        wrong = got.copy()
        wrong[3] = 1
        checked = gemmhub.spot_check(da.from_array(a), da.from_array(b), da.from_array(wrong))
        assert not checked.compute(scheduler="sync").ok


# Gradients


def test_a_result_of_float8_has_none_in_torch(rng):
    """torch would round the gradient of the result to float8."""
    a, b = map(tensor, pair(rng, "bfloat16"))
    a.requires_grad_()
    for call in (gemmhub.matmul, torch.ops.gemmhub.matmul):
        with pytest.raises(DTypeError, match="out_dtype: float8_e4m3fn where an operand requires grad"):
            call(a, b, out_dtype=torch.float8_e4m3fn)
    with torch.no_grad():
        assert gemmhub.matmul(a, b, out_dtype=torch.float8_e4m3fn).dtype is torch.float8_e4m3fn
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a.detach(), torch.ones_like(a))
        with pytest.raises(DTypeError, match=r"out_dtype: torch\.float8_e4m3fn in forward mode"):
            gemmhub.matmul(dual, b, out_dtype=torch.float8_e4m3fn)


def test_a_result_of_float8_has_none_in_jax(rng):
    a, b = map(jnp.asarray, pair(rng, "bfloat16"))

    def loss(x):
        return gemmhub.jax.matmul(x, b, out_dtype="float8_e4m3fn").astype(jnp.float32).sum()

    with pytest.raises(DTypeError, match="out_dtype: float8_e4m3fn in a function that JAX differentiates"):
        jax.grad(loss)(a)
    with pytest.raises(DTypeError, match="out_dtype"):
        jax.jit(jax.grad(loss))(a)

    def constant(x):  # nothing of the product has a derivative
        return (x.astype(jnp.float32) * loss(jax.lax.stop_gradient(x))).sum()

    assert np.isfinite(np.asarray(jax.grad(constant)(a)).astype(F32)).all()


WEIGHTS = {"tensor": None, "column": None, "block": (128, 128)}


@pytest.mark.parametrize("granularity", WEIGHTS)
@pytest.mark.parametrize("target", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_activations_by_a_quantized_weight_have_gradients(library, target, granularity, rng):
    """Of the activations, in their dtype, and of the scales: those of the product that they stand for."""
    x = draw(rng, (12, 200), BF16)
    p, scale = gemmhub.quantize(draw(rng, (200, 136), F32), target, granularity, block=WEIGHTS[granularity])
    weight = p.astype(F64) * scale_layouts.spread(np.asarray(scale, F64), p.shape)
    grad = draw(rng, (12, 136), BF16)
    if library == "torch":
        leaf, factors = tensor(x).requires_grad_(), torch.from_numpy(np.asarray(scale)).requires_grad_()
        y = gemmhub.matmul(leaf, tensor(p), out_dtype=torch.bfloat16, scale_b=factors)
        y.backward(tensor(grad))
        assert leaf.grad.dtype is torch.bfloat16
        of_x, of_scale = leaf.grad.double().numpy(), factors.grad.numpy()
    else:

        def product(x, factors):
            return gemmhub.jax.matmul(x, jnp.asarray(p), out_dtype="bfloat16", scale_b=factors)

        _, back = jax.vjp(product, jnp.asarray(x), jnp.asarray(scale))
        of_x, of_scale = (np.asarray(y) for y in back(jnp.asarray(grad)))
        assert of_x.dtype == BF16
    # The weight may be rounded to bfloat16 before the product, and the result is.
    exact, magnitude = grad.astype(F64) @ weight.T, np.abs(grad.astype(F64)) @ np.abs(weight.T)
    assert np.all(np.abs(of_x.astype(F64) - exact) <= 2.0**-8 * (np.abs(exact) + magnitude))
    outer = x.astype(F64).T @ grad.astype(F64) * p.astype(F64)
    size = np.abs(x.astype(F64)).T @ np.abs(grad.astype(F64)) * np.abs(p.astype(F64))
    expected, sizes = (gathered(y, scale.shape) for y in (outer, size))
    assert of_scale.shape == scale.shape
    assert np.all(np.abs(of_scale - expected) <= 2.0**-7 * sizes)


def gathered(x, shape):
    """Sums over the elements that share a scale."""
    for axis, count in enumerate(shape or (1, 1)):
        step = 128 if 1 < count < x.shape[axis] else x.shape[axis] if count == 1 else 1
        x = np.add.reduceat(x, np.arange(0, x.shape[axis], step), axis=axis)
    return x.reshape(shape)


def test_scales_of_integers_with_a_result_of_16_bits_have_gradients(rng):
    a, b = pair(rng, "int8")
    scale = np.full((24, 1), 2.0**-9, F32)
    grad = np.ones((24, 16))
    expected = (a.astype(F64) @ b.astype(F64) * grad).sum(1, keepdims=True)
    leaf = torch.from_numpy(scale).requires_grad_()
    gemmhub.matmul(tensor(a), tensor(b), out_dtype=torch.bfloat16, scale_a=leaf).float().sum().backward()

    def loss(factors):
        y = gemmhub.jax.matmul(jnp.asarray(a), jnp.asarray(b), out_dtype="bfloat16", scale_a=factors)
        return y.astype(jnp.float32).sum()

    of_jax = np.asarray(jax.grad(loss)(jnp.asarray(scale)))
    size = (np.abs(a.astype(F64)) @ np.abs(b.astype(F64))).sum(1, keepdims=True)
    for got in (leaf.grad.numpy(), of_jax):
        assert np.all(np.abs(got - expected) <= 2.0**-7 * size)


# A layer


def layer(x, weight, bias):
    """An affine layer in float8: its activations are quantized when they arrive."""
    q, scale_a = gemmhub.quantize(x, "float8_e4m3fn", "row")
    p, scale_b = weight
    return gemmhub.jax.matmul(
        q, p, out_dtype="bfloat16", scale_a=scale_a, scale_b=scale_b, bias=bias, activation="silu"
    )


def test_a_quantized_layer_of_jax(rng):
    """quantize and the product in one program; mapped; with the gradient of the bias."""
    x, w = draw(rng, (3, 10, 256), F32), draw(rng, (256, 128), F32)
    weight = tuple(map(jnp.asarray, gemmhub.quantize(w, "float8_e4m3fn", "block", block=(128, 128))))
    bias = jnp.asarray(draw(rng, 128, F32))
    bias = bias.astype(jnp.bfloat16)
    q, scale_a = (np.asarray(y) for y in gemmhub.quantize(jnp.asarray(x), "float8_e4m3fn", "row"))
    given = {"scale_a": scale_a, "scale_b": np.asarray(weight[1]), "bias": np.asarray(bias), "activation": "silu"}
    model = accuracy.error_model(E4M3, E4M3, BF16, np.dtype(F32))
    expected = accuracy.reference(q, np.asarray(weight[0]), model=model, out_dtype=BF16, **given)
    for function in (jax.jit(layer), jax.jit(jax.vmap(layer, in_axes=(0, None, None)))):
        got = np.asarray(function(jnp.asarray(x), weight, bias))
        assert got.dtype == BF16
        assert expected.ratio(got).max() <= 1

    def loss(x, bias):
        return layer(x, weight, bias).astype(jnp.float32).sum()

    of_x, of_bias = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(x), bias)
    assert not np.asarray(of_x).any()  # quantization has no gradient
    sums = accuracy.reference(
        q, np.asarray(weight[0]), model=model, out_dtype=np.dtype(F32), **{**given, "activation": None}
    )
    sigmoid = 1 / (1 + np.exp(-sums.value))
    slopes = (sigmoid * (1 + sums.value * (1 - sigmoid))).sum((0, 1))
    assert of_bias.dtype == BF16
    assert np.all(np.abs(np.asarray(of_bias).astype(F64) - slopes) <= 0.02 * 30 * 1.1)


def test_a_chain_of_float8_layers_in_one_program(rng):
    """The result of the first is the operand of the second: scale_out and scale_a are one factor and its reciprocal."""
    x, w, v = draw(rng, (10, 64), E4M3), draw(rng, (64, 32), E4M3), draw(rng, (32, 8), E4M3)
    step = np.float32(0.125)

    @jax.jit
    def both(x):
        h = gemmhub.jax.matmul(
            x, jnp.asarray(w), out_dtype="float8_e4m3fn", scale_out=jnp.full(1, 1 / step), activation="relu"
        )
        return h, gemmhub.jax.matmul(h, jnp.asarray(v), out_dtype="float32", scale_a=jnp.full((), step))

    h, y = (np.asarray(z) for z in both(jnp.asarray(x)))
    first = gemmhub.matmul(x, w, out_dtype=E4M3, scale_out=np.array([1 / step], F32), activation="relu")
    assert h.tobytes() == first.tobytes()
    assert np.allclose(y, gemmhub.matmul(first, v, out_dtype=F32, scale_a=step), rtol=1e-5, atol=1e-5)
