"""grouped_matmul of torch tensors: gradients, torch's compiler, and torch's own grouped products."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[1]))

from grouped import ACTIVATED, FORMS, cut, operands, sizes_of, worst  # noqa: E402
from products import BF16, F32, F64, draw  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import gemmhub  # noqa: E402
from gemmhub.errors import DeviceError, DTypeError, InputError, OutputError  # noqa: E402

DIVIDED = FORMS[:3]


def tensors(a, b, ends, **flags):
    """The operands as tensors of torch."""
    x, y = (to_torch(z).requires_grad_(flags.get("grad", False)) for z in (a, b))
    return x, y, None if ends is None else torch.from_numpy(ends)


def to_torch(x):
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BF16 else torch.from_numpy(x)


def to_numpy(x):
    return x.view(torch.int16).numpy().view(BF16) if x.dtype is torch.bfloat16 else x.numpy()


def leaves(rng, form, sizes, **more):
    return tensors(*operands(rng, form, F64, sizes, **{"m": 4, "n": 4, "k": 3, **more}), grad=True)


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_tensors(form, dtype, rng):
    a, b, ends = operands(rng, form, dtype, [3, *sizes_of(rng, 3)])
    x, y, offsets = tensors(a, b, ends)
    got = gemmhub.grouped_matmul(x, y, offsets)
    assert type(got) is torch.Tensor
    assert worst(form, a, b, ends, to_numpy(got)) <= 1
    out = torch.full_like(got, float("nan"))
    version = out._version
    assert gemmhub.grouped_matmul(x, y, offsets, out=out) is out
    assert out._version > version
    assert torch.equal(out, got)
    assert torch.equal(gemmhub.grouped_matmul(x, y, ends), got)
    assert gemmhub.spot_check_grouped(x, y, offsets, got)
    assert gemmhub.explain_grouped(x, y, offsets).form == form


@pytest.mark.parametrize("form", FORMS)
def test_an_addend(form, rng):
    """It may be the result. Where gradients are recorded or functions are traced it is refused."""
    a, b, ends = operands(rng, form, F32, [3, 0, 2])
    x, y, offsets = tensors(a, b, ends)
    product = gemmhub.grouped_matmul(x, y, offsets)
    c = torch.from_numpy(draw(rng, tuple(product.shape), F32))
    got = gemmhub.grouped_matmul(x, y, offsets, c=c, beta=-0.5)
    assert worst(form, a, b, ends, got.numpy(), c=c.numpy(), beta=-0.5) <= 1
    assert gemmhub.spot_check_grouped(x, y, offsets, got, c=c, beta=-0.5)
    version = c._version
    assert gemmhub.grouped_matmul(x, y, offsets, out=c, c=c, beta=-0.5) is c
    assert torch.equal(c, got)
    assert c._version > version
    refused = r"c: given in a function that torch traces, or where gradients.* add beta \* c to the result"
    for recorded in ({"a": x.clone().requires_grad_()}, {"c": c.clone().requires_grad_()}):
        named = {"a": x, "c": c, **recorded}
        with pytest.raises(InputError, match=refused):
            gemmhub.grouped_matmul(named["a"], y, offsets, c=named["c"], beta=1)


def test_addends_of_lists_have_gradients(rng):
    """Products of lists are single ones, whose addend torch records."""
    a, b, c = ([torch.from_numpy(draw(rng, (m, n), F32)).requires_grad_() for m in (3, 3)] for n in (3, 3, 3))
    for got, x, y, z in zip(gemmhub.grouped_matmul(a, b, c=c, beta=0.5), a, b, c):
        grads = torch.autograd.grad(got.sum(), (x, y, z))
        expected = torch.autograd.grad((x.double() @ y.double() + 0.5 * z.double()).sum(), (x, y, z))
        assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(grads, expected))


@pytest.mark.parametrize(("form", "activation"), ACTIVATED)
def test_gradients(form, activation, rng):
    a, b, offsets = leaves(rng, form, [2, 0, 1], m=2, n=2, k=2, beyond=1)
    shapes = [b.shape[-1:]] + [(3, b.shape[-1])] * (form != "ragged n")
    for shape in shapes:
        bias = torch.from_numpy(draw(rng, tuple(shape), F64)).requires_grad_()

        def function(a, b, bias):
            return gemmhub.grouped_matmul(a, b, offsets, bias=bias, activation=activation, alpha=-1.5)

        if activation == "relu":  # not differentiable at 0: a draw may come too close
            with torch.no_grad():
                if function(a, b, bias).numel() and _near_zero(a, b, offsets, bias):
                    continue
        assert torch.autograd.gradcheck(function, (a, b, bias), check_forward_ad=True)
        if activation != "relu":
            assert torch.autograd.gradgradcheck(function, (a, b, bias), fast_mode=True)


def _near_zero(a, b, offsets, bias):
    x = gemmhub.grouped_matmul(a, b, offsets, bias=bias, alpha=-1.5)
    return bool(((x != 0) & (x.abs() < 1e-4)).any())


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_complex_tensors(form, rng):
    a, b, ends = operands(rng, form, np.dtype(np.complex128), [2, 0, 3], m=3, n=2, k=2, beyond=1)
    x, y, offsets = tensors(a, b, ends, grad=True)
    function = partial(gemmhub.grouped_matmul, offsets=offsets, alpha=1 - 2j)
    assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True)


def by_torch(form, a, b, offsets):
    """The grouped product by torch's own single products."""
    if form == "dense":
        return a @ b
    ends = offsets.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends)]
    if form == "ragged k":
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if form == "ragged m":
        parts = [a[span] @ x for span, x in zip(spans, b)]
        return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])])
    parts = [x @ b[:, span] for span, x in zip(spans, a)]
    return torch.cat([*parts, a.new_zeros(a.shape[1], b.shape[1] - ends[-1])], 1)


