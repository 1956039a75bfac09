"""Operands and epilogues of torch's products beside c, bias and elementwise functions: recorded, traced, transformed.

Values are small integers and powers of two, of which every product, sum and gradient is exact: results are compared
bit for bit with torch's own autograd in float64.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from products import F32 as NUMPY_F32
from products import ratio

import gemmhub
from gemmhub import scale_layouts
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import DTypeError, InputError, OutputError, ShapeError
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.operands import OPERANDS

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402
from gemmhub._doors.torch import arguments, node, scales  # noqa: E402

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
GATED = tuple(name for name, x in EPILOGUES.items() if x.arity == 2)
M, K, N = 5, 300, 260
SCALE_A = {"one": (1,), "rows": (M,), "row": (M, 1), "blocks of k": (1, 3), "blocks": (M, 3)}
SCALE_B = {"scalar": (), "columns": (N,), "blocks of k": (3, 1), "blocks of n": (1, 3), "blocks": (3, 3)}
STACKS = {"of each matrix": ((2, 1, 1), (2, 1, 1)), "of rows and blocks": ((2, M, 1), (3, 3))}


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def whole(rng, *shape, dtype=F32):
    return torch.from_numpy(rng.integers(-3, 4, shape)).to(dtype)


def powers(rng, shape):
    return torch.from_numpy(np.asarray(2.0 ** rng.integers(-1, 2, shape))).to(F32)


def composed(a, b, activation=None, scale_a=None, scale_b=None, scale_out=None, bias=None, alpha=1):
    """The product by torch's own operators, and the argument of its activation."""
    left = a if scale_a is None else a * scale_layouts.spread(scales.matrix("scale_a", scale_a), a.shape)
    right = b if scale_b is None else b * scale_layouts.spread(scales.matrix("scale_b", scale_b), b.shape)
    x = alpha * (left @ right)
    x = x if bias is None else x + bias
    functions = {None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu}
    if activation in functions:
        y = functions[activation](x)
    else:
        gate, up = (x[..., ::2], x[..., 1::2]) if activation.endswith("interleaved") else x.chunk(2, -1)
        y = {"s": torch.nn.functional.silu, "g": torch.nn.functional.gelu}[activation[0]](gate) * up
    return y if scale_out is None else y * scale_out.reshape(()), x


def exact_gradients(options, tensors, grad, of_argument=None):
    """Those of the composed product in float64."""
    wide = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    out, argument = composed(**wide, **options)
    loss = (out * grad.double()).sum()
    if of_argument is not None:
        loss = loss + (argument * of_argument.double()).sum()
    return out.detach(), dict(zip(wide, torch.autograd.grad(loss, list(wide.values()))))


def check(tensors, options, rng, call=gemmhub.matmul):
    """Values and gradients of each operand, in its dtype and shape."""
    given = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    out = call(given.pop("a"), given.pop("b"), **given, **options)
    grad = whole(rng, *out.shape, dtype=out.dtype)
    exact, gradients = exact_gradients(options, tensors, grad)
    assert torch.equal(out.detach().double(), exact)
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    again = call(leaves["a"], leaves["b"], **{name: x for name, x in leaves.items() if name not in "ab"}, **options)
    again.backward(grad)
    for name, x in leaves.items():
        assert (x.grad.dtype, x.grad.shape) == (x.dtype, x.shape)
        assert torch.equal(x.grad.double(), gradients[name]), name


def drawn(rng, of_a, of_b, batch=()):
    return {
        "a": whole(rng, *batch, M, K), "b": whole(rng, K, N), "scale_a": powers(rng, of_a),
        "scale_b": powers(rng, of_b), "scale_out": powers(rng, (1,)), "bias": whole(rng, N),
    }  # fmt: skip


