"""Several processes over gloo multiply DTensors; each group of checks prints its name when all ranks have passed it."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import traceback
import warnings
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gemmhub
import gemmhub.torch
from gemmhub.errors import DTypeError, InputError, OutputError, ShapeError

Tensor = Any
PLACEMENTS = (Shard(0), Shard(1), Replicate(), Partial())
GRAINS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def drawn(shape: tuple[int, ...], dtype: Any, seed: int) -> Tensor:
    """The same on every rank; of wide exponents."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x * 2.0 ** torch.randint(-3, 4, shape, generator=generator)).to(dtype)


def placed(x: Tensor, mesh: Any, placements: Any) -> DTensor:
    """``x`` with these placements; as a sum of integers over the ranks where that is Partial."""
    whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
    shared = distribute_tensor(x, mesh, whole)
    if all(not isinstance(p, Partial) for p in placements):
        return shared
    mine = shared.to_local()
    for i, p in enumerate(placements):
        if isinstance(p, Partial) and mesh.get_local_rank(i) != 0:
            mine = torch.zeros_like(mine)
    return DTensor.from_local(mine, mesh, placements, shape=x.shape, stride=x.stride())


def near(result: Tensor, a: Tensor, b: Tensor, extra: Tensor | float = 0.0, scale: float = 1.0) -> None:
    """Assert that a result is within its bound: k + 8 roundings of float32 (float64 for it), and one of its own."""
    whole = result.full_tensor() if isinstance(result, DTensor) else result
    exact = scale * (a.double() @ b.double()) + extra
    size = abs(scale) * (a.double().abs() @ b.double().abs()) + (
        extra.abs() if isinstance(extra, torch.Tensor) else 0.0
    )
    fine = 2.0**-53 if whole.dtype is torch.float64 else 2.0**-24
    bound = (a.shape[-1] + 8) * fine * size + GRAINS[whole.dtype] * exact.abs() + 1e-30
    worst = ((whole.double() - exact).abs() / bound).max() if whole.numel() else 0.0
    assert worst <= 1.0, f"{worst:.3g} bounds"


def products(mesh: Any) -> None:
    """Every pair of placements, sizes that no number of ranks divides."""
    for seed, (dtype, p, q) in enumerate(itertools.product((torch.float32, torch.bfloat16), PLACEMENTS, PLACEMENTS)):
        a, b = drawn((67, 131), dtype, seed), drawn((131, 45), dtype, seed + 1000)
        result = gemmhub.matmul(placed(a, mesh, [p]), placed(b, mesh, [q]))
        assert result.dtype is dtype
        assert result.shape == (67, 45)
        near(result, a, b)


def repeats(mesh: Any) -> None:
    """Further products of a kind are right, and are those that nothing is settled for again, on each mesh."""
    from gemmhub._doors.torch import sharded

    settled: list[int] = []
    whole = sharded.multiplied
    sharded.multiplied = lambda *given, **options: settled.append(1) or whole(*given, **options)
    ranks = mesh.size()
    sizes, seen = ((16 * ranks, 24 * ranks), (24 * ranks, 8 * ranks)), 0
    again = init_device_mesh("cpu", (ranks,))
    for on in (mesh, again):
        for p, q in itertools.product((Shard(0), Shard(1), Replicate()), repeat=2):
            for options in ({}, {"alpha": 2.0, "activation": "relu"}, {"out_dtype": torch.float32}):
                before = len(settled)
                for seed in range(3):
                    a, b = (drawn(size, torch.bfloat16, seed + i).abs() for i, size in enumerate(sizes))
                    result = gemmhub.matmul(placed(a, on, [p]), placed(b, on, [q]), **options)
                    assert result.device_mesh is on
                    assert result.dtype is options.get("out_dtype", torch.bfloat16)
                    assert (
                        result.placements == gemmhub.explain(placed(a, on, [p]), placed(b, on, [q])).partition.split.out
                    )
                    near(result, a, b, 0.0, options.get("alpha", 1.0))
                assert len(settled) - before in (1, 3)  # 3: moves that take torch's redistribute
                seen += len(settled) - before == 1
    assert seen >= 2 * 3 * 7
    x, y = placed(a, mesh, [Shard(0)]), placed(b, mesh, [Replicate()])
    gemmhub.matmul(x, y)
    x.requires_grad_()
    gemmhub.matmul(x, y).sum().backward()
    assert x.grad is not None
    sharded.multiplied = whole


