"""Training of grouped products on a device whose kernels read groups in place, and refuse every other layout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "devices"), str(Path(__file__).parent)]

from address_backend import Addresses, InPlace, add  # noqa: E402
from on_device import InHostMemory, on_the_device  # noqa: E402
from test_torch_grouped_device import DIVIDED, reference  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import gemmhub  # noqa: E402
from gemmhub import api  # noqa: E402
from gemmhub._doors.torch import grouped, grouped_ops  # noqa: E402
from gemmhub.errors import NoBackendError  # noqa: E402

BF16 = torch.bfloat16


class OnHost(InHostMemory, InPlace):
    """A backend whose kernels read groups in place."""


@pytest.fixture
def backend(monkeypatch):
    """The backend, tensors that are on its device for gemmhub, and offsets that are there for autograd."""
    monkeypatch.setattr(grouped_ops, "_HOST", ())
    with on_the_device(monkeypatch, OnHost("in_place", seconds=1e-7)) as made:
        yield made


def whole(*shape):
    """Small whole numbers: sums of their products are exact in bfloat16."""
    return torch.randint(-1, 2, shape).to(BF16)


def drawn(form, odd=False, sizes=(3, 0, 9), beyond=4):
    """Leaves of a form in the orders that the kernels read, and the ends of groups. The result has 16 rows and 24
    columns in the dimensions that are not divided; where ``odd``, lines of 13 elements. 16 is the
    extent of the dimension that is divided, so that both orders of a result are aligned."""
    total, ends = sum(sizes) + beyond, torch.tensor(sizes).cumsum(0).int()
    side = 13 if odd else 24
    a, b = {
        "ragged m": lambda: (whole(total, 16), whole(3, side, 16).mT),
        "ragged k": lambda: (whole(total, 16).mT, whole(total, 24)),
        "ragged n": lambda: (whole(3, side, 16), whole(total, 16).mT),
    }[form]()
    return a.requires_grad_(), b.requires_grad_(), ends


LAYOUTS = {
    "row-major": lambda x: x,
    "column-major": lambda x: x.mT.contiguous().mT,
    "all the same": lambda x: torch.ones((), dtype=BF16).expand(x.shape),
    "rows the same": lambda x: x[..., :1, :].contiguous().expand(x.shape),
    "columns the same": lambda x: x[..., :1].contiguous().expand(x.shape),
    "an odd address": lambda x: torch.cat([whole(1), x.flatten()])[1:].view(x.shape),
}
"""Layouts of the gradients of results."""


def of_reference(form, a, b, ends, grad, bias=None):
    """The gradients by torch's own products in float64. What is beyond the last end has no bias."""
    leaves = [x.detach().double().requires_grad_() for x in (a, b, bias) if x is not None]
    x, y, *others = leaves
    result = reference(form, x, y, ends.tolist())
    if others:
        last, each = int(ends[-1]), others[0] if others[0].dim() == 2 else others[0].expand(len(ends), -1)
        if form == "ragged m":
            rows = [z.expand(n, -1) for z, n in zip(each, torch.diff(ends, prepend=ends[:1] * 0).tolist())]
            result = result + torch.cat([*rows, each.new_zeros(len(result) - last, each.shape[1])])
        elif form == "ragged n":
            result = result + torch.cat([others[0][:last], others[0][last:] * 0])
        else:
            result = result + each.unsqueeze(1)
    return torch.autograd.grad(result, leaves, grad.double())


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", DIVIDED)
def test_gradients_of_any_layout(form, layout, odd, backend):
    a, b, ends = drawn(form, odd)
    got = gemmhub.grouped_matmul(a, b, ends)
    grad = LAYOUTS[layout](whole(*got.shape))
    grads = torch.autograd.grad(got, (a, b), grad)
    assert len(backend.calls) == 3
    for x, y in zip(grads, of_reference(form, a, b, ends, grad)):
        assert torch.equal(x.double(), y)


