"""torch's profiler and its counter of floating-point operations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from products import F32, draw

import gemmhub

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import gemmhub.torch as door  # noqa: E402

M, K, N = 4, 8, 6
ONE = 2 * M * K * N


@pytest.fixture
def pair(rng):
    return torch.from_numpy(draw(rng, (M, K), F32)), torch.from_numpy(draw(rng, (K, N), F32))


def counted(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def test_operations_of_products(pair):
    a, b = pair
    for _ in range(3):
        gemmhub.matmul(a, b)
    assert counted(lambda: gemmhub.matmul(a, b)) == ONE
    assert counted(lambda: gemmhub.matmul(a, b[:, 0])) == 2 * M * K
    assert counted(lambda: gemmhub.matmul(a[0], b[:, 0])) == 2 * K
    assert counted(lambda: gemmhub.matmul(a, b, out=torch.empty(M, N))) == ONE
    assert counted(lambda: gemmhub.matmul(a, b, bias=b[0], activation="swiglu", pre_activation=True)) == ONE
    stack = a.expand(3, 1, M, K)
    assert counted(lambda: gemmhub.matmul(stack, b.expand(5, K, N))) == 15 * ONE


def test_operations_of_gradients(pair):
    a, b = (x.requires_grad_() for x in pair)
    assert counted(lambda: gemmhub.matmul(a, b).sum().backward()) == 3 * ONE
    assert counted(lambda: gemmhub.matmul(a, b.detach(), activation="relu").sum().backward()) == 2 * ONE


@pytest.mark.parametrize("counter_inside", [False, True])
def test_operations_of_torchs_own_functions(counter_inside, pair):
    a, b = pair
    weight = b.t().contiguous()
    for _ in range(3):
        with door.use():
            if counter_inside:
                assert counted(lambda: torch.nn.functional.linear(a, weight, b[0])) == ONE
                assert counted(lambda: a @ b) == ONE
        if not counter_inside:
            with FlopCounterMode(display=False) as counter, door.use():
                torch.nn.functional.linear(a, weight, b[0])
            assert counter.get_total_flops() == ONE


def test_the_first_call_of_a_process_is_counted():
    """The counter copied torch's table before gemmhub added to it."""
    program = (
        "import torch, gemmhub\n"
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "with FlopCounterMode(display=False) as counter:\n"
        "    gemmhub.matmul(torch.ones(4, 8), torch.ones(8, 6))\n"
        "print(counter.get_total_flops())"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == ONE


def ranges(function):
    """The number of gemmhub's ranges in a profile, by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return {x.key: x.count for x in profile.key_averages() if x.key.startswith("gemmhub ")}


def test_ranges_in_a_profile(pair):
    a, b = pair
    name = "gemmhub numpy/default order=unknown"

    def products():
        for _ in range(4):
            gemmhub.matmul(a, b)
        gemmhub.matmul(a, b, bias=b[0], activation="relu")

    with gemmhub.use(backend="numpy"):
        assert ranges(products) == {}
        with gemmhub.use(profile=True):
            assert ranges(products) == {name: 5}
            weight = b.t().clone().requires_grad_()
            assert ranges(lambda: door.Linear.forward(linear(weight), a).sum().backward()) == {name: 2}
            compiled = torch.compile(lambda x, y: gemmhub.matmul(x, y), backend="aot_eager")
            compiled(a, b)
            assert ranges(lambda: compiled(a, b)) == {name: 1}
        assert ranges(products) == {}


def linear(weight):
    layer = door.Linear(K, N, bias=False)
    layer.weight = torch.nn.Parameter(weight.detach())
    return layer


def test_results_do_not_depend_on_ranges(pair):
    a, b = pair
    expected = gemmhub.matmul(a, b)
    with gemmhub.use(profile=True):
        for _ in range(3):
            assert np.array_equal(gemmhub.matmul(a, b), expected)