def transformed(function, a, b):
    """Derivatives of a function of two tensors by the transforms of torch.func, each by name."""
    func = torch.func

    def total(a, b):
        return function(a, b).sin().sum()

    def dual(a, b):
        with forward_ad.dual_level():
            result = function(forward_ad.make_dual(a, a.cos()), forward_ad.make_dual(b, b.cos()))
            return forward_ad.unpack_dual(result).tangent

    result, pull = func.vjp(function, a, b)
    return {
        "jvp": func.jvp(function, (a, b), (a.cos(), b.cos()))[1],
        "jvp of a": func.jvp(lambda a: function(a, b), (a,), (a.cos(),))[1],
        "make_dual": dual(a, b),
        "jacfwd": func.jacfwd(function, (0, 1))(a, b),
        "grad": func.grad(total, (0, 1))(a, b),
        "vjp": pull(result.cos()),
        "jacrev": func.jacrev(function, (0, 1))(a, b),
        "hessian": func.hessian(total, (0, 1))(a, b),
        "grad of grad": func.grad(lambda a: func.grad(total, 1)(a, b).sin().sum())(a),
        "vmap": func.vmap(function)(torch.stack([a, a.cos()]), torch.stack([b, b.cos()])),
        "vmap of grad": func.vmap(func.grad(total), (1, None))(torch.stack([a, a.cos()], 1), b),
    }


@pytest.mark.parametrize("form", FORMS)
def test_transforms_of_torch_func(form, rng):
    a, b, offsets = tensors(*operands(rng, form, F64, [2, 0, 1], m=2, n=2, k=2, beyond=1))
    ours = transformed(lambda a, b: gemmhub.grouped_matmul(a, b, offsets), a, b)
    theirs = transformed(lambda a, b: by_torch(form, a, b, offsets), a, b)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, msg=lambda text, name=name: f"{name}: {text}")


def test_vmap_over_offsets(rng):
    a, b, _ = tensors(*operands(rng, "ragged m", F64, [2, 4], beyond=0))
    offsets = torch.tensor([[2, 6], [0, 5]])
    got = torch.func.vmap(lambda ends: gemmhub.grouped_matmul(a, b, ends))(offsets)
    torch.testing.assert_close(got, torch.stack([by_torch("ragged m", a, b, ends) for ends in offsets]))
    none = torch.func.vmap(lambda ends, a: gemmhub.grouped_matmul(a, b, ends))(offsets[:0], a.new_ones(0, 9, 7))
    assert none.shape == (0, 9, 6)


