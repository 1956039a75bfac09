"""gemmhub.quantize on a real NVIDIA GPU: NumPy's bits, in graphs and on streams. Skips where there is none."""

from __future__ import annotations

import warnings

import gemmhub_cuda.backend
import ml_dtypes
import numpy as np
import pytest
from quantizing import GRANULARITIES, INPUTS, TARGETS, dtype, halfway, hard_numbers, reference, same

import gemmhub

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]


@pytest.fixture(autouse=True)
def _kept_kernels(isolated, monkeypatch):
    """Compiled once for all runs, in the user's cache."""
    monkeypatch.delenv("GEMMHUB_CACHE_DIR")


@pytest.fixture(autouse=True)
def answers(monkeypatch):
    """The answers of the backend to each call: None where it quantized."""
    found = []
    quantize = gemmhub_cuda.backend.CudaBackend.quantize

    def noted(self, task):
        found.append(quantize(self, task))
        return found[-1]

    monkeypatch.setattr(gemmhub_cuda.backend.CudaBackend, "quantize", noted)
    return found


def on_card(x, offset=0):
    """The array on the card, with its strides, ``offset`` elements after the begin of its memory."""
    order = sorted(range(x.ndim), key=lambda axis: x.strides[axis], reverse=True)
    dense = np.ascontiguousarray(x.transpose(order))
    flat = torch.zeros(offset + x.size, dtype=getattr(torch, x.dtype.name), device="cuda")[offset:]
    flat.copy_(torch.from_numpy(dense.reshape(-1).view(np.uint8)).view(flat.dtype))
    return flat.reshape(dense.shape).permute(*np.argsort(order).tolist()) if x.ndim else flat.reshape(())


def on_host(x):
    """The tensor as an array of NumPy."""
    name = str(x.dtype).removeprefix("torch.")
    kind = np.dtype(getattr(ml_dtypes, name, name))
    return x.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().view(kind).reshape(x.shape)


def words(granularity):
    """The granularity in the words of gemmhub.quantize."""
    if "x" not in granularity:
        return {"granularity": granularity}
    return {"granularity": "block", "block": tuple(map(int, granularity.split("x")))}


def drawn_shape(rng):
    """A matrix or a stack of at most a few million elements; at times long and narrow, or a multiple of a tile."""
    unit = int(rng.choice([1, 1, 8, 128]))
    rows, columns = (max(1, int(2 ** rng.uniform(0, 11)) // unit) * unit for _ in range(2))
    if rng.random() < 0.2:
        rows, columns = (int(rng.integers(1, 4)), int(rng.integers(15000, 80000)))[:: int(rng.choice([-1, 1]))]
    return (*rng.integers(1, 4, rng.integers(3)).tolist(), rows, columns)


@pytest.mark.parametrize("turn", range(90))
def test_bits(turn, answers):
    rng = np.random.default_rng()
    granularity, target = GRANULARITIES[turn % 6], TARGETS[turn // 6 % 3]
    name, shape = INPUTS[int(rng.integers(3))], drawn_shape(rng)
    x = hard_numbers(rng, shape, name) if turn % 5 else halfway(rng, shape, name, target)
    if rng.random() < 0.3:
        x = np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
    tensor = on_card(x, int(rng.integers(0, 4)))
    if rng.random() < 0.3 and x.shape[-1] > 1:
        x, tensor = x[..., 1:], tensor[..., 1:]
    scale = None
    if rng.random() < 0.3:
        scale = reference(x, target, granularity)[1]
        scale = (scale * np.exp2(rng.integers(-3, 3, scale.shape))).astype(np.float32)
    given = None if scale is None else torch.from_numpy(np.asarray(scale)).cuda()
    q, of_q = gemmhub.quantize(tensor, target, **words(granularity), scale=given)
    assert answers == [None]
    assert q.dtype == getattr(torch, target)
    assert of_q is given or given is None
    same(on_host(q), on_host(of_q), *reference(x, target, granularity, scale))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_number_of_16_bits(target, name):
    """Several scales divide them: the instructions that convert are tested, and the quotients."""
    x = np.arange(65536, dtype=np.uint16).view(dtype(name)).reshape(1, -1)
    for scale in (1, 0.5, 1 / 3, 3e-5, 7e4, 1e-30, 3e38, 1e-45, -2.7, 0, np.inf, np.nan):
        of_x = np.array([[scale]], np.float32)
        q, _ = gemmhub.quantize(on_card(x), target, "row", scale=torch.from_numpy(of_x).cuda())
        same(on_host(q), of_x, *reference(x, target, "row", of_x))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_graph(granularity, answers):
    """Captured once, replayed with other numbers in the same memory; nothing synchronizes."""
    rng = np.random.default_rng()
    x = on_card(hard_numbers(rng, (300, 700), "bfloat16"))
    gemmhub.quantize(x, "float8_e4m3fn", **words(granularity))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scale = gemmhub.quantize(x, "float8_e4m3fn", **words(granularity))
    assert answers == [None] * 2
    for _ in range(3):
        fresh = hard_numbers(rng, (300, 700), "bfloat16")
        x.copy_(on_card(fresh))
        graph.replay()
        same(on_host(q), on_host(scale), *reference(fresh, "float8_e4m3fn", granularity))
    try:
        with warnings.catch_warnings():  # torch says that its mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        gemmhub.quantize(x, "float8_e4m3fn", **words(granularity))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_current_stream(answers):
    """Work on a stream of the caller's comes after what fills x there."""
    x, stream = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3)
        q, scale = gemmhub.quantize(x, "int8")
        right = bool((q == 127).all()) and scale.item() == np.float32(3) / np.float32(127)
    assert right
    assert answers == [None]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_more_than_2_31_elements(granularity, answers):
    """The last rows are drawn, and compared; the others are zeros."""
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("too little memory")
    rng, columns, last = np.random.default_rng(), 16384 + 8, 128 + 5
    rows = 2**31 // columns + 200
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    # Groups of 128 rows begin at multiples of 128; one group of zeros comes before.
    first = (rows - last) // 128 * 128
    tail = hard_numbers(rng, (rows - first, columns), "bfloat16")
    x[first:] = on_card(tail)
    q, scale = gemmhub.quantize(x, "float8_e4m3fn", **words(granularity))
    assert answers == [None]
    expected, of_tail = reference(tail, "float8_e4m3fn", granularity)
    of_last = scale if granularity in ("tensor", "column") else scale[-of_tail.shape[0] :]
    same(on_host(q[first:]), on_host(of_last), expected, of_tail)
    assert not q[:first].view(torch.uint8).any()


@pytest.mark.parametrize("strides", [(2, 130), (260, 2)])
def test_other_strides_are_left_to_torch(strides, answers):
    x = torch.randn(600, 130, device="cuda").as_strided((64, 64), strides)
    q, scale = gemmhub.quantize(x, "int8", "row")
    assert len(answers) == 1
    assert "contiguous" in answers[0].reason
    expected, of_x = reference(on_host(x), "int8", "row")
    assert np.allclose(on_host(scale), of_x, rtol=1e-6)
    assert np.abs(on_host(q).astype(int) - expected.astype(int)).max() <= 1
