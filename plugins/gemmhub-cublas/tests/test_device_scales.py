"""Products with quantization scales on a real GPU: granularities, results, candidates. Skips where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_cublas.backend import CublasBackend
from gemmhub_nvidia.testing.torch_cuda import TorchMemory
from scaled import E4M3, E5M2, GRANULARITIES, ScaledProduct

import gemmhub
from gemmhub.backend import Offer, answer
from gemmhub.capability import Refusal

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

LIMIT = 64 * 2**20
SCALED = [name for name in GRANULARITIES if name != "none"]
SIZES = [
    (256, 512, 1024), (1, 4096, 1024), (16, 48, 16), (17, 64, 400), (333, 144, 4112), (4, 272, 128), (68, 1040, 7184),
    (128, 7168, 2048), (1000, 128, 16384),
]  # fmt: skip
"""(m, n, k): of a row-major result the library takes any m, and multiples of 16 for n and k."""


@pytest.fixture(scope="module")
def backend():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this card has no float8")
    made = CublasBackend()
    made.probe()
    return made


@pytest.fixture(scope="module")
def memory():
    return TorchMemory()


def offered(backend, made):
    offer = answer(backend, made.problem)
    if isinstance(offer, Refusal):
        assert "failed a proof" not in offer.reason, offer
        pytest.skip(offer.reason)
    return offer


def prepared(backend, made, candidate=None):
    kernel = backend.prepare(made.problem, candidate or offered(backend, made).first.name, LIMIT)
    assert not isinstance(kernel, Refusal), kernel
    return kernel


def check(backend, made, seeds=(1,), every=True):
    """Every candidate is right, for operands that were drawn after it was prepared."""
    names = offered(backend, made).names
    for name in names if every else names[:1]:
        run = prepared(backend, made, name).run
        for seed in seeds:
            made.fill(seed)
            made.run(run)
            assert made.worst() <= 1, name


def test_a_card_with_float8_takes_every_granularity(backend, memory):
    """Nothing that the library documents for this card is refused: a proof that fails would hide here."""
    others = torch.cuda.get_device_capability() == (9, 0) and backend.machine.library.version >= "12.9"
    for name in SCALED:
        if others or name.startswith("tensor"):
            offer = answer(backend, ScaledProduct(memory, 256, 512, 1024, name).problem)
            assert isinstance(offer, Offer), (name, offer)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("granularity", SCALED)
def test_sizes(backend, memory, granularity, sizes):
    """The dtypes of results in turn, as a float64 reference of all takes minutes."""
    out = ("bfloat16", "float16", "float32")[(SIZES.index(sizes) + SCALED.index(granularity)) % 3]
    check(backend, ScaledProduct(memory, *sizes, granularity, out))


@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)], ids=str)
@pytest.mark.parametrize("granularity", SCALED)
def test_dtypes_and_orders(backend, memory, granularity, dtypes, d):
    check(backend, ScaledProduct(memory, 144, 272, 656, granularity, dtypes=dtypes, d=d))


@pytest.mark.parametrize("options", [
    {"alpha": 0.7}, {"alpha": 0, "c": True}, {"c": True}, {"bias": "bfloat16"}, {"activation": "relu"},
    {"activation": "gelu_tanh", "bias": "bfloat16"}, {"out": "float16", "bias": "float16"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("granularity", SCALED)
def test_epilogues(backend, memory, granularity, options):
    check(backend, ScaledProduct(memory, 144, 272, 656, granularity, **options))


@pytest.mark.parametrize(("dtypes", "out"), [((E4M3, E4M3), E4M3), ((E4M3, E5M2), E5M2), ((E5M2, E4M3), E4M3)])
@pytest.mark.parametrize("options", [
    {}, {"scale_out": True}, {"amax": True}, {"scale_out": True, "amax": True}, {"bias": "float16", "amax": True},
    {"scale_out": True, "amax": True, "activation": "relu"}, {"alpha": 300}, {"c": True, "amax": True},
    {"c": True, "bias": "bfloat16"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("granularity", ["none", "tensor"])
def test_float8_results(backend, memory, granularity, options, dtypes, out):
    check(backend, ScaledProduct(memory, 144, 272, 656, granularity, out, dtypes, **options))


@pytest.mark.parametrize("granularity", SCALED)
def test_all_of_k(backend, memory, granularity):
    """Every candidate adds the K remainder, also those with many splits."""
    made = ScaledProduct(memory, 16, 1040, 16 * 1321, granularity, "float32")
    for name in offered(backend, made).names:
        made.fill(3)
        made.a.values[:, :-16] = 0
        made.a.fill(made.a.values.copy(), None)
        made.run(prepared(backend, made, name).run)
        assert made.worst() <= 1, name


@pytest.mark.parametrize("granularity", SCALED)
def test_another_number_of_rows(backend, memory, granularity):
    """The kernel that was prepared runs them, where the layout of the scales does not depend on m."""
    first = ScaledProduct(memory, 64, 512, 1024, granularity)
    kernel = prepared(backend, first)
    for m in (72, 80, 304):
        asked = ScaledProduct(memory, m, 512, 1024, granularity)
        run = kernel.with_rows(m)
        assert run is None or not granularity.startswith("1x128")
        asked.run(run or prepared(backend, asked).run)
        assert asked.worst() <= 1


@pytest.mark.parametrize("granularity", SCALED)
def test_graphs(backend, memory, granularity):
    """A captured product reads the scales that are there when it is replayed."""
    made = ScaledProduct(memory, 64, 512, 4096, granularity)
    kernel = prepared(backend, made)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        made.launch(kernel.run, side.cuda_stream)
    for seed in (1, 2):
        made.fill(seed)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert made.worst() <= 1


def test_a_proof_during_a_capture(memory):
    """The first product with scales of a process may come while a stream is captured."""
    made, fresh = ScaledProduct(memory, 64, 512, 1024, "tensor"), CublasBackend()
    fresh.probe()
    plain = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain += 1
        offer = answer(fresh, made.problem)
    graph.replay()
    assert isinstance(offer, Offer), offer
    torch.cuda.synchronize()
    assert (plain == 2).all()


@pytest.mark.parametrize(("of_a", "of_b"), [
    ({}, {}), ({"granularity": "row"}, {"granularity": "column"}),
    ({"granularity": "block"}, {"granularity": "block", "block": (128, 128)}),
    ({"granularity": "block"}, {"granularity": "block", "block": (128, 1)}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("m", [64, 200])
def test_quantized_tensors(backend, of_a, of_b, m):
    """gemmhub.quantize and gemmhub.matmul on torch's tensors, the scales of blocks stored as the library reads them."""
    generator = torch.Generator("cuda").manual_seed(m)
    x = torch.randn(m, 640, device="cuda", generator=generator)
    w = torch.randn(640, 512, device="cuda", generator=generator)
    q, scale_a = gemmhub.quantize(x, "float8_e4m3fn", **of_a)
    p, scale_b = gemmhub.quantize(w, "float8_e4m3fn", **of_b)
    p = p.t().contiguous().t()
    if "block" in of_b:
        scale_a = scale_a.t().contiguous().t()
        if of_b["block"] == (128, 128):
            stored = torch.zeros(4, 8, device="cuda")  # 5 blocks of k, padded to 8
            stored[:, :5] = scale_b.t()
            scale_b = stored[:, :5].t()
    options = {"out_dtype": "bfloat16", "scale_a": scale_a, "scale_b": scale_b}
    try:
        got = gemmhub.matmul(q, p, backend="cublas", **options)
    except gemmhub.NoBackendError as error:
        pytest.skip(str(error).splitlines()[0])
    verdict = gemmhub.spot_check(q, p, got, **{name: options[name] for name in ("scale_a", "scale_b")})
    assert verdict.ok, verdict
    exact = (x.double() @ w.double()).cpu().numpy()
    assert np.abs(got.double().cpu().numpy() - exact).max() < 0.05 * np.abs(exact).max()