def test_tangents_of_scales_and_of_lists(rng):
    a, b, offsets = tensors(*operands(rng, "ragged m", F32, [2, 0, 3]))
    scales = torch.rand(8, 1) + 0.5, torch.rand(3, 1, 1) + 0.5
    tangents = tuple(map(torch.randn_like, (a, b, *scales)))
    primals = (a, b, *scales)

    def ours(a, b, left, right):
        return gemmhub.grouped_matmul(a, b, offsets, scale_a=left, scale_b=right, activation="silu", out_dtype=F64)

    def theirs(a, b, left, right):
        wide = by_torch("ragged m", a.double() * left.double(), b.double() * right.double(), offsets)
        return torch.nn.functional.silu(wide)

    got, expected = (torch.func.jvp(function, primals, tangents)[1] for function in (ours, theirs))

    def magnitudes(a, b, left, right):
        return by_torch("ragged m", a * left, b * right, offsets)

    values, along = ([abs(x).double() for x in xs] for xs in (primals, tangents))
    argument, tangent = torch.func.jvp(magnitudes, tuple(values), tuple(along))
    assert (abs(got - expected) <= 1e-5 * (1.1 + argument / 2) * tangent).all()  # |silu'| < 1.1, |silu''| <= 1/2
    assert expected.any()
    with pytest.raises(DTypeError, match=r"out_dtype: .*float8_e4m3fn in forward mode"):
        torch.func.jvp(lambda a: gemmhub.grouped_matmul(a, b, offsets, out_dtype=torch.float8_e4m3fn), (a,), (a,))

    def lists(x):
        return gemmhub.grouped_matmul([x, 2 * x], [b[0], b[1]])[1]

    torch.testing.assert_close(torch.func.jvp(lists, (a,), (a,))[1], 2 * a @ b[1])


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_bfloat16_are_rounded_once(form, rng):
    a, b, ends = operands(rng, form, BF16, [5, 0, 3])
    x, y, offsets = tensors(a, b, ends)
    x, y = x.requires_grad_(), y.requires_grad_()
    result = gemmhub.grouped_matmul(x, y, offsets)
    g = to_torch(draw(rng, tuple(result.shape), BF16))
    result.backward(g)
    with torch.no_grad():
        left = gemmhub.grouped_matmul(g, y.transpose(-2, -1), offsets)
        right = gemmhub.grouped_matmul(x.transpose(-2, -1), g, offsets)
    assert torch.equal(x.grad, left)
    assert torch.equal(y.grad, right)


