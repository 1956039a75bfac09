"""What a recorded product costs beside its kernel: no operator of torch, no transform, no second look-up."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from products import F32, ratio

import gemmhub

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402

PASSED_OVER = (
    "torch/_functorch/", "torch/library.py", "_doors/torch/ops.py", "_doors/torch/calls.py:take", "_call/describe.py",
    "_call/bind.py:execute", "torch/autograd/function.py:setup_context", "function.py:_is_setup_context_defined",
)  # fmt: skip
"""Files, or functions in them, that a repeated product does not enter."""


def entered(call):
    """The Python functions that a call enters, as ``file:name``, in order."""
    seen = []

    def profile(frame, event, _):
        if event == "call":
            seen.append(f"{frame.f_code.co_filename.replace(chr(92), '/')}:{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


@pytest.fixture
def operands(rng):
    made = [torch.from_numpy(rng.standard_normal(shape)).float() for shape in ((8, 8), (8, 8), (8,))]
    return [x.requires_grad_() for x in made]


def calls(a, b, bias):
    layer, linear = door.Linear(8, 8), torch.nn.functional.linear

    def used():
        with door.use():
            return linear(a, b, bias)

    return {
        "matmul": lambda: gemmhub.matmul(a, b),
        "after others": lambda: (gemmhub.matmul(a.detach(), b.detach()), gemmhub.matmul(a, b))[1],
        "bias": lambda: gemmhub.matmul(a, b, bias=bias),
        "activation": lambda: gemmhub.matmul(a, b, bias=bias, activation="relu"),
        "c": lambda: gemmhub.matmul(a, b, c=a, beta=0.5, alpha=2.0),
        "Linear": lambda: layer(a),
        "use": used,
    }


@pytest.mark.parametrize("name", ["matmul", "after others", "bias", "activation", "c", "Linear", "use"])
def test_a_repeated_product_passes_no_operator(name, operands):
    """Nor does its backward pass; both were described once, when they were first called."""
    call = calls(*operands)[name]
    grad = torch.ones(8, 8)
    for _ in range(3):
        call().backward(grad)
    seen = entered(lambda: call().backward(grad))
    assert any(x.endswith("node.py:forward") for x in seen)
    assert sum(x.endswith("gradients.py:backward") for x in seen) == 1
    assert not [x for x in seen if any(y in x for y in PASSED_OVER)]


def test_an_exception_of_a_hook_is_the_callers(operands):
    """A product that was recorded is not computed again because of it."""
    a, b, _ = operands
    for _ in range(3):
        gemmhub.matmul(a, b)
    packed = []

    def refuse(x):
        packed.append(x)
        raise ValueError("not today")

    hooks = torch.autograd.graph.saved_tensors_hooks(refuse, lambda x: x)
    with hooks, pytest.raises(ValueError, match="not today"):
        gemmhub.matmul(a, b)
    assert len(packed) == 1


def test_repeated_calls_take_notice_of_requires_grad(operands):
    """Of each operand, and of the mode, in any order of calls."""
    a, b, bias = operands
    for options in ({}, {"bias": bias}, {"bias": bias.detach()}):
        for left, right in ((a, b), (a.detach(), b), (a, b.detach()), (a.detach(), b.detach())) * 3:
            out = gemmhub.matmul(left, right, **options)
            needed = any(x.requires_grad for x in (left, right, *options.values()))
            assert out.requires_grad is needed
            with torch.no_grad():
                assert not gemmhub.matmul(left, right, **options).requires_grad
            assert ratio(
                out.detach().numpy(), left.detach().numpy(), right.detach().numpy(),
                **{name: x.detach().numpy() for name, x in options.items()},
            ) <= 1  # fmt: skip


@pytest.mark.parametrize("order", ["row", "column"])
def test_the_weight_of_a_layer_gets_its_own_gradient(order, operands, rng):
    """No view of it is made, nor recorded: the gradient of the transpose would be another matrix."""
    a = torch.from_numpy(rng.standard_normal((3, 8))).float()
    layer = door.Linear(8, 6)
    with torch.no_grad():
        weight = layer.weight.t().contiguous().t() if order == "column" else layer.weight.clone()
    layer.weight = torch.nn.Parameter(weight)
    for inputs in (a, a.clone().requires_grad_(), a[0], a[None].expand(2, 3, 8)):
        for _ in range(3):
            layer.zero_grad()
            out = layer(inputs)
            out.sum().backward()
        grads = layer.weight.grad, layer.bias.grad
        flat = inputs.detach().reshape(-1, 8).numpy()
        ones = np.ones((6, len(flat)), F32)
        assert ratio(grads[0].numpy(), ones, flat) <= 1
        assert np.array_equal(grads[1].numpy(), ones.sum(1))


def test_lazily_conjugated_operands_are_never_taken_for_plain_ones(rng):
    z = torch.from_numpy(rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4)))
    plain = gemmhub.matmul(z, z)
    for _ in range(3):
        assert torch.equal(gemmhub.matmul(z, z), plain)
    for lazy in (z.conj(), z.t().conj()):
        with pytest.raises(gemmhub.errors.InputError, match="resolve_"):
            gemmhub.matmul(lazy, z)
    x = torch.from_numpy(rng.standard_normal((4, 4)))
    for _ in range(3):
        gemmhub.matmul(x, x)
    with pytest.raises(gemmhub.errors.InputError, match="resolve_"):
        gemmhub.matmul(torch.complex(x, x).conj().imag, x)


def test_wrappers_that_outlived_their_transform(operands):
    """torch's own products take them as what they wrap."""
    _, b, _ = operands
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(b.detach().clone())
    for _ in range(3):
        gemmhub.matmul(b.detach(), b)
    for _ in range(3):
        out = gemmhub.matmul(kept[0], b)
        assert torch.equal(out, gemmhub.matmul(b.detach(), b))
        b.grad = None
        out.sum().backward()
        assert b.grad is not None