def test_sums_have_gradients(backend):
    a, b, ends = drawn("ragged m")
    gemmhub.grouped_matmul(a, b, ends).sum().backward()
    for x, y in zip((a.grad, b.grad), of_reference("ragged m", a, b, ends, torch.ones(16, 24))):
        assert torch.equal(x.double(), y)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(
    ("form", "each"), [(x, y) for x in DIVIDED for y in (False, True) if (x, y) != (DIVIDED[2], 1)]
)
def test_gradients_of_a_bias(form, each, odd, backend):
    a, b, ends = drawn(form, odd)
    n = b.shape[-1]
    bias = (whole(3, n) if each else whole(n)).requires_grad_()
    got = gemmhub.grouped_matmul(a, b, ends, bias=bias)
    grad = whole(*got.shape)
    grads = torch.autograd.grad(got, (a, b, bias), grad)
    for x, y in zip(grads, of_reference(form, a, b, ends, grad, bias)):
        assert torch.equal(x.double(), y)


@pytest.mark.parametrize("form", DIVIDED)
def test_gradients_of_gradients_and_tangents(form, backend):
    a, b, ends = drawn(form)
    got = gemmhub.grouped_matmul(a, b, ends)
    weights, other = whole(*got.shape), whole(*a.shape)
    (of_a,) = torch.autograd.grad(got, a, weights, create_graph=True)
    (of_b,) = torch.autograd.grad(of_a, b, LAYOUTS["column-major" if form != "ragged k" else "row-major"](other))
    x, y = (z.detach().double().requires_grad_() for z in (a, b))
    expected = reference(form, x, y, ends.tolist())
    (own,) = torch.autograd.grad(expected, x, weights.double(), create_graph=True)
    (second,) = torch.autograd.grad(own, y, other.double())
    assert torch.equal(of_b.double(), second)

    def product(x, y):
        return gemmhub.grouped_matmul(x, y, ends)

    tangents = torch.ones((), dtype=BF16).expand(a.shape), torch.ones((), dtype=BF16).expand(b.shape)
    _, tangent = torch.func.jvp(product, (a.detach(), b.detach()), tangents)
    ones = [x.double() for x in tangents]
    with torch.no_grad():
        expected = reference(form, ones[0], y, ends.tolist()) + reference(form, x, ones[1], ends.tolist())
    assert torch.equal(tangent.double(), expected)


@pytest.mark.parametrize("form", DIVIDED)
def test_a_step_without_tokens(form, backend):
    a, b, ends = drawn(form, sizes=(0, 0, 0), beyond=0)
    grouped_matmul = gemmhub.grouped_matmul
    bias = whole(b.shape[-1]).requires_grad_()
    got = grouped_matmul(a, b, ends, bias=bias) if form == "ragged m" else grouped_matmul(a, b, ends)
    got.sum().backward()
    assert got.shape == {"ragged m": (0, 24), "ragged k": (3, 16, 24), "ragged n": (24, 0)}[form]
    assert not any(x.any() for x in (got, a.grad, b.grad))
    assert (bias.grad is None) == (form != "ragged m")
    assert bias.grad is None or not bias.grad.any()
    assert not backend.calls


def test_sums_without_terms_overwrite_a_result(backend):
    a, b, ends = (x.detach() for x in drawn("ragged k", sizes=(0, 0, 0), beyond=0))
    out = torch.full((3, 16, 24), torch.nan, dtype=BF16)
    assert gemmhub.grouped_matmul(a, b, ends, out=out) is out
    assert not out.any()


@pytest.mark.parametrize("beta", [1, 0.5])
def test_sums_without_terms_leave_an_addend(beta, backend):
    """Of 16 bits where it is not multiplied, as that takes a wider dtype."""
    for dtype in (torch.float32, BF16)[: 1 + (beta == 1)]:
        a, b, ends = (x.detach() for x in drawn("ragged k", sizes=(0, 0, 0), beyond=0))
        c = whole(3, 16, 24).to(dtype)
        out = c.clone()
        options = {"beta": beta, "out_dtype": None if dtype is BF16 else "float32"}
        assert gemmhub.grouped_matmul(a, b, ends, c=out, out=out, beta=beta) is out
        assert torch.equal(out, beta * c)
        assert torch.equal(gemmhub.grouped_matmul(a, b, ends, c=c, **options), beta * c)
        if dtype is BF16:
            with pytest.raises(NoBackendError):
                gemmhub.grouped_matmul(a, b, ends, c=out, out=out, beta=0.5)
    assert not backend.calls


