"""Gradients of products of torch tensors, against torch's numerical ones in float64 and its own in other dtypes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from products import ratio

import gemmhub
from gemmhub import dtypes
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES, Epilogue
from gemmhub.errors import InputError, OutputError

torch = pytest.importorskip("torch", reason="torch is not installed")

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16

SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((1, 3, 4), (2, 4, 5)),
]  # fmt: skip


def tensors(rng, shapes, dtype=F64, transposed=False):
    """Random ones that require grad; ``transposed``: with contiguous columns."""
    made = []
    for shape in shapes:
        x = torch.from_numpy(rng.standard_normal(shape)).to(dtype)
        if dtype.is_complex:
            x = torch.complex(x.real, torch.from_numpy(rng.standard_normal(shape)).to(x.real.dtype))
        if transposed and x.dim() > 1:
            x = x.mT.contiguous().mT
        made.append(x.requires_grad_())
    return made


def addends(rng, a, b, with_c, with_bias):
    """c and bias for a product; None for those that it does not have."""
    with torch.no_grad():
        shape = gemmhub.matmul(a, b).shape
    vector = (shape[-1],) if shape else ()
    (c,) = tensors(rng, [shape], a.dtype) if with_c else (None,)
    (bias,) = tensors(rng, [vector], a.dtype) if with_bias and shape else (None,)
    return c, bias


def product(activation, alpha, beta, with_c, with_bias):
    def f(a, b, *rest):
        rest = list(rest)
        options = {"c": rest.pop(0), "beta": beta} if with_c else {}
        if with_bias:
            options["bias"] = rest.pop(0)
        return gemmhub.matmul(a, b, alpha=alpha, activation=activation, **options)

    return f


def away_from_kinks(draw, sums):
    """Operands whose sums are not where a derivative jumps, as those of relu and hardswish do at 0, 3 and -3."""
    while True:
        given = draw()
        x = sums(*given).detach().abs()
        if not bool(((x < 1e-4) | ((x - 3).abs() < 1e-4)).any()):
            return given


@pytest.mark.parametrize("activation", [None, *ELEMENTWISE])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradients_and_those_of_gradients(shapes, activation, rng):
    for with_c, with_bias in itertools.product((False, True), repeat=2):

        def draw(with_c=with_c, with_bias=with_bias):
            a, b = tensors(rng, shapes, transposed=with_c)
            return [x for x in (a, b, *addends(rng, a, b, with_c, with_bias)) if x is not None]

        biased = len(draw()) == 3 + with_c  # vectors have no bias
        given = away_from_kinks(draw, product(None, 1.5, -0.5, with_c, biased))
        f = product(activation, 1.5, -0.5, with_c, biased)
        assert torch.autograd.gradcheck(f, given)
        if activation != "relu":
            assert torch.autograd.gradgradcheck(f, given)


@pytest.mark.parametrize("shapes", SHAPES[:8:2], ids=str)
def test_complex_gradients(shapes, rng):
    a, b = tensors(rng, shapes, torch.complex128)
    c, bias = addends(rng, a, b, True, True)
    f = product(None, 1.5 - 1j, 0.5j, True, True)
    assert torch.autograd.gradcheck(f, [a, b, c, bias])
    assert torch.autograd.gradgradcheck(f, [a, b, c, bias])
    (real,) = tensors(rng, [shapes[0]])
    assert torch.autograd.gradcheck(gemmhub.matmul, [real, b])


@pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="operators of this torch have no rule for vmap")
@pytest.mark.parametrize("activation", [None, *ELEMENTWISE])
def test_forward_mode_and_batches_of_gradients(activation, rng):
    for shapes, bias_shape in [(((3, 4), (4, 5)), (3, 1)), (((4,), (4, 5)), (1, 5)), (((2, 3, 4), (4,)), (3,))]:

        def draw(shapes=shapes, bias_shape=bias_shape):
            a, b = tensors(rng, shapes)
            return a, b, addends(rng, a, b, True, False)[0], *tensors(rng, [bias_shape])

        f = product(activation, 1.5, -2, True, True)
        given = away_from_kinks(draw, product(None, 1.5, -2, True, True))
        assert torch.autograd.gradcheck(
            f, given, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )


def bounded(got, exact, size, steps, dtype):
    """Within ``steps`` roundings of float32 sums, and one of the result, relative to the sums of magnitudes."""
    error = (got.double() - exact).abs()
    unit = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-24, F64: 2.0**-53}
    allowed = size * (steps * unit[F32 if dtype != F64 else F64] + unit[dtype]) * 1.01 + 2.0**-24
    assert bool((error <= allowed).all()), float((error / allowed).max())


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [(BF16, BF16, None), (F16, F16, F32), (BF16, BF16, F32), (BF16, F32, None), (F16, BF16, None), (F32, F32, BF16),
     (F32, F64, None), (F16, F16, F64), (F32, F32, F64)],
    ids=str,
)  # fmt: skip
def test_gradients_of_mixed_dtypes(left, right, wanted, rng):
    """Each has the dtype of its operand, and the accuracy of a product of the saved operand and the gradient."""
    (a,), (b,) = tensors(rng, [(7, 33)], left), tensors(rng, [(33, 9)], right)
    out = gemmhub.matmul(a, b, out_dtype=wanted)
    assert out.dtype == (wanted or torch.promote_types(left, right))
    grad = torch.from_numpy(rng.standard_normal(out.shape)).to(out.dtype)
    out.backward(grad)
    assert (a.grad.dtype, b.grad.dtype) == (left, right)
    g, x, y = grad.double(), a.detach().double(), b.detach().double()
    bounded(a.grad, g @ y.T, g.abs() @ y.abs().T, 9, left)
    bounded(b.grad, x.T @ g, x.abs().T @ g.abs(), 7, right)


def test_a_shared_matrix_is_summed_before_it_is_rounded(rng):
    """The gradient of b in a batched product: one rounding to bfloat16, however many matrices it is multiplied by."""
    (a,), (b,) = tensors(rng, [(64, 4, 8)], BF16), tensors(rng, [(1, 8, 5)], BF16)
    out = gemmhub.matmul(a, b)
    grad = torch.from_numpy(rng.standard_normal(out.shape)).to(BF16)
    out.backward(grad)
    x, g = a.detach().double(), grad.double()
    exact, size = (x.mT @ g).sum(0, True), (x.abs().mT @ g.abs()).sum(0, True)
    bounded(b.grad, exact, size, 4 * 64, BF16)


EMPTY = [
    ((3, 0), (0, 5)), ((0, 4), (4, 5)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 5)),
    ((5, 5, 0), (0, 5)), ((2, 5, 5, 0), (0, 5)), ((5, 5, 0), (5, 0, 5)), ((5, 5, 0), (0,)), ((0,), (5, 0, 5)),
    ((0, 5, 0), (0, 5)), ((5, 0, 3), (3, 5)),
]  # fmt: skip


@pytest.mark.parametrize("way", ["eager", "operator", "static", "dynamic"])
@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_empty_products(shapes, way, rng):
    if way != "eager":
        pytest.importorskip("gemmhub.torch")
    torch._dynamo.reset()
    call = {
        "eager": gemmhub.matmul,
        "operator": lambda *x, **options: torch.ops.gemmhub.matmul(*x, **options),
        "static": torch.compile(gemmhub.matmul, dynamic=False, backend="aot_eager"),
        "dynamic": torch.compile(gemmhub.matmul, dynamic=True, backend="aot_eager"),
    }[way]
    for options in ({}, {"activation": "silu"}):
        a, b = tensors(rng, shapes)
        call(a, b, **options).sum().backward()
        for x in (a, b):
            assert x.grad.shape == x.shape
            assert not x.grad.any()


def test_empty_sums_in_opcheck(rng):
    pytest.importorskip("gemmhub.torch")
    torch.library.opcheck(torch.ops.gemmhub.matmul.default, tuple(tensors(rng, ((5, 5, 0), (0, 5)))))


def within(got, a, b, **options):
    """Within the bound of one product of these operands with these options."""
    options = {name: x.double().numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    kind = dtypes.as_dtype(str(got.dtype).removeprefix("torch."))
    given = (x.detach().double().numpy().astype(kind) for x in (got, a, b))
    assert ratio(*given, out_dtype=kind, **options) <= 1


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_alpha_and_beta_are_applied_to_sums(dtype, rng):
    """Their products with single gradients are below float16's range, tangents without alpha above it."""
    a, g = (torch.from_numpy(rng.uniform(1, 2, (1000, 1))).to(dtype) for _ in range(2))
    g, one = g * 1e-2, torch.ones(1, 1, dtype=dtype)
    for shape in ((1, 1), (1,)):
        c = torch.ones(shape, dtype=dtype, requires_grad=True)
        gemmhub.matmul(a, one, c=c, beta=1e-6).backward(g)
        within(c.grad.reshape(1, 1), g.t(), torch.ones_like(a), alpha=1e-6)
    c = torch.full((1000, 1), 1e-15, dtype=dtype if dtype != F16 else F32, requires_grad=True)
    gemmhub.matmul(a, one, c=c, beta=1e40, out_dtype=c.dtype).backward((g * 1e-15).to(c.dtype))
    within(c.grad[:1], (g * 1e-15).to(c.dtype)[:1], torch.ones(1, 1, dtype=c.dtype), alpha=1e40)
    x, w = (torch.from_numpy(rng.uniform(30, 90, size)).to(dtype) for size in ((3, 100), (100, 2)))
    value, tangent = torch.func.jvp(lambda x, w: gemmhub.matmul(x, w, alpha=1e-3), (x, w), (x, -w))
    within(value, x, w, alpha=1e-3)
    both = torch.cat([x, x], 1), torch.cat([w, -w])
    within(tangent, *both, alpha=1e-3)