def test_scales_of_every_form(rng):
    """Eager; relu of a negative scale_out has its argument's sign, not its result's."""
    for of_a, of_b in zip(itertools.cycle(SCALE_A.values()), SCALE_B.values()):
        tensors = drawn(rng, of_a, of_b)
        check(tensors, {"alpha": 2}, rng)
        tensors["scale_out"] = -tensors["scale_out"]
        check(tensors, {"activation": "relu"}, rng)
    for name in ("scale_a", "scale_b"):  # one operand has scales, the other none
        one = {x: v for x, v in tensors.items() if x in ("a", "b", name)}
        check(one, {}, rng)
    for of_a, of_b in STACKS.values():
        check(drawn(rng, of_a, of_b, (2,)), {}, rng)


@pytest.mark.parametrize("way", ["operator", "compiled"])
def test_scales_in_graphs(way, rng):
    call = {"operator": torch.ops.gemmhub.matmul, "compiled": torch.compile(gemmhub.matmul, backend="aot_eager")}[way]
    for of_a, of_b in (((M,), (N,)), ((M, 3), (3, 3))):
        check(drawn(rng, of_a, of_b), {"alpha": 2}, rng, call)


def test_gradients_of_scaled_16_bits(rng):
    """A factor along the inner dimension of a gradient's product is not rounded to 16 bits with its operand."""
    a, b = (torch.from_numpy(rng.standard_normal(shape)).to(BF16) for shape in ((4, 64), (64, 6)))
    factors = torch.from_numpy(rng.uniform(1, 2, (6,))).to(F32)
    grad = torch.from_numpy(rng.standard_normal((4, 6))).to(BF16)
    a.requires_grad_()
    gemmhub.matmul(a, b, scale_b=factors).backward(grad)
    right = (b.float() * factors).T
    got, left, right = (x.detach().double().numpy() for x in (a.grad, grad, right))
    kind = gemmhub.dtypes.as_dtype("bfloat16")
    assert ratio(got.astype(kind), left.astype(kind), right.astype(NUMPY_F32), out_dtype=kind) <= 1


@pytest.mark.parametrize("activation", GATED)
def test_gated_functions(activation, rng):
    a, b, bias = (whole(rng, *shape, dtype=F64).requires_grad_() for shape in ((3, 4), (4, 6), (6,)))

    def f(a, b, bias):
        return gemmhub.matmul(a, b, bias=bias, activation=activation)

    assert torch.autograd.gradcheck(f, (a, b, bias))
    assert torch.autograd.gradgradcheck(f, (a, b, bias))
    assert f(a, b, bias).shape == (3, 3)
    want, _ = composed(a, b, activation, bias=bias)
    np.testing.assert_allclose(f(a, b, bias).detach(), want.detach(), rtol=1e-14, atol=1e-14)
    tangent = torch.func.jvp(lambda a: f(a, b, bias), (a,), (a,))[1]
    np.testing.assert_allclose(
        tangent.detach(), torch.func.jvp(lambda a: composed(a, b, activation, bias=bias)[0], (a,), (a,))[1].detach()
    )
    got = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)(a, b, bias)
    assert torch.equal(got, f(a, b, bias))
    a, b, bias = (x.detach() for x in (a, b, bias))
    for call in (f, torch.compile(f, backend="eager")):
        with pytest.raises(Exception, match=rf"{activation} with (5|s\d+) columns.*even number"):
            call(a, b[:, :5], bias[:5])
    with pytest.raises(ShapeError, match="vector b"):
        torch.ops.gemmhub.matmul(a.to("meta"), b[:, 0].to("meta"), activation=activation)


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "silu", "swiglu"])
def test_the_pre_activation(activation, rng):
    """Values and gradients through both outputs, and those of gradients; eager, compiled, transformed."""
    a, b, c = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((3, 4), (4, 6), (3, 6)))

    def f(a, b, c):
        return gemmhub.matmul(a, b, c=c, beta=0.5, activation=activation, pre_activation=True)

    given = [x.requires_grad_() for x in (a, b, c)]
    assert torch.autograd.gradcheck(f, given)
    assert torch.autograd.gradgradcheck(f, given)
    plain = f(*(x.detach() for x in given))
    ways = [f, torch.compile(f, backend="aot_eager", fullgraph=True), lambda *x: torch.func.vjp(f, *x)[0]]
    for way in ways:
        for got, expected in zip(way(*given), plain):
            assert torch.equal(got.detach(), expected)
    assert torch.equal(plain[1], gemmhub.matmul(a.detach(), b.detach(), c=c.detach(), beta=0.5))
    stacked = torch.func.vmap(f, (0, None, None))(a.detach().expand(2, 3, 4), b.detach(), c.detach())
    for got, expected in zip(stacked, plain):
        assert torch.equal(got, expected.expand(2, *expected.shape))
    out, before = (x.detach() for x in f(*given))
    value, tangent = torch.func.jvp(f, tuple(x.detach() for x in given), tuple(x.detach() for x in given))
    assert torch.equal(value[0], out)
    np.testing.assert_allclose(tangent[1], 2 * before - 0.5 * c.detach(), rtol=1e-13, atol=1e-13)


