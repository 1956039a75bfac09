"""Greedy decoding by a language model gives a prompt the same tokens and log-probabilities alone and in a batch.

Prompts of a batch have equal lengths: padding would mask keys, whose softmax has other bits in torch. torch's own
softmax, RMSNorm (a mean over the last dimension) and activations are row by row on the CPU, as the tests see; SiLU only
where a row has whole vectors (of 32 elements with AVX-512), since torch computes the rest by other instructions.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", minversion="2.11", reason="torch 2.11 is not installed")
transformers = pytest.importorskip("transformers", minversion="5.24", reason="transformers 5.24 is not installed")
import rows_backend  # noqa: E402

import gemmhub.torch as door  # noqa: E402

BATCH, PROMPT = 64, 6
COMPILERS = ("aot_eager", "inductor") if "TEST_VARIANTS" in os.environ else ("aot_eager",)
"""Compilers of graphs; inductor compiles for minutes."""


def llama(layers):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model():
    return llama(2)


@pytest.fixture(scope="module")
def prompts():
    return torch.randint(0, 96, (BATCH, PROMPT), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def rows():
    with rows_backend.registered() as backend:
        yield backend


@torch.no_grad()
def decoded(model, prompts, steps=4):
    """The new tokens, and the log-probabilities of all tokens at each step."""
    cache, tokens = transformers.DynamicCache(), prompts
    chosen, scores = [], []
    for _ in range(steps):
        logits = model(tokens, cache=cache, use_cache=True).logits[:, -1]
        scores.append(torch.log_softmax(logits, -1))
        tokens = scores[-1].argmax(-1, keepdim=True)
        chosen.append(tokens)
    return torch.cat(chosen, 1), torch.stack(scores, 1)


def test_a_prompt_alone_and_among_others(model, prompts, rows):
    with door.override("batch", strict=True):
        tokens, scores = decoded(model, prompts)
        for i in (0, 17, 63):
            alone = decoded(model, prompts[i : i + 1])
            assert torch.equal(alone[0][0], tokens[i])
            assert torch.equal(alone[1][0], scores[i])
    assert rows.problems
    assert {problem.reproducible for problem in rows.problems} == {"batch"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_the_kernels_of_the_cpu_plugin(dtype, prompts):
    pytest.importorskip("gemmhub_cpu", reason="gemmhub-cpu is not installed")
    model = llama(2).to(dtype)
    with door.override("batch", strict=True, backend="cpu") as active:
        tokens, scores = decoded(model, prompts)
        for i in (0, 17, 63):
            alone = decoded(model, prompts[i : i + 1])
            assert torch.equal(alone[0][0], tokens[i])
            assert torch.equal(alone[1][0], scores[i])
    assert active.products == 4 * 4 * (1 + 2 * 9)


def test_torch_alone_differs(model, prompts):
    """The test above can fail: torch's products of one row and of many have other bits."""
    _, scores = decoded(model, prompts)
    assert any(not torch.equal(decoded(model, prompts[i : i + 1])[1][0], scores[i]) for i in (0, 17, 63))


def test_prompts_of_any_length_in_chunks(model, prompts, rows):
    """The scores of a prompt that is read in two parts are those of one that is read at once, for each new token."""
    with door.override("batch", strict=True), torch.no_grad():
        cache = transformers.DynamicCache()
        model(prompts[:2, :4], cache=cache, use_cache=True)
        last = model(prompts[:2, 4:], cache=cache, use_cache=True).logits[:, -1]
        assert torch.equal(last, model(prompts[:2]).logits[:, -1])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_in_graphs(prompts, rows, compiler):
    """One graph for the prompt and one for each further token, of each size of batch."""
    model = llama(1)
    with door.override("batch", strict=True) as active:
        compiled = torch.compile(
            model, backend=compiler, dynamic=False
        )  # inductor's reductions of dynamic sizes differ
        tokens, scores = decoded(compiled, prompts, steps=2)
        alone = decoded(compiled, prompts[5:6], steps=2)
        assert active.products == len(rows.problems) > 0
    assert torch.equal(alone[0][0], tokens[5])
    assert torch.equal(alone[1][0], scores[5])