@pytest.mark.parametrize("activation", [None, *ELEMENTWISE])
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_a_mapped_bias_is_added_in_the_accumulator(dtype, activation, rng):
    big = {F16: 2048.0, BF16: 256.0, F32: 2.0**24}[dtype]
    a, b, c = (torch.full((1, 1), x, dtype=dtype) for x in (-1, big, big))
    bias = torch.from_numpy(rng.uniform(1, 2, (3, 1))).to(dtype)
    options = {"beta": 1.0, "activation": activation}
    for given, dims in (
        ((a, b, c, bias), (None, None, None, 0)),
        ((a, b, c, bias.unsqueeze(2)), (None, None, None, 0)),
    ):
        found = torch.func.vmap(lambda a, b, c, v: gemmhub.matmul(a, b, c=c, bias=v, **options), dims)(*given)
        for got, added in zip(found, bias):
            within(got, a, b, c=c, bias=added, **options)
    h, d = torch.full((1, 1), 1000, dtype=dtype), torch.full((1, 1), -100, dtype=dtype)
    found = torch.func.vmap(lambda v: gemmhub.matmul(h, d, c=h, bias=v, beta=100.0))(bias)
    for got, added in zip(found, bias):
        within(got, h, d, c=h, bias=added, beta=100.0)


def test_numbers_that_require_grad_are_refused(rng):
    a, b = tensors(rng, [(3, 4), (4, 5)])
    plain = a.detach(), b.detach()
    number = torch.tensor(2.0, dtype=F64, requires_grad=True)
    for given in (plain, (a, b)):
        with pytest.raises(InputError, match=r"alpha: a tensor that requires grad.*multiply gemmhub.matmul\(a, b\) by"):
            gemmhub.matmul(*given, alpha=number)
        with pytest.raises(InputError, match=r"beta: a tensor that requires grad.*multiply c, with beta=1 by it"):
            gemmhub.matmul(*given, c=torch.zeros(3, 5, dtype=F64), beta=number)
        with pytest.raises(InputError, match="alpha: a tensor that requires grad"):
            torch.func.vmap(lambda x, given=given: gemmhub.matmul(x, given[1].detach(), alpha=number))(plain[0][None])
    with pytest.raises(InputError, match="alpha: a tensor that requires grad"):
        gemmhub.matmul(plain[0].numpy(), plain[1].numpy(), alpha=number)
    with torch.no_grad():
        assert torch.equal(gemmhub.matmul(*plain, alpha=number), gemmhub.matmul(*plain, alpha=2))
    assert torch.equal(gemmhub.matmul(*plain, alpha=number.detach()), gemmhub.matmul(*plain, alpha=2))


