"""Experts of transformers' models in an accelerated model: the same results, gradients and parameters."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest

from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers is not installed")
from mixtures import experts_of, reference, routed  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts  # noqa: E402
from transformers.models.mixtral.modeling_mixtral import MixtralExperts  # noqa: E402

import gemmhub.torch as door  # noqa: E402
from gemmhub._doors.torch import experts as module  # noqa: E402

COMMON = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip
DEEPSEEK = {
    "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
FAMILIES = {
    "Mixtral": (2, {"num_local_experts": 4}),
    "Qwen2Moe": (2, {"num_experts": 6, "shared_expert_intermediate_size": 40}),
    "Qwen3Moe": (2, {"num_experts": 6, "head_dim": 16}),
    "DeepseekV2": (1, DEEPSEEK),
    "DeepseekV3": (1, DEEPSEEK),
}
"""Layers with experts of a model of two layers, and the sizes of its own."""


def model_of(family):
    """A tiny random model in float64, in which no token chooses other experts by a rounding."""
    _, sizes = FAMILIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{family}Config")(**{**COMMON, **sizes})
        config._experts_implementation = "eager"  # the others have no float64
        return getattr(transformers, f"{family}ForCausalLM")(config).double()


@pytest.fixture(autouse=True)
def every_dtype(monkeypatch):
    """Acceleration of experts of float32 and float64 on CPUs, where gemmhub is slower."""
    monkeypatch.setattr(module, "_SLOWER", ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("recorded", "apart"), [(False, ()), (False, ("cpu",)), (True, ())])
def test_results_are_within_their_roundings(dtype, recorded, apart, monkeypatch, rng):
    monkeypatch.setattr(module, "_APART", apart)
    layer = experts_of(rng, dtype, spread=0.25)
    given = routed(rng, dtype)
    unit = torch.finfo(dtype).eps
    expected, bound = reference(layer, *given, unit)
    door.accelerate(layer)
    with torch.set_grad_enabled(recorded):
        got = layer(*given)
    assert got.dtype is dtype
    assert got.requires_grad is recorded
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_models_and_their_training(family, monkeypatch):
    """A forward pass, and a step of training, of a model of each family."""
    monkeypatch.setattr(module, "_APART", ())  # as on a GPU
    calls = []
    original = module.grouped_matmul
    monkeypatch.setattr(module, "grouped_matmul", lambda *x, **y: calls.append(y) or original(*x, **y))
    model = model_of(family)
    ours = copy.deepcopy(model)
    names, parameters = list(ours.state_dict()), [*ours.parameters()]
    accelerated = door.accelerate(ours)
    layers = FAMILIES[family][0]
    assert len(accelerated.experts) == layers
    assert f"{layers} mixture{'s' * (layers > 1)} of experts replaced" in str(accelerated)
    assert list(ours.state_dict()) == names
    assert all(x is y for x, y in zip(ours.parameters(), parameters))
    ids = torch.randint(0, 50, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=1e-9, atol=1e-9)
    assert len(calls) == 2 * layers
    assert [x.get("activation") for x in calls] == ["swiglu", None] * layers
    for trained in (model, ours):
        optimizer = torch.optim.SGD(trained.train().parameters(), 0.1)
        trained(ids, labels=ids).loss.backward()
        optimizer.step()
    assert len(calls) == 4 * layers
    for theirs, mine in zip(model.parameters(), ours.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)
    model.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
def test_gates(activation, monkeypatch, rng):
    monkeypatch.setattr(module, "_APART", ())
    layer, given = experts_of(rng, torch.float64, activation), routed(rng, torch.float64)
    expected = layer(*given)
    seen = []
    original = module.grouped_matmul
    monkeypatch.setattr(module, "grouped_matmul", lambda *x, **y: seen.append(y.get("activation")) or original(*x, **y))
    door.accelerate(layer)
    with torch.no_grad():
        torch.testing.assert_close(layer(*given), expected)
    torch.testing.assert_close(layer(*given), expected)
    assert seen == ["swiglu" if activation == "silu" else None, None, None, None]


def test_tokens_without_experts_and_experts_elsewhere(rng):
    layer = experts_of(rng, torch.float64)
    hidden, index, weights = routed(rng, torch.float64)
    index[3] = 5  # transformers marks experts of other processes so
    expected = layer(hidden, index, weights)
    door.accelerate(layer)
    with torch.no_grad():
        got = layer(hidden, index, weights)
        assert layer(hidden[:0], index[:0], weights[:0]).shape == (0, 24)
    torch.testing.assert_close(got, expected)
    assert not got[3].any()
    layer._is_expert_parallel = True
    assert torch.equal(layer(hidden, index, weights), expected), "transformers' own"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_negative_experts_have_zeros(dtype, rng):
    """They are not those of expert 0, and no other token's result changes."""
    layer = experts_of(rng, torch.float64)
    hidden, index, weights = routed(rng, torch.float64)
    index[3, 1], index[5], index[7, 0] = 5, 5, 5
    expected = layer(hidden, index, weights)
    index[3, 1], index[5], index[7, 0] = -1, -2, -(2**31)
    door.accelerate(layer)
    kept = index.to(dtype)
    got = layer(hidden, kept, weights)
    torch.testing.assert_close(got, expected)
    assert not got[5].any()
    assert torch.equal(kept, index), "the caller's"


