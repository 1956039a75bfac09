"""TorchScript: a trace holds the product, never its result; a script calls the operator; ONNX is refused."""

from __future__ import annotations

import io

import pytest

import gemmhub
from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.torch.jit:FutureWarning")
linear = torch.nn.functional.linear


def whole(rng, *shape):
    """Small whole numbers, whose products in float32 are exact: results are compared bit by bit."""
    return torch.from_numpy(rng.integers(-4, 5, shape)).float()


def into(a, w):
    out = a.new_ones(a.shape[0], w.shape[1])
    gemmhub.matmul(a, w, out=out, c=out, beta=2)
    return out + 1


def rounded(a, w):
    with torch.autocast("cpu", torch.bfloat16):
        return gemmhub.matmul(a, w)


def block(f):
    def within(a, w):
        with door.use():
            return f(a, w)

    return within


TRACED = {
    "plain": lambda a, w: gemmhub.matmul(a, w),
    "options": lambda a, w: gemmhub.matmul(
        a, w, bias=w[0], c=a[:, :6], alpha=2, beta=-0.5, activation="relu", precision="ieee", reproducible="run",
        backend="numpy", out_dtype="float64",
    ),
    "a vector": lambda a, w: gemmhub.matmul(a[0], w),
    "complex": lambda a, w: gemmhub.matmul(torch.complex(a, a), torch.complex(w, w), alpha=1j),
    "int8": lambda a, w: gemmhub.matmul(a.to(torch.int8), w.to(torch.int8)),
    "out": into,
    "autocast": rounded,
    "@": block(lambda a, w: a @ w),
    "linear": block(lambda a, w: linear(a, w.t(), w[0])),
    "addmm": block(lambda a, w: torch.addmm(w[0], mat1=a, mat2=w, alpha=2)),
    "bmm": block(lambda a, w: torch.bmm(a[None], w[None])),
    "mv": block(lambda a, w: torch.mv(a, w[:, 0])),
    "einsum": block(lambda a, w: torch.einsum("ij,jk->ki", a, w)),
}  # fmt: skip


def values(name, a, w):
    """The options' c must have the result's dtype or the accumulator's."""
    return (a.double(), w.double()) if name == "options" else (a, w)


@pytest.mark.parametrize("warm", [False, True], ids=["first", "warm"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", TRACED)
def test_traces_compute(name, grad, warm, rng):
    """For operands other than those they were recorded with, of other sizes too, and after they are saved."""
    call = TRACED[name]
    w = whole(rng, 8, 6)
    examples = values(name, whole(rng, 5, 8), w)
    with torch.set_grad_enabled(grad):
        for _ in range(2 if warm else 0):
            call(*examples)
        traced = torch.jit.trace(call, examples)
    assert "gemmhub::matmul" in str(traced.graph)
    saved = io.BytesIO()
    torch.jit.save(traced, saved)
    saved.seek(0)
    for function in (traced, torch.jit.load(saved)):
        for rows in (5, 9):
            given = values(name, whole(rng, rows, 8), whole(rng, 8, 6))
            assert torch.equal(function(*given), call(*given))


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_models(activation, rng):
    """Traced and scripted ones call the operator, with the layer's options, and have its gradients."""
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.ReLU(), door.Linear(8, 6, bias=False, activation=activation, backend="numpy")
    )
    for parameter in model.parameters():
        parameter.data = whole(rng, *parameter.shape)
    door.accelerate(model, precision="ieee")
    x, y = whole(rng, 5, 8), whole(rng, 3, 8)
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
    scripted = torch.jit.script(model)
    for made in (traced, scripted, torch.jit.freeze(torch.jit.script(model.eval()))):
        graph = str(made.inlined_graph)
        assert graph.count("gemmhub::matmul") == 2
        assert "aten::linear" not in graph
        with torch.no_grad():
            assert torch.equal(made(y), model(y))
    for made in (traced, scripted):
        ours = torch.autograd.grad(made(y).sum(), list(made.parameters()))
        theirs = torch.autograd.grad(model(y).sum(), list(model.parameters()))
        for got, expected in zip(ours, theirs):
            assert got.shape == expected.shape
            assert torch.equal(got, expected) or activation == "gelu"  # whose gradient is not a whole number
    saved = io.BytesIO()
    torch.jit.save(scripted, saved)
    saved.seek(0)
    with torch.no_grad():
        assert torch.equal(torch.jit.load(saved)(y), model(y))
    assert type(model[0]) is not torch.nn.Linear  # a script leaves the model as it was


def test_what_a_trace_cannot_hold(rng):
    a, w = whole(rng, 5, 8), whole(rng, 8, 6)
    planned, packed = gemmhub.plan(a, w), gemmhub.pack(w)
    planned(a, w)
    constant = "a result computed from its memory would become a constant of the trace"
    for call, words in (
        (lambda a: planned(a, w), constant),
        (lambda a: gemmhub.matmul(w.t(), gemmhub.pack(a.t())), constant),
        (lambda a: a * gemmhub.spot_check(a, w, a @ w).ok, constant),
        (lambda a: gemmhub.tune(a, w) and a, constant),
        (lambda a: gemmhub.matmul(a, packed), "a PackedB"),
    ):
        for _ in range(2):
            with pytest.raises(InputError, match=words):
                torch.jit.trace(call, a)
        assert torch.equal(planned(a, w), gemmhub.matmul(a, w))  # outside of a trace it works as before


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # torch's: alpha is compared with 1
def test_numbers_that_are_tensors_of_a_trace(rng):
    a, w = whole(rng, 5, 8), whole(rng, 8, 6)
    for options in ({"alpha": lambda a: a[0, 0]}, {"beta": lambda a: a[0, 0], "c": lambda a: a[:, :6]}):

        def call(a, options=options):
            return gemmhub.matmul(a, w, **{name: x(a) for name, x in options.items()})

        with pytest.raises(InputError, match=f"{next(iter(options))}: a tensor .*would become a constant"):
            torch.jit.trace(call, a)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of this export
def test_the_export_to_onnx_that_traces_is_refused(rng, tmp_path):
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 6)), whole(rng, 5, 8)
    door.accelerate(model)

    class Block(torch.nn.Module):
        def forward(self, x):
            with door.use():
                return x @ x.T

    for exported in (model, Block()):
        with pytest.raises(InputError, match="a tensor in an export to ONNX, whose files are run without gemmhub"):
            torch.onnx.export(exported, (x,), str(tmp_path / "model.onnx"), dynamo=False)
    assert model(x).shape == (5, 6)
