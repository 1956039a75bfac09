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

from gemmhub.capability import Device
from gemmhub.testing import Case, ConformanceSuite, Memory, check

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

LIMIT = 64 * 2**20
SPLIT = problem(m=64, n=64, k=16384, dtype="float16")
"""k so long that some algorithms split it."""


class TorchMemory(Memory):
    """Memory of torch's allocator, work on one of its side streams."""

    device = Device("cuda", 0)

    def __init__(self):
        self._stream = None

    @property
    def stream(self):
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        return self._stream.cuda_stream

    def empty(self, nbytes):
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")

    def write(self, buffer, data):
        buffer.copy_(torch.from_numpy(data))

    def read(self, buffer):
        return buffer.cpu().numpy()

    def view(self, buffer, dtype, shape, strides, offset):
        return buffer.data_ptr() + offset

    def synchronize(self):
        torch.cuda.synchronize()


class TestOnDevice(ConformanceSuite):
    backend = CublasBackend
    memory = TorchMemory()


@pytest.fixture(scope="module")
def backend():
    made = CublasBackend()
    made.probe()
    return made


def prepared(backend, asked, candidate=None):
    return backend.prepare(asked, candidate or backend.candidates(asked)[0], LIMIT)


def splitting(backend, asked=SPLIT):
    """A candidate that needs workspace."""
    for candidate in backend.candidates(asked):
        kernel = prepared(backend, asked, candidate)
        if kernel.workspace_bytes > 1024:
            return kernel
    pytest.skip("the library proposes none with workspace")


class Tensors:
    """Operands of a problem with dense row-major matrices, and the product to compare with."""

    def __init__(self, asked, seed=0):
        kind = getattr(torch, asked.a.dtype.name)
        generator = torch.Generator("cuda").manual_seed(seed)

        def make(*shape):
            return torch.randint(-2, 3, shape, device="cuda", generator=generator).to(kind)

        self.a, self.b = make(asked.m, asked.k), make(asked.k, asked.n)
        self.out = torch.empty(asked.m, asked.n, device="cuda", dtype=kind)
        self.expected = self.a.double() @ self.b.double()
        torch.cuda.synchronize()

    def run(self, kernel, stream=None, **given):
        values = {"c": None, "bias": None, "alpha": 1, "beta": 0, **given}
        stream = torch.cuda.current_stream() if stream is None else stream
        kernel.run(
            self.a.data_ptr(), self.b.data_ptr(), self.out.data_ptr(), values["c"], values["bias"], values["alpha"],
            values["beta"], stream.cuda_stream,
        )  # fmt: skip

    @property
    def right(self):
        torch.cuda.synchronize()
        return torch.equal(self.out.double(), self.expected.to(self.out.dtype).double())