def test_nothing_is_read_on_the_host(rng):
    """No operation copies a number of the routing to Python, where a device would have to be waited for."""
    layer, given = experts_of(rng, torch.float32), routed(rng, torch.float32)
    waits = {"_local_scalar_dense", "nonzero", "bincount", "item", "_to_copy", "unique", "masked_select"}
    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.add(function.overloadpacket.__name__)
            return function(*arguments, **(options or {}))

    with Watch(), torch.no_grad():
        layer(*given)
    assert seen & waits, "transformers' loop reads the host"
    seen.clear()
    door.accelerate(layer)
    with Watch(), torch.no_grad():
        layer(*given)
    assert "grouped_matmul" in seen
    assert not seen & waits


def test_undo_copies_and_pickles(rng):
    layer, given = experts_of(rng, torch.float32), routed(rng, torch.float32)
    model = torch.nn.ModuleDict({"experts": layer, "head": torch.nn.Linear(4, 4)})
    expected = layer(*given)
    accelerated = door.accelerate(model, precision="ieee")
    assert (accelerated.replaced, accelerated.experts) == (("head",), ("experts",))
    assert isinstance(layer, MixtralExperts)
    again = door.accelerate(model)
    assert again.already == ("experts", "head")
    assert door.accelerate(model, backend="numpy").ignored.keys() == {"experts", "head"}
    assert again.experts == again.replaced == ()
    mine = layer(*given)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert isinstance(copied, module.Experts)
        assert torch.equal(copied(*given), mine)
        assert copied.gate_up_proj is not layer.gate_up_proj
    with accelerated:
        pass
    assert type(layer) is MixtralExperts
    assert torch.equal(layer(*given), expected)
    assert not any(name in vars(layer) for name in ("_options", "_fuses"))


class Half(torch.nn.Module):
    def forward(self, weight):
        return weight / 2


def test_parametrizations_stay(rng):
    """As those of linear layers: of experts that are accelerated, and of experts that are left."""
    layer, given = experts_of(rng, torch.float64), routed(rng, torch.float64)
    accelerated = door.accelerate(layer)
    parametrize.register_parametrization(layer, "down_proj", Half())
    again = door.accelerate(layer)
    assert (again.already, again.experts, again.left) == (("",), (), {})
    mine = layer(*given)
    torch.testing.assert_close(copy.deepcopy(layer)(*given), mine)
    accelerated.undo()
    assert not isinstance(layer, module.Experts)
    torch.testing.assert_close(layer(*given), mine)
    assert "parametrizations" in door.accelerate(layer).left[""]
    parametrize.remove_parametrizations(layer, "down_proj")
    assert type(layer) is MixtralExperts
    torch.testing.assert_close(layer(*given), mine)


def test_classes_that_something_puts_before_ours_stay(rng):
    """As fully_shard does: undo leaves such experts, and a second acceleration finds them."""
    layer, given = experts_of(rng, torch.float64), routed(rng, torch.float64)
    expected = layer(*given)
    accelerated = door.accelerate(layer)
    kind = type("Sharded", (Before, type(layer)), {})
    layer.__class__ = kind
    for copied in (layer, copy.deepcopy(layer)):
        assert type(copied) is kind
        torch.testing.assert_close(copied(*given), expected)
    assert door.accelerate(layer).already == ("",)
    accelerated.undo()
    assert type(layer) is kind
    torch.testing.assert_close(layer(*given), expected)


class Before:
    """A base that comes before the class of a module."""


def test_options_are_those_of_the_products(monkeypatch, rng):
    layer, given = experts_of(rng, torch.float32), routed(rng, torch.float32)
    seen = []
    original = module.grouped_matmul
    monkeypatch.setattr(module, "grouped_matmul", lambda *x, **y: seen.append(y) or original(*x, **y))
    door.accelerate(layer, precision="ieee", backend="numpy")
    layer(*given)
    assert seen == [{"precision": "ieee", "backend": "numpy"}] * 2
    other = experts_of(rng, torch.float32)
    with pytest.raises(InputError, match="backend"):
        door.accelerate(other, backend="nobody")
    assert type(other) is MixtralExperts


