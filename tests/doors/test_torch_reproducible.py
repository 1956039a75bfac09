"""``reproducible=`` through torch's door: each product and each gradient keeps it, or is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gemmhub
from gemmhub._contractions import contract
from gemmhub.backend import Candidate, Kernel, Offer
from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import rows_backend  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

import gemmhub.torch as door  # noqa: E402
from gemmhub._call import pack  # noqa: E402
from gemmhub._doors.torch import sharded  # noqa: E402
from gemmhub._doors.torch.placements import Sizes, choose  # noqa: E402

linear = torch.nn.functional.linear


@pytest.fixture
def rows():
    with rows_backend.registered() as backend:
        yield backend


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


def draw(rng, *shape, dtype=torch.float32):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def layer_of(w, bias, **options):
    layer = door.Linear(w.shape[1], w.shape[0], dtype=w.dtype, **options)
    with torch.no_grad():
        layer.weight.copy_(w)
        layer.bias.copy_(bias)
    return layer


def accelerated(w, bias):
    plain = torch.nn.Linear(w.shape[1], w.shape[0], dtype=w.dtype)
    with torch.no_grad():
        plain.weight.copy_(w)
        plain.bias.copy_(bias)
    door.accelerate(plain, reproducible="batch")
    return plain


def in_block(function):
    def run(*operands):
        with door.use(reproducible="batch"):
            return function(*operands)

    return run


def compiled(x, w, bias):
    torch._dynamo.reset()
    return torch.compile(
        lambda x: gemmhub.matmul(x, w.t(), bias=bias, activation="gelu", reproducible="batch"), backend="aot_eager"
    )(x)


def compiled_layer(layer):
    torch._dynamo.reset()
    return torch.compile(layer, fullgraph=True, backend="aot_eager")


def in_override(function):
    def run(*operands):
        if not hasattr(torch.library, "get_kernel"):
            pytest.skip("override needs torch 2.11")
        with door.override("batch", strict=True):
            return function(*operands)

    return run


PINNED = {"reproducible": "batch"}
CALLS = {
    "matmul": lambda x, w, b: gemmhub.matmul(x, w.t(), **PINNED),
    "epilogue": lambda x, w, b: gemmhub.matmul(x, w.t(), bias=b, alpha=0.3, activation="silu", **PINNED),
    "linear": lambda x, w, b: gemmhub.linear(x, w, b, **PINNED),
    "einsum": lambda x, w, b: gemmhub.einsum("ik,jk->ij", x, w, **PINNED),
    "stack": lambda x, w, b: gemmhub.matmul(x[:, None], w.t(), **PINNED),
    "bmm": lambda x, w, b: gemmhub.bmm(x[:, None], w.t().expand(x.shape[0], -1, -1), **PINNED),
    "Linear": lambda x, w, b: layer_of(w, b, **PINNED)(x),
    "Linear with an activation": lambda x, w, b: layer_of(w, b, activation="gelu", **PINNED)(x),
    "packed": lambda x, w, b: layer_of(w, b, packed=True, **PINNED).requires_grad_(False)(x),
    "accelerate": lambda x, w, b: accelerated(w, b)(x),
    "use": in_block(lambda x, w, b: x @ w.t()),
    "use, linear": in_block(linear),
    "use, addmm": in_block(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5)),
    "use, einsum": in_block(lambda x, w, b: torch.einsum("ik,jk->ij", x, w)),
    "use, Linear": in_block(lambda x, w, b: layer_of(w, b)(x)),
    "use, Linear with an activation": in_block(lambda x, w, b: layer_of(w, b, activation="gelu")(x)),
    "use, compiled Linear": in_block(lambda x, w, b: compiled_layer(layer_of(w, b))(x)),
    "override, Linear": in_override(lambda x, w, b: layer_of(w, b)(x)),
    "vmap": lambda x, w, b: torch.func.vmap(lambda row: gemmhub.matmul(row, w.t(), **PINNED))(x),
    "vmap, shared bias": lambda x, w, b: torch.func.vmap(
        lambda row: gemmhub.matmul(row, w.t(), bias=b, activation="relu", **PINNED)
    )(x),
    "compile": compiled,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_row_has_the_same_bits_alone_and_among_others(name, dtype, rng, rows):
    x, w, b = (draw(rng, *shape, dtype=dtype) for shape in ((9, 33), (7, 33), (7,)))
    with torch.no_grad():
        among = CALLS[name](x, w, b)
        for i in (0, 4, 8):
            assert torch.equal(CALLS[name](x[i : i + 1], w, b)[0], among[i])
        wide = torch.zeros(9, 66, dtype=dtype)
        wide[:, ::2] = x
        assert torch.equal(CALLS[name](wide[:, ::2], w, b), among)
    assert rows.problems
    assert {x.reproducible for x in rows.problems} == {"batch"}


@pytest.mark.parametrize("name", set(CALLS) - {"packed"})
def test_gradients_keep_the_promise(name, rng, rows):
    """Both products run with it, and a row of the input's gradient depends on no other row."""
    w, b = draw(rng, 7, 33).requires_grad_(), draw(rng, 7).requires_grad_()
    x = draw(rng, 9, 33)
    grads = []
    for rows_of_x in (x, x[4:5]):
        leaf = rows_of_x.clone().requires_grad_()
        with torch.enable_grad():
            CALLS[name](leaf, w, b).square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(grads[0][4], grads[1][0])
    assert len(rows.problems) >= 4
    assert {x.reproducible for x in rows.problems} == {"batch"}


