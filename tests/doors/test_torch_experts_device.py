"""Experts of transformers' models on a device: gemmhub computes what a backend takes, and transformers the rest.

The tensors are torch's own on the CPU, which gemmhub gets as those of a device. The backend has the refusals of
gemmhub-hopper, the only plugin with groups: no float32, aligned rows.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="transformers is not installed")
ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "devices")]
sys.path += [str(ROOT / "plugins" / name) for name in ("gemmhub-hopper", "gemmhub-nvidia")]

from address_backend import Grouped, add  # noqa: E402
from gemmhub_hopper.backend import HopperBackend  # noqa: E402
from gemmhub_hopper.lowering import groups  # noqa: E402
from mixtures import experts_of, reference, routed  # noqa: E402
from on_device import take_tensors  # noqa: E402

import gemmhub  # noqa: E402
import gemmhub.torch as door  # noqa: E402
from gemmhub import Candidate, Offer, Refusal, api  # noqa: E402
from gemmhub._doors.torch import experts  # noqa: E402
from gemmhub.epilogues import ELEMENTWISE  # noqa: E402
from gemmhub.errors import NoBackendError  # noqa: E402

LEFT = "no backend multiplies these groups there"


class AsHopper(Grouped):
    """Takes the grouped products that gemmhub-hopper takes, and no others."""

    takes = HopperBackend.takes

    def offer(self, problem):
        refusal = groups.lowerings(problem) if problem.groups else None
        return refusal if isinstance(refusal, Refusal) else super().offer(problem)

    def kernel(self, problem, candidate):  # results are as aligned as torch's memory on the CPU
        return super().kernel(replace(problem, out=replace(problem.out, alignment=1)), candidate)


class Halves(AsHopper):
    """Takes operands of 16 bits alone."""

    def offer(self, problem):
        wide = problem.a.dtype.itemsize > 2
        return Refusal("operands of 32 bits", "pass operands of 16 bits") if wide else super().offer(problem)


class Ungated(AsHopper):
    """Takes no gated activations."""

    takes: ClassVar = {**HopperBackend.takes, "activation": frozenset(ELEMENTWISE)}


class Rows(AsHopper):
    """Takes groups of rows alone: no gradients of weights."""

    takes: ClassVar = {**HopperBackend.takes, "groups": frozenset({"m"})}


class Pinned(Halves):
    """Has an order of sums."""

    def offer(self, problem):
        offer = super().offer(problem)
        return offer if isinstance(offer, Refusal) else Offer((Candidate("first", self.seconds, order="fma.test"),))


@pytest.fixture
def listed(monkeypatch):
    """List a backend of a class, with tensors that are on its device for gemmhub."""
    take_tensors(monkeypatch)
    monkeypatch.setattr(experts, "_located", lambda x: ("cuda", 0))
    monkeypatch.setattr(experts, "_APART", ())
    monkeypatch.setattr(experts, "_SLOWER", ())
    made = []

    def listed(kind):
        api.forget_decisions()
        made.append(add(kind("grouped", seconds=1e-7)))
        return made[-1]

    yield listed
    assert not any(backend.violations for backend in made)
    gemmhub.reload()


def layer_of(rng, dtype=torch.bfloat16, intermediate=16):
    return experts_of(rng, dtype, spread=0.25, intermediate=intermediate)


def check(layer, given):
    """Compare a result with that in float64."""
    expected, bound = reference(layer, *given, torch.finfo(given[0].dtype).eps)
    got = layer(*given)
    assert ((got.double() - expected).abs() <= bound).all()
    return got


@pytest.mark.parametrize(("kind", "activation"), [(Ungated, None), (AsHopper, "swiglu")])
def test_the_gate_is_fused_where_a_backend_takes_it(kind, activation, listed, rng):
    backend = listed(kind)
    layer, given = layer_of(rng), routed(rng, torch.bfloat16)
    assert door.accelerate(layer).experts == ("",)
    with torch.no_grad():
        check(layer, given)
        check(layer, given)
    assert len(backend.calls) == 4
    assert {x.activation for x in backend.problems} == {activation, None}


def test_training(listed, rng):
    backend = listed(AsHopper)
    layer, given = layer_of(rng), routed(rng, torch.bfloat16)
    door.accelerate(layer)
    got = check(layer, given)
    (got * torch.randn_like(got)).sum().backward()
    assert len(backend.calls) == 5, "of the tokens no gradient is asked"
    assert all(torch.isfinite(x.grad).all() and x.grad.any() for x in layer.parameters())


@pytest.mark.parametrize(
    ("dtype", "intermediate", "reason"), [(torch.float32, 16, "not known to be faster"), (torch.bfloat16, 17, LEFT)]
)
def test_experts_that_no_backend_takes_are_left(dtype, intermediate, reason, listed, monkeypatch, rng):
    backend = listed(AsHopper)
    monkeypatch.setattr(experts, "_SLOWER", (torch.float32,))
    layer = layer_of(rng, dtype, intermediate)
    kind = type(layer)
    accelerated = door.accelerate(layer)
    assert reason in accelerated.left[""]
    assert type(layer) is kind
    check(layer, routed(rng, dtype))
    assert not backend.calls


def test_another_backend_is_named(listed, rng):
    listed(AsHopper)
    assert LEFT in door.accelerate(layer_of(rng), backend="numpy").left[""]


@pytest.mark.parametrize("compiled", [False, True])
def test_experts_that_change_later_are_computed_by_transformers(compiled, listed, rng):
    """A model whose dtype changes after the acceleration, and back."""
    backend = listed(Halves)
    layer = layer_of(rng)
    door.accelerate(layer)
    layer.requires_grad_(False)
    run = torch.compile(layer, backend="eager") if compiled else layer
    layer.float()
    expected, bound = reference(layer, *(given := routed(rng, torch.float32)), torch.finfo(torch.float32).eps)
    assert ((run(*given).double() - expected).abs() <= bound).all()
    assert not backend.calls
    layer.bfloat16()
    given = routed(rng, torch.bfloat16)
    expected, bound = reference(layer, *given, torch.finfo(torch.bfloat16).eps)
    assert ((run(*given).double() - expected).abs() <= bound).all()
    assert len(backend.calls) == 2


def test_a_backend_is_asked_again_after_a_reload(listed, rng):
    layer, given = layer_of(rng), routed(rng, torch.bfloat16)
    listed(AsHopper)
    door.accelerate(layer)
    gemmhub.reload()
    check(layer, given)
    backend = listed(AsHopper)
    check(layer, given)
    assert len(backend.calls) == 2


def test_gradients_that_no_backend_takes(listed, rng):
    """Without gradients a backend computes them; a step of training is transformers' own."""
    backend = listed(Rows)
    layer, given = layer_of(rng), routed(rng, torch.bfloat16)
    door.accelerate(layer)
    with torch.no_grad():
        check(layer, given)
    assert len(backend.calls) == 2
    check(layer, given).sum().backward()
    assert len(backend.calls) == 2
    assert all(x.grad.any() for x in layer.parameters())


def test_pinned_bits_are_not_left_to_transformers(listed, rng):
    listed(Pinned)
    layer = layer_of(rng)
    assert door.accelerate(layer, reproducible="batch").experts == ("",)
    layer.float()
    with pytest.raises(NoBackendError, match="no backend multiplies these groups"):
        layer(*routed(rng, torch.float32))


def test_compiled_experts(listed, rng):
    backend = listed(AsHopper)
    layer, given = layer_of(rng), routed(rng, torch.bfloat16)
    door.accelerate(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(*given), check(layer, given))
    assert len(backend.calls) == 4


def test_autocast_rounds_before_the_question(listed, rng):
    """Experts of float32 are products of bfloat16 there."""
    backend = listed(AsHopper)
    layer, given = layer_of(rng), routed(rng, torch.float32)
    door.accelerate(layer)
    layer.float()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        layer(*given)
    assert len(backend.calls) == 2