def test_a_gradient_beyond_the_last_end_is_zero(rng):
    a, b, offsets = leaves(rng, "ragged m", [2, 1], beyond=3)
    bias = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    gemmhub.grouped_matmul(a, b, offsets, bias=bias).sum().backward()
    assert not a.grad[3:].any()
    assert torch.equal(bias.grad, torch.full((4,), 3.0, dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS)
def test_the_operator_passes_torchs_own_checks(form, rng):
    a, b, offsets = leaves(rng, form, [2, 0, 3])
    options = {"alpha": 2.0, "out_dtype": torch.float32, "bias": torch.zeros(b.shape[-1])}
    for given in ({}, options):
        found = torch.library.opcheck(torch.ops.gemmhub.grouped_matmul.default, (a, b, offsets), given)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("form", FORMS)
def test_compiled_functions(form, rng):
    def layer(a, b, offsets):
        return gemmhub.grouped_matmul(a, b, offsets, activation="gelu").sin().sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for sizes in ([2, 0, 3], [4, 1, 1]):
        a, b, offsets = leaves(rng, form, sizes)
        value = compiled(a, b, offsets)
        value.backward()
        found = a.grad.clone(), b.grad.clone()
        a.grad = b.grad = None
        expected = layer(a, b, offsets)
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(found, (a.grad, b.grad))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("form", DIVIDED)
def test_offsets_of_numpy_may_change_before_the_backward_pass(form, compiled, rng):
    a, b, offsets = leaves(rng, form, [2, 0, 3])
    gemmhub.grouped_matmul(a, b, offsets).square().sum().backward()
    expected = a.grad, b.grad
    a.grad = b.grad = None
    function = gemmhub.grouped_matmul
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(lambda a, b, ends: gemmhub.grouped_matmul(a, b, ends), backend="aot_eager")
    ends = offsets.numpy().copy()
    result = function(a, b, ends)
    ends[:] = [1, 4, 5]  # a router that uses its buffer again
    result.square().sum().backward()
    torch.testing.assert_close((a.grad, b.grad), expected)


def test_lists_have_gradients_and_are_compiled(rng):
    a = [torch.from_numpy(draw(rng, (m, 3), F64)).requires_grad_() for m in (2, 1, 4)]
    b = [torch.from_numpy(draw(rng, (3, n), F64)).requires_grad_() for n in (2, 3, 1)]
    torch.autograd.gradcheck(lambda *x: gemmhub.grouped_matmul(list(x[:3]), list(x[3:])), (*a, *b))
    compiled = torch.compile(lambda a, b: gemmhub.grouped_matmul(a, b), fullgraph=True, backend="aot_eager")
    for got, x, y in zip(compiled(a, b), a, b):
        torch.testing.assert_close(got, x @ y)


def test_meta_tensors_have_shapes_alone():
    a, b = torch.empty(5, 3, device="meta"), torch.empty(2, 3, 4, device="meta")
    got = gemmhub.grouped_matmul(a, b, torch.empty(2, dtype=torch.int32, device="meta"), activation="swiglu")
    assert got.is_meta
    assert got.shape == (5, 2)


def test_autocast_rounds_operands(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 0, 3])
    x, y, offsets = tensors(a, b, ends)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gemmhub.grouped_matmul(x, y, offsets)
        recorded = gemmhub.grouped_matmul(x.clone().requires_grad_(), y, offsets)
    assert got.dtype is recorded.dtype is torch.bfloat16
    assert torch.equal(got, gemmhub.grouped_matmul(x.bfloat16(), y.bfloat16(), offsets))
    assert torch.equal(recorded.detach(), got)


def test_operations_are_counted(rng):
    from torch.utils.flop_counter import FlopCounterMode

    for form, flops in zip(FORMS, (2 * 8 * 7 * 6, 2 * 5 * 8 * 6, 2 * 5 * 7 * 8, 2 * 3 * 5 * 7 * 6)):
        x, y, offsets = tensors(*operands(rng, form, F32, [3, 0, 5], beyond=0))
        with FlopCounterMode(display=False) as counter:
            gemmhub.grouped_matmul(x, y, offsets)
        assert counter.get_total_flops() == flops


def test_lazily_conjugated_tensors(rng):
    a, b, ends = operands(rng, "ragged m", np.dtype(np.complex64), [2, 3])
    x, y, offsets = tensors(a, b, ends)
    assert worst("ragged m", a.conj(), b, ends, gemmhub.grouped_matmul(x.conj(), y, offsets).numpy()) <= 1
    recorded = gemmhub.grouped_matmul(x.conj().requires_grad_(), y, offsets)
    assert torch.equal(recorded.detach(), gemmhub.grouped_matmul(x.conj(), y, offsets))


def test_mistakes_are_named(rng):
    a, b, offsets = leaves(rng, "ragged m", [2, 3])
    with pytest.raises(OutputError, match="out: given where a requires grad"):
        gemmhub.grouped_matmul(a, b, offsets, out=torch.empty(8, 4, dtype=torch.float64))
    with pytest.raises(InputError, match=r"offsets: group 1: offsets\[1\] = 1 is below"):
        gemmhub.grouped_matmul(a, b, torch.tensor([2, 1]))
    with pytest.raises(InputError, match="scale_a: given to a grouped product whose gradients are recorded"):
        gemmhub.grouped_matmul(a, b, offsets, scale_a=torch.ones(1))
    with pytest.raises(DeviceError, match="b is torch on meta"):
        gemmhub.grouped_matmul(a, b.to("meta"), offsets)
    with pytest.raises(InputError, match=r"a: an ndarray .*; allowed: tensors"):
        gemmhub.grouped_matmul(a.detach().numpy(), b, offsets)
    with pytest.raises(InputError, match="alpha: '2' is not a number"):
        gemmhub.grouped_matmul(a, b, offsets, alpha="2")
    with pytest.raises(TypeError, match="'bais'; did you mean bias"):
        gemmhub.grouped_matmul(a, b, offsets, bais=a)


