"""Guards are used only where torch has them and they do what is expected."""

from __future__ import annotations

import sys
import types

import pytest

from gemmhub._arrays.torch import guard as guard_module


@pytest.fixture(autouse=True)
def fresh():
    guard_module.usable.cache_clear()
    yield
    guard_module.usable.cache_clear()


def torch_with(guards, **more):
    return types.SimpleNamespace(_C=types.SimpleNamespace(_dynamo=types.SimpleNamespace(guards=guards)), **more)


@pytest.mark.parametrize(
    "torch", [types.SimpleNamespace(), torch_with(None), torch_with(types.SimpleNamespace())], ids=["0", "1", "2"]
)
def test_a_torch_without_guards(torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert guard_module.guard(object()) is None


@pytest.mark.parametrize("answer", [True, False, None])
def test_guards_that_answer_wrongly(answer, monkeypatch):
    """Tested on tensors that differ in each of the compared attributes."""

    class Tensor:
        shape, stride = (3, 4), lambda self: (4, 1)

        def __getattr__(self, name):
            return Tensor()

        def __call__(self, *args, **options):
            return Tensor()

        def __getitem__(self, key):
            return Tensor()

    class Guards:
        def __init__(self, *tensors, **options):
            pass

        def check(self, *tensors):
            return answer

    torch = torch_with(types.SimpleNamespace(TensorGuards=Guards), Tensor=Tensor, float64=None, complex64=None)
    for name in ("empty", "conj", "zeros", "empty_strided"):
        setattr(torch, name, lambda *args, **options: Tensor())
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert guard_module.guard(Tensor()) is None


def test_the_guards_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones(3, 4)
    check = guard_module.guard(x)
    if check is None:
        pytest.skip(f"torch {torch.__version__} has no guards that do what is expected")
    assert check(torch.zeros(3, 4))
    assert not check(x.t())
    assert not check(x.double())
    assert not check(x.requires_grad_())