def test_options_of_a_layer_go_before_those_of_a_block(rng, rows):
    x, w, b = (draw(rng, *shape) for shape in ((9, 33), (7, 33), (7,)))
    layer = layer_of(w, b, reproducible="run", backend="rows")
    with torch.no_grad(), door.use(reproducible="batch", backend="numpy"):
        layer(x)
    with torch.no_grad():
        layer_of(w, b, backend="rows")(x)
    assert [x.reproducible for x in rows.problems] == ["run", None]


def test_autocast_keeps_the_promise(rng, rows):
    x, w = draw(rng, 9, 33), draw(rng, 33, 7)
    with torch.autocast("cpu", torch.bfloat16):
        among, alone = (gemmhub.matmul(y, w, reproducible="batch") for y in (x, x[3:4]))
    assert among.dtype is torch.bfloat16
    assert torch.equal(among[3], alone[0])
    assert {x.reproducible for x in rows.problems} == {"batch"}


@pytest.mark.parametrize("value", [1, True, "batches", "Batch", ""])
def test_unknown_promises_are_refused_before_any_product(value):
    layer = torch.nn.Linear(4, 3)
    for attempt in (
        lambda: door.use(reproducible=value), lambda: door.Linear(4, 3, reproducible=value),
        lambda: door.Linear.from_linear(layer, reproducible=value),
        lambda: door.accelerate(torch.nn.Sequential(layer), reproducible=value),
        lambda: door.override(value),
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"reproducible: .*; allowed: None, 'run', 'batch'"):
            attempt()
    assert type(layer) is torch.nn.Linear


def test_a_layer_shows_its_promise():
    layer = torch.nn.Linear(4, 3)
    door.accelerate(layer, reproducible="batch")
    assert layer.reproducible == "batch"
    assert "reproducible='batch'" in repr(layer)


def test_what_no_backend_promises_is_refused(rng):
    x = draw(rng, 3, 4).to(torch.float64)
    with pytest.raises(gemmhub.NoBackendError), door.use(reproducible="order.of.nobody"):
        x @ x.t()


class PackingBackend(rows_backend.RowsBackend):
    """It packs, and packed products have an order of their own, which may be that of others."""

    packed_order = "loop.mul-add"

    def offer(self, problem):
        if problem.packed_by is None:
            return Offer((Candidate("loop", 1e-6, order="loop.mul-add"),))
        return Offer((Candidate("packed", 1e-12, order=self.packed_order),))

    def prepare(self, problem, candidate, workspace_limit):
        kernel = super().prepare(problem, candidate, workspace_limit)
        return Kernel(kernel.run, candidate)

    def pack(self, b, problem):
        return b.copy()