def test_a_new_activation_has_its_own_gradient(monkeypatch, rng):
    """An epilogue that is in the table alone: its formula, and its derivative, on every path."""

    def gradient(x, functions):
        value = functions.tanh(x)
        return 2 - 2 * value * value

    planted = Epilogue("twice_tanh", "", lambda x, functions: 2 * functions.tanh(x), gradient, 2.0, 8.0, "")
    monkeypatch.setitem(EPILOGUES, "twice_tanh", planted)
    a, b = tensors(rng, [(3, 4), (4, 5)])
    bias = torch.zeros(2, 5, dtype=F64)

    def product(a, b, bias=None):
        return gemmhub.matmul(a, b, activation="twice_tanh", bias=bias)

    assert torch.autograd.gradcheck(product, (a, b))
    assert torch.autograd.gradgradcheck(product, (a, b))
    exact = 2 * torch.tanh(a @ b)
    inner = torch.autograd.grad(exact.sum(), a)[0]
    for got, expected in (
        (product(a, b), exact),
        (torch.compile(product, backend="aot_eager")(a, b), exact),
        (torch.func.jvp(product, (a, b), (a, torch.zeros_like(b)))[1], (a @ b) * (2 - exact**2 / 2)),
        (torch.func.grad(lambda x: product(x, b).sum())(a), inner),
        (torch.func.vmap(lambda v: product(a.detach(), b.detach(), v))(bias), exact.expand(2, 3, 5)),
    ):
        np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), rtol=1e-13, atol=1e-14)


