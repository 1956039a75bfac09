"""The plugin on a real NVIDIA GPU, through torch's memory and streams. Skips where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gemmhub_cuda import cost_model, mma, sgemm
from gemmhub_cuda.backend import CudaBackend
from problems import problem

from gemmhub.capability import Absent, Device
from gemmhub.testing import Case, ConformanceSuite, Memory, check

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")

LIMIT = 64 * 2**20


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


@pytest.fixture(autouse=True)
def _kept_kernels(isolated, monkeypatch):
    """Compiled once for all runs, in the user's cache."""
    monkeypatch.delenv("GEMMHUB_CACHE_DIR")


def make():
    """Called when the first test runs, with the variable set that lets unproven kernels run."""
    return CudaBackend()


class TestOnDevice(ConformanceSuite):
    backend = staticmethod(make)
    memory = TorchMemory()


@pytest.fixture(scope="module")
def backend():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMHUB_CUDA_UNPROVEN", "1")
        made = CudaBackend()
        found = made.probe()
    if isinstance(found, Absent):
        pytest.fail(f"{found.reason}; {found.remedy}")
    return made


def types(backend):
    """That this card's kernels take."""
    return ["float32"] if backend.machine.cards[0].capability < mma.OLDEST else ["float32", "bfloat16", "float16"]


class Tensors:
    """Operands of small integers, whose product is exact in float32; "col": as the transpose of one in rows."""

    def __init__(self, m, n, k, dtype="float32", a="row", b="row", seed=0):
        generator = torch.Generator("cuda").manual_seed(seed)

        def made(rows, columns, order):
            size = (rows, columns) if order == "row" else (columns, rows)
            x = torch.randint(-2, 3, size, device="cuda", generator=generator).to(getattr(torch, dtype))
            return x if order == "row" else x.t()

        self.a, self.b = made(m, k, a), made(k, n, b)
        self.out = torch.full((m, n), float("nan"), device="cuda")
        self.exact = self.a.double() @ self.b.double()
        torch.cuda.synchronize()

    def run(self, call, stream=None):
        stream = torch.cuda.current_stream() if stream is None else stream
        places = (self.a.data_ptr(), self.b.data_ptr(), self.out.data_ptr())
        call(*places, None, None, 1, 0, stream.cuda_stream)

    @property
    def right(self):
        torch.cuda.synchronize()
        return torch.equal(self.out.double(), self.exact)


SHAPES = (*sgemm.SHAPES, *mma.SHAPES)
ORDERS = [(a, b) for a in ("row", "col") for b in ("row", "col")]


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("index", range(len(SHAPES)), ids=lambda index: SHAPES[index].name)
def test_every_shape(backend, index, splits):
    """Several tiles, whole ones and parts, aligned and not; orders and dtypes in turn: each is a kernel to compile."""
    shape, card, ran = SHAPES[index], backend.machine.cards[0], 0
    for turn, size in enumerate(((1032, 776, 456), (1031, 777, 455), (1030, 774, 458))):
        dtype = "float32" if isinstance(shape, sgemm.Shape) else ("bfloat16", "float16")[(index + turn) % 2]
        a, b = ORDERS[(index + turn + splits) % 4]
        asked = problem(*size, dtype, "float32", a=a, b=b)
        if dtype not in types(backend):
            continue
        way = backend._analyse(asked).way
        if cost_model.refusal(cost_model.Choice(way, shape, splits), card, LIMIT) is None:
            tensors = Tensors(*size, dtype, a, b)
            tensors.run(backend.prepare(asked, f"{shape.name}/{splits}", LIMIT).run)
            assert tensors.right, (dtype, a, b, size)
            ran += 1
    if not ran:
        pytest.skip("not on this card, or not in parts")


EPILOGUES = (
    {},
    {"alpha": 0.7, "c": "row", "beta": -1.3, "bias": "n", "activation": "relu"},
    {"alpha": 0.7, "c": "out", "beta": -1.3, "bias": "m", "activation": "gelu"},
    {"bias": "n", "activation": "silu"},
)
"""Few, as each is a kernel to compile."""


def test_random_problems(backend, request):
    """``--random-problems N``: sizes, orders, epilogues, against the error bound of gemmhub."""
    rng = np.random.default_rng(0)
    memory, count = TorchMemory(), request.config.getoption("--random-problems")
    for i in range(count):
        longest = 11 if i % 20 == 0 else 8.5
        sizes = [int(2 ** rng.uniform(0, longest)) for _ in range(3)]
        if rng.random() < 0.6:
            sizes = [-(-size // 8) * 8 for size in sizes]
        epilogue = EPILOGUES[rng.integers(len(EPILOGUES))]
        dtype = str(rng.choice(types(backend)))
        case = Case(
            *sizes, dtype, dtype, str(rng.choice([dtype, "float32"])), a=str(rng.choice(["row", "col"])),
            b=str(rng.choice(["row", "col"])), out="row" if epilogue else str(rng.choice(["row", "col"])),
            batch=(3,) if rng.random() < 0.1 else (), seed=i, **epilogue,
        )  # fmt: skip
        assert check(backend, case, memory).accepted


SIZE = (256, 256, 16384)


@pytest.fixture
def split(backend):
    """A kernel that needs workspace."""
    shape = next(x for x in sgemm.SHAPES if (x.m, x.n) == (64, 64))
    return backend.prepare(problem(*SIZE), f"{shape.name}/8", LIMIT).run


def test_graph_capture(split):
    """The very first call of a kernel with workspace may be captured; replays see new operands."""
    tensors = Tensors(*SIZE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensors.run(split)
    tensors.a.neg_()
    tensors.exact.neg_()
    for _ in range(3):
        tensors.out.fill_(float("nan"))
        graph.replay()
        assert tensors.right


def test_split_k_is_deterministic(split):
    tensors = Tensors(*SIZE)
    tensors.a.normal_()
    results = set()
    for _ in range(50):
        tensors.run(split)
        torch.cuda.synchronize()
        results.add(tensors.out.cpu().numpy().tobytes())
    assert len(results) == 1


def test_streams_and_threads(split):
    sets = [Tensors(*SIZE, seed=i) for i in range(4)]
    streams = [torch.cuda.Stream() for _ in sets]
    torch.cuda.synchronize()

    def work(tensors, stream):
        for _ in range(100):
            tensors.run(split, stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, sets, streams))
    assert all(tensors.right for tensors in sets)


def test_a_fresh_thread(backend):
    """One that never met CUDA."""
    asked = problem(64, 64, 64)
    kernel = backend.prepare(asked, backend.candidates(asked)[0], LIMIT)
    tensors = Tensors(64, 64, 64)
    stream = torch.cuda.current_stream()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(tensors.run, kernel.run, stream).result()
    assert tensors.right


_SANITIZED = """
import torch
from gemmhub_cuda.backend import CudaBackend
from problems import problem
from test_device import Tensors, types
backend = CudaBackend()
backend.probe()
for dtype in types(backend):
    for size in ((65, 67, 69), (64, 128, 96), (3, 200, 600)):
        for a, b in (("row", "row"), ("col", "col")):
            asked = problem(*size, dtype, "float32", a=a, b=b)
            for name in backend.candidates(asked):
                tensors = Tensors(*size, dtype, a, b)
                tensors.run(backend.prepare(asked, name, 2**26).run)
                assert tensors.right, (dtype, size, a, b, name)
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizer(tool, monkeypatch):
    """compute-sanitizer, where there is one: accesses out of bounds, races, barriers, memory that nobody wrote."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("there is no compute-sanitizer")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", _SANITIZED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
