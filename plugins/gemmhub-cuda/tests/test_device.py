"""The plugin on a real NVIDIA GPU, through torch's memory and streams. Skips where there is none."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.candidate import Choice
from gemmhub_cuda.lower import lowered
from gemmhub_cuda.variants import batch, mma, sgemm
from gemmhub_cuda.variants.form import FORMATS, TYPES
from gemmhub_nvidia.testing.torch_cuda import (
    TorchMemory,
    TorchProduct,
    check_equal_results,
    check_fresh_thread,
    check_graph,
    check_nested_calls,
    check_other_context,
    check_streams_and_threads,
    check_users_in_fresh_threads,
)
from problems import problem

from gemmhub.capability import Absent
from gemmhub.testing import Case, ConformanceSuite, check
from gemmhub.testing.cases import draw_few_kernels

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]

LIMIT = 64 * 2**20


@pytest.fixture(autouse=True)
def _kept_kernels(isolated, monkeypatch):
    """Compiled once for all runs, in the user's cache."""
    monkeypatch.delenv("GEMMHUB_CACHE_DIR")


class TestOnDevice(ConformanceSuite):
    backend = CudaBackend
    memory = TorchMemory()


@pytest.fixture(scope="module")
def backend():
    made = CudaBackend()
    found = made.probe()
    if isinstance(found, Absent):
        pytest.fail(f"{found.reason}; {found.remedy}")
    return made


def types(backend):
    """Return the dtypes that this card's kernels take."""
    return ["float32"] if backend.machine.cards[0].capability < mma.OLDEST else ["float32", "bfloat16", "float16"]


