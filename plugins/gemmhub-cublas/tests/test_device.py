"""The plugin on a real GPU, through torch's memory and streams. Skips where there is none."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import bias, operand, problem
from gemmhub_cublas.backend import CublasBackend
from gemmhub_nvidia.testing.torch_cuda import (
    TorchMemory,
    TorchProduct,
    check_fresh_thread,
    check_graph,
    check_graphs_that_are_gone,
    check_nested_calls,
    check_other_context,
    check_users_in_fresh_threads,
)

from gemmhub.capability import Refusal
from gemmhub.testing import Case, ConformanceSuite, check

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

LIMIT = 64 * 2**20
SPLIT = problem(m=64, n=64, k=16384, dtype="float16")
"""k so long that some algorithms split it."""


class TestOnDevice(ConformanceSuite):
    backend = CublasBackend
    memory = TorchMemory()


@pytest.fixture(scope="module")
def backend():
    made = CublasBackend()
    made.probe()
    return made


def prepared(backend, asked, candidate=None):
    return backend.prepare(asked, candidate or backend.offer(asked).first.name, LIMIT)


def splitting(backend, asked=SPLIT):
    """A candidate that needs workspace."""
    for candidate in backend.offer(asked).names:
        kernel = prepared(backend, asked, candidate)
        if kernel.workspace_bytes > 1024:
            return kernel
    pytest.skip("the library proposes none with workspace")


def tensors(asked, seed=0):
    """Operands of a problem with dense row-major matrices, and the product to compare with."""
    kind = getattr(torch, asked.a.dtype.name)
    generator = torch.Generator("cuda").manual_seed(seed)

    def make(*shape):
        return torch.randint(-2, 3, shape, device="cuda", generator=generator).to(kind)

    return TorchProduct(make(asked.m, asked.k), make(asked.k, asked.n), kind)


def test_library_is_torchs(backend):
    """The library that torch has loaded is used, not a second copy."""
    assert "loaded already" in backend.probe().features[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_candidate(backend, dtype):
    asked = problem(m=256, n=512, k=1024, dtype=dtype)
    product = tensors(asked)
    for candidate in backend.offer(asked).names:
        product.out.fill_(float("nan"))
        product.run(prepared(backend, asked, candidate).run)
        assert product.right, candidate


def test_subnormal_halves(backend):
    """Products are aligned by the exponents of their factors, as the error bound allows for."""
    for seed in range(4):
        case = Case(113, 9, 3, "float16", "float16", b="row_odd", batch=(3,), b_batch="missing", data="wide", seed=seed)
        check(backend, case, TorchMemory())


@pytest.mark.parametrize("k", [1, 8, 64])
@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize("bias", [None, "n"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gelu(backend, dtype, bias, out, k):
    """Every algorithm is right where few terms leave no room for an approximation."""
    out = dtype if out == "float16" else out
    for activation in ("gelu_tanh", "relu", None):
        check(backend, Case(256, 512, k, dtype, dtype, out, bias=bias, activation=activation), TorchMemory())


@pytest.mark.parametrize(("precision", "dtype"), [
    ("ieee", "bfloat16"), ("ieee", "float16"), ("tf32", "float32"), ("ieee", "float32"),
])  # fmt: skip
@pytest.mark.parametrize(("m", "n", "k"), [
    (1, 776, 21128), (16, 1408, 968), (24, 1016, 12488), (128, 520, 9608), (256, 128, 20488), (64, 64, 4616),
    (8, 256, 8 * 1201), (32, 96, 32 * 390 + 8), (32, 96, 16 * 769), (48, 64, 30761), (16, 32, 32 * 1024 + 4),
])  # fmt: skip
def test_all_of_k(backend, precision, dtype, m, n, k):
    """Every candidate covers all of K. The library has algorithms that leave out the K remainder with many splits."""
    asked = problem(m=m, n=n, k=k, dtype=dtype, precision=precision)
    product = tensors(asked)
    product.a.fill_(0)
    product.a[:, -64:] = 1
    product.b.fill_(1)
    for candidate in backend.offer(asked).names:
        product.out.fill_(float("nan"))
        product.run(prepared(backend, asked, candidate).run)
        torch.cuda.synchronize()
        assert (product.out == 64).all(), (candidate, product.out.min(), product.out.max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_relu_keeps_nan(backend, dtype):
    """Every algorithm that is not refused is right."""
    asked = problem(m=256, n=512, k=1024, dtype=dtype, activation="relu")
    if isinstance(backend.offer(asked), Refusal):
        pytest.skip("no algorithm of this library keeps NaN")
    product = tensors(asked)
    product.a[3, 5] = float("nan")
    exact = (product.a.double() @ product.b.double()).relu()
    expected = exact.to(product.out.dtype).double().nan_to_num(-1)
    for candidate in backend.offer(asked).names:
        product.out.fill_(7)
        product.run(prepared(backend, asked, candidate).run)
        torch.cuda.synchronize()
        assert torch.equal(product.out.double().nan_to_num(-1), expected), candidate


def test_configurations_are_rebuilt_by_another_backend(backend):
    """Candidates from a tuning record are prepared by name, where the library was never asked for proposals."""
    asked = problem(m=256, n=512, k=1024, dtype="float16")
    other = CublasBackend()
    other.probe()
    for candidate in backend.offer(asked).names:
        assert candidate in prepared(other, asked, candidate).description


def test_graph_capture(backend):
    check_graph(splitting(backend).run, tensors(SPLIT))


def test_graphs_that_are_gone(backend):
    check_graphs_that_are_gone(splitting(backend).run, tensors(SPLIT), backend.machine.gpus[0])


def test_replay_concurrent_with_eager_work(backend):
    kernel = splitting(backend)
    captured, eager = tensors(SPLIT), tensors(SPLIT, 1)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured.run(kernel.run)
    for _ in range(50):
        graph.replay()
        eager.run(kernel.run, side)
    assert captured.right
    assert eager.right


def test_streams(backend):
    kernel = splitting(backend)
    streams = [torch.cuda.Stream() for _ in range(4)]
    sets = [tensors(SPLIT, i) for i in range(4)]
    for _ in range(50):
        for product, stream in zip(sets, streams):
            product.run(kernel.run, stream)
    assert all(product.right for product in sets)


def test_threads_on_one_stream(backend):
    kernel = splitting(backend)
    sets = [tensors(SPLIT, i) for i in range(4)]
    stream = torch.cuda.Stream()

    def work(product):
        for _ in range(100):
            product.run(kernel.run, stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, sets))
    assert all(product.right for product in sets)


@pytest.mark.parametrize("n", [64, 200])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_a_bias_at_any_address(backend, offset, n):
    asked = problem(m=64, n=n, k=64, dtype="float16", bias=bias("float16"))
    kernel, product = prepared(backend, asked), tensors(asked)
    vector = torch.arange(n + offset, device="cuda", dtype=torch.float16)[offset:]
    product.run(kernel.run, bias=vector.data_ptr())
    product.exact += vector
    assert product.right


def test_alpha_zero_forgets_the_product(backend):
    asked = problem(m=64, n=64, k=64, dtype="float16", alpha_is_one=False, c=operand("float16", 64, 64))
    kernel, product = prepared(backend, asked), tensors(asked)
    product.a.fill_(float("nan"))
    c = torch.ones_like(product.out)
    product.run(kernel.run, alpha=0, beta=2, c=c.data_ptr())
    product.exact = 2 * c.double()
    assert product.right


@pytest.mark.parametrize("alpha", [1, 3, -2, 0])
def test_int8_scalars(backend, alpha):
    asked = problem(m=64, n=64, k=64, dtype="int8", out="int32", alpha_is_one=alpha == 1)
    asked = replace(asked, b=operand("int8", 64, 64, "col"))
    if isinstance(refusal := backend.offer(asked), Refusal):
        pytest.fail(str(refusal))
    rng = np.random.default_rng(0)
    a, bt = (rng.integers(-128, 128, (64, 64), np.int8) for _ in range(2))
    at, btt = torch.from_numpy(a).cuda(), torch.from_numpy(bt).cuda()
    out = torch.empty(64, 64, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    prepared(backend, asked).run(at.data_ptr(), btt.data_ptr(), out.data_ptr(), alpha, 0, stream)
    assert np.array_equal(out.cpu().numpy(), alpha * (a.astype(np.int32) @ bt.T.astype(np.int32)))


@pytest.fixture(params=["fast path", "bias", "workspace"])
def kernel_and_problem(request, backend):
    """Of each kind of launch."""
    asked = problem(m=64, n=64, k=64, dtype="float16")
    if request.param == "workspace":
        return splitting(backend), SPLIT
    if request.param == "bias":
        asked = asked.having(bias=bias("float16"))
    return prepared(backend, asked), asked


class Biased(TorchProduct):
    """With a bias of its own, where the problem has one."""

    vector = None

    def run(self, run, stream=None, **given):
        operands = {} if self.vector is None else {"bias": self.vector.data_ptr()}
        super().run(run, stream, **operands, **given)


def biased(asked, seed=0):
    product = tensors(asked, seed)
    product.__class__ = Biased
    if asked.bias is not None:
        product.vector = torch.arange(asked.n, device="cuda", dtype=torch.float16) + seed
        product.exact += product.vector
    return product


def test_a_fresh_thread(kernel_and_problem):
    """One that never met CUDA, with a kernel that was prepared elsewhere, whatever ran before."""
    kernel, asked = kernel_and_problem
    check_fresh_thread(kernel.run, biased(asked))


def test_another_context(backend, kernel_and_problem):
    kernel, asked = kernel_and_problem
    check_other_context(kernel.run, biased(asked), backend.machine.gpus[0])


def test_nested_calls(kernel_and_problem):
    kernel, asked = kernel_and_problem
    check_nested_calls(kernel.run, biased(asked), biased(asked, 1))


def test_users_in_fresh_threads():
    check_users_in_fresh_threads("cublas", ["float16", "float32", "float64"])


def test_every_device(backend):
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            asked = problem(m=64, n=64, k=64, dtype="float16", index=index)
            product = tensors(asked)
            stream = torch.cuda.current_stream()
        # Called while another device is current.
        with torch.cuda.device((index + 1) % torch.cuda.device_count()):
            product.run(prepared(backend, asked).run, stream)
        torch.cuda.synchronize(index)
        assert product.right


def test_without_torch():
    """A process without cuBLASLt finds one, and its first use of CUDA is a product."""
    code = (
        "from gemmhub_cublas.backend import CublasBackend\n"
        "from gemmhub.capability import Ready\n"
        "found = CublasBackend().probe()\n"
        "assert isinstance(found, Ready), found\n"
        "print(found.versions, found.features)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
