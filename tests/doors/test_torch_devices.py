"""Operands on different devices: each call with one on the device meta is refused, cold, warm, traced and recorded."""

from __future__ import annotations

import re

import pytest

import gemmhub
from gemmhub.errors import DeviceError, InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402

M, K, N = 3, 4, 5


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def on(device, *shape):
    return torch.full(shape, 2.0, device=device)


def operands(**options):
    """The operands a and b on the CPU, and those of the options, of these shapes."""
    shapes = {"a": (M, K), "b": (K, N), **options}
    return {name: on("cpu", *shape) for name, shape in shapes.items()}


ADDED = {"bias": (N,), "c": (M, N), "out": (M, N), "scale_a": (M,), "scale_b": (N,), "scale_out": (1,)}
WRITTEN = {"pre_activation": (M, N), "amax": (1,)}


def call(function, given):
    others = {name: x for name, x in given.items() if name not in ("a", "b")}
    others |= {"beta": 1.0} if "c" in others else {}
    return function(given["a"], given["b"], **others)


def refused(function, given, names):
    """Each of these operands alone on the device meta is refused by its name; and so is each alone on the CPU."""
    for name in names:
        with pytest.raises(DeviceError, match=f"^{name}: {name} is torch on meta, .* is torch on cpu") as caught:
            call(function, {**given, name: given[name].to("meta")})
        assert caught.value.argument == name
    everything_else = {name: x.to("meta") for name, x in given.items()}
    with pytest.raises(DeviceError, match=r"^b: b is torch on meta, a is torch on cpu"):
        call(function, {**everything_else, "a": given["a"]})


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("added", [None, *ADDED, *WRITTEN])
def test_products(added, warm):
    given = operands(**({} if added is None else {added: {**ADDED, **WRITTEN}[added]}))
    kept = {name: x.clone() for name, x in given.items()}
    for _ in range(4 if warm else 0):
        call(gemmhub.matmul, given)
    if warm and added in ("out", *WRITTEN):
        kept[added] = given[added].clone()
    refused(gemmhub.matmul, given, given)
    assert all(torch.equal(given[name], x) for name, x in kept.items()), "nothing is written"


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("added", [None, "bias", "c", "scale_a"])
@pytest.mark.parametrize("recorded", ["a", "b"])
def test_recorded_products(recorded, added, warm):
    given = operands(**({} if added is None else {added: ADDED[added]}))
    given[recorded].requires_grad_()
    for _ in range(4 if warm else 0):
        call(gemmhub.matmul, given).sum().backward()
    refused(gemmhub.matmul, given, given)


def test_all_operands_on_meta_give_a_shape():
    given = {name: x.to("meta") for name, x in operands(bias=(N,), c=(M, N)).items()}
    for _ in range(3):
        result = call(gemmhub.matmul, given)
        assert (result.device.type, result.shape) == ("meta", (M, N))
        out = on("meta", M, N)
        assert call(gemmhub.matmul, {**given, "out": out}) is out
    assert gemmhub.linear(given["a"], on("meta", N, K), on("meta", N)).is_meta
    for other in (gemmhub.explain, gemmhub.plan):
        with pytest.raises(InputError, match="without memory"):
            call(other, given)


LEFT, RIGHT, NEXT = (M, K), (K, N), (N, M)
EINSUM = ("operands[0]", "operands[1]", "operands[2]")
OTHERS = {
    "linear": (gemmhub.linear, {"x": LEFT, "weight": (N, K), "bias": (N,)}),
    "bmm": (gemmhub.bmm, {"a": (2, M, K), "b": (2, K, N)}),
    "tensordot": (lambda a, b: gemmhub.tensordot(a, b, 1), {"a": LEFT, "b": RIGHT}),
    "vecdot": (gemmhub.vecdot, {"a": LEFT, "b": LEFT}),
    "einsum": (lambda *x: gemmhub.einsum("ij,jk->ik", *x), dict(zip(EINSUM, (LEFT, RIGHT)))),
    "einsum of elements": (lambda *x: gemmhub.einsum("ij,ij->ij", *x), dict(zip(EINSUM, (LEFT, LEFT)))),
    "einsum of three": (lambda *x: gemmhub.einsum("ij,jk,kl->il", *x), dict(zip(EINSUM, (LEFT, RIGHT, NEXT)))),
    "explain": (gemmhub.explain, {"a": LEFT, "b": RIGHT}),
    "plan": (gemmhub.plan, {"a": LEFT, "b": RIGHT}),
    "compare": (gemmhub.compare, {"a": LEFT, "b": RIGHT}),
    "tune": (gemmhub.tune, {"a": LEFT, "b": RIGHT}),
    "spot_check": (lambda a, b: gemmhub.spot_check(a, b, on("cpu", M, N)), {"a": LEFT, "b": RIGHT}),
    "operator": (torch.ops.gemmhub.matmul, {"a": LEFT, "b": RIGHT}),
    "operator with bias": (
        lambda a, b, bias: torch.ops.gemmhub.matmul(a, b, bias=bias), {"a": LEFT, "b": RIGHT, "bias": (N,)},
    ),
    "operator with out": (torch.ops.gemmhub.matmul_out, {"a": LEFT, "b": RIGHT, "out": (M, N)}),
}  # fmt: skip


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_calls(name, warm):
    function, shapes = OTHERS[name]
    given = {name: on("cpu", *shape) for name, shape in shapes.items()}
    for _ in range(3 if warm and name not in ("compare", "tune") else 0):
        function(*given.values())
    for argument in given:
        mixed = {**given, argument: given[argument].to("meta")}
        with pytest.raises(DeviceError, match=f"^{re.escape(argument)}: .* is torch on meta"):
            function(*mixed.values())


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("added", [None, "bias", "c", "out"])
def test_compiled_products(added, fullgraph):
    given = operands(**({} if added is None else {added: ADDED[added]}))
    compiled = torch.compile(lambda given: call(gemmhub.matmul, given), backend="aot_eager", fullgraph=fullgraph)
    compiled(given)
    for name in given:
        # Without a graph break torch's compiler raises an error of its own, with ours in its text.
        with pytest.raises(Exception if fullgraph else DeviceError, match="DeviceError" if fullgraph else "on meta"):
            compiled({**given, name: given[name].to("meta")})


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("names", [("weight",), ("bias",), ("weight", "bias")])
def test_layers_whose_weights_are_not_loaded(names, packed, grad):
    layer = torch.nn.Linear(K, N)
    x, loaded = on("cpu", M, K), dict(layer.named_parameters())
    door.accelerate(layer, packed=packed)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            expected = layer(x)
        for name in names:
            setattr(layer, name, torch.nn.Parameter(loaded[name].detach().to("meta")))
        for _ in range(2):
            with pytest.raises(DeviceError, match="on meta"):
                layer(x)
        for name in names:
            setattr(layer, name, loaded[name])
        assert torch.equal(layer(x), expected)
