"""Layers, whole models, and the block in which torch's products are gemmhub's: they compute what torch does."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import gemmhub
from gemmhub._contractions import contract
from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402
from gemmhub._doors.torch import mode, nn  # noqa: E402


def draw(rng, *shape, dtype=None):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype or torch.float32)


def close(x, y, scale=1.0):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=1e-5 * scale, atol=1e-5 * scale)


@pytest.fixture
def calls(monkeypatch):
    """The options of every product that the doors ask for."""
    seen = []

    class Spy:
        @staticmethod
        def matmul(*operands, **options):
            seen.append(options)
            return gemmhub.matmul(*operands, **options)

    monkeypatch.setattr(mode, "api", Spy)
    monkeypatch.setattr(contract, "api", Spy)
    monkeypatch.setattr(nn, "api", Spy)
    monkeypatch.setattr(nn.calls, "repeated_linear", lambda a, weight, options: None)  # each call reaches the spy
    return seen


CALLS = {
    "matmul": lambda x, w, b, s: torch.matmul(x, w.T),
    "linalg.matmul": lambda x, w, b, s: torch.linalg.matmul(s, x),
    "@": lambda x, w, b, s: x @ w.T,
    "method": lambda x, w, b, s: s.matmul(x),
    "vector @": lambda x, w, b, s: b @ w,
    "mm": lambda x, w, b, s: torch.mm(x, w.T),
    "mm method": lambda x, w, b, s: x.mm(w.T),
    "mm out": lambda x, w, b, s: torch.mm(x, w.T, out=torch.empty(5, 6)),
    "mv": lambda x, w, b, s: torch.mv(w.T, b),
    "bmm": lambda x, w, b, s: torch.bmm(s, s.mT),
    "bmm method": lambda x, w, b, s: s.bmm(s.mT),
    "addmm bias": lambda x, w, b, s: torch.addmm(b, x, w.T, alpha=2),
    "addmm": lambda x, w, b, s: torch.addmm(x @ w.T, x, w.T, beta=0.5),
    "addmm column": lambda x, w, b, s: (x[:, :1] * 0 + 1).addmm(x, w.T, beta=0.5),
    "addmm nothing": lambda x, w, b, s: torch.addmm(torch.full((6,), torch.nan), x, w.T, beta=0),
    "baddbmm": lambda x, w, b, s: torch.baddbmm(torch.ones(3, 1, 1), s, s.mT, beta=2),
    "linear": lambda x, w, b, s: torch.nn.functional.linear(x, w, b),
    "linear of a vector": lambda x, w, b, s: torch.nn.functional.linear(x[0], w, b),
    "einsum": lambda x, w, b, s: torch.einsum("ij, kj -> ki", x, w),
    "einsum without arrow": lambda x, w, b, s: torch.einsum("ij,kj", x, w),
    "einsum batches": lambda x, w, b, s: torch.einsum("bij,bkj->kbi", s, s),
    "einsum many": lambda x, w, b, s: torch.einsum("abc,dbc->ad", s, s),
    "einsum list": lambda x, w, b, s: torch.einsum("abc,dc->dab", [s, w[:, :5]]),
    "complex": lambda x, w, b, s: torch.complex(x, x) @ torch.complex(w, w).T,
    "bfloat16": lambda x, w, b, s: (x.bfloat16() @ w.bfloat16().T).float(),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_in_a_block(name, calls, rng):
    given = draw(rng, 5, 8), draw(rng, 6, 8), draw(rng, 6), draw(rng, 3, 4, 5)
    expected = CALLS[name](*given)
    assert not calls
    with door.use(precision="ieee"):
        got = CALLS[name](*given)
    assert len(calls) == 1 + (name == "addmm")  # which makes its c by another product
    assert all(x["precision"] == "ieee" for x in calls)
    close(got, expected, 1000 if name == "bfloat16" else 1)
    CALLS[name](*given)
    assert len(calls) == 1 + (name == "addmm")


OTHERS = {
    "integers": lambda x: torch.mm(x.to(torch.int8), x.T.to(torch.int8)),
    "diagonal": lambda x: torch.einsum("ii->i", x @ x.T),
    "outer product": lambda x: torch.einsum("i,j->ij", x[0], x[0]),
    "three operands": lambda x: torch.einsum("ij,jk,kl->il", x, x.T, x),
    "sparse": lambda x: torch.mm(x.to_sparse(), x.T),
    "lazily conjugated": lambda x: torch.complex(x, x).conj() @ torch.complex(x, x).mT,
    "resized out": lambda x: torch.mm(x, x.T, out=torch.empty(0)),
    "elementwise": lambda x: x * 2 + x.sum(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's: it resizes out
@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_stay_with_torch(name, calls, rng):
    x = draw(rng, 5, 8)
    expected = OTHERS[name](x)
    with door.use():
        got = OTHERS[name](x)
    assert torch.equal(got, expected) or name in ("diagonal", "three operands")
    assert len(calls) == (name == "diagonal")


@pytest.mark.parametrize(
    "call",
    [lambda x: torch.mm(x, x), lambda x: x @ x, lambda x: torch.addmm(x, x, x.T), lambda x: torch.bmm(x, x),
     lambda x: torch.nn.functional.linear(x, x.T), lambda x: torch.einsum("ij,jk", x, x), lambda x: x @ x.double().T],
)  # fmt: skip
def test_mistakes_are_reported_by_torch(call, rng):
    x = draw(rng, 5, 8)
    with pytest.raises(RuntimeError) as plain:
        call(x)
    with door.use(), pytest.raises(RuntimeError) as raised:
        call(x)
    assert str(raised.value) == str(plain.value)


def test_a_backend_that_is_not_there_is_an_error(rng):
    x = draw(rng, 5, 8)
    with door.use(backend="cublas"), pytest.raises(gemmhub.NoBackendError):
        x @ x.T
    close(x @ x.T, torch.matmul(x, x.T))


def test_blocks_nest_and_hold_for_one_thread(calls, rng):
    from threading import Thread

    x = draw(rng, 5, 8)
    with door.use(precision="tf32"), door.use(precision="bf16"):
        x @ x.T
        thread = Thread(target=lambda: x @ x.T)
        thread.start()
        thread.join()
    assert [c["precision"] for c in calls] == ["bf16"]


def test_a_block_is_compiled(calls, rng):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._inductor.compile_fx
    x, w = draw(rng, 5, 8), draw(rng, 6, 8)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    def f(x, w):
        return torch.nn.functional.linear(x, w).relu() @ w

    def block(x, w):
        with door.use():
            return f(x, w)

    for call in (block, f):
        torch._dynamo.reset()
        with door.use():
            got = torch.compile(call, fullgraph=True, backend=backend)(x, w)
        close(got, f(x, w))
        assert graphs.pop().count("gemmhub.matmul") == 2


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "leaky_relu"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(activation, bias, calls, rng):
    torch.manual_seed(0)
    plain = torch.nn.Linear(8, 6, bias=bias)
    torch.manual_seed(0)
    ours = door.Linear(8, 6, bias=bias, activation=activation)
    after = {None: torch.nn.Identity(), "relu": torch.nn.ReLU(), "gelu": torch.nn.GELU(),
             "gelu_tanh": torch.nn.GELU(approximate="tanh"), "silu": torch.nn.SiLU(), "tanh": torch.nn.Tanh(),
             "leaky_relu": torch.nn.LeakyReLU()}[activation]  # fmt: skip
    for shape in ((5, 8), (8,), (2, 3, 8), (0, 8)):
        x = draw(rng, *shape).requires_grad_()
        got, want = ours(x), after(plain(x))
        close(got, want)
        close(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])
        with torch.no_grad():
            close(ours(x), want)
    assert {c.get("activation") for c in calls} == {activation}
    assert ours.state_dict().keys() == plain.state_dict().keys()
    copied = pickle.loads(pickle.dumps(ours))
    close(copied(x), ours(x))
    assert ("activation" in repr(ours)) is (activation is not None)


def test_layers_that_share_parameters():
    plain = torch.nn.Linear(8, 6, dtype=torch.float64).eval()
    ours = door.Linear.from_linear(plain, activation="gelu", precision="ieee")
    assert ours.weight is plain.weight
    assert ours.bias is plain.bias
    assert not ours.training
    assert repr(ours) == "Linear(in_features=8, out_features=6, bias=True, activation='gelu', precision='ieee')"
    with pytest.raises(InputError, match=r"linear: a ReLU: not a torch.nn.Linear"):
        door.Linear.from_linear(torch.nn.ReLU())
    with pytest.raises(InputError, match="activation: 'swish'; allowed: relu, gelu, gelu_tanh, silu"):
        door.Linear(2, 2, activation="swish")


class Own(torch.nn.Linear):
    pass


def test_what_is_replaced_and_what_is_left(rng):
    replaced_forward = torch.nn.Linear(8, 8)
    replaced_forward.forward = lambda x: x
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Embedding(4, 8), torch.nn.MultiheadAttention(8, 2), Own(8, 8),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8)), replaced_forward,
    )  # fmt: skip
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    names, parameters = list(model.state_dict()), list(model.parameters())
    report = door.accelerate(model)
    assert report.replaced == ("0",)
    reasons = {
        "2": "looks rows up", "3": "torch's own functions", "3.out_proj": "subclass", "4": "an Own: a subclass",
        "5": "parametrizations", "6": "forward was replaced",
    }  # fmt: skip
    assert report.left.keys() == reasons.keys()
    for name, words in reasons.items():
        assert words in report.left[name]
        assert f"  {name}: {report.left[name]}" in str(report)
    assert list(model.state_dict()) == names
    assert all(x is y for x, y in zip(model.parameters(), parameters))
    model[0](draw(rng, 3, 8))
    assert seen == [1]
    assert report.already == ()
    again = door.accelerate(model)
    assert (again.replaced, again.already, again.left) == ((), report.replaced, report.left)
    alone = torch.nn.Linear(3, 3)
    assert door.accelerate(alone).replaced == ("",)
    assert isinstance(alone, door.Linear)
    assert type(copy.deepcopy(alone)) is type(alone)


def test_printed_reports():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Embedding(4, 3))
    alone = door.accelerate(model[0])
    assert str(alone) == "1 linear layer (the model itself) replaced, 0 modules left"
    assert repr(alone) == f"<Accelerated: {alone}>"
    rest = door.accelerate(model)
    words = "1 linear layer replaced, 1 layer computed by gemmhub already, 1 module left"
    assert str(rest) == f"{words}\n  2: an Embedding: it looks rows up"
    assert repr(rest) == f"<Accelerated: {words}>"
    again = door.accelerate(model)
    assert str(again).startswith("0 linear layers replaced, 2 layers computed by gemmhub already, 1 module left")
    before = str(again)
    again.undo()
    assert str(again) == before, "it changed no layer"
    rest.undo()
    assert repr(rest) == f"<Accelerated: undone: {words}>"
    assert "undone" not in str(alone)
    with alone:
        pass
    assert str(alone) == "undone: 1 linear layer (the model itself) replaced, 0 modules left"
    assert repr(door.accelerate(torch.nn.ReLU())) == "<Accelerated: 0 linear layers replaced, 0 modules left>"


def test_options_that_are_not_applied_are_reported():
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3), door.Linear(3, 3, reproducible="run", backend="numpy"),
        door.QuantizedLinear(torch.nn.Linear(3, 3), "int8_row"), torch.nn.Linear(3, 3),
    )  # fmt: skip
    first = door.accelerate(model[0], packed=True)
    assert not door.accelerate(model[0], packed=True).ignored
    rest = door.accelerate(model, reproducible="run", precision="ieee")
    undo = "undo() the earlier acceleration first"
    assert rest.ignored == {
        "0": f"precision='ieee', reproducible='run' not applied: it keeps its options; {undo}",
        "1": f"precision='ieee' not applied: it keeps its options; {undo}",
        "2": f"reproducible='run' not applied: it keeps its options; {undo}",
    }
    assert (rest.replaced, rest.already, rest.left) == (("3",), ("0", "1", "2"), {})
    words = "1 linear layer replaced, 3 layers computed by gemmhub already (3 with other options), 0 modules left"
    assert str(rest).splitlines() == [words, *(f"  {name}: {text}" for name, text in rest.ignored.items())]
    assert door.accelerate(model).ignored == {}
    other = door.accelerate(model[1], backend="cpu", packed=True)
    assert (
        other.ignored[""] == f"backend='cpu', packed=True not applied: it keeps backend='numpy', packed=False; {undo}"
    )
    first.undo()
    assert door.accelerate(model[0], reproducible="run").replaced == ("",)
    assert model[0].options == {"reproducible": "run"}


def test_models_of_transformers(calls):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, sizes in (
            (transformers.LlamaForCausalLM, {"num_key_value_heads": 2}),
            (transformers.Qwen2ForCausalLM, {"num_key_value_heads": 2}),
        ):
            torch.manual_seed(0)
            config = kind.config_class(
                hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=128,
                tie_word_embeddings=True, **sizes,
            )  # fmt: skip
            model = kind(config).eval()
            ids = torch.randint(0, 128, (2, 7))
            expected = model(ids).logits
            saved = {name: x.clone() for name, x in model.state_dict().items()}
            model.save_pretrained  # noqa: B018  (still a model of transformers)
            assert len(door.accelerate(model).replaced) == 15
            calls.clear()
            close(model(ids).logits, expected, 10)
            assert len(calls) == 15
            assert model.lm_head.weight is model.model.embed_tokens.weight
            model.load_state_dict(saved)
            tokens = model.generate(ids[:1], attention_mask=torch.ones_like(ids[:1]), max_new_tokens=4, do_sample=False)
            assert tokens.shape == (1, 11)


class Block(torch.nn.Module):
    """One block of a transformer on characters."""

    def __init__(self, words=32, size=32):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(words, size), torch.nn.Linear(size, words)
        self.mix, self.back = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, ids):
        x = self.words(ids)
        q, k, v = self.mix(x).chunk(3, -1)
        x = x + self.back(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(x + self.down(torch.nn.functional.gelu(self.up(x), approximate="tanh")))


def curve(accelerated, dtype=torch.float32, steps=200):
    """Losses of a training run from fixed initial values, on fixed data."""
    torch.manual_seed(0)
    model = Block().to(dtype)
    if accelerated:
        assert len(door.accelerate(model).replaced) == 5
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    data = torch.randint(0, 4, (steps, 8, 17)).cumsum(-1) % 32
    losses = []
    for batch in data:
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def test_training_is_torchs():
    """200 steps: from a run in float64 the losses are no farther than four times those of torch in float32 are."""
    exact, theirs, ours = curve(False, torch.float64), curve(False), curve(True)
    assert exact[-20:].mean() < 0.7 * exact[:20].mean()  # it learns
    assert np.abs(ours - exact).max() <= 4 * np.abs(theirs - exact).max()
    np.testing.assert_allclose(curve(True, torch.float64), exact, rtol=1e-9)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "flat"])
def test_several_processes(wrapper, tmp_path):
    """Two processes over gloo compute the gradients of one. "flat" is FSDP with use_orig_params=False."""
    script = Path(__file__).parent / "train_in_parallel.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), wrapper, str(tmp_path / "store")], capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("agrees") == 2
