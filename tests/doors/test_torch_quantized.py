"""Quantized layers: what they compute, keep, load and refuse, and the report of ``quantize_``."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub._base.error_model import error_model
from gemmhub.errors import DTypeError, InputError, NoBackendError, ShapeError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import gemmhub.torch as door  # noqa: E402
from gemmhub._arrays.torch.operands import torch_dtypes  # noqa: E402
from gemmhub._doors.torch import packed_weights, quantized_linear  # noqa: E402

SCHEMES = ("fp8_row", "fp8_block", "int8_row")
WIDE = (torch.bfloat16, torch.float16, torch.float32)
K, N = 300, 140
"""Neither is a multiple of 128."""


def draw(rng, *shape, dtype=torch.float32):
    """Normal numbers whose rows and blocks have different sizes, so that each needs its own scale."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-4, 4, (*shape[:-1], 1)))
    return torch.from_numpy(x).to(dtype)


def linear(rng, dtype=torch.float32, bias=True, k=K, n=N, **options):
    layer = door.Linear(k, n, bias, dtype=dtype, **options) if options else torch.nn.Linear(k, n, bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(draw(rng, n, k, dtype=dtype))
        if bias:
            layer.bias.copy_(draw(rng, n, dtype=dtype))
    return layer


def host(x):
    """A NumPy array of any dtype."""
    return x.detach().float().numpy().astype(torch_dtypes()[0][x.dtype])


def ratio(layer, x, y):
    """The largest error over its bound, for the narrow operands that the layer and its activations have."""
    scheme = quantized_linear.SCHEMES[layer.scheme]
    q, scale = gemmhub.quantize(x.detach(), scheme.dtype, scheme.input.name, block=scheme.input.block)
    a, b, out = host(q), host(layer.weight).T, torch_dtypes()[0][x.dtype]
    model = error_model(a.dtype, b.dtype, out, dtypes.compute_dtype(a.dtype, b.dtype, out), "ieee")
    bias = None if layer.bias is None else host(layer.bias.to(x.dtype))
    reference = accuracy.reference(
        a, b, model=model, activation=layer.activation, out_dtype=out, bias=bias, scale_a=host(scale),
        scale_b=host(layer.weight_scale).T,
    )  # fmt: skip
    assert y.dtype is x.dtype
    return np.max(reference.ratio(host(y)), initial=0.0)


def same(one, other):
    """Whether two layers have equal bits, dtypes and names."""
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    pairs = zip(*(state.values() for state in states))
    return all(x.dtype is y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


# What a layer computes.


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_result_is_within_the_bound(scheme, dtype, rng):
    for bias, activation in ((True, None), (False, None), (True, "gelu"), (True, "swiglu")):
        layer = linear(rng, dtype, bias, **({"activation": activation} if activation else {}))
        weight = layer.weight.detach().clone()
        door.quantize_(layer, scheme)
        error = (weight.double() - layer.dequantize(torch.float64)).abs().numpy()
        bound = accuracy.quantization_bound(host(weight), host(layer.weight_scale), host(layer.weight).dtype)
        assert (error <= bound * (1 + 1e-6)).all()
        for shape in ((5, K), (1, K), (K,), (0, K), (2, 3, K)):
            x = draw(rng, *shape, dtype=dtype)
            with torch.no_grad():
                y = layer(x)
            assert y.shape == (*shape[:-1], N // (2 if activation == "swiglu" else 1))
            assert ratio(layer, x.reshape(-1, K), y.reshape(-1, y.shape[-1])) <= 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scales_of_rows_and_blocks(scheme, rng):
    layer = door.QuantizedLinear(linear(rng), scheme)
    assert layer.weight_scale.shape == ((2, 3) if scheme == "fp8_block" else (N, 1))
    assert layer.weight_scale.dtype is torch.float32
    assert layer.weight.dtype is (torch.int8 if scheme == "int8_row" else torch.float8_e4m3fn)
    assert [name for name, x in layer.named_parameters() if x.requires_grad] == ["bias"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_numbers_that_are_not_finite(scheme, rng):
    """NaN makes its token NaN and no other one; an infinity saturates."""
    layer = door.QuantizedLinear(linear(rng), scheme)
    x = draw(rng, 4, K)
    x[1, 7], x[2, 5] = torch.nan, torch.inf
    with torch.no_grad():
        y, others = layer(x), layer(x[[0, 3]])
    assert torch.equal(y[[0, 3]], others)
    assert y[1].isnan().all()
    assert y[2].isfinite().all()


def test_sizes_that_are_empty(rng):
    layer = door.QuantizedLinear(torch.nn.Linear(8, 4), "int8_row")
    assert layer(torch.zeros(0, 8)).shape == (0, 4)
    assert layer(torch.zeros(2, 0, 8)).shape == (2, 0, 4)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_product_of_no_features_is_the_bias(scheme):
    layer = door.QuantizedLinear(torch.nn.Linear(0, 4), scheme)
    for bias in (layer.bias, None):
        layer.bias = bias
        for shape in ((3,), (0,), (2, 3), ()):
            x = torch.zeros(*shape, 0)
            expected = torch.zeros(4) if bias is None else bias
            assert torch.equal(layer(x), expected.expand(*shape, 4))
            with torch.no_grad():
                assert torch.equal(layer(x), expected.expand(*shape, 4))


def test_what_calls_refuse(rng):
    layer = door.QuantizedLinear(linear(rng), "fp8_row")
    with pytest.raises(DTypeError, match=r"input: activations of torch.float64; allowed: torch.bfloat16"):
        layer(torch.ones(2, K, dtype=torch.float64))
    for shape in ((2, K + 1), ()):
        with pytest.raises(ShapeError, match=r"input: shape .*; allowed: \(..., 300\)"):
            layer(torch.ones(shape))
    with pytest.raises(InputError, match="input: an ndarray; allowed: a tensor"):
        layer(np.ones((2, K), np.float32))


@pytest.mark.parametrize("assign", ["parameter", "data"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wide_weight_that_is_assigned(scheme, assign, rng):
    """It has no scale: by the old one, results would be wrong."""
    layer, wide = door.QuantizedLinear(linear(rng), scheme), draw(rng, N, K)
    if assign == "data":
        layer.weight.data = wide
    else:
        layer.weight = torch.nn.Parameter(wide)
    x = draw(rng, 3, K)
    refused = rf"weight: torch.float32 assigned to a layer quantized by {scheme}; allowed: .*load_state_dict\(\)"
    for call in (lambda: layer(x), lambda: layer(x.requires_grad_()), layer.dequantize, lambda: copy.deepcopy(layer)):
        with pytest.raises(DTypeError, match=refused):
            call()
    with torch.no_grad(), pytest.raises(DTypeError, match=refused):
        layer(x)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_remedy_for_a_wide_weight(scheme, rng):
    layer, new = door.QuantizedLinear(linear(rng), scheme), linear(rng)
    layer.load_state_dict(new.state_dict())
    assert same(layer, door.QuantizedLinear(new, scheme))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_autocast_rounds_activations(scheme, rng):
    layer = door.QuantizedLinear(linear(rng), scheme)
    x = draw(rng, 3, K)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        assert torch.equal(y, layer(x.bfloat16()))


# Gradients.


@pytest.mark.parametrize("activation", [None, "gelu", "swiglu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_are_those_of_the_dequantized_weight(scheme, activation, rng):
    layer = door.QuantizedLinear(linear(rng, **({"activation": activation} if activation else {})), scheme)
    x = draw(rng, 5, K).requires_grad_()
    y = layer(x)
    grad = draw(rng, *y.shape)
    y.backward(grad)
    with torch.no_grad():
        # The slope of a gate grows with its argument, of which two orders of summation differ.
        assert torch.allclose(y, layer(x), rtol=1e-4, atol=1e-5 * float(y.abs().max()))
        # The argument of the activation is that of quantized activations; the slope with respect to x is the weight.
        plain = door.QuantizedLinear(linear(rng), scheme)
        plain.weight, plain.weight_scale, plain.bias = layer.weight, layer.weight_scale, layer.bias
        before = plain(x).double()
    before.requires_grad_()
    functions = {None: lambda z: z, "gelu": torch.nn.functional.gelu,
                 "swiglu": lambda z: torch.nn.functional.silu(z[:, : N // 2]) * z[:, N // 2 :]}  # fmt: skip
    functions[activation](before).backward(grad.double())
    expected = before.grad @ layer.dequantize(torch.float64)
    scale = before.grad.abs() @ layer.dequantize(torch.float64).abs()
    assert ((x.grad - expected).abs() <= 1e-5 * scale + 1e-6).all()
    assert torch.allclose(layer.bias.grad.double(), before.grad.sum(0), rtol=1e-4, atol=1e-4)
    assert layer.weight.grad is None
    assert layer.weight_scale.grad is None


def test_gradients_in_bfloat16_and_what_has_none(rng):
    layer = door.QuantizedLinear(linear(rng, torch.bfloat16), "fp8_row").requires_grad_(False)
    x = draw(rng, 2, 3, K, dtype=torch.bfloat16)
    assert not layer(x).requires_grad
    layer(x.requires_grad_()).sum().backward()
    expected = layer.dequantize(torch.float64).sum(0).expand(2, 3, K)
    assert (x.grad.dtype, x.grad.shape) == (x.dtype, x.shape)
    assert torch.allclose(x.grad.double(), expected, rtol=2e-2, atol=0.2)
    assert layer.bias.grad is None
    layer.requires_grad_(True) if layer.weight.is_floating_point() else None
    layer(x).sum().backward()  # a float8 weight that was told to require a gradient still has none
    assert layer.weight.grad is None


def test_gradients_of_gradients_and_transforms(rng):
    layer = door.QuantizedLinear(linear(rng), "fp8_row").requires_grad_(False)
    x = draw(rng, 3, K).requires_grad_()
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), x)
    weight = layer.dequantize()
    assert torch.allclose(again, 2 * (weight.sum(1) @ weight).expand(3, K), rtol=1e-3, atol=1e-2)
    assert torch.allclose(torch.func.grad(lambda z: layer(z).square().sum())(x.detach()), grad, rtol=1e-5)
    mapped = torch.vmap(layer)(x.detach())
    assert ratio(layer, x, mapped) <= 1


def tangent_error(layer, x, along, y, result, of_bias=None):
    """The largest error of a tangent over a bound: the result's derivative in float64, of the dequantized weight."""
    weight = layer.dequantize(torch.float64)
    before = along.double() @ weight.T
    size = along.double().abs() @ weight.T.abs()
    if of_bias is not None:
        before, size = before + of_bias.double(), size + of_bias.double().abs()
    assert result.dtype is y.dtype is x.dtype
    # The weight and the result round to the dtype, half an epsilon each; sums are of float32.
    info = torch.finfo(x.dtype)
    bound = (info.eps + (K + 4) * 2.0**-23) * size + info.eps * info.tiny * (1 + along.double().abs().sum(-1, True))
    return ((result.double() - before).abs() / bound).max()


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tangents_are_those_of_the_dequantized_weight(scheme, dtype, rng):
    """With and without gradients, and of the bias: the tangents of quantization are not taken."""
    for bias, records in ((True, True), (True, False), (False, True), (False, False)):
        layer = door.QuantizedLinear(linear(rng, dtype, bias), scheme)
        x, along = (draw(rng, 2, 3, K, dtype=dtype) for _ in "12")
        with torch.no_grad():
            plain = layer(x)
        with torch.set_grad_enabled(records):
            y, result = torch.func.jvp(layer, (x,), (along,))
            assert torch.equal(y, plain)
            assert tangent_error(layer, x, along, y, result) <= 1
            with forward_ad.dual_level():
                y, other = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, along)))
                assert y.requires_grad is (bias and records)
                assert torch.equal(other, result)
                assert forward_ad.unpack_dual(layer(x)).tangent is None
            if bias:
                of_bias = draw(rng, N, dtype=dtype)
                y, result = torch.func.jvp(
                    lambda x, b, layer=layer: torch.func.functional_call(layer, {"bias": b}, (x,)),
                    (x, layer.bias.detach()), (along, of_bias),
                )  # fmt: skip
                assert torch.equal(y, plain)
                assert tangent_error(layer, x, along, y, result, of_bias) <= 1


@pytest.mark.parametrize("activation", [None, "gelu", "swiglu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_forward_and_reverse_mode_agree(scheme, activation, rng):
    options = {"activation": activation} if activation else {}
    layer = door.QuantizedLinear(linear(rng, k=64, n=32, **options), scheme).requires_grad_(False)
    x, jacobian = draw(rng, 64), torch.func.jacrev(layer)
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(torch.func.jacfwd(layer)(x), jacobian(x), **close)
    rows = torch.stack([x, -x])
    _, of_rows = torch.func.jvp(torch.vmap(layer), (rows,), (torch.ones(2, 64),))
    torch.testing.assert_close(of_rows, torch.stack([jacobian(row).sum(-1) for row in rows]), **close)
    if activation is None:
        expected = 2 * layer.dequantize().T @ layer.dequantize()
        for one in (torch.func.jacfwd, torch.func.jacrev):
            for other in (torch.func.jacfwd, torch.func.jacrev):
                second = one(other(lambda z: layer(z).square().sum()))(x)
                torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-2)


def test_parameters_that_can_require_gradients(rng):
    """torch refuses integers, so that a model of int8 weights takes requires_grad_ for the others alone."""
    for scheme in SCHEMES:
        layer = door.QuantizedLinear(linear(rng), scheme).requires_grad_(False)
        for x in layer.parameters():
            if x.is_floating_point():
                x.requires_grad_()
        layer(torch.ones(2, K)).sum().backward()
        assert torch.equal(layer.bias.grad, torch.full((N,), 2.0))
        assert layer.weight.grad is layer.weight_scale.grad is None


# What a layer keeps.


@pytest.mark.parametrize(
    "change",
    [lambda x: x.to(torch.bfloat16), lambda x: x.half(), lambda x: x.double().float(), lambda x: x.to("cpu"),
     lambda x: x.type(torch.bfloat16), lambda x: x.type(torch.float64).type("torch.FloatTensor"), copy.deepcopy,
     lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.share_memory()],
    ids=["bfloat16", "half", "double", "device", "type", "types", "deepcopy", "pickle", "share_memory"],
)  # fmt: skip
@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_and_scales_survive(scheme, change, rng):
    layer = door.QuantizedLinear(linear(rng), scheme)
    before = {name: x.detach().clone() for name, x in layer.state_dict().items()}
    model = torch.nn.Sequential(layer)
    changed = change(model)[0]
    for name in ("weight", "weight_scale"):
        x = getattr(changed, name)
        assert x.dtype is before[name].dtype
        assert torch.equal(x.view(torch.uint8), before[name].view(torch.uint8))
        assert isinstance(x, torch.nn.Parameter)
        assert not x.requires_grad
    if changed.bias.dtype is not torch.float32:
        x = draw(rng, 3, K, dtype=changed.bias.dtype)
        with torch.no_grad():
            assert ratio(changed, x, changed(x)) <= 1
    empty = copy.deepcopy(changed).to_empty(device="meta")
    assert (empty.weight.dtype, empty.weight_scale.dtype) == (before["weight"].dtype, torch.float32)


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_state_is_loaded_bit_for_bit(scheme, meta, rng):
    model = torch.nn.Sequential(linear(rng, torch.bfloat16), torch.nn.ReLU(), linear(rng, torch.bfloat16, False, N, 9))
    door.quantize_(model, scheme)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    with torch.device("meta" if meta else "cpu"):
        other = torch.nn.Sequential(
            torch.nn.Linear(K, N, dtype=torch.bfloat16), torch.nn.ReLU(),
            torch.nn.Linear(N, 9, bias=False, dtype=torch.bfloat16),
        )  # fmt: skip
    report = door.quantize_(other, scheme)
    assert report.replaced == ("0", "2")
    assert other[0].weight.is_meta is meta
    other.load_state_dict(state, assign=meta)
    assert same(model, other)
    assert not any(x.is_meta for x in other.parameters())
    assert not any(other[i].weight.requires_grad or other[i].weight_scale.requires_grad for i in (0, 2))
    x = draw(rng, 4, K, dtype=torch.bfloat16)
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_full_state_is_quantized_when_it_is_loaded(scheme, assign, rng):
    full = torch.nn.Sequential(linear(rng))
    other = torch.nn.Sequential(torch.nn.Linear(K, N, device="meta" if assign else "cpu"))
    door.quantize_(other, scheme)
    state = full.state_dict()
    names = [*state]
    other.load_state_dict(state, assign=assign)
    assert [*state] == names
    door.quantize_(full, scheme)
    assert same(full, other)


def test_states_that_are_not_loaded(rng):
    def loaded(into, state):
        door.QuantizedLinear(linear(rng), into).load_state_dict(state)

    layer = door.QuantizedLinear(linear(rng), "fp8_row")
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match=r"weight: torch.float8_e4m3fn with a weight_scale; allowed: torch.int8"):
        loaded("int8_row", state)
    with pytest.raises(
        RuntimeError, match=r"a weight_scale of shape \(140, 1\); allowed: \(2, 3\). Quantize the model"
    ):
        loaded("fp8_block", state)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        loaded("fp8_row", door.QuantizedLinear(linear(rng, n=N + 1), "fp8_row").state_dict())
    with pytest.raises(RuntimeError, match=r"float8_e4m3fn without its weight_scale; allowed: torch.float8"):
        loaded("fp8_row", {"weight": state["weight"], "bias": state["bias"]})
    with pytest.raises(RuntimeError, match="a weight_scale without its weight"):
        loaded("fp8_row", {"weight_scale": state["weight_scale"], "bias": state["bias"]})
    with pytest.raises(RuntimeError, match=r"a weight_scale of torch.bfloat16; allowed: torch.float32"):
        loaded("fp8_row", {**state, "weight_scale": state["weight_scale"].bfloat16()})
    with pytest.raises(RuntimeError, match=r"torch.float64 without its weight_scale"):
        loaded("fp8_row", {"weight": draw(rng, N, K, dtype=torch.float64), "bias": state["bias"]})
    with pytest.raises(RuntimeError, match=r"allowed: .* of shape \(140, 300\)"):
        loaded("fp8_row", {"weight": draw(rng, N, 8), "bias": state["bias"]})
    with pytest.raises(RuntimeError, match="Missing key"):
        loaded("fp8_row", {"bias": state["bias"]})


# The report, and what is left.


class Own(torch.nn.Linear):
    """A subclass, which may compute something else."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_report_names_weights_that_are_not_finite(scheme, rng):
    model = torch.nn.Sequential(*(linear(rng, dtype=dtype, k=K, n=K) for dtype in (*WIDE, torch.bfloat16)))
    with torch.no_grad():
        for i, value in enumerate((float("nan"), float("inf"), float("-inf"))):
            model[i].weight[int(rng.integers(K)), int(rng.integers(K))] = value
    report = door.quantize_(model, scheme)
    assert report.nonfinite == ("0", "1", "2")
    assert report.replaced == ("0", "1", "2", "3")
    lines = str(report).splitlines()
    assert lines[1:] == [f"  {i}: quantized; its weight had NaN or infinities" for i in range(3)]
    with torch.device("meta"):
        skeleton = torch.nn.Linear(K, N)
    assert door.quantize_(skeleton, scheme).nonfinite == ()


def test_the_report(rng):
    shared = torch.nn.Linear(K, N)
    model = torch.nn.ModuleDict(
        {"embedding": torch.nn.Embedding(40, K), "one": torch.nn.Linear(K, N, dtype=torch.bfloat16),
         "act": torch.nn.ReLU(), "two": shared, "again": shared,
         "three": door.Linear(K, N, activation="relu", reproducible="run"), "own": Own(K, N),
         "wide": torch.nn.Linear(K, N, dtype=torch.float64), "head": torch.nn.Linear(K, 40, bias=False),
         "small": torch.nn.Linear(8, 8), "before": door.QuantizedLinear(torch.nn.Linear(8, 8), "int8_row")}
    )  # fmt: skip
    model["head"].weight = model["embedding"].weight
    asked = []

    def wanted(layer, name):
        asked.append(name)
        return layer.in_features > 8

    calls = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    report = door.quantize_(model, "fp8_row", filter=wanted)
    assert report.replaced == ("one", "two", "three")
    assert report.already == ("before",)
    assert report.left == {
        "embedding": "an Embedding: it looks rows up",
        "own": "an Own: a subclass of torch.nn.Linear, which may compute something else",
        "wide": "a Linear with weights of torch.float64",
        "head": "its weight is embedding.weight, too (tied)",
        "small": "the filter leaves it",
    }
    assert asked == ["one", "two", "three", "small"]
    assert (report.bytes_before, report.bytes_after) == (K * N * (2 + 4 + 4), 3 * N * (K + 4))
    summary = "3 linear layers quantized by fp8_row (0.4 MB of weights before, 0.1 MB after), "
    summary += "1 layer quantized before by int8_row, 5 modules left"
    assert repr(report) == f"<Quantized: {summary}>"
    assert str(report).splitlines() == [summary, *(f"  {name}: {reason}" for name, reason in report.left.items())]
    assert model["two"] is model["again"] is shared
    shared(torch.ones(1, K))
    assert calls == [1]
    assert model["head"].weight is model["embedding"].weight
    assert model["three"].options == {"reproducible": "run"}
    text = "in_features=300, out_features=140, bias=True, scheme='fp8_row', activation='relu', reproducible='run'"
    assert str(model["three"]) == f"QuantizedLinear({text})"
    again = door.quantize_(model, "int8_row", filter=lambda *_: False)
    assert again.already == ("one", "two", "three", "before")
    assert again.schemes == ("fp8_row", "fp8_row", "fp8_row", "int8_row")
    assert "4 layers quantized before by fp8_row and int8_row" in str(again)
    accelerated = door.accelerate(model)
    assert accelerated.already == ("one", "two", "three", "before")
    assert accelerated.replaced == ("wide", "head", "small")
    accelerated.undo()
    assert isinstance(shared, door.QuantizedLinear)


def test_the_model_itself_in_training_and_after_acceleration():
    layer = torch.nn.Linear(8, 4).eval()
    accelerated = door.accelerate(layer, precision="ieee", packed=True)
    report = door.quantize_(layer, "int8_row")
    assert report.replaced == ("",)
    assert isinstance(layer, door.QuantizedLinear)
    assert not layer.training
    assert layer.packed
    assert not hasattr(layer, "precision")
    accelerated.undo()
    assert isinstance(layer, door.QuantizedLinear)
    report = door.quantize_(torch.nn.Embedding(2, 3), "int8_row")
    assert str(report).endswith("the model itself: an Embedding: it looks rows up")


def test_layers_whose_weight_is_computed():
    for change in (torch.nn.utils.parametrizations.weight_norm, lambda x: prune.identity(x, "weight")):
        layer = torch.nn.Linear(8, 4)
        change(layer)
        report = door.quantize_(layer, "int8_row")
        assert not report.replaced
        assert type(layer) is not door.QuantizedLinear


def test_arguments_that_are_refused():
    layer = torch.nn.Linear(8, 4)
    weight = layer.weight
    for arguments, match in (
        ({"scheme": "fp8_rows"}, "scheme: 'fp8_rows'; allowed: fp8_row, fp8_block, int8_row. did you mean 'fp8_row'?"),
        ({"model": "model"}, "model: a str; allowed: a torch.nn.Module"),
        ({"filter": "lm_head"}, "filter: a str; allowed: None, or a function"),
        ({"packed": 1.5}, "packed: 1.5; allowed: True, False or None"), ({"reproducible": "maybe"}, "reproducible: "),
        ({"backend": 3}, "backend: "),
    ):  # fmt: skip
        with pytest.raises(InputError) as error:
            door.quantize_(**{"model": layer, "scheme": "fp8_row", **arguments})
        assert match in str(error.value)
    with pytest.raises(TypeError, match="filter"):
        door.quantize_(layer, "fp8_row", filters=None)
    assert layer.weight is weight
    with pytest.raises(InputError, match=r"linear: a Linear with weights of torch.float64; allowed: a torch.nn.Linear"):
        door.QuantizedLinear(layer.double(), "fp8_row")


@pytest.mark.parametrize("part", ["all", "one linear layer", "filter fails"])
def test_the_fused_path_of_encoders_is_off(part):
    """torch's path for inference reads the weights of linear1 and linear2 itself."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padded = torch.randn(2, 5, 64), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    expected = model(x), model(x, src_key_padding_mask=padded)
    if part == "all":
        report = door.quantize_(model, "int8_row")
        assert report.replaced == tuple(f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2))
        assert "subclass of torch.nn.Linear" in report.left["layers.0.self_attn.out_proj"]
    elif part == "one linear layer":
        door.quantize_(model, "int8_row", filter=lambda _, name: name == "layers.1.linear2")
    else:
        names = iter(["layers.0.linear1"])  # it ends at the second layer
        with pytest.raises(StopIteration):
            door.quantize_(model, "int8_row", filter=lambda _, name: name == next(names))
    for changed in (model, copy.deepcopy(model)):
        with torch.no_grad():
            results = changed(x), changed(x, src_key_padding_mask=padded)
        for y, z in zip(results, expected):
            assert (y - z)[~padded].norm() < 0.05 * z.norm()
        with torch.inference_mode():
            assert torch.equal(changed(x), results[0])


def test_the_fused_path_of_other_encoders_stays():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1)
    door.quantize_(model, "int8_row", filter=lambda *_: False)
    assert model.use_nested_tensor
    assert model.layers[0].activation_relu_or_gelu


def test_in_inference_mode(rng):
    """Weights that were quantized there can be trained around."""
    layer = linear(rng)
    with torch.inference_mode():
        door.quantize_(layer, "fp8_row")
        y = layer(torch.ones(2, K))
    x = torch.ones(2, K, requires_grad=True)
    layer(x).sum().backward()
    with torch.no_grad():
        assert torch.equal(y, layer(x))


# Graphs.


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own instance
@pytest.mark.parametrize("scheme", SCHEMES)
def test_in_one_graph_for_all_numbers_of_tokens(scheme, rng):
    torch._dynamo.reset()
    layer = door.QuantizedLinear(linear(rng), scheme)
    graphs = []

    def compiler(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=compiler)
    with torch.no_grad():
        for rows in (3, 7, 50):
            x = draw(rng, rows, K)
            assert torch.equal(compiled(x), layer(x))
    assert len(graphs) == 1
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 7):
        x = draw(rng, rows, K)
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(one).square().sum().backward()
        layer(other).square().sum().backward()
        assert torch.equal(one.grad, other.grad)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own instance
@pytest.mark.parametrize("scheme", SCHEMES)
def test_several_layers_with_gradients_in_one_graph(scheme, rng):
    """The graphs of two autograd.Functions share no numbers that the compiler made inputs of."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(linear(rng), linear(rng, k=N, n=8))
    door.quantize_(model, scheme)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 7):
        x = draw(rng, rows, K)
        compiled(x).square().sum().backward()
        other(x).square().sum().backward()
        for i in (0, 1):
            assert torch.equal(model[i].bias.grad, other[i].bias.grad)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_exported_programs(scheme, strict, rng):
    model = torch.nn.Sequential(linear(rng), torch.nn.ReLU()).eval().requires_grad_(False)
    door.quantize_(model, scheme)
    tokens = torch.export.Dim("tokens", min=2, max=1024)
    program = torch.export.export(model, (draw(rng, 4, K),), dynamic_shapes=({0: tokens},), strict=strict)
    for rows in (2, 9):
        x = draw(rng, rows, K)
        assert torch.equal(program.module()(x), model(x))


class Stacked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.ones(4, 8, 6))
        self.down = torch.nn.Parameter(torch.ones(4, 6, 8))
        self.scale = torch.nn.Parameter(torch.ones(1, 1, 8))
        self.register_parameter("bias", None)


def test_stacks_of_matrices_are_reported():
    model = torch.nn.ModuleDict({"experts": Stacked(), "one": torch.nn.Linear(8, 6), "conv": torch.nn.Conv1d(2, 2, 3)})
    report = door.quantize_(model, "int8_row")
    assert report.replaced == ("one",)
    assert report.left == {"experts": "a Stacked: stacks of matrices (up, down) are not quantized"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_large_activations_within_the_documented_range(scheme, rng):
    """A sum is multiplied by the activation's scale before the weight's."""
    largest = float(torch.finfo(torch.float32).max) / K / (127 if scheme == "int8_row" else 448)
    layer = door.QuantizedLinear(linear(rng), scheme)
    x = torch.from_numpy(rng.uniform(-1, 1, (5, K)) * largest).float()
    x[0] = 0.99 * largest * layer.dequantize()[0].sign()  # every product of one element is positive
    with torch.no_grad():
        y = layer(x)
    assert y.isfinite().all()
    assert ratio(layer, x, y) <= 1


# Promises, and packed weights.


def test_promises_of_blocks_and_of_the_override(rng):
    """int8 sums are exact: the built-in backend promises the bits of rows for them alone."""
    x, layers = draw(rng, 40, K), {scheme: door.QuantizedLinear(linear(rng), scheme) for scheme in SCHEMES}
    promise = {"reproducible": "batch", "backend": "numpy"}
    blocks = [lambda: door.use(**promise), lambda: gemmhub.use(**promise)]
    if hasattr(torch.library, "get_kernel"):
        blocks.append(lambda: door.override(**promise))
    for block in blocks:
        with torch.no_grad(), block():
            exact = layers["int8_row"]
            whole = exact(x)
            assert all(torch.equal(exact(x[i : i + 1])[0], whole[i]) for i in (0, 17, 39))
            assert torch.equal(exact(x[5:16]), whole[5:16])
            for scheme in ("fp8_row", "fp8_block"):
                with pytest.raises(NoBackendError, match='reproducible="run"'):
                    layers[scheme](x)
        with torch.no_grad():
            layers["fp8_row"](x)
    own = door.QuantizedLinear(linear(rng), "fp8_row", reproducible="run")
    with torch.no_grad(), door.use(**promise):
        own(x)  # a layer's own promise goes before
    with torch.no_grad(), pytest.raises(NoBackendError):
        door.QuantizedLinear(linear(rng), "fp8_row", **promise)(x)


def test_promises_kept_by_the_cpu_plugin(rng):
    pytest.importorskip("gemmhub_cpu", reason="gemmhub-cpu is not installed")
    x, layer = draw(rng, 40, K, dtype=torch.bfloat16), door.QuantizedLinear(linear(rng), "int8_row")
    with torch.no_grad(), door.use(reproducible="batch", backend="cpu"):
        whole = layer(x)
        assert all(torch.equal(layer(x[i : i + 1])[0], whole[i]) for i in (0, 17, 39))


def test_a_promise_in_a_graph(rng):
    layer = door.QuantizedLinear(linear(rng), "fp8_row")
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = draw(rng, 4, K)
    with torch.no_grad():
        compiled(x)
        with door.use(reproducible="batch", backend="numpy"), pytest.raises(NoBackendError):
            compiled(x)


@pytest.fixture
def used(monkeypatch):
    """The products by a packed weight, which the estimates are made to prefer."""
    seen, product = [], packed_weights.PackedWeight.product

    def spy(self, a, weight, options):
        result = product(self, a, weight, options)
        if result is not None:
            seen.append(a.dtype)
        return result

    monkeypatch.setattr(packed_weights.pack, "saver", lambda b, m, backend, reproducible: backend or "numpy")
    monkeypatch.setattr(packed_weights.PackedWeight, "product", spy)
    return seen


@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_weights(scheme, used, rng):
    layer = linear(rng)
    door.quantize_(layer, scheme, packed=True)
    plain = copy.deepcopy(layer)
    plain.packed = False
    x = draw(rng, 3, K)
    with torch.no_grad():
        for rows in (x, x, x[:1]):
            assert ratio(layer, rows, layer(rows)) <= 1
        assert len(used) == 3
        assert layer.packed_bytes > 0
        layer.weight.copy_(plain.weight.flip(0))  # never a stale one
        layer.weight_scale.copy_(plain.weight_scale.flip(0))
        assert ratio(layer, x, layer(x)) <= 1
        assert not torch.equal(layer(x), plain(x))
    layer(x.requires_grad_())
    assert copy.deepcopy(layer).packed_bytes == 0
    layer.drop_packed()
    assert layer.packed_bytes == 0


def test_a_packed_form_without_the_operands_is_not_kept(used, rng, monkeypatch):
    """A backend may pack such weights and refuse scales: the weight itself is multiplied, and nothing is held."""
    layer = door.QuantizedLinear(linear(rng), "int8_row", packed=True)
    packed = []

    def pack(*arguments, **named):
        packed.append(1)
        return gemmhub.pack(*arguments, **named)

    class Refusing:
        @staticmethod
        def plan(*arguments, **named):
            raise NoBackendError("no scales")

    Refusing.pack = staticmethod(pack)
    monkeypatch.setattr(packed_weights, "api", Refusing)
    with torch.no_grad():
        for _ in range(3):
            assert ratio(layer, torch.ones(2, K), layer(torch.ones(2, K))) <= 1
    assert (used, packed, layer.packed_bytes) == ([], [1], 0)
