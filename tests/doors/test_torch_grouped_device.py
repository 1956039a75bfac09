"""grouped_matmul of torch tensors by offsets on a device: gradients, torch's compiler, and nothing that waits for it.

The tensors are torch's own on the CPU. gemmhub gets them as if they were on a device: as addresses, for a backend that
takes groups.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "devices")]

from address_backend import Grouped, add  # noqa: E402
from grouped import operands  # noqa: E402
from on_device import InHostMemory, on_the_device  # noqa: E402
from products import F64  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gemmhub  # noqa: E402
from gemmhub import api  # noqa: E402
from gemmhub._doors.torch import grouped, mode  # noqa: E402
from gemmhub.errors import NoBackendError  # noqa: E402

DIVIDED = ("ragged m", "ragged k", "ragged n")
WAITING = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")
"""Methods of tensors that wait for a device."""


class OnHost(InHostMemory, Grouped):
    """A backend that takes groups."""


@pytest.fixture
def backend(monkeypatch):
    """The backend, and tensors that are on its device for gemmhub."""
    with on_the_device(monkeypatch, OnHost("grouped", seconds=1e-7)) as made:
        yield made


@pytest.fixture
def never_waiting(monkeypatch):
    """Tensors of integers, as offsets are, that raise where their numbers are read."""
    for name in WAITING:
        original = getattr(torch.Tensor, name)

        def refused(self, *arguments, name=name, original=original):
            if self.dtype is torch.int32:
                raise AssertionError(f"{name} of offsets waits for the device")
            return original(self, *arguments)

        monkeypatch.setattr(torch.Tensor, name, refused)


def leaves(rng, form, sizes=(2, 0, 3), **more):
    a, b, ends = operands(rng, form, F64, list(sizes), **{"m": 4, "n": 4, "k": 3, **more})
    return *(torch.from_numpy(x).requires_grad_() for x in (a, b)), torch.from_numpy(ends)


def reference(form, a, b, ends):
    """The grouped product by torch's own single ones."""
    spans = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends)]
    if form == "ragged k":
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if form == "ragged m":
        return torch.cat([*(a[span] @ x for span, x in zip(spans, b)), a.new_zeros(len(a) - ends[-1], b.shape[-1])])
    rest = a.new_zeros(a.shape[1], b.shape[1] - ends[-1])
    return torch.cat([*(x @ b[:, span] for span, x in zip(spans, a)), rest], 1)


@pytest.mark.parametrize("form", DIVIDED)
def test_one_kernel_and_gradients(form, backend, rng, never_waiting):
    a, b, offsets = leaves(rng, form)
    got = gemmhub.grouped_matmul(a, b, offsets)
    weights = torch.randn_like(got)
    (got * weights).sum().backward()
    assert len(backend.calls) == 3
    divided = [problem.groups.divides for problem in backend.problems]
    assert divided == {"ragged m": ["m", "m", "k"], "ragged k": ["k", "n", "m"], "ragged n": ["n", "k", "n"]}[form]
    assert set(backend.streams) == {7}


@pytest.mark.parametrize("form", DIVIDED)
def test_gradients_are_those_of_single_products(form, backend, rng):
    a, b, offsets = leaves(rng, form)
    got = gemmhub.grouped_matmul(a, b, offsets)
    weights = torch.randn_like(got)
    (got * weights).sum().backward()
    x, y = (z.detach().clone().requires_grad_() for z in (a, b))
    expected = reference(form, x, y, offsets.tolist())
    (expected * weights).sum().backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close((a.grad, b.grad), (x.grad, y.grad))


