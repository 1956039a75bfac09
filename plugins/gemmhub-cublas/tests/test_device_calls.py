"""gemmhub.matmul, plan and tune on a real GPU, with the arrays that users have. Skips where there is none."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gemmhub
from gemmhub.errors import AllocationError, InputError

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")
pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

M, N, K = 96, 160, 224


@pytest.fixture(autouse=True)
def cublas_only(monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    with gemmhub.use(backend="cublas"):
        yield
    torch.cuda.synchronize()


def tensors(dtype=torch.bfloat16, m=M, n=N, k=K, seed=0):
    """Small integers: every product is exact, on every device, in every order."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def make(*shape):
        return torch.randint(-2, 3, shape, device="cuda", generator=generator).to(dtype)

    a, b = make(m, k), make(k, n)
    return a, b, torch.empty(m, n, device="cuda", dtype=dtype)


def expected(a, b):
    return (a.double() @ b.double()).to(a.dtype)


def busy():
    """Keep the current stream busy for some milliseconds."""
    torch.cuda._sleep(20_000_000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch(dtype):
    a, b, out = tensors(dtype)
    result = gemmhub.matmul(a, b)
    assert result.device == a.device
    assert result.dtype == dtype
    assert torch.equal(result, expected(a, b))
    assert gemmhub.matmul(a.t().contiguous().t(), b, out=out) is out
    assert torch.equal(out, expected(a, b))


OPTIONS = {
    "bias": {"bias": True},
    "scaled": {"alpha": 2, "beta": -1.0, "c": True},
    "in place": {"beta": 1, "c": "out"},
    "out_dtype": {"out_dtype": "float32"},
}


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, with_out):
    """Calls and plans with options are right the first time and later, with other operands each time."""
    planned = None
    for turn in range(4):
        a, b, out = tensors(seed=turn)
        given, wanted = dict(OPTIONS[name]), a.double() @ b.double()
        if "out_dtype" in given:
            out = out.float()
        if not with_out and given.get("c") != "out":
            out = None
        wanted = wanted * given.get("alpha", 1)
        if "c" in given:
            c = torch.randint(-2, 3, (M, N), device="cuda").to(a.dtype)
            given["c"] = out.copy_(c) if given["c"] == "out" else c
            wanted += given["beta"] * c.double()
        if "bias" in given:
            given["bias"] = torch.randint(-2, 3, (N,), device="cuda").to(a.dtype)
            wanted += given["bias"].double()
        wanted = wanted.to(torch.float32 if "out_dtype" in given else a.dtype)
        result = gemmhub.matmul(a, b, out=out, **given)
        assert torch.equal(result, wanted)
        if given.get("c") is out and out is not None:
            out.copy_(c)
        planned = planned or gemmhub.plan(a, b, out=out, **given)
        assert torch.equal(planned(a, b, out, **{x: given[x] for x in ("c", "bias") if x in given}), wanted)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    a, b = (cupy.asarray(rng.integers(-2, 3, shape).astype(np.float16)) for shape in ((M, K), (K, N)))
    for result in (gemmhub.matmul(a, b), gemmhub.matmul(a, b, out=cupy.empty((M, N), cupy.float16))):
        assert type(result) is cupy.ndarray
        assert cupy.array_equal(result, (a.astype("d") @ b.astype("d")).astype(cupy.float16))


def test_jax():
    pytest.importorskip("cupy")
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("this jax has no GPU")
    a, b = (jax.device_put(np.full(shape, 2, "float32"), device).astype("bfloat16") for shape in ((M, K), (K, N)))
    result = gemmhub.matmul(a, b)
    assert isinstance(result, jax.Array)
    assert result.dtype == a.dtype
    assert float(result.astype("float32").max()) == float(result.astype("float32").min()) == 4 * K


def test_numba():
    pytest.importorskip("cupy")
    cuda = pytest.importorskip("numba.cuda")
    if not cuda.is_available():
        pytest.skip("numba sees no CUDA device")
    a, b = (cuda.to_device(np.full(shape, 2, np.float32)) for shape in ((M, K), (K, N)))
    result = gemmhub.matmul(a, b)
    assert type(result).__module__.startswith("numba")
    assert (result.copy_to_host() == 4 * K).all()


@pytest.mark.parametrize("way", ["matmul", "new", "plan"])
def test_returns_before_the_device_is_done(way):
    """A call returns while the work before it still runs."""
    a, b, out = tensors()
    plan = gemmhub.plan(a, b, out=out)
    calls = {
        "matmul": lambda: gemmhub.matmul(a, b, out=out), "new": lambda: gemmhub.matmul(a, b),
        "plan": lambda: plan(a, b, out),
    }  # fmt: skip
    calls[way]()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    busy()
    result = calls[way]()
    done.record()
    assert not done.query()
    assert torch.equal(result, expected(a, b))


def test_the_current_stream_is_used():
    a, b, out = tensors()
    gemmhub.matmul(a, b, out=out)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        busy()
        a.neg_()  # after the wait, on the side stream: a call on any other stream would not see it
        gemmhub.matmul(a, b, out=out)
    side.synchronize()
    assert torch.equal(out, expected(a, b))