class Doubled(MixtralExperts):
    def forward(self, *operands):
        return 2 * super().forward(*operands)


def test_experts_that_compute_something_else_are_left(rng):
    biased = GptOssExperts(transformers.GptOssConfig(hidden_size=8, intermediate_size=8, num_local_experts=2))
    patched = experts_of(rng, torch.float32)
    patched.forward = lambda *x: x[0]
    narrow = experts_of(rng, torch.float32)
    narrow.down_proj = torch.nn.Parameter(torch.zeros(5, 24, 17, dtype=torch.int8), requires_grad=False)
    parallel = experts_of(rng, torch.float32)
    parallel._is_expert_parallel = True
    for layer, reason in (
        (biased, "a GptOssExperts: experts with a bias"),
        (experts_of(rng, torch.float32, kind=Doubled), "a Doubled: its forward pass is not one of transformers"),
        (patched, "whose forward was replaced"),
        (narrow, "weights of torch.int8"),
        (parallel, "experts that are divided between processes"),
    ):
        kind = type(layer)
        accelerated = door.accelerate(layer)
        assert reason in accelerated.left[""]
        assert accelerated.experts == ()
        assert type(layer) is kind


def test_flags_that_an_earlier_transformers_does_not_have(rng):
    layer = experts_of(rng, torch.bfloat16)
    for name in ("has_post_expert_norm", "_is_expert_parallel"):
        vars(layer).pop(name, None)
    given = routed(rng, torch.bfloat16)
    expected, bound = reference(layer, *given, torch.finfo(torch.bfloat16).eps)
    assert door.accelerate(layer).experts == ("",)
    assert ((layer(*given).double() - expected).abs() <= bound).all()
    layer = experts_of(rng, torch.bfloat16)
    del layer.is_transposed
    assert "experts with transposed weights" in door.accelerate(layer).left[""]


def test_experts_follow_blocks_and_the_override(monkeypatch, rng):
    """Options of the acceleration go before."""
    pytest.importorskip("torch", minversion="2.11", reason="torch 2.11 is not installed")
    layer, given = experts_of(rng, torch.bfloat16), routed(rng, torch.bfloat16)
    other = experts_of(rng, torch.bfloat16)
    door.accelerate(layer)
    door.accelerate(other, reproducible="run")
    seen, original = [], module.grouped_matmul

    def watched(a, b, ends, **options):
        seen.append(options.get("reproducible"))
        return original(a, b, ends, **options)

    monkeypatch.setattr(module, "grouped_matmul", watched)
    layer(*given)
    with door.use(reproducible="run"):
        layer(*given)
    with door.override("run"):
        layer(*given)
        with door.use(reproducible="off"):
            layer(*given)
            other(*given)
    layer(*given)
    assert seen == [None, None, "run", "run", "run", "run", "off", "off", "run", "run", None, None]


def test_a_wrong_order_of_experts_is_found(monkeypatch, rng):
    layer, given = experts_of(rng, torch.float32), routed(rng, torch.float32)
    expected, bound = reference(layer, *given, torch.finfo(torch.float32).eps)
    door.accelerate(layer)
    original = module.grouped_matmul
    monkeypatch.setattr(module, "grouped_matmul", lambda a, b, ends, **x: original(a, b.roll(1, 0), ends, **x))
    assert not ((layer(*given).double() - expected).abs() <= bound).all()


def test_experts_are_compiled(rng):
    layer, given = experts_of(rng, torch.float32), routed(rng, torch.float32)
    door.accelerate(layer)
    with torch.no_grad():
        expected = layer(*given)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*given), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_that_are_slower_on_a_cpu_are_left(dtype, monkeypatch, rng):
    monkeypatch.undo()
    slower = dtype in (torch.float32, torch.float64)
    layer, given = experts_of(rng, dtype, spread=0.25), routed(rng, dtype)
    expected = layer(*given)
    accelerated = door.accelerate(layer)
    assert accelerated.experts == (() if slower else ("",))
    if slower:
        assert f"products of {dtype} on a CPU" in accelerated.left[""]
        assert torch.equal(layer(*given), expected)
    accelerated.undo()
    with door.accelerate(layer, reproducible="batch") as accelerated:
        assert accelerated.experts == ("",), "transformers pins no bits"
    with torch.autocast("cpu", torch.bfloat16):
        assert door.accelerate(layer).experts == (() if dtype is torch.float64 else ("",))
