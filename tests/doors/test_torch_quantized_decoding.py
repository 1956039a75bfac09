"""A small Llama with quantized layers: how far its logits are from those in bfloat16, decoding, and tied weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", minversion="2.11", reason="torch 2.11 is not installed")
transformers = pytest.importorskip("transformers", minversion="5.24", reason="transformers 5.24 is not installed")

import gemmhub.torch as door  # noqa: E402

BOUNDS = {"fp8_row": (0.22, 0.05, 0.75), "fp8_block": (0.22, 0.05, 0.75), "int8_row": (0.09, 0.01, 0.88)}
"""By scheme: the most that logits may differ, in their norm and in KL divergence, and the least agreement of the most
likely tokens. Weights and tokens are random, so that errors grow from layer to layer, and many tokens are about as
likely as the first: bfloat16 differs from float32 by 0.016, 0.0003 and 0.98.
"""
VOCABULARY, LAYERS = 256, 2


def llama(tied=False):
    """Random weights whose output features have different sizes, so that each needs its own scale."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=160, intermediate_size=304, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager", tie_word_embeddings=tied,
        initializer_range=0.08,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight *= torch.exp2(torch.randint(-2, 2, (module.out_features, 1)))
    return model.bfloat16()


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def prompts():
    return torch.randint(0, VOCABULARY, (4, 24), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def logits(model, tokens):
    return model(tokens).logits.double()


def distances(x, y):
    """The relative difference of logits, their mean KL divergence, and the part of equal most likely tokens."""
    p, q = torch.log_softmax(y, -1), torch.log_softmax(x, -1)
    divergence = (p.exp() * (p - q)).sum(-1).mean()
    return float((x - y).norm() / y.norm()), float(divergence), float((x.argmax(-1) == y.argmax(-1)).double().mean())


def within(found, bounds):
    return [found[0] <= bounds[0], found[1] <= bounds[1], found[2] >= bounds[2]]


@pytest.mark.parametrize("scheme", BOUNDS)
def test_the_distance_from_bfloat16(scheme, model, prompts):
    quantized = copy.deepcopy(model)
    report = door.quantize_(quantized, scheme)
    assert len(report.replaced) == 7 * LAYERS + 1
    assert report.left == {"model.embed_tokens": "an Embedding: it looks rows up"}
    assert report.bytes_after < 0.52 * report.bytes_before
    exact = logits(model, prompts)
    assert all(within(distances(logits(quantized, prompts), exact), BOUNDS[scheme]))
    for module in quantized.modules():  # the same with the scales of the next output features
        if isinstance(module, door.QuantizedLinear):
            module.weight_scale.copy_(module.weight_scale.roll(1, 0) if len(module.weight_scale) > 1 else 1)
    assert not any(within(distances(logits(quantized, prompts), exact), BOUNDS[scheme]))


@pytest.mark.parametrize("scheme", BOUNDS)
def test_decoding_with_a_cache(scheme, model, prompts):
    """Each token's activations have their own scale: its logits are those of the whole text read at once, but for the
    order of sums, which may round an activation to its other neighbor."""
    quantized = copy.deepcopy(model).float()
    door.quantize_(quantized, scheme)
    cache, tokens, steps = transformers.DynamicCache(), prompts[:, :8], []
    with torch.no_grad():
        for _ in range(6):
            last = quantized(tokens, cache=cache, use_cache=True).logits[:, -1]
            steps.append(last)
            tokens = last.argmax(-1, keepdim=True)
    text = torch.cat([prompts[:, :8], *(x.argmax(-1, keepdim=True) for x in steps[:-1])], 1)
    assert distances(torch.stack(steps, 1).double(), logits(quantized, text)[:, 7:])[0] < 0.02


def test_tied_weights_are_left(prompts):
    model = llama(tied=True)
    exact = logits(model, prompts)
    report = door.quantize_(model, "int8_row")
    assert report.left["lm_head"] == "its weight is model.embed_tokens.weight, too (tied)"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert within(distances(logits(model, prompts), exact), BOUNDS["int8_row"])[:2] == [True, True]


def test_a_state_of_a_model(model, prompts, tmp_path):
    """Through a file of safetensors, into a model of other values that was quantized."""
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    quantized = copy.deepcopy(model)
    door.quantize_(quantized, "fp8_block")
    safetensors.save_file(quantized.state_dict(), tmp_path / "model.safetensors")
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.zero_()
    door.quantize_(other, "fp8_block")
    other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    assert torch.equal(logits(other, prompts), logits(quantized, prompts))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own instance
def test_training_what_is_added_to_frozen_weights(model, prompts):
    """Embeddings and norms learn beneath quantized layers."""
    quantized = copy.deepcopy(model)
    door.quantize_(quantized, "int8_row")
    optimizer = torch.optim.AdamW([x for x in quantized.parameters() if x.requires_grad], 1e-3)
    losses = []
    for _ in range(2):
        loss = quantized(prompts, labels=prompts).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)


def test_a_compiled_model(model, prompts):
    torch._dynamo.reset()
    quantized = copy.deepcopy(model).requires_grad_(False)
    door.quantize_(quantized, "int8_row")
    with torch.no_grad():
        compiled = torch.compile(quantized, backend="aot_eager", fullgraph=True)
        x = compiled(prompts).logits.double()
    assert distances(x, logits(quantized, prompts))[0] < 0.03