def test_a_pre_activation_of_16_bits_is_rounded_once(rng):
    """The one that is saved is float32; the one that is returned has the result's dtype, recorded or not."""
    a, b = (torch.from_numpy(rng.standard_normal(shape)).to(BF16) for shape in ((4, 33), (33, 6)))
    plain = gemmhub.matmul(a, b, activation="gelu", pre_activation=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append((x.shape, x.dtype)) or x, lambda x: x):
        recorded = gemmhub.matmul(a.requires_grad_(), b, activation="gelu", pre_activation=True)
    assert saved == [((33, 6), BF16), ((4, 6), F32)]
    for got, expected in zip(recorded, plain):
        assert got.dtype is BF16
        assert torch.equal(got.detach(), expected)


@pytest.fixture
def products(monkeypatch):
    """The products that the NumPy backend computes, as their shapes."""
    made = []
    whole = gemmhub.api.matmul

    def matmul(a, b, **options):
        made.append((a.shape[-2], a.shape[-1], b.shape[-1]))
        return whole(a, b, **options)

    for module in (gemmhub.api, arguments.api):
        monkeypatch.setattr(module, "matmul", matmul)
    monkeypatch.setattr("gemmhub._doors.torch.node.EAGER", replace(node.EAGER, run=matmul, multiply=matmul))
    return made


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu"])
@pytest.mark.parametrize("options", [{}, {"pre_activation": True}], ids=str)
def test_backward_computes_no_product_twice(options, activation, products, rng):
    """Three products for a training step: the result, and the gradients of both operands."""
    a, b = whole(rng, 4, 8).requires_grad_(), whole(rng, 8, 6).requires_grad_()
    out = gemmhub.matmul(a, b, activation=activation, **options)
    (out[0] if options else out).sum().backward()
    assert products == [(4, 8, 6), (4, 6, 8), (8, 4, 6)]


def test_where_no_backend_writes_it_backward_computes_it_again(products, monkeypatch, rng):
    takes = {name: x for name, x in NumpyBackend.takes.items() if name != "pre_activation"}
    monkeypatch.setattr(NumpyBackend, "takes", takes)
    gemmhub.reload()
    try:
        a, b = whole(rng, 4, 8).requires_grad_(), whole(rng, 8, 6)
        gemmhub.matmul(a, b, activation="gelu").sum().backward()
        assert products == [(4, 8, 6), (4, 8, 6), (4, 6, 8)]
        with pytest.raises(gemmhub.NoBackendError, match="pre-activation"):
            gemmhub.matmul(a, b, activation="gelu", pre_activation=True)
    finally:
        monkeypatch.undo()
        gemmhub.reload()