@pytest.mark.parametrize("form", DIVIDED)
def test_gradients_of_gradients(form, backend, rng):
    a, b, offsets = leaves(rng, form, (2, 0, 1), m=2, n=2, k=2, beyond=1)
    bias = torch.randn(b.shape[-1], dtype=torch.float64, requires_grad=True)

    def function(a, b, bias):
        return gemmhub.grouped_matmul(a, b, offsets, bias=bias, activation="silu", alpha=-1.5)

    assert torch.autograd.gradcheck(function, (a, b, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (a, b, bias), fast_mode=True)


@pytest.mark.parametrize("form", DIVIDED)
def test_torchs_own_checks_and_compiled_functions(form, backend, rng):
    a, b, offsets = leaves(rng, form)
    found = torch.library.opcheck(torch.ops.gemmhub.grouped_matmul.default, (a, b, offsets))
    assert set(found.values()) == {"SUCCESS"}

    def layer(a, b, offsets):
        return gemmhub.grouped_matmul(a, b, offsets, activation="gelu").sin().sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for sizes in ((2, 0, 3), (4, 1, 1)):
        a, b, offsets = leaves(rng, form, sizes)
        value = compiled(a, b, offsets)
        value.backward()
        own = a.grad.clone(), b.grad.clone()
        a.grad = b.grad = None
        expected = layer(a, b, offsets)
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(own, (a.grad, b.grad))
    assert backend.calls


class Operators(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.append(str(function))
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("form", DIVIDED)
def test_tensors_of_cuda_without_elements(form):
    """What torch's compiler traces for a CUDA device: grouped products, and no operator that reads offsets."""
    shapes = {"ragged m": ((64, 32), (3, 32, 16)), "ragged k": ((32, 64), (64, 16)), "ragged n": ((3, 32, 8), (8, 64))}
    with FakeTensorMode(), torch.no_grad():
        a, b = (torch.empty(x, device="cuda:0", dtype=torch.bfloat16) for x in shapes[form])
        offsets = torch.empty(3, dtype=torch.int32, device="cuda:0")
        with Operators() as seen:
            got = gemmhub.grouped_matmul(a, b, offsets, activation="silu")
            left = gemmhub.grouped_matmul(got, b.mT, offsets)
            right = gemmhub.grouped_matmul(a.mT, got, offsets)
        assert (got.device.type, left.shape, right.shape) == ("cuda", a.shape, b.shape)
    assert set(seen.names) <= {"gemmhub.grouped_matmul.default", "aten.transpose.int", "prim.device.default"}
    assert seen.names.count("gemmhub.grouped_matmul.default") == 3


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
def test_use_takes_torchs_own_on_cuda_where_a_backend_takes_groups(monkeypatch):
    with FakeTensorMode():
        a, b = (torch.empty(x, device="cuda:0", dtype=torch.bfloat16) for x in ((16, 32), (2, 32, 16)))
        offsets = torch.empty(2, dtype=torch.int32, device="cuda:0")
        assert grouped.equivalent(a, b, offs=offsets) is None
        try:
            backend = add(Grouped("grouped"))
            api.forget_decisions()
            assert grouped.equivalent(a, b, offs=offsets) == ((a, b, offsets), {})
            assert grouped.equivalent(a, b, offs=offsets.long()) is None
            assert grouped.equivalent(a, b, offs=torch.empty(2, dtype=torch.int32)) is None
            assert (
                grouped.equivalent(a, b, offs=torch.empty_strided((2,), (2,), dtype=torch.int32, device="cuda:0"))
                is None
            )
            monkeypatch.setattr(type(backend), "takes", {**backend.takes, "groups": frozenset({"k"})})
            api.forget_decisions()
            assert grouped.equivalent(a, b, offs=offsets) is None
            assert grouped.equivalent(a.mT, a, offs=offsets) is not None
        finally:
            gemmhub.reload()
    assert mode.grouped is grouped


def test_no_backend(backend, rng, monkeypatch):
    monkeypatch.setattr(Grouped, "takes", {name: x for name, x in Grouped.takes.items() if name != "groups"})
    a, b, offsets = leaves(rng, "ragged m")
    with pytest.raises(NoBackendError, match="pass offsets on the host"):
        gemmhub.grouped_matmul(a, b, offsets)