def test_sparse_tensors_are_refused():
    a, b = torch.ones(3, 4), torch.ones(2, 4, 5)
    for grad in (False, True):
        for x, y, name in ((a.to_sparse(), b, "a"), (a, b.to_sparse(), "b")):
            x = x.detach().requires_grad_(grad)
            with pytest.raises(
                InputError, match=rf"{name}: a tensor of layout .*; allowed: dense tensors. make it dense"
            ):
                gemmhub.grouped_matmul(x, y, [1, 3])


def test_results_in_lists_have_memory_of_their_own(rng):
    x, y = (to_torch(draw(rng, shape, np.dtype(np.complex64))) for shape in ((3, 4), (4, 4)))
    out = torch.zeros(3, 4, dtype=x.dtype)
    for a, outs in (([x, x], [out, out]), ([x, out.conj()], [out, out.clone()])):
        with pytest.raises(OutputError, match=r"out: group .* shares memory with (out|a) of group"):
            gemmhub.grouped_matmul(a, [y, y], out=outs)
    assert not out.any()


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("form", FORMS)
def test_use_takes_torchs_own(form, rng, monkeypatch):
    a, b, ends = operands(rng, form, BF16, [16, 0, 8], m=16, n=32, k=16, beyond=8)
    x, y, offsets = tensors(a, b, ends)
    theirs = torch._grouped_mm(x, y, offs=offsets)
    calls = []
    from gemmhub._doors.torch import mode

    original = mode.grouped_matmul
    monkeypatch.setattr(mode, "grouped_matmul", lambda *x, **options: calls.append(options) or original(*x, **options))
    with gemmhub.torch.use(precision="bf16"):
        ours = torch._grouped_mm(x, y, offs=offsets)
        again = torch.nn.functional.grouped_mm(x, y, offs=offsets)
    assert calls == [{"precision": "bf16"}] * 2
    assert worst(form, a, b, ends, to_numpy(ours)) <= 1
    assert torch.equal(ours, again)
    for (_, _, mine), (_, _, other) in zip(cut(form, a, b, ours, ends)[0], cut(form, a, b, theirs, ends)[0]):
        torch.testing.assert_close(mine, other)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped products")
def test_transforms_of_torchs_own_in_a_block(rng):
    a, b, offsets = tensors(*operands(rng, "ragged m", BF16, [4, 0, 3], n=8, k=8))

    def own(a):
        return torch.nn.functional.grouped_mm(a, b, offs=offsets)

    tangent, cotangent = torch.randn_like(a), torch.randn(10, 8, dtype=a.dtype)
    with gemmhub.torch.use():
        along = torch.func.jvp(own, (a,), (tangent,))[1]
        back = torch.func.vjp(own, a)[1](cotangent)[0]
    assert torch.equal(along, gemmhub.grouped_matmul(tangent, b, offsets))
    assert torch.equal(back, gemmhub.grouped_matmul(cotangent, b.transpose(1, 2), offsets))


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
def test_use_leaves_other_calls_to_torch(rng):
    a, b, ends = operands(rng, "ragged m", BF16, [16, 8], n=32, k=16)
    x, y, offsets = tensors(a, b, ends)
    long, few, double = offsets.long(), offsets[:1], (x.double(), y.double())
    refused = [
        (x, y, {}), (x.float(), y, {"offs": offsets}), (x[0], y, {"offs": offsets}), (x, y, {"offs": long}),
        (x, y, {"offs": few}), (*double, {"offs": offsets}), (x, y, {"offs": offsets, "out_dtype": torch.float32}),
        (x[:, :8], y, {"offs": offsets}), (y, y[:1].mT, {}), (x[:, ::2], y[:, :8], {"offs": offsets}),
        (x[:, :7].contiguous(), y[:, :7], {"offs": offsets}),
    ]  # fmt: skip
    for a, b, options in refused:
        with pytest.raises((RuntimeError, TypeError)) as caught, gemmhub.torch.use():
            torch._grouped_mm(a, b, **options)
        assert not isinstance(caught.value, gemmhub.GemmhubError)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