def test_what_is_written(rng):
    """Into tensors: eager, in a graph, with out and without."""
    a, b = whole(rng, 4, 8), whole(rng, 8, 6)
    want, before = composed(a, b, "relu")

    def f(a, b, amax, pre, out=None):
        return gemmhub.matmul(a, b, out=out, activation="relu", amax=amax, pre_activation=pre)

    for call in (f, torch.compile(f, backend="aot_eager", fullgraph=True)):
        for out in (None, torch.zeros(4, 6)):
            amax, pre = torch.zeros(1), torch.zeros(4, 6)
            versions = amax._version, pre._version
            got = call(a, b, amax, pre, out)
            assert out is None or torch.equal(out, want)
            assert torch.equal(got, want)
            assert torch.equal(pre, before)
            assert amax.item() == want.abs().max()
            assert amax._version > versions[0]
            assert pre._version > versions[1]
        got, pre = call(a, b, amax, True)
        assert torch.equal(got, want)
        assert torch.equal(pre, before)


def test_refusals_of_what_autograd_cannot_record(rng):
    a, b = whole(rng, 4, 8), whole(rng, 8, 6)
    pre, amax = torch.zeros(4, 6), torch.zeros(1)

    def f(a, b, **options):
        return gemmhub.matmul(a, b, **options)

    for call in (f, torch.compile(f, backend="eager", fullgraph=True)):
        for given, options, words in (
            (a.clone().requires_grad_(), {"pre_activation": pre}, r"pre_activation: .*pre_activation=True"),
            (a.clone().requires_grad_(), {"amax": amax}, r"amax: .*no gradient.*no_grad"),
            (a, {"pre_activation": pre.clone().requires_grad_()}, r"pre_activation: .*pre_activation=True"),
            (a, {"amax": amax.clone().requires_grad_()}, r"amax: .*no gradient.*no_grad"),
            (a.clone().requires_grad_(), {"out": pre}, "out: given where a requires grad.*drop out="),
        ):
            torch._dynamo.reset()
            with pytest.raises(OutputError if call is f else Exception, match=words):
                call(given, b, **options)
        with torch.no_grad():
            call(a.clone().requires_grad_(), b, pre_activation=pre)
    with pytest.raises(DTypeError, match="scale_a: dtype"):
        gemmhub.matmul(a.requires_grad_(), b, scale_a=torch.ones(1, dtype=F64))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's, of its own look at gradients
def test_operators_are_what_torch_checks_them_for(rng):
    a, b = whole(rng, 5, 8), whole(rng, 8, 6)
    read = {"c": whole(rng, 5, 6), "bias": whole(rng, 6), "scale_a": powers(rng, 5), "scale_b": powers(rng, 6),
            "scale_out": powers(rng, 1)}  # fmt: skip
    assert read.keys() == {name for name, row in OPERANDS.items() if not row.written}
    for name, activation in (("matmul", "swiglu"), ("matmul_pre_activation", "gelu")):
        operator = getattr(torch.ops.gemmhub, name).default
        given = {x: v.clone().requires_grad_() for x, v in read.items()}
        leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
        found = torch.library.opcheck(operator, leaves, {**given, "beta": 1.0, "activation": activation})
        assert set(found.values()) == {"SUCCESS"}
    written = {"pre_activation": torch.zeros(5, 6), "amax": torch.zeros(1)}
    operator = torch.ops.gemmhub.matmul_out.default
    found = torch.library.opcheck(operator, (a, b, torch.zeros(5, 6)), {"scale_out": read["scale_out"], **written})
    assert set(found.values()) == {"SUCCESS"}


