"""tune() of models of torch, and of steps that train them; records of a file for these."""

from __future__ import annotations

from functools import partial

import pytest

import gemmhub
from gemmhub._base.timing import interleave
from gemmhub._choice import records
from gemmhub._measure import tune as tuning
from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Little time is spent on timing."""
    monkeypatch.setattr(tuning, "interleave", partial(interleave, rounds=3, min_time=1e-5))


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))


@pytest.fixture
def x():
    return torch.randn(7, 12)


LAYERS = [("7x16x12", 1), ("7x5x16", 1)]


def found(result):
    assert all(product.rows for product in result.products)
    return [(product.problem.partition(" ")[0], product.calls) for product in result.products]


def test_a_model_that_torch_computes(model, x):
    with pytest.raises(InputError, match="a Sequential made no product through gemmhub") as caught:
        gemmhub.tune(model, x)
    assert "gemmhub.torch.accelerate(model)" in caught.value.remedy
    assert "gemmhub.torch.use()" in caught.value.remedy
    assert not records.path().exists()


@pytest.mark.parametrize("warm", [False, True])
def test_an_accelerated_model(model, x, warm):
    """Its result, its parameters and their gradients are as they were."""
    door.accelerate(model)
    if warm:
        model(x), model(x)
    before = [parameter.clone() for parameter in model.parameters()]
    assert found(gemmhub.tune(model, x)) == LAYERS
    assert all(torch.equal(p, old) and p.grad is None for p, old in zip(model.parameters(), before))
    decision = gemmhub.explain(x, model[0].weight.t(), bias=model[0].bias)
    assert decision[decision.chosen].record == str(records.path())


@pytest.mark.parametrize("block", [door.use, getattr(door, "override", door.use)])
def test_a_model_in_a_block(model, x, block):
    if block is door.override and not hasattr(torch.library, "get_kernel"):
        pytest.skip("torch has no torch.library.get_kernel")
    with block(), torch.no_grad():
        assert found(gemmhub.tune(model, x)) == LAYERS


def test_a_step_that_trains(model, x):
    """With the products of its gradients."""
    door.accelerate(model)
    x.requires_grad_()

    def step(x, *, scale):
        (scale * model(x).square().sum()).backward()

    result = gemmhub.tune(step, x, scale=2)
    assert found(result)[:2] == LAYERS
    assert sum(calls for _, calls in found(result)) == 6


def test_a_compiled_model(x):
    layer = door.Linear(12, 16)
    compiled = torch.compile(layer, backend="eager")
    with torch.no_grad():
        compiled(x)
        assert found(gemmhub.tune(compiled, x)) == [("7x16x12", 1)]


def test_half_precision_and_stacks(model, x):
    """Tensors of any strides and dtypes."""
    stack, weight = torch.randn(3, 12, 7).bfloat16().mT, torch.randn(1, 12, 4).bfloat16().expand(3, 12, 4)
    result = gemmhub.tune(lambda: gemmhub.matmul(stack, weight))
    assert found(result) == [("7x4x12", 1)]
    assert {entry.problem for entry in records.read(records.path()).all} == {gemmhub.explain(stack, weight).problem.key}


def test_a_file_decides_for_a_model(model, x, tmp_path):
    door.accelerate(model)
    gemmhub.tune(model, x).save(tmp_path / "model.jsonl")
    records.path().unlink()
    gemmhub.reload()
    weight, bias = model[0].weight.t(), model[0].bias
    assert gemmhub.explain(x, weight, bias=bias)["numpy"].source == "estimated"
    with gemmhub.use(records=tmp_path / "model.jsonl"):
        assert gemmhub.explain(x, weight, bias=bias)["numpy"].record == str(tmp_path / "model.jsonl")
        assert model(x).shape == (7, 5)