def exact(mesh: Any) -> None:
    for p, q in itertools.product(PLACEMENTS[:3], PLACEMENTS[:3]):
        a = torch.randint(-128, 128, (33, 200), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
        b = torch.randint(-128, 128, (200, 35), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
        result = gemmhub.matmul(placed(a, mesh, [p]), placed(b, mesh, [q]))
        assert result.dtype is torch.int32
        assert torch.equal(result.full_tensor(), (a.long() @ b.long()).int())


def shapes(mesh: Any) -> None:
    """Vectors, stacks, a broadcast matrix, few rows, k = 0, nothing."""
    cases = [
        ((9,), (9, 7)), ((5, 9), (9,)), ((9,), (9,)), ((3, 5, 9), (9, 7)), ((4, 5, 9), (4, 9, 7)),
        ((4, 1, 5, 9), (3, 9, 7)),
        ((1, 64), (64, 3)), ((5, 0), (0, 4)), ((0, 4), (4, 3)), ((2, 1, 600), (600, 1)),
    ]  # fmt: skip
    for seed, (left, right) in enumerate(cases):
        a, b = drawn(left, torch.float32, seed), drawn(right, torch.float32, seed + 50)
        for p, q in itertools.product(range(-1, len(left)), range(-1, len(right))):
            x = placed(a, mesh, [Shard(p) if p >= 0 else Replicate()])
            y = placed(b, mesh, [Shard(q) if q >= 0 else Replicate()])
            result = gemmhub.matmul(x, y)
            assert result.shape == torch.matmul(a, b).shape, (left, right)
            near(result, a, b)


def options(mesh: Any) -> None:
    a, b = drawn((48, 96), torch.bfloat16, 1), drawn((96, 40), torch.bfloat16, 2)
    c, bias = drawn((48, 40), torch.bfloat16, 3), drawn((40,), torch.bfloat16, 4)
    extra = 0.5 * c.double() + bias.double()
    for p, q in itertools.product(PLACEMENTS, PLACEMENTS):
        x, y = placed(a, mesh, [p]), placed(b, mesh, [q])
        other = {"c": placed(c, mesh, [p]), "bias": placed(bias, mesh, [Replicate()]), "alpha": 2.0, "beta": 0.5}
        near(gemmhub.matmul(x, y, **other), a, b, extra, 2.0)
        with pytest.raises(DTypeError, match="c: "):
            gemmhub.matmul(x, y, out_dtype=torch.float32, **other)
        near(gemmhub.matmul(x, y, out_dtype="float32"), a, b)
        relu = gemmhub.matmul(x, y, activation="relu", bias=other["bias"]).full_tensor()
        assert (relu >= 0).all()
        out = placed(torch.zeros(48, 40, dtype=torch.bfloat16), mesh, [Shard(1)])
        assert gemmhub.matmul(x, y, out=out) is out
        assert out.placements == (Shard(1),)
        near(out, a, b)
    near(gemmhub.matmul(x, y[:, 0], bias=placed(c[:, 0], mesh, [Replicate()])), a, b[:, 0], c[:, 0].double())


def wide_sums(mesh: Any) -> None:
    """Parts of k that cancel: rounded to 16 bits before they are added, they would leave nothing right."""
    half = drawn((32, 500 * mesh.size()), torch.bfloat16, 5)
    a = torch.cat([half, -half, torch.ones(32, mesh.size(), dtype=torch.bfloat16)], dim=1)
    b = torch.cat([half.T, half.T, torch.ones(mesh.size(), 32, dtype=torch.bfloat16)])
    result = gemmhub.matmul(placed(a, mesh, [Shard(1)]), placed(b, mesh, [Shard(0)]))
    assert "k" in gemmhub.explain(placed(a, mesh, [Shard(1)]), placed(b, mesh, [Shard(0)])).partition.split.axes
    near(result, a, b)


def gradients(mesh: Any) -> None:
    for seed, (p, q) in enumerate(itertools.product(PLACEMENTS[:3], PLACEMENTS[:3])):
        for left in ((24, 56), (3, 10, 56)):
            a, b = drawn(left, torch.float64, seed), drawn((56, 20), torch.float64, seed + 70)
            bias, weight = drawn((20,), torch.float64, seed + 90), drawn((*left[:-1], 20), torch.float64, seed + 80)
            plain = [x.clone().requires_grad_() for x in (a, b, bias)]
            (torch.relu(plain[0] @ plain[1] * 2 + plain[2]) * weight).sum().backward()
            given = [placed(a, mesh, [p]), placed(b, mesh, [q]), placed(bias, mesh, [Replicate()])]
            leaves = [x.detach().requires_grad_() for x in given]
            out = gemmhub.matmul(leaves[0], leaves[1], bias=leaves[2], alpha=2.0, activation="relu")
            (out * placed(weight, mesh, [Replicate()])).sum().backward()
            for mine, theirs in zip(leaves, plain):
                assert mine.grad.placements == mine.placements
                torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad, rtol=1e-11, atol=1e-9)


def gates(mesh: Any) -> None:
    """Gated activations where pairs of columns are on one device; others are refused, by name."""
    a, b, weight = drawn((24, 56), torch.float64, 1) / 64, drawn((56, 16), torch.float64, 2), whole_numbers((24, 8))
    for name, p, q in itertools.product(("swiglu", "swiglu_interleaved"), PLACEMENTS[:3], PLACEMENTS[:3]):
        x, y = (placed(t, mesh, [r]).requires_grad_() for t, r in ((a, p), (b, q)))
        if name == "swiglu" and Shard(1) in gemmhub.explain(x, y).partition.split.out:
            for call in (gemmhub.matmul, gemmhub.explain):
                with pytest.raises(InputError, match=r"activation: swiglu .* columns are split.*swiglu_interleaved"):
                    call(x, y, activation=name)
            continue
        out = gemmhub.matmul(x, y, activation=name)
        plain = [t.clone().requires_grad_() for t in (a, b)]
        expected = gemmhub.matmul(*plain, activation=name)
        (out * placed(weight, mesh, [Replicate()])).sum().backward()
        (expected * weight).sum().backward()
        assert out.shape == (24, 8)
        for mine, theirs in zip((out, x.grad, y.grad), (expected, plain[0].grad, plain[1].grad)):
            torch.testing.assert_close(mine.full_tensor(), theirs, rtol=1e-11, atol=1e-9)
    with pytest.raises(ShapeError, match="activation: swiglu with 15 columns"):
        gemmhub.matmul(placed(a, mesh, [Shard(0)]), placed(b[:, :15], mesh, [Replicate()]), activation="swiglu")


def whole_numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(shape[0] * shape[1], dtype=torch.float64).reshape(shape) % 5 - 2


def narrow_gradients(mesh: Any) -> None:
    """Gradients of 16-bit operands are reduced in float32: within one rounding of the exact ones."""
    a, b, g = drawn((64, 80), torch.bfloat16, 1), drawn((80, 48), torch.bfloat16, 2), drawn((64, 48), torch.bfloat16, 3)
    for p, q in itertools.product(PLACEMENTS[:3], PLACEMENTS[:3]):
        x, y = (placed(t, mesh, [r]).requires_grad_() for t, r in ((a, p), (b, q)))
        gemmhub.matmul(x, y).backward(placed(g, mesh, [Replicate()]))
        near(x.grad, g, b.T)
        near(y.grad, a.T, g)
    stack, many = a.reshape(16, 4, 80), g.reshape(16, 4, 48)
    for p, q in itertools.product((Shard(0), Shard(1), Shard(2), Replicate()), PLACEMENTS[:3]):
        x, y = (placed(t, mesh, [r]).requires_grad_() for t, r in ((stack, p), (b, q)))
        gemmhub.matmul(x, y).backward(placed(many, mesh, [Replicate()]))
        near(x.grad.full_tensor().flatten(0, 1), g, b.T)
        near(y.grad, a.T, g)


def two_dimensions(mesh: Any) -> None:
    if mesh.size() < 4:
        return
    grid = init_device_mesh("cpu", (2, 2))
    for seed, (p, q) in enumerate(itertools.product(itertools.product(PLACEMENTS, repeat=2), repeat=2)):
        for m, n, k in ((37, 43, 61), (32, 48, 64)):
            a, b = drawn((m, k), torch.float32, seed), drawn((k, n), torch.float32, seed + 500)
            near(gemmhub.matmul(placed(a, grid, p), placed(b, grid, q)), a, b)
    for p, q in (((Shard(0), Replicate()), (Replicate(), Shard(1))), ((Shard(0), Shard(1)), (Replicate(), Shard(0)))):
        a, b = drawn((8, 6, 32), torch.float64, 1), drawn((32, 20), torch.float64, 2)
        p = tuple(Shard(2) if x == Shard(1) else x for x in p)
        plain = [x.clone().requires_grad_() for x in (a, b)]
        torch.matmul(*plain).square().sum().backward()
        x, y = placed(a, grid, p).requires_grad_(), placed(b, grid, q).requires_grad_()
        gemmhub.matmul(x, y).square().sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain[0].grad)
        torch.testing.assert_close(y.grad.full_tensor(), plain[1].grad)


