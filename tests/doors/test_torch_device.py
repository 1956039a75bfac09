"""Tensors on a GPU with gradients, in compiled graphs, in CUDA graphs, under autocast. Skipped where there is none."""

from __future__ import annotations

import warnings

import pytest

import gemmhub

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU", allow_module_level=True)
import gemmhub.torch as door  # noqa: E402

pytestmark = pytest.mark.device
KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@pytest.fixture(autouse=True)
def _seed():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        yield


def draw(*shape, dtype, grad=False):
    return torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype).requires_grad_(grad)


def near(got, exact, size, k, dtype):
    """Within the roundings of k float32 sums and of the result."""
    unit = UNITS[dtype]
    allowed = size * (k * min(unit, 2.0**-24) + unit) * 1.01 + (2.0**-25 if dtype == torch.float16 else 1e-30)
    worst = float(((got.double() - exact).abs() / allowed).max())
    assert worst <= 1, worst


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("m", [1, 8, 100, 513])
def test_gradients(m, dtype):
    x, layer = draw(m, 512, dtype=dtype, grad=True), door.Linear(512, 768, device="cuda", dtype=dtype)
    out = layer(x)
    grad = draw(m, 768, dtype=dtype)
    out.backward(grad)
    a, w, g = x.detach().double(), layer.weight.detach().double(), grad.double()
    near(x.grad, g @ w, g.abs() @ w.abs(), 768, dtype)
    near(layer.weight.grad, g.T @ a, g.abs().T @ a.abs(), m, dtype)
    near(layer.bias.grad, g.sum(0), g.abs().sum(0), m, dtype)
    assert layer.weight.grad.is_contiguous()


@pytest.mark.parametrize("dtype", KINDS[::2], ids=str)
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode, dtype):
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    model = model.to("cuda", dtype)
    door.accelerate(model)
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for m in (16, 16, 16, 33):
        x = draw(m, 256, dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=4 * UNITS[dtype], atol=4 * UNITS[dtype])
        compiled(x).sum().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        for mine, p in zip(got, model.parameters()):
            torch.testing.assert_close(mine, p.grad, rtol=0.05, atol=0.05 * float(p.grad.abs().max()))
        model.zero_grad()


def test_autocast_and_back():
    x, w = draw(64, 256, dtype=torch.float32), draw(256, 128, dtype=torch.float32)
    for _ in range(3):
        assert gemmhub.matmul(x, w).dtype == torch.float32
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert gemmhub.matmul(x, w).dtype == torch.bfloat16
            assert gemmhub.matmul(x.bfloat16(), w.bfloat16()).dtype == torch.bfloat16
        with torch.autocast("cuda", dtype=torch.float16):
            assert gemmhub.matmul(x.bfloat16(), w.bfloat16()).dtype == torch.float16


def test_modes_and_tangents_after_warm_calls():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w = draw(64, 256, dtype=torch.float32), draw(256, 128, dtype=torch.float32)
    for _ in range(3):
        gemmhub.matmul(x, w)
    assert "gemmhub.matmul" in make_fx(lambda x: gemmhub.matmul(x, w))(x).code
    tangent = torch.func.jvp(lambda x: gemmhub.matmul(x, w), (x,), (x,))[1]
    torch.testing.assert_close(tangent, gemmhub.matmul(x, w))
    mapped = torch.func.vmap(lambda r: gemmhub.matmul(r, w))(x)
    torch.testing.assert_close(mapped, gemmhub.matmul(x, w))


def test_warm_calls_lose_no_gradient():
    """Calls learned inside a recorded product, or under no_grad, do not hold where gradients are wanted."""
    x, w = draw(64, 256, dtype=torch.bfloat16), draw(256, 128, dtype=torch.bfloat16, grad=True)
    bias = draw(128, dtype=torch.bfloat16)
    for options in ({}, {"bias": bias}, {"alpha": 0.5}):
        for _ in range(4):
            assert gemmhub.matmul(x, w, **options).requires_grad
            with torch.no_grad():
                assert not gemmhub.matmul(x, w, **options).requires_grad


def test_a_training_step_in_a_cuda_graph():
    layer, x = door.Linear(256, 256, device="cuda", dtype=torch.bfloat16), draw(128, 256, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            layer(x).square().sum().backward()
            layer.zero_grad(set_to_none=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        layer(x).square().sum().backward()
    layer.zero_grad(set_to_none=False)
    graph.replay()
    captured = layer.weight.grad.clone()
    layer.zero_grad(set_to_none=False)
    layer(x).square().sum().backward()
    torch.testing.assert_close(captured, layer.weight.grad)


def test_double_backward():
    """Without an activation: no backend on the card fuses one for float64, recorded or not."""
    x, w = draw(32, 64, dtype=torch.float64, grad=True), draw(64, 16, dtype=torch.float64, grad=True)
    (g,) = torch.autograd.grad(gemmhub.matmul(x, w).square().sum(), x, create_graph=True)
    ours = torch.autograd.grad(g.square().sum(), (x, w))
    (g,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
    for mine, theirs in zip(ours, torch.autograd.grad(g.square().sum(), (x, w))):
        torch.testing.assert_close(mine, theirs)


@pytest.fixture
def one_rank(tmp_path):
    """NCCL with this process alone."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cuda", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", KINDS[::2], ids=str)
def test_dtensors_over_nccl(one_rank, dtype):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    a, b, g = draw(130, 264, dtype=dtype), draw(264, 72, dtype=dtype), draw(130, 72, dtype=dtype)
    for p in (Shard(0), Shard(1), Replicate()):
        for q in (Shard(0), Shard(1), Replicate()):
            x, y = (distribute_tensor(t, one_rank, [r]).requires_grad_() for t, r in ((a, p), (b, q)))
            for _ in range(3):
                out = gemmhub.matmul(x, y)
            near(out.full_tensor(), a.double() @ b.double(), a.double().abs() @ b.double().abs(), 264, dtype)
            out.backward(distribute_tensor(g, one_rank, [Replicate()]))
            exact, size = g.double() @ b.double().T, g.double().abs() @ b.double().abs().T
            near(x.grad.full_tensor(), exact, size, 72, dtype)
    reduced = gemmhub.matmul(torch.distributed.tensor.DTensor.from_local(a, one_rank, [Partial()]), y)
    near(reduced.full_tensor(), a.double() @ b.double(), a.double().abs() @ b.double().abs(), 264, dtype)


def test_parallel_layers_over_nccl(one_rank):
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    x = draw(8, 16, 64, dtype=torch.float32)
    expected = model.double()(x.double())
    model.float()
    parallelize_module(model, one_rank, {"0": door.ColumnParallel(), "2": door.RowParallel()})
    torch.testing.assert_close(model(x).double(), expected, rtol=1e-5, atol=1e-5)
    model(x).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