def test_a_stream_is_named():
    a, b, out = tensors()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        busy()
        a.neg_()
    gemmhub.matmul(a, b, out=out, stream=side)
    result = gemmhub.matmul(a, b, stream=side.cuda_stream)
    side.synchronize()
    assert torch.equal(out, expected(a, b))
    assert torch.equal(result, expected(a, b))


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("k", [K, 16384])
def test_torch_graph(planned, k):
    a, b, out = tensors(m=64, n=64, k=k)
    call = gemmhub.plan(a, b, out=out) if planned else lambda a, b, out: gemmhub.matmul(a, b, out=out)
    call(a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(a, b, out)
    a.neg_()
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected(a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_relu_and_a_bias_at_any_address_in_a_graph(offset, dtype):
    """A replay reads the bias where it lay in the captured call, and NaN stays NaN."""
    a, b, out = tensors(dtype)
    vector = torch.randint(-2, 3, (N + offset,), device="cuda").to(dtype)[offset:]
    plan = gemmhub.plan(a, b, out=out, bias=vector, activation="relu")

    def right():
        exact = ((a.double() @ b.double()) + vector.double()).relu().to(dtype)
        return torch.equal(out.isnan(), exact.isnan()) and torch.equal(out.nan_to_num(7), exact.nan_to_num(7))

    for call in (lambda: gemmhub.matmul(a, b, out=out, bias=vector, activation="relu"),
                 lambda: plan(a, b, out, bias=vector)):  # fmt: skip
        out.fill_(float("nan"))
        call()
        assert right()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        a.neg_()
        vector.neg_()
        a[3, 5], vector[7] = float("nan"), float("nan")
        out.fill_(1)
        graph.replay()
        assert right()
        assert out[3].isnan().all()
        assert out[:, 7].isnan().all()
        a[3, 5], vector[7] = 1, 1


@pytest.mark.parametrize("planned", [False, True])
def test_cupy_graph(planned):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    a, b = (cupy.asarray(rng.integers(-2, 3, shape).astype(np.float16)) for shape in ((M, K), (K, N)))
    out = cupy.empty((M, N), cupy.float16)
    call = gemmhub.plan(a, b, out=out) if planned else lambda a, b, out: gemmhub.matmul(a, b, out=out)
    call(a, b, out)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        call(a, b, out)
        graph = stream.end_capture()
        cupy.negative(a, out=a)
        out.fill(0)
        graph.launch(stream)
    stream.synchronize()
    assert cupy.array_equal(out, (a.astype("d") @ b.astype("d")).astype(cupy.float16))


@pytest.mark.parametrize("k", [K, 16384])
def test_threads_and_streams(k):
    wrong = []

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(40):
                a, b, out = tensors(m=64, n=64, k=k, seed=100 * seed + turn % 4)
                gemmhub.matmul(a, b, out=out)
                if not torch.equal(out, expected(a, b)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    for index in range(torch.cuda.device_count()):
        place = f"cuda:{index}"
        a, b, out = (x.to(place) for x in tensors())
        for _ in range(3):
            out.zero_()
            assert torch.equal(gemmhub.matmul(a, b, out=out), expected(a, b))
            result = gemmhub.matmul(a, b)
            assert result.device == a.device
            assert torch.equal(result, expected(a, b))
    with pytest.raises(gemmhub.DeviceError):
        gemmhub.matmul(tensors()[0].to("cuda:0"), tensors()[1].to("cuda:1"))


def test_out_of_memory():
    a, b = (torch.zeros(shape, device="cuda", dtype=torch.float64) for shape in ((2**15, 1), (1, 2**15)))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        with pytest.raises(AllocationError, match="8 GiB"):
            gemmhub.matmul(a, b)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    x, y, out = tensors()
    assert torch.equal(gemmhub.matmul(x, y, out=out), expected(x, y))


def test_a_giant_is_decided():
    """The library divides by zero where it is asked for algorithms of such sizes."""
    a, b = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in ((2**20, 1), (1, 2**20)))
    assert gemmhub.explain(a, b).chosen == "cublas"
    with pytest.raises(AllocationError, match="GiB"):
        gemmhub.matmul(a, b)


def test_gradients_are_recorded_and_plans_refuse_them():
    a, b, _ = tensors(torch.float32)
    planned = gemmhub.plan(a, b)
    gemmhub.matmul(a, b)
    assert gemmhub.matmul(a.requires_grad_(), b).requires_grad
    with pytest.raises(InputError, match="grad"):
        planned(a, b)


def test_tuning(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    gemmhub.reload()
    a, b, out = tensors(m=512, n=1024, k=768)
    report = gemmhub.tune(a, b, out=out)
    print(report)
    assert gemmhub.explain(a, b, out=out)["cublas"].status == "chosen"
    assert torch.equal(gemmhub.matmul(a, b, out=out), expected(a, b))


def test_what_is_written_counts_for_autograd():
    """As torch.matmul(out=) counts, also while a graph is captured, whose replays count no more."""
    a, b, out = tensors()
    plan, in_place = gemmhub.plan(a, b, out=out), gemmhub.plan(a, b, c=out, beta=1)
    calls = {
        "matmul": lambda: gemmhub.matmul(a, b, out=out),
        "options": lambda: gemmhub.matmul(a, b, out=out, alpha=2),
        "plan": lambda: plan(a, b, out),
        "c in place": lambda: in_place(a, b, out, c=out),
    }
    for name, call in calls.items():
        for _ in range(3):
            before = out._version
            call()
            assert out._version > before, name
    weight = torch.ones_like(out, requires_grad=True)
    total = (out * weight).sum()
    gemmhub.matmul(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    for call in (lambda: gemmhub.matmul(a, b, out=out), lambda: plan(a, b, out)):
        before, graph = out._version, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        assert out._version > before
        graph.replay()
    assert (a._version, b._version) == (0, 0)