class Received(TorchDispatchMode):
    """Counts the bytes that collectives bring to this rank."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = str(function), function(*args, **(kwargs or {}))
        size, ranks = (
            args[0].nbytes if args and isinstance(args[0], torch.Tensor) else 0,
            torch.distributed.get_world_size(),
        )
        if "all_gather" in name:
            self.bytes += size * (ranks - 1)
        elif "reduce_scatter" in name or "all_to_all" in name:
            self.bytes += size * (ranks - 1) // ranks
        elif "all_reduce" in name:
            self.bytes += 2 * size * (ranks - 1) // ranks
        return result


def counted(mesh: Any) -> None:
    """The bytes that explain shows are those that collectives move."""
    ranks = mesh.size()
    a, b = drawn((64 * ranks, 128), torch.bfloat16, 1), drawn((128, 64 * ranks), torch.bfloat16, 2)
    for p, q in itertools.product(PLACEMENTS, PLACEMENTS):
        x, y = placed(a, mesh, [p]), placed(b, mesh, [q])
        decision = gemmhub.explain(x, y)
        with Received() as received:
            result = gemmhub.matmul(x, y)
        assert result.placements == decision.partition.split.out
        assert received.bytes == decision.partition.split.received, (p, q, received.bytes, str(decision))
        near(result, a, b)
    assert "float32" in str(gemmhub.explain(placed(a, mesh, [Shard(1)]), placed(b, mesh, [Shard(0)])))


def chunks(mesh: Any) -> None:
    """Products in chunks, whose collectives run beside them, are those of whole ones; and they were made so."""
    from gemmhub._doors.torch import overlapped

    ranks, made = mesh.size(), []
    overlapped.MIN_BYTES["cpu"] = 0
    for name in ("gathered", "scattered", "gathered_rows"):
        whole = getattr(overlapped, name)
        setattr(overlapped, name, lambda *given, whole=whole, name=name: made.append(name) or whole(*given))
    a, b = drawn((512 * ranks, 64 * ranks), torch.bfloat16, 1), drawn((64 * ranks, 45), torch.bfloat16, 2)
    bias, c = drawn((45,), torch.bfloat16, 3), drawn((512 * ranks, 45), torch.bfloat16, 4)
    extra = {"bias": placed(bias, mesh, [Replicate()]), "c": placed(c, mesh, [Replicate()]), "alpha": 2.0, "beta": 1.0}
    x, y = placed(a, mesh, [Shard(0)]), placed(b, mesh, [Shard(0)])
    near(gemmhub.matmul(x, y), a, b)
    near(gemmhub.matmul(x, y, **extra), a, b, bias.double() + c.double(), 2.0)
    a, b = drawn((16 * ranks, 512 * ranks), torch.bfloat16, 5), drawn((512 * ranks, 45), torch.bfloat16, 6)
    c = drawn((16 * ranks, 45), torch.bfloat16, 7)
    x, y = placed(a, mesh, [Shard(1)]), placed(b, mesh, [Shard(0)])
    near(gemmhub.matmul(x, y), a, b)
    extra["c"] = placed(c, mesh, [Replicate()])
    near(gemmhub.matmul(x, y, **extra), a, b, bias.double() + c.double(), 2.0)
    a, b = drawn((18 * ranks, 33), torch.bfloat16, 8), drawn((33, 512 * ranks), torch.bfloat16, 9)
    bias = drawn((512 * ranks,), torch.bfloat16, 10)
    x, y = placed(a, mesh, [Shard(0)]), placed(b, mesh, [Shard(1)])
    near(gemmhub.matmul(x, y), a, b)
    result = gemmhub.matmul(x, y, alpha=2.0, bias=placed(bias, mesh, [Replicate()]))
    assert result.placements == (Shard(1),)
    near(result, a, b, bias.double(), 2.0)
    assert made == ["gathered"] * 2 + ["scattered"] * 2 + ["gathered_rows"] * 2, made
    del overlapped.MIN_BYTES["cpu"]


def layers(mesh: Any) -> None:
    """A pair of linear layers, split by columns and by rows, has the results and gradients of one process."""
    from torch.distributed.tensor.parallel import parallelize_module

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 12)).double()

    x = drawn((5, 8, 24), torch.float64, 3)
    alone, ours = model(), model()
    expected = alone(x)
    expected.square().sum().backward()
    styles = {"0": gemmhub.torch.ColumnParallel(), "2": gemmhub.torch.RowParallel()}
    parallelize_module(ours, mesh, styles)
    assert isinstance(ours[0], gemmhub.torch.Linear)
    result = ours(x)
    torch.testing.assert_close(result, expected)
    result.square().sum().backward()
    for mine, theirs in zip(ours.parameters(), alone.parameters()):
        assert mine.grad.placements == mine.placements
        torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)
    with pytest.raises(InputError, match="not a torch"):
        parallelize_module(torch.nn.Sequential(torch.nn.Bilinear(4, 4, 4)), mesh, {"0": gemmhub.torch.RowParallel()})


def measured(mesh: Any) -> None:
    """Speeds are the same on every rank, and predict the seconds of a split."""
    from gemmhub.distributed import Speeds, measure, predict

    found = measure(mesh, "float32", 64, rounds=2)
    others: list[Any] = [None] * mesh.size()
    torch.distributed.all_gather_object(others, found)
    assert others == [found] * mesh.size()
    assert min(found.rate, found.bandwidth) > 0 <= found.latency
    given = {"rate": found.rate, "bandwidth": found.bandwidth, "latency": found.latency}
    assert predict(64, 64, 64, mesh.size(), **given).best.seconds > 0
    x = placed(drawn((64, 64), torch.float32, 1), mesh, [Shard(0)])
    split = gemmhub.explain(x, x).partition.split
    assert split.operations == 2 * 64**3 / mesh.size()
    assert split.collectives == 1
    expected = split.operations / 1e9 + split.received / 1e6 + 0.5
    assert split.at(1e9, 1e6, 0.5) == expected
    assert Speeds(1.0, 2.0, 3.0).latency == 3.0


def refused(mesh: Any) -> None:
    a, b = drawn((8, 6), torch.float32, 1), drawn((6, 4), torch.float32, 2)
    x, y = placed(a, mesh, [Shard(0)]), placed(b, mesh, [Shard(1)])
    for given, options, error, words in (
        ((x, b), {}, InputError, "distribute_tensor"),
        ((x, y), {"bias": b[0]}, InputError, "bias"),
        ((x, x), {}, ShapeError, "columns of a"),
        ((x, y), {"c": x}, InputError, "beta"),
        ((x, y), {"out": placed(torch.zeros(8, 5), mesh, [Replicate()])}, OutputError, "out"),
        ((x, y), {"stream": 0}, InputError, "stream"),
        ((x, y), {"activation": "swish"}, InputError, "activation"),
        ((x, y), {"scale_a": torch.ones(1)}, InputError, "scale_a: given with a DTensor"),
        ((x, y), {"pre_activation": True}, InputError, "pre_activation: given with a DTensor"),
        ((DTensor.from_local(a, mesh, [Partial("max")]), y), {}, InputError, "Partial"),
    ):
        with pytest.raises(error, match=words):
            gemmhub.matmul(*given, **options)
    for call in (gemmhub.plan, gemmhub.pack):
        with pytest.raises(InputError, match="to_local"):
            call(*(x, y)[: 2 if call is gemmhub.plan else 1])
    with pytest.raises(InputError, match="to_local"):
        gemmhub.spot_check(x, y, gemmhub.matmul(x, y))


def pinned(mesh: Any) -> None:
    """Rows keep their bits where rows, columns or nothing are divided; products of a divided k are refused."""
    from rows_backend import registered
    from torch.distributed.tensor.parallel import parallelize_module

    a, b = drawn((16, 24), torch.float32, 1), drawn((24, 20), torch.float32, 2)
    kept = ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Replicate(), Replicate()), (Shard(0), Shard(1)))
    divided = ((Shard(1), Shard(0)), (Shard(1), Replicate()), (Replicate(), Shard(0)))
    with registered() as backend:
        whole = gemmhub.matmul(a, b, reproducible="batch")
        for options in ({}, {"reproducible": "batch"}):
            for p, q in kept:
                x, y = placed(a, mesh, [p]), placed(b, mesh, [q])
                for _ in range(3):  # the later ones are prepared
                    with gemmhub.use(reproducible="batch"):
                        result = gemmhub.matmul(x, y, **options)
                    assert torch.equal(result.full_tensor(), whole)
            for p, q in divided:
                x, y = placed(a, mesh, [p]), placed(b, mesh, [q])
                near(gemmhub.matmul(x, y), a, b)  # prepared without the promise
                with gemmhub.use(reproducible="batch"), pytest.raises(InputError, match=r"reproducible.*divides k"):
                    gemmhub.matmul(x, y, **options)
        assert {problem.reproducible for problem in backend.problems} >= {"batch"}
        layer = gemmhub.torch.Linear(24, 20, reproducible="batch")
        for style, words in ((gemmhub.torch.ColumnParallel(), None), (gemmhub.torch.RowParallel(), "divides k")):
            split = parallelize_module(torch.nn.Sequential(copy.deepcopy(layer)), mesh, {"0": style})
            if words is None:
                with torch.no_grad():
                    assert split(a).shape[0] == 16
            else:
                with torch.no_grad(), pytest.raises(InputError, match=words):
                    split(a.chunk(mesh.size(), 1)[mesh.get_local_rank()])


def compiled(mesh: Any) -> None:
    """One graph, with its gradients."""
    a, b, v = drawn((16, 24), torch.float32, 1), drawn((24, 20), torch.float32, 2), drawn((20,), torch.float32, 3)
    torch._dynamo.config.recompile_limit = 16

    def layer(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
        return gemmhub.matmul(x, y, bias=bias, activation="relu")

    function = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for p, q in itertools.product(PLACEMENTS[:3], PLACEMENTS[:3]):
        plain = [x.clone().requires_grad_() for x in (a, b, v)]
        expected = torch.relu(torch.matmul(*plain[:2]) + plain[2])
        expected.sum().backward()
        given = [placed(x, mesh, [r]).requires_grad_() for x, r in ((a, p), (b, q), (v, Replicate()))]
        result = function(*given)
        torch.testing.assert_close(result.full_tensor(), expected)
        result.sum().backward()
        for mine, theirs in zip(given, plain):
            torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)


CHECKS = (
    products, repeats, exact, shapes, options, wide_sums, gradients, gates, narrow_gradients, two_dimensions, counted,
    chunks, layers, measured, refused, pinned, compiled,
)  # fmt: skip


def work(rank: int, ranks: int, store: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("error", category=FutureWarning, module="gemmhub")
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    code = 0
    for check in CHECKS:
        if names and check.__name__ not in names:
            continue
        try:
            check(mesh)
        except BaseException:
            print(f"rank {rank}: {check.__name__} failed\n{traceback.format_exc()[-3000:]}", flush=True)
            code = 1
            break
        if rank == 0:
            print(f"{check.__name__} passed", flush=True)
    os._exit(code)  # threads of gloo that still run abort a process that ends as usual


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (int(sys.argv[1]), sys.argv[2], sys.argv[3:]), nprocs=int(sys.argv[1]))
