"""Layers whose weights are not parameters, or override products; and what other libraries do with replaced layers."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
from torch.nn.utils import prune  # noqa: E402

import gemmhub.torch as door  # noqa: E402
from gemmhub._doors.torch import nn  # noqa: E402

linear = torch.nn.functional.linear


def whole(rng, *shape):
    """Small whole numbers, whose products in float32 are exact: results are compared bit by bit."""
    return torch.from_numpy(rng.integers(-4, 5, shape)).float()


@pytest.fixture
def layer(rng):
    """A layer of torch, whose products are exact."""
    made = torch.nn.Linear(8, 6)
    made.weight.data, made.bias.data = whole(rng, 6, 8), whole(rng, 6)
    return made


@pytest.fixture
def calls(monkeypatch):
    """The products that layers ask gemmhub for."""
    seen = []

    class Spy:
        @staticmethod
        def matmul(*operands, **options):
            seen.append(options)
            return gemmhub.matmul(*operands, **options)

    monkeypatch.setattr(nn, "api", Spy)
    monkeypatch.setattr(nn.calls, "repeated_linear", lambda a, weight, options: None)  # each call reaches the spy
    return seen


def as_tensor(layer):
    weight = layer.weight.detach()
    del layer.weight
    layer.weight = weight


def as_buffer(layer):
    bias = layer.bias.detach()
    del layer.bias
    layer.register_buffer("bias", bias)


CHANGES = {
    "weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
    "orthogonal": torch.nn.utils.parametrizations.orthogonal,
    "old weight_norm": torch.nn.utils.weight_norm,
    "old spectral_norm": torch.nn.utils.spectral_norm,
    "pruned weight": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "pruned bias": lambda layer: prune.random_unstructured(layer, "bias", 0.5),
    "a tensor as weight": as_tensor,
    "a buffer as bias": as_buffer,
}


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm:FutureWarning")
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_no_parameters(change, order, layer, calls, rng):
    """What a hook or a parametrization makes of the weight in each call is what the layer multiplies by."""
    x = whole(rng, 5, 8)
    if order == "before":
        CHANGES[change](layer)
    report = door.accelerate(layer)
    if order == "after":
        CHANGES[change](layer)
    layer.eval()
    if order == "before" and change in ("weight_norm", "spectral_norm", "orthogonal"):
        assert "parametrizations" in report.left[""]
        assert torch.equal(layer(x), linear(x, layer.weight, layer.bias))
        assert not calls
        return
    assert report.replaced == ("",)
    for _ in range(2):
        got = layer(x.requires_grad_())
        with torch.no_grad():
            assert torch.equal(got, gemmhub.matmul(x, layer.weight.t(), bias=layer.bias))
    gradient = torch.autograd.grad(got.sum(), x)[0]
    with torch.no_grad():
        assert torch.equal(gradient, gemmhub.matmul(torch.ones(5, 6), layer.weight))
    assert len(calls) == 2
    again = door.accelerate(layer)  # it stays gemmhub's
    assert (again.replaced, again.already) == ((), ("",))


def test_replicas_of_data_parallel(layer, calls, rng):
    """They have copies of the parameters as plain attributes."""
    door.accelerate(layer)
    replica = layer._replicate_for_data_parallel()
    replica.weight, replica.bias = layer.weight + 1, layer.bias + 1
    x = whole(rng, 5, 8)
    assert torch.equal(replica(x), linear(x, layer.weight + 1, layer.bias + 1))
    assert len(calls) == 1


def test_only_parameters_are_shared(layer):
    """A layer made of another would keep the first value of a weight that is computed in each call."""
    prune.identity(layer, "weight")
    with pytest.raises(InputError, match="linear: a layer whose weight is no parameter"):
        door.Linear.from_linear(layer)
    without = torch.nn.Linear(8, 6, bias=False)
    assert door.Linear.from_linear(without).bias is None


class Quantized(torch.Tensor):
    """Like the tensors of torchao: whole numbers and a scale, with torch.nn.functional.linear alone."""

    @staticmethod
    def __new__(cls, whole, scale):
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)

    def __init__(self, whole, scale):
        self.whole, self.scale = whole, scale

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if function is linear:
            x, weight, *rest = arguments
            return linear(x, weight.whole.float() * weight.scale, *rest, **(named or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **(named or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].whole, arguments[0].scale)
        raise NotImplementedError(f"Quantized: {function}")


class Dispatching(Quantized):
    """The same where torch's operators are handled, instead of its functions."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        if function in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return cls(function(arguments[0].whole), arguments[0].scale)
        if function is torch.ops.aten.addmm.default:
            c, a, b = arguments
            return function(c, a, b.whole.float() * b.scale)
        raise NotImplementedError(f"Dispatching: {function}")


@pytest.mark.parametrize("kind", [Quantized, Dispatching])
def test_weights_that_multiply_themselves(kind, layer, calls, rng):
    """They stay with torch: gemmhub reads memory that they do not have."""
    x = whole(rng, 5, 8)
    expected = linear(x, layer.weight, layer.bias)
    weight = kind(layer.weight.detach().to(torch.int8), 1.0)
    accelerated = copy.deepcopy(layer)
    door.accelerate(accelerated)
    for changed in (layer, accelerated):
        changed.weight = torch.nn.Parameter(weight, requires_grad=False)
        assert torch.equal(changed(x), expected)
        with door.use():
            assert torch.equal(changed(x), expected)
        report = door.accelerate(changed)
        assert report.left == {
            "": f"a Linear whose weight is of type {kind.__name__}, which overrides products (quantized weights)"
        }
        assert torch.equal(changed(x), expected)
    assert not calls
    fused = door.Linear(8, 6, activation="relu")
    fused.weight, fused.bias = layer.weight, layer.bias
    assert torch.equal(fused(x), expected.relu())
    with pytest.raises(InputError, match=rf"b: a {kind.__name__}, which does not implement torch.ops.gemmhub.matmul"):
        gemmhub.matmul(x[:, :6], weight)