def test_use_leaves_autocast_to_torch(rng):
    x, y, offsets = tensors(*operands(rng, "ragged m", F32, [16, 8], n=32, k=16, beyond=0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = torch._grouped_mm(x, y, offs=offsets)
        with gemmhub.torch.use():
            ours = torch._grouped_mm(x, y, offs=offsets)
    assert ours.dtype is theirs.dtype
    assert torch.equal(ours, theirs)


def test_alpha_may_be_a_scalar_of_another_library(rng):
    a, b, offsets = leaves(rng, "ragged m", [2, 3])
    expected = gemmhub.grouped_matmul(a, b, offsets, alpha=2.0)
    for alpha in (np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0)):
        got = gemmhub.grouped_matmul(a, b, offsets, alpha=alpha)
        assert got.requires_grad
        assert torch.equal(got, expected)


@pytest.mark.parametrize("form", FORMS)
def test_a_repeated_call_still_means_what_torch_makes_of_it(form, rng):
    """Gradients, modes and pending operations count, though the signature of the call is known."""
    from torch.utils.flop_counter import FlopCounterMode

    a, b, ends = operands(rng, form, F32, [3, 1, 2])
    x, y, offsets = tensors(a, b, ends)
    for _ in range(3):
        expected = gemmhub.grouped_matmul(x, y, offsets)
    assert worst(form, a, b, ends, to_numpy(expected)) <= 1
    leaf = x.clone().requires_grad_()
    recorded = gemmhub.grouped_matmul(leaf, y, offsets)
    assert recorded.requires_grad
    recorded.sum().backward()
    assert leaf.grad is not None
    with torch.no_grad():
        assert torch.equal(gemmhub.grouped_matmul(leaf, torch.nn.Parameter(y), offsets), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert gemmhub.grouped_matmul(x, y, offsets).dtype is torch.bfloat16
    negated = torch._neg_view(x)
    assert torch.equal(gemmhub.grouped_matmul(negated, y, offsets), -expected)
    mapped = torch.func.vmap(lambda z: gemmhub.grouped_matmul(z, y, offsets))(torch.stack([x, 2 * x]))
    assert torch.equal(mapped[0], expected)
    with FlopCounterMode(display=False) as counter:
        gemmhub.grouped_matmul(x, y, offsets)
    assert counter.get_total_flops() > 0
    with forward_ad.dual_level():
        dual = gemmhub.grouped_matmul(forward_ad.make_dual(x, x), y, offsets)
        assert torch.allclose(forward_ad.unpack_dual(dual).tangent, expected, atol=1e-4)
    meta = gemmhub.grouped_matmul(x.to("meta"), y.to("meta"), None if offsets is None else offsets.to("meta"))
    assert meta.is_meta


@pytest.mark.parametrize("form", ["ragged m", "dense"])
def test_gradients_of_transposed_weights_lie_as_the_weights_do(form, rng):
    a, b, ends = operands(rng, form, F64, [2, 0, 3], m=3, n=4, k=3)
    x, weight, offsets = tensors(a, np.ascontiguousarray(b.transpose(0, 2, 1)), ends, grad=True)
    strides = []
    turned = weight.transpose(1, 2)
    turned.register_hook(lambda grad: strides.append(grad.stride()))
    out = gemmhub.grouped_matmul(x, turned, offsets)
    grad = torch.from_numpy(draw(rng, tuple(out.shape), F64))
    out.backward(grad)
    assert strides == [turned.stride()]
    parts, _ = cut(form, a, b, grad.numpy(), ends)
    for (left, _, of_result), got in zip(parts, weight.grad.numpy()):
        np.testing.assert_allclose(got, of_result.T @ left, rtol=1e-12, atol=1e-12)
    product = lambda x, w: gemmhub.grouped_matmul(x, w.transpose(1, 2), offsets)  # noqa: E731
    assert torch.autograd.gradgradcheck(product, (x, weight))
