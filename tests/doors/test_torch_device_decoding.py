"""A decoder on a GPU gives a prompt the same tokens and log-probabilities alone and among 63 others.

Its products run through gemmhub.torch.override("batch"): eager, compiled, and replayed from a CUDA graph. Keys and
values have memory of one length, so that a graph serves each step.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.11", reason="torch 2.11 is not installed")
import torch.nn.functional as F  # noqa: E402, N812

import gemmhub.torch as door  # noqa: E402

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]
BATCH, PROMPT, STEPS, LENGTH = 64, 16, 6, 64
HIDDEN, HEADS, WIDE, VOCABULARY, LAYERS = 512, 8, 1408, 1024, 2


class Layer(torch.nn.Module):
    """Attention and a gated block, each after a normalization and added to its input."""

    def __init__(self):
        super().__init__()
        for name, m, n in (
            ("qkv", HIDDEN, 3 * HIDDEN),
            ("o", HIDDEN, HIDDEN),
            ("up", HIDDEN, 2 * WIDE),
            ("down", WIDE, HIDDEN),
        ):
            setattr(self, name, torch.nn.Linear(m, n, bias=False))

    def forward(self, x, memory, at, mask):
        batch, new, _ = x.shape
        parts = self.qkv(F.rms_norm(x, (HIDDEN,))).view(batch, new, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        keys, values = memory
        keys.index_copy_(2, at, parts[1])
        values.index_copy_(2, at, parts[2])
        scores = torch.matmul(parts[0], keys.transpose(2, 3)) * (HIDDEN // HEADS) ** -0.5 + mask
        mixed = torch.matmul(torch.softmax(scores, -1), values).transpose(1, 2).reshape(batch, new, HIDDEN)
        x = x + self.o(mixed)
        gate, up = self.up(F.rms_norm(x, (HIDDEN,))).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(torch.nn.Module):
    """Returns the log-probabilities of the next token."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens, memories, at, mask):
        x = self.embedding(tokens)
        for layer, memory in zip(self.layers, memories):
            x = layer(x, memory, at, mask)
        return torch.log_softmax(self.head(F.rms_norm(x[:, -1], (HIDDEN,))).float(), -1)


def decoder(dtype):
    torch.manual_seed(1)
    return Decoder().to("cuda", dtype).eval()


@torch.no_grad()
def decoded(model, prompts, graph=False):
    """The new tokens, and the log-probabilities of all tokens at each step."""
    count, dtype = len(prompts), model.embedding.weight.dtype
    shape = (count, HEADS, LENGTH, HIDDEN // HEADS)
    memories = [[torch.zeros(shape, dtype=dtype, device="cuda") for _ in "kv"] for _ in range(LAYERS)]
    positions = torch.arange(LENGTH, device="cuda")

    def masked(at):
        return torch.where(positions <= at[:, None], 0.0, -torch.inf).to(dtype)

    at = torch.arange(PROMPT, device="cuda")
    scores = model(prompts, memories, at, masked(at))
    tokens, chosen, every = scores.argmax(-1, keepdim=True), [], []
    at = torch.tensor([PROMPT], device="cuda")
    replay = None
    for _ in range(STEPS):
        chosen.append(tokens.clone())
        every.append(scores.clone())
        if not graph:
            scores = model(tokens, memories, at, masked(at))
        else:
            if replay is None:
                model(tokens, memories, at, masked(at))  # decides; it writes what the first replay writes again
                replay = torch.cuda.CUDAGraph()
                with torch.cuda.graph(replay):
                    captured = model(tokens, memories, at, masked(at))
            replay.replay()
            scores = captured
        tokens.copy_(scores.argmax(-1, keepdim=True))
        at += 1
    return torch.cat(chosen, 1), torch.stack(every, 1)


@pytest.fixture(scope="module")
def prompts():
    return torch.randint(0, VOCABULARY, (BATCH, PROMPT), generator=torch.Generator().manual_seed(2)).cuda()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_prompt_alone_and_among_others(dtype, prompts):
    model = decoder(dtype)
    with door.override("batch", strict=True) as active:
        tokens, scores = decoded(model, prompts)
        for i in (0, 17, 63):
            for graph in (False, True):
                alone = decoded(model, prompts[i : i + 1], graph)
                assert torch.equal(alone[0][0], tokens[i])
                assert torch.equal(alone[1][0], scores[i])
        again = decoded(model, prompts, graph=True)
        assert torch.equal(again[0], tokens)
        assert torch.equal(again[1], scores)
        compiled = decoded(torch.compile(model, backend="aot_eager"), prompts[5:6])
        assert torch.equal(compiled[1][0], scores[5])
        assert active.products > 0
        assert not active.left


def test_torch_alone_differs(prompts):
    """The test above can fail: torch's products of one prompt and of many have other bits."""
    model = decoder(torch.bfloat16)
    _, scores = decoded(model, prompts)
    assert any(not torch.equal(decoded(model, prompts[i : i + 1])[1][0], scores[i]) for i in (0, 17, 63))