def test_bias_and_input_that_multiply_themselves(layer, calls, rng):
    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            seen.append(function)
            return super().__torch_function__(function, types, arguments, named or {})

    x, seen = whole(rng, 5, 8), []
    expected = layer(x)
    door.accelerate(layer)
    got = layer(x.as_subclass(Logged))
    assert (type(got), seen) == (Logged, [linear])
    assert torch.equal(got.as_subclass(torch.Tensor), expected)
    assert not calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch.ao's, of itself
def test_quantization_by_torch_finds_replaced_layers(layer, rng):
    """torch.ao.quantization looks layers up by their exact type, and leaves all others without a word."""
    model, x = torch.nn.Sequential(layer, torch.nn.ReLU()), whole(rng, 5, 8)
    expected = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    door.accelerate(model)
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    assert type(quantized[0]) is type(expected[0]) is torch.ao.nn.quantized.dynamic.Linear
    assert torch.equal(quantized(x), expected(x))
    fused = torch.nn.Sequential(door.Linear(8, 6, activation="relu"))  # which would lose its activation
    assert type(torch.ao.quantization.quantize_dynamic(fused, {torch.nn.Linear})[0]) is door.Linear


def test_look_ups_by_type_find_replaced_layers(layer, rng):
    door.accelerate(layer)
    kind = type(layer)
    assert kind == torch.nn.Linear
    assert {torch.nn.Linear: "plain"}[kind] == "plain"
    assert kind in (torch.nn.Linear,)
    assert kind != door.Linear
    assert door.Linear != torch.nn.Linear
    assert issubclass(kind, door.Linear)
    assert repr(layer) == "Linear(in_features=8, out_features=6, bias=True)"
    x = whole(rng, 5, 8)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(copied) is kind
        assert torch.equal(copied(x), layer(x))


def test_quantization_by_torchao(layer, rng):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchao.quantization as quantization
        except Exception as error:  # a torchao for another torch may raise anything
            pytest.skip(f"torchao is not installed for this torch: {type(error).__name__}")
        model, x = torch.nn.Sequential(layer), whole(rng, 5, 8)
        expected, accelerated = copy.deepcopy(model), copy.deepcopy(model)
        door.accelerate(accelerated)
        config = quantization.Int8WeightOnlyConfig()
        for each in (expected, accelerated, model):
            quantization.quantize_(each, config)
        assert "Int8Tensor" in door.accelerate(model).left["0"]
        for each in (model, accelerated):
            assert torch.equal(each(x), expected(x))
            with door.use():
                assert torch.equal(each(x), expected(x))


@pytest.mark.parametrize("packed", [False, True])
def test_an_input_that_is_no_tensor(packed):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    door.accelerate(model, packed=packed)
    for x, words in ((np.ones((2, 4), np.float32), "an ndarray"), ([[1.0] * 4], "a list"), (None, "a NoneType")):
        match = f"input: {words}; allowed: a tensor"
        for recording in (False, True):
            with torch.set_grad_enabled(recording), pytest.raises(InputError, match=match):
                model(x)
    assert model(torch.ones(2, 4)).shape == (2, 3)


def test_a_wrong_argument_of_accelerate_is_named():
    allowed = "precision, reproducible, backend, packed"
    with pytest.raises(TypeError, match=rf"'pack'; did you mean packed=\?; allowed: {allowed}"):
        door.accelerate(torch.nn.Linear(2, 2), pack=True)
    with pytest.raises(InputError, match=r"model: an int; allowed: a torch\.nn\.Module\. pass the model"):
        door.accelerate(3)


def test_an_accelerated_model_prints_its_counts():
    assert str(door.accelerate(torch.nn.Linear(2, 2))) == "1 linear layer (the model itself) replaced, 0 modules left"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"precision": "high"}, r"precision: 'high'; allowed: ieee, bf16x3"),
     ({"backend": "nope"}, r"backend: no backend is called 'nope'; allowed: cpu, .*numpy"),
     ({"backend": "numpy,cpu"}, r"backend: 'numpy,cpu'; allowed: the name of one backend")],
)  # fmt: skip
def test_options_that_no_product_takes(options, words, layer):
    model = torch.nn.Sequential(layer)
    for make in (
        lambda: door.accelerate(model, **options), lambda: door.accelerate(torch.nn.Identity(), **options),
        lambda: door.Linear(8, 6, **options), lambda: door.Linear.from_linear(layer, **options),
        lambda: door.use(**options),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            make()
    assert type(layer) is torch.nn.Linear
    with pytest.raises(InputError, match="reproducible: 1; allowed: None, 'run', 'batch'"):
        door.use(reproducible=1)
    assert door.accelerate(model, precision="tf32", backend="cublas").replaced == ("0",)  # known, not installed
    with pytest.raises(gemmhub.NoBackendError):
        model(torch.ones(2, 8))