def test_mapped_scales(rng):
    """Each product of a mapped function has its own scales, or all share them; scales of results follow."""
    a, b = whole(rng, 3, 4, 8), whole(rng, 8, 6)
    for name, shape in (
        ("scale_a", (4,)),
        ("scale_a", (1, 1)),
        ("scale_b", (6,)),
        ("scale_b", ()),
        ("scale_out", (1,)),
    ):
        own = powers(rng, (3, *shape))

        def f(a, x, name=name):
            return gemmhub.matmul(a, b, activation="relu", **{name: x})

        for found, dims in ((torch.func.vmap(f)(a, own), 0), (torch.func.vmap(f, (0, None))(a, own[0]), None)):
            for i in range(3):
                assert torch.equal(found[i], f(a[i], own[i] if dims == 0 else own[0]))
        found = torch.func.vmap(lambda x: gemmhub.matmul(a[0], b, **{name: x}))(own)  # noqa: B023
        for i in range(3):
            assert torch.equal(found[i], gemmhub.matmul(a[0], b, **{name: own[i]}))


def test_tangents_of_scales(rng):
    a, b, scale = whole(rng, 4, 8), whole(rng, 8, 6), powers(rng, (6,))
    along = powers(rng, (6,))
    out, tangent = torch.func.jvp(lambda s: gemmhub.matmul(a, b, scale_b=s), (scale,), (along,))
    assert torch.equal(out, gemmhub.matmul(a, b, scale_b=scale))
    assert torch.equal(tangent, gemmhub.matmul(a, b, scale_b=along))
    one = torch.ones(1)
    out, tangent = torch.func.jvp(lambda s: gemmhub.matmul(a, b, activation="relu", scale_out=s), (one,), (2 * one,))
    assert torch.equal(tangent, 2 * out)


def test_autocast_leaves_scales(rng):
    a, b, scale = whole(rng, 4, 8), whole(rng, 8, 6), powers(rng, (4,))
    compiled = torch.compile(gemmhub.matmul, backend="eager")
    for call in (gemmhub.matmul, torch.ops.gemmhub.matmul, compiled):
        for recorded in (False, True):
            x = a.clone().requires_grad_(recorded)
            with torch.autocast("cpu", dtype=BF16):
                got = call(x, b, scale_a=scale)
            assert got.dtype is BF16
            assert torch.equal(got.detach(), (scale[:, None] * (a @ b)).to(BF16))
    with torch.autocast("cpu", dtype=BF16):
        out, before = gemmhub.matmul(a, b, activation="relu", pre_activation=True)
        assert out.dtype is before.dtype is BF16


@pytest.mark.parametrize(
    ("activation", "theirs"),
    [("gelu", torch.nn.GELU()), ("gelu_tanh", torch.nn.GELU(approximate="tanh")), ("silu", torch.nn.SiLU()),
     ("relu", torch.nn.ReLU()), ("tanh", torch.nn.functional.tanh), ("sigmoid", torch.nn.functional.sigmoid),
     ("leaky_relu", torch.nn.functional.leaky_relu), ("hardswish", torch.nn.functional.hardswish),
     ("relu_squared", lambda x: torch.relu(x).square())],
)  # fmt: skip
def test_names_are_those_of_torchs_functions(activation, theirs, rng):
    """The name gelu is torch's default, the erf form; results are within a few roundings of float64."""
    a, b = whole(rng, 4, 8, dtype=F64) / 4, whole(rng, 8, 6, dtype=F64)
    np.testing.assert_array_max_ulp(
        gemmhub.matmul(a, b, activation=activation).abs().numpy() + 1, theirs(a @ b).abs().numpy() + 1, 16
    )
    layer = door.Linear(8, 6, activation=activation, dtype=F64, bias=False)
    with torch.no_grad():
        layer.weight.copy_(b.t())
    assert torch.equal(layer(a).detach(), gemmhub.matmul(a, b, activation=activation))


def test_a_gated_layer(rng):
    layer = door.Linear(8, 6, activation="swiglu")
    x = whole(rng, 4, 8).requires_grad_()
    assert layer(x).shape == (4, 3)
    layer(x).sum().backward()
    assert layer.weight.grad.shape == (6, 8)
    with pytest.raises(InputError, match="activation: 'swish'; allowed: relu"):
        door.Linear(8, 6, activation="swish")


