"""What a recorded product costs beside its kernel: no operator of torch, no transform, no second look-up."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from products import F32, draw, ratio

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


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_lazily_conjugated_operands_are_never_taken_for_plain_ones(dtype, rng):
    x, y = (torch.from_numpy(draw(rng, shape, dtype)) for shape in ((5, 4), (5, 6)))
    for _ in range(3):
        gemmhub.matmul(x.mT, y)
    for left, right in ((x.mH, y), (x.conj().mT, y.conj()), (x.mT, y.conj()), (torch._neg_view(x).mH, y)):
        for _ in range(3):
            result = gemmhub.matmul(left, right)
            assert not result.is_conj()
            assert ratio(result.numpy(), left.resolve_conj().numpy(), right.resolve_conj().numpy()) <= 1
    x, y = torch.from_numpy(draw(rng, (4, 4), F32)), torch.from_numpy(draw(rng, (4, 4), F32))
    for _ in range(3):
        gemmhub.matmul(x, y)
    assert ratio(gemmhub.matmul(torch.complex(x, x).conj().imag, y).numpy(), -x.numpy(), y.numpy()) <= 1


def test_the_copy_of_a_lazily_conjugated_operand_is_reported(rng):
    x, y = (torch.from_numpy(draw(rng, (4, 4), np.complex64)) for _ in range(2))
    (copy,) = gemmhub.explain(x, y.mH).copies
    assert (copy.operand, copy.nbytes, copy.why) == ("b", 128, "torch has conjugated it lazily")
    assert gemmhub.explain(x, y.mT).copies == ()
    assert gemmhub.spot_check(x.mH, y, gemmhub.matmul(x.mH, y))
    assert not gemmhub.spot_check(x.mT, y, gemmhub.matmul(x.mH, y))
    assert gemmhub.compare(x.mH, y)
    assert torch.equal(gemmhub.matmul(x, gemmhub.pack(y.conj())), gemmhub.matmul(x, gemmhub.pack(y.conj().clone())))


def test_gradients_through_a_lazy_conjugation(rng):
    x, y = (torch.from_numpy(draw(rng, shape, np.complex128)).requires_grad_() for shape in ((3, 2), (3, 4)))
    assert torch.autograd.gradcheck(lambda x, y: gemmhub.matmul(x.mH, y), (x, y))
    assert torch.autograd.gradcheck(lambda x, y: gemmhub.matmul(y.conj().mT, torch._neg_view(x)), (x, y))
    assert torch.autograd.gradgradcheck(lambda x, y: gemmhub.matmul(x.mH, y), (x, y))


def test_lazy_conjugations_in_traced_functions(rng):
    x, y = (torch.from_numpy(draw(rng, shape, np.complex64)) for shape in ((5, 4), (5, 6)))
    expected = gemmhub.matmul(x.mH, y)
    compiled = torch.compile(lambda x, y: gemmhub.matmul(x.mH, y), backend="aot_eager")
    assert torch.equal(compiled(x, y), expected)
    assert torch.equal(torch.vmap(lambda x: gemmhub.matmul(x.mH, y))(x[None]), expected[None])


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


def test_which_operands_need_gradients_may_change_between_calls(rng):
    """A node keeps other tensors for them, and the next call of a signature finds which."""
    for wants in ((True, True), (True, False), (False, True), (True, True)):
        a, b = (torch.from_numpy(rng.standard_normal((6, 6)).astype(F32)).requires_grad_(x) for x in wants)
        for _ in range(3):
            gemmhub.matmul(a, b).sum().backward()
        for x, wanted in zip((a, b), wants):
            assert (x.grad is not None) is wanted
        ones = np.ones((6, 6), F32)
        if wants[0]:
            assert ratio(a.grad.numpy() / 3, ones, b.detach().numpy().T) <= 1
        if wants[1]:
            assert ratio(b.grad.numpy() / 3, a.detach().numpy().T, ones) <= 1


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_gradients_of_matrices_in_either_storage_order(columns, layer, rng):
    """They have the strides of their operands, in a layer, too, whose weight is the transpose of b."""
    a, b = (torch.from_numpy(rng.standard_normal((6, 5)).astype(F32)) for _ in range(2))
    a, b = (x.t().contiguous().t() if columns else x for x in (a, b))
    a.requires_grad_(), b.requires_grad_()
    grad = torch.from_numpy(rng.standard_normal((6, 6)).astype(F32))
    linear = door.Linear(5, 6, bias=False)
    linear.weight = torch.nn.Parameter(b.detach())
    weight = linear.weight if layer else b
    for _ in range(3):
        a.grad = weight.grad = None
        (linear(a) if layer else gemmhub.matmul(a, b.t())).backward(grad)
    g, x, w = grad.numpy(), a.detach().numpy(), b.detach().numpy()
    assert ratio(a.grad.numpy(), g, w) <= 1
    assert ratio(weight.grad.numpy(), g.T, x) <= 1
    assert a.grad.stride() == a.stride()
    assert weight.grad.stride() == weight.stride()


def test_scalars_of_repeated_products_may_change(rng):
    """Numbers of one class share what was learned; gradients are of the call's own number."""
    a = torch.ones(4, 4, requires_grad=True)
    b = torch.from_numpy(rng.integers(-8, 8, (4, 4)).astype(F32))
    for alpha in (2.0, 3.0, 5.0):
        (grad,) = torch.autograd.grad(gemmhub.matmul(a, b, alpha=alpha).sum(), a)
        assert torch.equal(grad, alpha * torch.ones(4, 4) @ b.t())


