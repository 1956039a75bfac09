"""Proofs by small exact products, of kernels that are functions of the host."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from gemmhub_nvidia import proof
from gemmhub_nvidia.driver import KERNELS, Driver, Gpu
from gemmhub_nvidia.nvrtc import CompilerError
from gemmhub_nvidia.testing.fake_kernels import FakeKernels

from gemmhub.capability import Refusal


def memory(address, count, dtype):
    """The elements at an address."""
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype)


class Host:
    """A kernel: right, but for what ``fault`` changes of the result, a float64 matrix."""

    def __init__(self, fault=lambda result: result, beyond=0):
        self.fault, self.beyond, self.runs = fault, beyond, 0

    def __call__(self, problem):
        m, n, k, order = problem.m, problem.n, problem.k, problem.b.layout.order

        def run(a, b, out, alpha, beta, stream, **scales):
            self.runs += 1
            x = memory(a, m * k, problem.a.dtype).reshape(m, k).astype(np.float64)
            y = memory(b, k * n, problem.b.dtype).astype(np.float64)
            y = y.reshape(k, n) if order == "row" else y.reshape(n, k).T
            each, depth = np.arange(k) // 128, -(-k // 128)
            if "scale_a" in scales:
                deep = problem.operands["scale_a"].depth
                factors = memory(scales["scale_a"], m * (depth if deep else 1), np.float32).reshape(m, -1)
                x = x * (factors[:, each] if deep else factors)
            if "scale_b" in scales:
                deep = problem.operands["scale_b"].depth
                factors = memory(scales["scale_b"], n * (depth if deep else 1), np.float32).reshape(-1, n)
                y = y * (factors[each] if deep else factors)
            result = self.fault(x @ y).astype(np.float32).astype(problem.out.dtype)
            memory(out, m * n + self.beyond, problem.out.dtype)[: m * n] = result.ravel()
            if self.beyond:
                memory(out, m * n + self.beyond, problem.out.dtype)[m * n :] = 0

        return run


class Proofs(proof.Proofs):
    """Two products by one kernel."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def trials(self, index, input_type):
        a, b = input_type.split(".")
        out = ("int32", None) if a == "s8" else ("float32", "blocks")
        yield proof.Trial("first", (a, b), "col", *out, self.kernel)
        yield proof.Trial("second", (b, a), "row", "bfloat16", "results", self.kernel)


@pytest.fixture
def gpu():
    return Gpu(Driver(FakeKernels(), {**KERNELS, **proof.FUNCTIONS}), 0)


@pytest.mark.parametrize("input_type", ["e4m3.e4m3", "e4m3.e5m2", "s8.s8"])
def test_a_right_kernel_is_proven_once(gpu, input_type):
    proofs = Proofs(kernel := Host())
    assert proofs.of(0, gpu, input_type) is None
    assert proofs.of(0, gpu, input_type) is None
    assert kernel.runs == 2


def one_element(result):
    result[150, 7] += 1
    return result


def fails(problem):
    raise CompilerError("it does not compile", "report it")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Host(one_element), "1 of 27200 elements differ, the first at (150, 7)"),
        (Host(lambda result: result * 2), "27200 of 27200 elements differ"),
        (Host(beyond=1), "it wrote beyond the result"),
        (fails, "it failed"),
    ],
)
def test_a_wrong_kernel_is_refused(gpu, kernel, words):
    proofs = Proofs(kernel)
    found = proofs.of(0, gpu, "e4m3.e4m3")
    assert isinstance(found, Refusal)
    assert "the first e4m3.e4m3 product on cuda:0, by first, shows it: " in found.reason
    assert words in found.reason
    assert "another backend" in found.remedy
    assert proofs.of(0, gpu, "e4m3.e4m3") is found


def test_memory_is_freed(gpu):
    cuda = gpu.driver.cuda
    before = len(cuda.allocated)
    assert Proofs(Host()).of(0, gpu, "e5m2.e5m2") is None
    assert len(cuda.allocated) == before