def tensors(m, n, k, dtype="float32", a="row", b="row", seed=0):
    """Operands of small integers, whose product is exact in float32; "col": as the transpose of one in rows."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def made(rows, columns, order):
        size = (rows, columns) if order == "row" else (columns, rows)
        x = torch.randint(-2, 3, size, device="cuda", generator=generator).to(getattr(torch, dtype))
        return x if order == "row" else x.t()

    return TorchProduct(made(m, k, a), made(k, n, b), torch.float32)


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
        lowering = lowered(asked, card.capability)
        if Choice(lowering, shape, splits).refusal(card, LIMIT) is None:
            product = tensors(*size, dtype, a, b)
            product.run(backend.prepare(asked, f"{shape.name}/{splits}", LIMIT).run)
            assert product.right, (dtype, a, b, size)
            ran += 1
    if not ran:
        pytest.skip("not on this card, or not in parts")


@pytest.mark.parametrize("size", [(72, 40, 840), (256, 512, 4096), (1031, 776, 1000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_equal_orders_have_equal_bits(backend, dtype, size):
    """Of all candidates, with operands of either storage order."""
    if dtype not in types(backend):
        pytest.skip("not on this card")
    torch.manual_seed(0)
    (m, n, k), seen = size, {}
    a, b = (torch.randn(*shape, device="cuda").to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
    out, stream = torch.empty(m, n, device="cuda"), torch.cuda.current_stream().cuda_stream
    for of_a, of_b in ORDERS:
        asked = problem(m, n, k, dtype, "float32", a=of_a, b=of_b)
        x, y = (z if of == "row" else z.t().contiguous() for z, of in ((a, of_a), (b, of_b)))
        offer = backend.offer(asked)
        for candidate in offer.candidates:
            if candidate.order is not None:
                run = backend.prepare(asked, candidate.name, offer.workspace).run
                run(x.data_ptr(), y.data_ptr(), out.data_ptr(), 1, 0, stream)
                name, bits = seen.setdefault(candidate.order, (candidate.name, out.clone()))
                assert torch.equal(bits.view(torch.int32), out.view(torch.int32)), (candidate, name, of_a, of_b)
    assert seen


def test_random_problems(backend, request):
    """``--random-problems N``: sizes, orders, epilogues, against the error bound of gemmhub."""
    memory, count = TorchMemory(), request.config.getoption("--random-problems")
    for case in draw_few_kernels(count, lambda rng, _: str(rng.choice(types(backend))), aligned=0.6):
        assert check(backend, case, memory).accepted


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16"])
def test_batches(backend, dtype):
    """Batches of small matrices: aligned and odd sizes, all orders, one operand for all; int8 exactly."""
    if dtype not in (*types(backend), "int8") or backend.machine.cards[0].capability < mma.OLDEST:
        pytest.skip("not on this card")
    rng, memory = random.Random(0), TorchMemory()
    names = (dtype, dtype, "int32" if dtype == "int8" else dtype)
    for seed in range(40):
        unit = rng.choice((1, 16))
        m, n, k = (rng.randrange(1, 64 // unit + 1) * unit for _ in range(3))
        case = Case(
            m, n, k, *names, a=rng.choice(("row", "col")), b=rng.choice(("row", "col")), seed=seed,
            batch=(rng.choice((1, 3, 100, 3000)),), a_batch=rng.choice(("full", "one")),
        )  # fmt: skip
        assert check(backend, case, memory).accepted


_SCALES = (
    {}, {"scale_a": "tensor"}, {"scale_a": "row", "scale_b": "column"}, {"scale_a": "1x128", "scale_b": "128x128"},
    {"scale_a": "row", "scale_b": "128x1"},
)  # fmt: skip


def test_float8(backend):
    """Both formats, all orders and scales, aligned and odd sizes, by every candidate."""
    if backend.machine.cards[0].capability < batch.FLOAT8:
        pytest.skip("not on this card")
    rng, memory = random.Random(0), TorchMemory()
    for seed in range(60):
        unit = rng.choice((1, 16))
        m, n, k = (rng.randrange(1, 600 // unit + 1) * unit for _ in range(3))
        case = Case(
            m, n, k, *rng.choices(list(FORMATS), k=2), rng.choice(list(TYPES)), a=rng.choice(("row", "col")),
            b=rng.choice(("row", "col")), operands=rng.choice(_SCALES), batch=rng.choice(((), (3,))), seed=seed,
            every_candidate=True,
        )  # fmt: skip
        assert check(backend, case, memory).accepted


SIZE = (256, 256, 16384)


@pytest.fixture
def split(backend):
    """A kernel that needs workspace."""
    shape = next(x for x in sgemm.SHAPES if (x.m, x.n) == (64, 64))
    return backend.prepare(problem(*SIZE), f"{shape.name}/8", LIMIT).run


def test_graph_capture(split):
    check_graph(split, tensors(*SIZE))


def test_split_k_is_deterministic(split):
    product = tensors(*SIZE)
    product.a.normal_()
    check_equal_results(split, product)


def test_streams_and_threads(split):
    check_streams_and_threads(split, [tensors(*SIZE, seed=i) for i in range(4)])


@pytest.fixture(params=["plain", "split"])
def run_and_size(request, backend, split):
    if request.param == "split":
        return split, SIZE
    asked = problem(64, 64, 64)
    return backend.prepare(asked, backend.offer(asked).first.name, LIMIT).run, (64, 64, 64)


def test_a_fresh_thread(run_and_size):
    run, size = run_and_size
    check_fresh_thread(run, tensors(*size))


def test_another_context(backend, run_and_size):
    run, size = run_and_size
    check_other_context(run, tensors(*size), backend.machine.gpus[0])


def test_nested_calls(run_and_size):
    run, size = run_and_size
    check_nested_calls(run, tensors(*size), tensors(*size, seed=1))


def test_users_in_fresh_threads(backend):
    check_users_in_fresh_threads("cuda", types(backend))


_SANITIZED = """
import torch
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.lower import lowered
from problems import problem
from test_device import tensors, types
backend = CudaBackend()
backend.probe()
for dtype in types(backend):
    for size in ((65, 67, 69), (64, 128, 96), (3, 200, 600), (33, 61, 70)):
        for a, b in (("row", "row"), ("col", "col")):
            asked = problem(*size, dtype, "float32", a=a, b=b)
            for name in backend.offer(asked).names:
                product = tensors(*size, dtype, a, b)
                product.run(backend.prepare(asked, name, 2**26).run)
                assert product.right, (dtype, size, a, b, name)
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizer(tool, monkeypatch):
    """compute-sanitizer, where there is one: accesses out of bounds, races, barriers, uninitialised memory."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("there is no compute-sanitizer")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", _SANITIZED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