def test_gradients_that_torch_maps_over(rng):
    """The tensors of ``is_grads_batched`` have no memory; gradients of the mapped gradients are right, too."""
    a, b = (torch.from_numpy(rng.integers(-4, 4, (4, 4)).astype(F32)).requires_grad_() for _ in range(2))
    each = torch.eye(16).view(16, 4, 4)
    for _ in range(3):
        gemmhub.matmul(a, b)
    grads = []
    for product in (gemmhub.matmul, torch.matmul):
        (first,) = torch.autograd.grad(product(a, b), a, each, is_grads_batched=True, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), b)
        grads.append((first, second))
    for mine, theirs in zip(*grads):
        assert torch.equal(mine, theirs)


def test_zeros_without_memory_are_refused_by_warm_calls():
    """torch makes such tensors in forward mode; their address is 0."""
    a, b, bias = torch.ones(4, 4), torch.ones(4, 4), torch.ones(4)
    for options in ({}, {"bias": bias}, {"alpha": 2.0}):
        for _ in range(3):
            gemmhub.matmul(a, b, **options)
        with pytest.raises(gemmhub.errors.InputError, match="without memory"):
            gemmhub.matmul(torch._efficientzerotensor(4, 4), b, **options)
    with pytest.raises(gemmhub.errors.InputError, match="without memory"):
        gemmhub.matmul(a, b, bias=torch._efficientzerotensor(4))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_alignment_may_change_between_calls(dtype, rng):
    """Views begin at any element; each is looked up by the low bits of its address."""
    size = np.dtype(dtype).itemsize
    memory = np.zeros(16 * 16 * size + 64, np.uint8)
    b = torch.from_numpy(rng.standard_normal((16, 16)).astype(dtype))
    for offset in (0, size, 0, 3 * size, 64):
        x = memory[offset : offset + 256 * size].view(dtype).reshape(16, 16)
        x[...] = rng.standard_normal((16, 16))
        for _ in range(3):
            assert ratio(gemmhub.matmul(torch.from_numpy(x), b).numpy(), x, b.numpy()) <= 1


def test_a_repeated_linear_function_in_a_block_is_not_analysed(operands):
    a, b, bias = operands
    linear, mode = torch.nn.functional.linear, door.use()
    weight = b.detach().t().contiguous()
    with mode:
        for _ in range(3):
            linear(a, weight, bias)
        files = entered(lambda: linear(a, weight, bias))
        assert not any("_alike" in name or name.endswith("api.py:matmul") for name in files)
        for other in (bias.double(), bias[:-1], bias[None].expand(2, -1)):
            with pytest.raises(RuntimeError):
                linear(a, weight, other)


def test_negated_views_with_unit_strides_are_resolved_by_warm_calls(rng):
    """torch negates lazily: the memory holds the elements with the other sign."""
    a, b = torch.from_numpy(rng.standard_normal((3, 4))), torch.from_numpy(rng.standard_normal((4, 5)))
    for _ in range(3):
        gemmhub.matmul(a, b)
    assert torch.equal(gemmhub.matmul(torch._neg_view(a), b), -gemmhub.matmul(a, b))


def test_a_plan_refuses_tangents(rng):
    """It would lose them."""
    a, b = torch.from_numpy(rng.standard_normal((3, 4))), torch.from_numpy(rng.standard_normal((4, 5)))
    planned = gemmhub.plan(a, b)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(gemmhub.errors.InputError, match="tangent"):
            planned(dual, b)


def test_compiled_autograd(rng):
    layer, x = door.Linear(4, 5), torch.from_numpy(rng.standard_normal((3, 4)).astype(F32))

    @torch.compile(backend="eager")
    def train(x):
        layer(x).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        train(x)
    assert ratio(layer.weight.grad.numpy(), np.ones((5, 3), F32), x.numpy()) <= 1


def test_a_block_leaves_linear_functions_of_stacks_to_torch(rng):
    """Also where gemmhub has computed a product of the same memory."""
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    for _ in range(3):
        gemmhub.matmul(a, b)
    with door.use(), pytest.raises(RuntimeError):
        torch.nn.functional.linear(a, b.permute(2, 1, 0))