def test_library_is_torchs(backend):
    """Not a second copy of it."""
    assert "loaded already" in backend.probe().features[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_candidate(backend, dtype):
    asked = problem(m=256, n=512, k=1024, dtype=dtype)
    tensors = Tensors(asked)
    for candidate in backend.candidates(asked):
        tensors.out.fill_(float("nan"))
        tensors.run(prepared(backend, asked, candidate))
        assert tensors.right, candidate


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
    """By every algorithm, where few terms leave no room for an approximation."""
    out = dtype if out == "float16" else out
    for activation in ("gelu", "relu", None):
        check(backend, Case(256, 512, k, dtype, dtype, out, bias=bias, activation=activation), TorchMemory())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_relu_keeps_nan(backend, dtype):
    """By every algorithm that is not refused."""
    asked = problem(m=256, n=512, k=1024, dtype=dtype, activation="relu")
    if backend.supports(asked) is not None:
        pytest.skip("no algorithm of this library keeps NaN")
    tensors = Tensors(asked)
    tensors.a[3, 5] = float("nan")
    exact = (tensors.a.double() @ tensors.b.double()).relu()
    expected = exact.to(tensors.out.dtype).double().nan_to_num(-1)
    for candidate in backend.candidates(asked):
        tensors.out.fill_(7)
        tensors.run(prepared(backend, asked, candidate))
        torch.cuda.synchronize()
        assert torch.equal(tensors.out.double().nan_to_num(-1), expected), candidate


def test_configurations_are_rebuilt_by_another_backend(backend):
    """As from a tuning record, in another process."""
    asked = problem(m=256, n=512, k=1024, dtype="float16")
    other = CublasBackend()
    other.probe()
    for candidate in backend.candidates(asked):
        other._analyses.clear()
        assert other.supports(asked) is None
        other._analyses[asked].algorithms[other._analyses[asked].form][:] = []
        assert candidate in prepared(other, asked, candidate).description


def test_graph_capture(backend):
    """The very first call of a kernel with workspace may be captured; replays see new operands."""
    kernel, tensors = splitting(backend), Tensors(SPLIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensors.run(kernel)
    tensors.a.neg_()
    tensors.expected.neg_()
    graph.replay()
    assert tensors.right


def test_replay_beside_eager_work(backend):
    kernel = splitting(backend)
    captured, eager = Tensors(SPLIT), Tensors(SPLIT, 1)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured.run(kernel)
    for _ in range(50):
        graph.replay()
        eager.run(kernel, side)
    assert captured.right
    assert eager.right


def test_streams(backend):
    kernel = splitting(backend)
    streams = [torch.cuda.Stream() for _ in range(4)]
    sets = [Tensors(SPLIT, i) for i in range(4)]
    for _ in range(50):
        for tensors, stream in zip(sets, streams):
            tensors.run(kernel, stream)
    assert all(tensors.right for tensors in sets)


def test_threads_on_one_stream(backend):
    kernel = splitting(backend)
    sets = [Tensors(SPLIT, i) for i in range(4)]
    stream = torch.cuda.Stream()

    def work(tensors):
        for _ in range(100):
            tensors.run(kernel, stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, sets))
    assert all(tensors.right for tensors in sets)


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_a_bias_at_any_address(backend, offset):
    asked = problem(m=64, n=64, k=64, dtype="float16", bias=bias("float16"))
    assert backend.supports(asked) is None
    kernel, tensors = prepared(backend, asked), Tensors(asked)
    vector = torch.arange(64 + offset, device="cuda", dtype=torch.float16)[offset:]
    tensors.run(kernel, bias=vector.data_ptr())
    tensors.expected += vector
    assert tensors.right


def test_alpha_zero_forgets_the_product(backend):
    asked = problem(m=64, n=64, k=64, dtype="float16", alpha_is_one=False, c=operand("float16", 64, 64))
    kernel, tensors = prepared(backend, asked), Tensors(asked)
    tensors.a.fill_(float("nan"))
    c = torch.ones_like(tensors.out)
    tensors.run(kernel, alpha=0, beta=2, c=c.data_ptr())
    tensors.expected = 2 * c.double()
    assert tensors.right


@pytest.mark.parametrize("alpha", [1, 3, -2, 0])
def test_int8_scalars(backend, alpha):
    asked = problem(m=64, n=64, k=64, dtype="int8", out="int32", alpha_is_one=alpha == 1)
    asked = replace(asked, b=operand("int8", 64, 64, "col"))
    if (refusal := backend.supports(asked)) is not None:
        pytest.fail(str(refusal))
    rng = np.random.default_rng(0)
    a, bt = (rng.integers(-128, 128, (64, 64), np.int8) for _ in range(2))
    at, btt = torch.from_numpy(a).cuda(), torch.from_numpy(bt).cuda()
    out = torch.empty(64, 64, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    prepared(backend, asked).run(at.data_ptr(), btt.data_ptr(), out.data_ptr(), None, None, alpha, 0, stream)
    assert np.array_equal(out.cpu().numpy(), alpha * (a.astype(np.int32) @ bt.T.astype(np.int32)))


def test_a_fresh_thread():
    """One that never met CUDA, with a kernel that was prepared elsewhere."""
    made = CublasBackend()
    made.probe()
    asked = problem(m=64, n=64, k=64, dtype="float16")
    kernel, tensors = prepared(made, asked), Tensors(asked)
    stream = torch.cuda.current_stream()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(tensors.run, kernel, stream).result()
    assert tensors.right


def test_every_device(backend):
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            asked = problem(m=64, n=64, k=64, dtype="float16", index=index)
            tensors = Tensors(asked)
            stream = torch.cuda.current_stream()
        # Called while another device is current.
        with torch.cuda.device((index + 1) % torch.cuda.device_count()):
            tensors.run(prepared(backend, asked), stream)
        torch.cuda.synchronize(index)
        assert tensors.right


def test_without_torch():
    """A process that has no cuBLASLt yet finds one, and its first use of CUDA is ours."""
    code = (
        "from gemmhub_cublas.backend import CublasBackend\n"
        "from gemmhub.capability import Ready\n"
        "found = CublasBackend().probe()\n"
        "assert isinstance(found, Ready), found\n"
        "print(found.versions, found.features)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