def test_compiled_training(backend):
    def layer(a, b, ends, bias):
        return gemmhub.grouped_matmul(a, b, ends, bias=bias).sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for sizes in ((3, 0, 9), (1, 4, 2)):
        a, b, ends = drawn("ragged m", odd=True, sizes=sizes)
        bias = whole(13).requires_grad_()
        compiled(a, b, ends, bias).backward()
        grad = torch.ones(len(a), 13)
        for x, y in zip((a.grad, b.grad, bias.grad), of_reference("ragged m", a, b, ends, grad, bias)):
            assert torch.equal(x.double(), y)


def test_operands_of_a_call_are_not_copied(backend):
    """Only gradients and tangents are: what a caller passes is refused with the remedy."""
    a, b, ends = (x.detach() for x in drawn("ragged m"))
    with pytest.raises(NoBackendError, match="a is contiguous along m, which the groups divide"):
        gemmhub.grouped_matmul(a.mT.contiguous().mT, b, ends)


def tensors(a, b, dtype=BF16, device="cuda:0", turned=False):
    """Fake operands of these shapes, a column-major where ``turned``, and the ends of two groups."""
    left = torch.empty(a[::-1] if turned else a, device=device, dtype=dtype)
    ends = torch.empty(2, dtype=torch.int32, device=device)
    return (left.mT if turned else left), torch.empty(b, device=device, dtype=dtype), ends


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
def test_use_leaves_to_torch_what_no_backend_takes():
    shapes = (16, 32), (2, 32, 16)

    def taken(a, b, ends):
        return grouped.equivalent(a, b, offs=ends) is not None

    api.forget_decisions()
    try:
        made = add(InPlace("in_place", devices=1))
        add(Addresses("others", devices=2))
        with FakeTensorMode():
            assert taken(*tensors(*shapes))
            questions = made.questions
            assert taken(*tensors((48, 64), (2, 64, 8))), "of other sizes"
            assert made.questions == questions, "kept"
            assert not taken(*tensors(*shapes, dtype=torch.float32))
            assert not taken(*tensors(*shapes, device="cuda:1"))
            assert not taken(*tensors(*shapes, turned=True))
            assert not taken(*tensors((16, 32), (32, 16)))
            assert taken(*tensors((16, 32), (32, 16), turned=True))
            a, b, ends = tensors((16, 32), (2, 33, 16))
            assert taken(a, b.narrow(1, 1, 32), ends)
            a, b, ends = tensors((16, 32), (2 * 32 * 16 + 4,))
            assert not taken(a, b.narrow(0, 4, 1024).view(2, 32, 16), ends), "not aligned"
            with gemmhub.use(backend="others"):
                assert not taken(*tensors(*shapes))
            with gemmhub.use(backend="in_place"):
                assert taken(*tensors(*shapes))
    finally:
        gemmhub.reload()


def test_the_compiler_asks_once_while_it_traces():
    """For every number of rows, without a break of the graph."""

    def function(a, b):
        orders = grouped._order(a), grouped._order(b)
        return a + grouped.taken("cuda", 0, (a.dim(), b.dim()), a.dtype, orders)

    api.forget_decisions()
    try:
        made = add(InPlace("in_place"))
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        asked = []
        for rows in (8, 24, 40):
            assert compiled(torch.zeros(rows, 16, dtype=BF16), torch.zeros(2, 16, 8, dtype=BF16)).all()
            assert not compiled(torch.zeros(rows, 16), torch.zeros(2, 16, 8)).any()
            asked.append(made.questions)
        assert asked[0] == asked[2]
    finally:
        gemmhub.reload()