@pytest.mark.parametrize(("order", "packs"), [("loop.mul-add", True), ("tiled.mul-add", False)])
def test_a_weight_is_packed_only_where_the_bits_are_those_of_the_weight(order, packs, rng):
    backend = PackingBackend()
    backend.packed_order = order
    gemmhub.register(backend)
    try:
        layer = layer_of(draw(rng, 7, 33), draw(rng, 7), packed=True, reproducible="batch").requires_grad_(False)
        x = draw(rng, 5, 33)
        assert torch.equal(layer(x), gemmhub.linear(x, layer.weight, layer.bias, reproducible="batch"))
        assert (layer.packed_bytes > 0) == packs
        assert pack.saver(layer.weight.t(), 5, None) == "rows"  # without the promise it is packed
        assert any(problem.packed_by for problem in backend.problems) == packs
    finally:
        gemmhub.unregister("rows")


def test_vmap_over_what_follows_the_sum_is_refused(rng, rows):
    x, w, b = draw(rng, 9, 33), draw(rng, 33, 7), draw(rng, 9, 7)

    def mapped(promise):
        return torch.func.vmap(lambda row, bias: gemmhub.matmul(row, w, bias=bias, reproducible=promise))(x, b)

    assert mapped("run").shape == (9, 7)
    with pytest.raises(InputError, match="reproducible: the bits of rows pinned, under vmap over bias"):
        mapped("batch")


def test_contractions_of_several_steps_keep_rows(rng, rows):
    x, y, z = draw(rng, 30, 4), draw(rng, 4, 5), draw(rng, 5, 6)
    for m in (1, 7, 30):
        some = gemmhub.einsum("ij,jk,kl->il", x[:m], y, z, reproducible="batch")
        assert torch.equal(some, gemmhub.einsum("ij,jk,kl->il", x, y, z, reproducible="batch")[:m])


def test_the_order_of_inner_dimensions_does_not_depend_on_strides(rng, rows, monkeypatch):
    x, w = draw(rng, 6, 4, 5), draw(rng, 4, 5, 3)
    strided = x.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    results = [gemmhub.einsum("ijk,jkl->il", a, w, reproducible="batch") for a in (x, strided)]
    assert torch.equal(*results)
    monkeypatch.setattr(contract, "pins_rows", lambda promise: False)
    results = [gemmhub.einsum("ijk,jkl->il", a, w, reproducible="batch") for a in (x, strided)]
    assert not torch.equal(*results)


@pytest.mark.parametrize(("pinned", "axis"), [(False, "k"), (True, "")])
def test_the_split_of_pinned_dtensors_never_divides_k(pinned, axis):
    k, whole = 1 << 30, (Replicate(),)
    assert choose(Sizes((4, k), (k, 4), (4, 4), (8,), 2, 4, "cuda", pinned), whole, whole).axes == (axis,)


@pytest.mark.parametrize(("a", "b", "name"), [(Shard(1), Replicate(), "a"), (Replicate(), Shard(0), "b")])
def test_dtensors_divided_along_k_are_refused(a, b, name):
    def settled(pinned, ranks):
        return sharded._settled(
            (8, 64), (64, 8), torch.float32, torch.float32, None, pinned, (ranks,), "cpu", (a,), (b,)
        )

    assert settled(False, 2).shape == settled(True, 1).shape == (8, 8)
    with pytest.raises(InputError, match=f"reproducible: the bits of rows pinned, and {name} placed .*divides k"):
        settled(True, 2)


def test_layers_that_keep_rows_are_not_measured_against_torch():
    model = torch.nn.Linear(8, 8)
    with pytest.raises(InputError, match="measure: 4 where the bits of rows are pinned"):
        door.accelerate(model, reproducible="batch", measure=4)
    with gemmhub.use(reproducible="batch"), pytest.raises(InputError, match="measure"):
        door.accelerate(model, measure=4)


DIVIDED = """
import torch, gemmhub, sys
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
sys.path.insert(0, {folder!r})
import rows_backend
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = init_device_mesh("cpu", (2,))
with rows_backend.registered():
    for shape in ((4, 8), (4, 4, 8)):
        x = DTensor.from_local(torch.randn(shape), mesh, [Shard(0)])
        w = DTensor.from_local(torch.randn(8, 6), mesh, [Replicate()]).requires_grad_()
        gemmhub.matmul(x, w, reproducible="batch").to_local().sum().backward()
        print(w.grad.placements[0].is_partial() or w.grad.placements[0].is_replicate())
"""


def test_gradients_of_weights_add_those_of_devices_that_divide_rows():
    program = DIVIDED.format(folder=str(Path(__file__).parent))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["True", "True"], result.stderr