def test_float8_operands_that_need_no_gradient(rng):
    (a,) = tensors(rng, [(5, 16)], BF16)
    b = torch.from_numpy(rng.standard_normal((16, 6))).to(torch.float8_e4m3fn)
    out = gemmhub.matmul(a, b, out_dtype=BF16)
    out.sum().backward()
    exact = torch.ones(5, 6, dtype=F64) @ b.double().T
    bounded(a.grad, exact, torch.ones(5, 6, dtype=F64) @ b.double().abs().T, 6, BF16)


def test_no_more_is_saved_than_gradients_need(rng):
    """Of a product with a constant weight the input is not kept; nor is c, nor bias."""
    a, b = tensors(rng, [(3, 4), (4, 5)])
    c, bias = addends(rng, a, b, True, True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape) or x, lambda x: x):
        gemmhub.matmul(a, b.detach(), c=c, beta=2, bias=bias)
        assert saved == [(4, 5)]
        saved.clear()
        gemmhub.matmul(a.detach(), b, activation="relu")
        assert saved == [(3, 4), (3, 5)]


def test_a_gradient_lies_as_its_operand_does(rng):
    (weight,) = tensors(rng, [(5, 4)])
    a = torch.from_numpy(rng.standard_normal((3, 4)))
    seen = []
    transposed = weight.t()
    transposed.register_hook(lambda g: seen.append(g.stride()))
    gemmhub.matmul(a, transposed).sum().backward()
    assert seen == [transposed.stride()]


def test_refusals(rng):
    a, b = tensors(rng, [(3, 4), (4, 5)])
    plain = b.detach()
    with pytest.raises(OutputError, match=r"out: given where a requires grad.*drop out="):
        gemmhub.matmul(a, plain, out=torch.zeros(3, 5, dtype=F64))
    with pytest.raises(InputError, match=r"a: a tensor that requires grad, with a packed b.*no_grad"):
        gemmhub.matmul(a, gemmhub.pack(plain.numpy()))
    with pytest.raises(InputError, match="stream: given with a tensor that requires grad"):
        gemmhub.matmul(a, plain, stream=7)
    planned = gemmhub.plan(plain.T, plain)
    for refuse in (lambda: gemmhub.plan(a, b), lambda: gemmhub.pack(b), lambda: planned(plain.T, b)):
        with pytest.raises(InputError, match=r"requires grad: only gemmhub.matmul records gradients.*no_grad"):
            refuse()
    assert gemmhub.explain(a, b).chosen == "numpy"
    assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b)).ok


def test_without_grad_nothing_is_recorded(rng):
    a, b = tensors(rng, [(3, 4), (4, 5)])
    with torch.no_grad():
        assert not gemmhub.matmul(a, b).requires_grad
    with torch.inference_mode():
        assert gemmhub.matmul(a, b).is_inference()
    assert gemmhub.matmul(a, b).grad_fn is not None


def test_checkpointed_and_accumulated(rng):
    from torch.utils.checkpoint import checkpoint

    a, b = tensors(rng, [(3, 4), (4, 5)])
    for reentrant in (False, True):
        a.grad = b.grad = None
        checkpoint(lambda x: gemmhub.matmul(x, b, activation="gelu"), a, use_reentrant=reentrant).sum().backward()
        first = a.grad.clone()
        gemmhub.matmul(a, b, activation="gelu").sum().backward()
        np.testing.assert_array_equal(a.grad.numpy(), 2 * first.numpy())
