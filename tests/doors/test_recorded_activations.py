"""Values and gradients of products with activations: within the bound whether or not gradients are recorded.

Some sums overflow float16, and some are so large that their squares overflow float32: there gelu's and silu's own
formulas, computed in the dtype of the result or as they are written, give NaN.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from products import BF16, F16, F32, F64, ratio

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES, NUMPY

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's and JAX's own
BEND = {
    "relu": 0.0, "gelu": 0.8, "gelu_tanh": 1.13, "silu": 0.6, "tanh": 0.77, "sigmoid": 0.1, "relu_squared": 2.0,
    "leaky_relu": 0.0, "hardswish": 0.34,
}  # fmt: skip
"""Upper bounds of the magnitudes of the second derivatives. Those of relu and leaky_relu are 0 but at 0, where no sum
here is."""


def operands(rng, dtype, activation=None, wanted=None):
    """a, b, bias and the gradient of the result; the rows of a hold what the others do not."""
    large = 3e4 if dtype == F16 else 1e20
    if activation == "relu_squared":  # of which the gradient, too, would overflow, to infinities of both signs
        large = 30 if F16 in (dtype, wanted) else 1e9
    rows = [*rng.standard_normal((4, 6)), *np.multiply.outer([-300, 20, large, -large, -0.7], np.ones(6))]
    a, b = np.array(rows), np.abs(rng.standard_normal((6, 5))) + 0.5
    return tuple(x.astype(dtype) for x in (a, b, rng.standard_normal(5), rng.standard_normal((9, 5))))


def torch_of(x, grad=False):
    import torch

    made = torch.from_numpy(np.ascontiguousarray(x.astype(F64))).to(getattr(torch, x.dtype.name))
    return made.requires_grad_(grad)


def numpy_of(x):
    return x.detach().double().numpy().astype(dtypes.as_dtype(str(x.dtype).removeprefix("torch.")))


def by_torch(call):
    def run(a, b, bias, g, activation, wanted):
        import torch

        torch._dynamo.reset()
        plain = numpy_of(call(*map(torch_of, (a, b, bias)), activation, wanted))
        given = [torch_of(x, True) for x in (a, b, bias)]
        out = call(*given, activation, wanted)
        out.backward(torch_of(g).to(out.dtype))
        return plain, numpy_of(out), *(numpy_of(x.grad) for x in given)

    return run


def matmul(a, b, bias, activation, wanted):
    return gemmhub.matmul(a, b, bias=bias, activation=activation, out_dtype=wanted)


def compiled(*given):
    import torch

    return torch.compile(matmul, backend="aot_eager", dynamic=False)(*given)


def operator(a, b, bias, activation, wanted):
    import torch

    import gemmhub.torch  # noqa: F401  (it defines the operator)

    wanted = None if wanted is None else getattr(torch, wanted)
    return torch.ops.gemmhub.matmul(a, b, bias=bias, activation=activation, out_dtype=wanted)


def functional(a, b, bias, g, activation, wanted):
    """torch.func: values by jvp, gradients by vjp."""
    import torch

    def f(*given):
        return matmul(*given, activation, wanted)

    given = tuple(map(torch_of, (a, b, bias)))
    plain, pulled = torch.func.vjp(f, *given)
    tangents = tuple(torch.zeros_like(x) for x in given)
    value, tangent = torch.func.jvp(f, given, tangents)
    assert not tangent.any()
    return numpy_of(plain), numpy_of(value), *map(numpy_of, pulled(torch_of(g).to(plain.dtype)))


def linear(a, b, bias, g, activation, wanted):
    import torch

    import gemmhub.torch

    left, right, vector = (torch_of(x) for x in (a, b, bias))
    layer = gemmhub.torch.Linear(*b.shape, dtype=left.dtype, activation=activation)
    with torch.no_grad():
        layer.weight.copy_(right.t())
        layer.bias.copy_(vector)
        plain = layer(left)
    left.requires_grad_()
    value = layer(left)
    value.backward(torch_of(g))
    return tuple(map(numpy_of, (plain, value, left.grad, layer.weight.grad.t(), layer.bias.grad)))


def autocast(name):
    def call(a, b, bias, activation, wanted):
        import torch

        with torch.autocast("cpu", dtype=getattr(torch, name)):
            return matmul(*(x.float() for x in (a, b, bias)), activation, wanted)

    return call


def by_jax(a, b, bias, g, activation, wanted):
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        given = tuple(map(jnp.asarray, (a, b, bias)))

        def f(*given):
            return matmul(*given, activation, wanted)

        plain = jax.jit(f)(*given)
        value, pulled = jax.vjp(f, *given)
        found = plain, value, *pulled(jnp.asarray(g).astype(value.dtype))
    return tuple(np.asarray(x) for x in found)


DOORS = {
    "eager": by_torch(matmul), "compiled": by_torch(compiled), "operator": by_torch(operator),
    "functional": functional, "Linear": linear, "autocast": None, "jax": by_jax,
}  # fmt: skip
NEEDED = {"jax": "jax_tvm_ffi"}
KINDS = [(F16, None), (BF16, None), (F32, None), (F64, None), (F32, "float16"), (F32, "bfloat16"), (F16, "float32")]


@pytest.mark.parametrize("activation", ELEMENTWISE)
@pytest.mark.parametrize(("dtype", "wanted"), KINDS, ids=str)
@pytest.mark.parametrize("door", DOORS)
def test_values_and_gradients(door, dtype, wanted, activation, rng):
    if importlib.util.find_spec(NEEDED.get(door, "torch")) is None:
        pytest.skip(f"{NEEDED.get(door, 'torch')} is not installed")
    if door in ("Linear", "autocast") and (wanted is not None or (door == "autocast" and dtype not in (F16, BF16))):
        pytest.skip("no such call")
    a, b, bias, g = operands(rng, dtype, activation, wanted)
    if wanted is not None:
        bias = bias.astype(wanted)
    run = by_torch(autocast(dtype.name)) if door == "autocast" else DOORS[door]
    plain, value, of_a, of_b, of_bias = run(a, b, bias, g, activation, wanted)
    out = np.dtype(dtypes.as_dtype(wanted)) if wanted else dtype
    for found in (plain, value, matmul(a, b, bias, activation, wanted)):
        assert ratio(found, a, b, bias=bias, activation=activation, out_dtype=out) <= 1
        assert not np.isnan(found.astype(F64)).any()
    g = g.astype(out)
    inner, error = gradient_of_argument(a, b, bias, g, activation, out)
    within(of_a, inner, np.swapaxes(b, -1, -2), error, dtype, out)
    within(of_b.T, inner.T, a, error.T, dtype, out)
    within(of_bias[None].T, inner.T, np.ones((9, 1), out), error.T, bias.dtype, out)


def gradient_of_argument(a, b, bias, g, activation, out):
    """``g f'(x)`` in float64, and its bound: of x, of evaluating f' as f may be, and of one rounding to ``out``."""
    compute = dtypes.compute_dtype(a.dtype, b.dtype, out)
    model = accuracy.error_model(a.dtype, b.dtype, compute, compute)
    x = accuracy.reference(a, b, model=model, bias=bias, out_dtype=compute)
    function, result = EPILOGUES[activation], dtypes.info(out)
    slope = function.gradient(x.value, NUMPY)
    unit = result.unit_roundoff
    largest = function.slope if function.degree == 1 else np.inf
    uncertain = np.minimum(BEND[activation] * x.bound, largest) + 2 * function.evaluation * unit
    if activation == "hardswish":  # whose derivative jumps
        uncertain += np.abs(np.abs(x.value) - 3) <= x.bound
    inner = g.astype(F64) * slope
    return inner, np.abs(g.astype(F64)) * uncertain + unit * np.abs(inner) + result.smallest_normal


def within(got, inner, other, error, dtype, out):
    """A gradient is the product of ``inner``, known to ``error``, and the other operand, in the operand's dtype."""
    assert got.dtype == dtype
    model = accuracy.error_model(out, other.dtype, dtype, dtypes.compute_dtype(out, other.dtype, dtype))
    exact = accuracy.reference(inner, other, model=model, out_dtype=dtype)
    bound = exact.bound + error @ np.abs(other.astype(F64)) * (1 + 2.0**-6)
    found = got.astype(F64)
    wrong = np.abs(found - exact.value) > bound
    wrong &= ~(np.isinf(found) & (np.abs(exact.value) + bound >= dtypes.info(dtype).largest))
    assert not (wrong | np.isnan(found)).any(), (found[wrong], exact.value[wrong], bound[wrong])


def test_autograds_value_is_that_of_a_call_without_gradients(rng):
    """Bit for bit: autograd records the call that would be made without it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (F16, BF16, F32):
        a, b, bias, _ = (torch_of(x) for x in operands(rng, dtype))
        b, bias = b[:, :4], bias[:4]  # pairs of columns
        for activation in EPILOGUES:
            plain = matmul(a, b, bias, activation, None)
            recorded = matmul(a.clone().requires_grad_(), b, bias, activation, None)
            assert torch.equal(plain, recorded.detach())


def test_what_is_saved(rng):
    """The argument of the activation, in the accumulator's dtype, and no addend; of relu the result."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (F32, BF16):
        a, b, bias, _ = (torch_of(x, True) for x in operands(rng, dtype))
        for activation, kept in (("gelu", torch.float32), ("relu", a.dtype)):
            saved = []
            with torch.autograd.graph.saved_tensors_hooks(
                lambda x, saved=saved: saved.append((tuple(x.shape), x.dtype)) or x, lambda x: x
            ):
                matmul(a, b, bias, activation, None)
            assert saved == [((9, 6), a.dtype), ((6, 5), a.dtype), ((9, 5), kept)]