def test_repeated_calls_take_the_fast_path(rng):
    """With every operand, read and written, and with other tensors of the same kind."""
    for _ in range(4):
        tensors = drawn(rng, (M, 3), (3, 3))
        a, b = tensors.pop("a"), tensors.pop("b")
        options = {**tensors, "c": whole(rng, M, N), "beta": 2.0, "activation": "relu"}
        written = {"pre_activation": torch.zeros(M, N), "amax": torch.zeros(1)}
        got = gemmhub.matmul(a, b, **options, **written)
        plain = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        before = {"pre_activation": np.zeros((M, N), NUMPY_F32), "amax": np.zeros(1, NUMPY_F32)}
        assert np.array_equal(got, gemmhub.matmul(a.numpy(), b.numpy(), **plain, **before))
        assert all(np.array_equal(written[name], x) for name, x in before.items())
    path = gemmhub.api.fast_path(torch.Tensor)
    assert path.call(a, b, None, {**options, **written}) is not None
    shared = {**options, "pre_activation": options["c"], "amax": written["amax"]}
    with pytest.raises(OutputError, match="pre_activation: it shares memory with c"):
        gemmhub.matmul(a, b, **shared)
    strided = whole(rng, 2 * N)[::2]
    for x in (strided, strided.reshape(1, N), whole(rng, M, 2)[:, :1]):  # of a bias that no view makes a vector, too
        for _ in range(3):
            assert torch.equal(gemmhub.matmul(a, b, bias=x), a @ b + x)


@pytest.mark.parametrize("other", [torch.tensor(2.0, requires_grad=True), torch.tensor([2.0]), np.array([2.0])])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_repeated_call_takes_no_other_number(name, other, rng):
    a, b, c = whole(rng, 5, 7), whole(rng, 7, 6).requires_grad_(), whole(rng, 5, 6)
    options = {"c": c, "beta": 2.0, "alpha": 2.0}
    for _ in range(3):
        gemmhub.matmul(a, b, **options)
    with pytest.raises(InputError) as caught:
        gemmhub.matmul(a, b, **{**options, name: other})
    assert caught.value.argument == name


@pytest.mark.parametrize(
    ("integers", "options", "error", "argument"),
    [
        (True, {"scale_out": torch.full((3,), 0.3)}, DTypeError, "scale_out"),
        (True, {"bias": torch.ones(3, N, dtype=torch.int32), "activation": "gelu"}, DTypeError, "activation"),
        (False, {"bias": torch.ones(3, M, N)}, ShapeError, "bias"),
        (False, {"bias": torch.ones(3, 4)}, ShapeError, "bias"),
        (False, {"bias": torch.ones(3, N, dtype=F64)}, DTypeError, "bias"),
        (False, {"scale_out": torch.ones(3, 4)}, ShapeError, "scale_out"),
    ],
)
def test_what_is_mapped_is_checked_as_in_one_product(integers, options, error, argument, rng):
    a, b = whole(rng, 3, M, K), whole(rng, K, N)
    a, b = (x.to(torch.int8) if integers else x for x in (a, b))
    (name,) = (name for name, x in options.items() if isinstance(x, torch.Tensor))
    others = {key: x for key, x in options.items() if key != name}
    with pytest.raises(error) as caught:
        torch.vmap(lambda x, y: gemmhub.matmul(x, b, **others, **{name: y}))(a, options[name])
    assert caught.value.argument == argument


def test_a_gradient_that_torch_conjugates_lazily(rng):
    a, b = (torch.complex(whole(rng, *shape), whole(rng, *shape)) for shape in ((5, 8), (8, 6)))
    found = []
    for product in (gemmhub.matmul, torch.matmul):
        x = a.clone().requires_grad_()
        (product(x, b).conj() * torch.arange(6)).real.sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)
