"""Version counters of torch tensors: every write counts, so that autograd detects it."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import small

import gemmhub
from gemmhub.errors import AllocationError, KernelError, OutputError

F32 = np.dtype(np.float32)


@pytest.fixture
def library(library_of):
    return library_of("torch")


@pytest.fixture
def operands(library, backend, rng):
    return [library.array(small(rng, (4, 4))) for _ in range(3)]


def host(torch, x):
    """The same values in a tensor on the CPU."""
    return torch.Tensor(x.host.copy(), x.dtype, torch.device("cpu"))


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_every_call_that_writes_counts(torch, operands, place):
    """Cold and warm; plain, with options, in place; matmul and plans; through views, too."""
    a, b, out = operands if place == "cuda" else [host(torch, x) for x in operands]
    plans = gemmhub.plan(a, b), gemmhub.plan(a, b, out=out), gemmhub.plan(a, b, c=out, beta=1)
    calls = {
        "matmul": lambda x: gemmhub.matmul(a, b, out=x),
        "alpha": lambda x: gemmhub.matmul(a, b, out=x, alpha=2),
        "c in place": lambda x: gemmhub.matmul(a, b, out=x, c=x, beta=1),
        "plan": lambda x: plans[0](a, b, x),
        "plan with out": lambda x: plans[1](a, b, x),
        "plan with c in place": lambda x: plans[2](a, b, x, c=x),
        "an operand": lambda x: gemmhub.matmul(x, b, out=x),
    }
    for name, call in calls.items():
        for x in (out, out, out, out[:], out.detach(), out):
            before = out._version
            call(x)
            assert out._version > before, name
        assert (a._version, b._version) == (0, 0)


def test_what_is_not_written_does_not_count(library, operands, backend, machine):
    a, b, out = operands
    wrong = library.array(np.zeros((4, 3), F32))
    for _ in range(3):
        gemmhub.matmul(a, b), gemmhub.plan(a, b, out=out), gemmhub.explain(a, b, out=out), gemmhub.tune(a, b, out=out)
        with pytest.raises(OutputError):
            gemmhub.matmul(a, b, out=wrong)
        machine.room = 0
        with pytest.raises(AllocationError):
            gemmhub.matmul(a, b, out=a)  # needs a temporary
        machine.room = float("inf")
    assert [x._version for x in (a, b, out, wrong)] == [0] * 4


def test_a_kernel_that_fails_counts(torch, operands, backend):
    """It may have written a part."""
    a, b, out = operands
    planned = gemmhub.plan(a, b, out=out)
    calls = (lambda: gemmhub.matmul(a, b, out=out), lambda: planned(a, b, out))
    for _ in range(3):
        backend.broken = RuntimeError("launch failed")
        for call in calls:
            before = out._version
            with pytest.raises(KernelError):
                call()
            assert out._version > before
        backend.broken = None
        for call in calls:
            call()
