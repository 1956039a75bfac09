"""Weights that layers keep packed: when they are used, that none is ever stale, and what they hold."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest

import gemmhub

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")

import gemmhub.torch as door  # noqa: E402
from gemmhub._call import pack  # noqa: E402
from gemmhub._doors.torch import nn, packed_weights  # noqa: E402
from gemmhub.errors import InputError  # noqa: E402

linear = torch.nn.functional.linear


def whole(rng, *shape):
    """Small whole numbers, whose sums of 16 products bfloat16 holds: results are compared bit by bit."""
    return torch.from_numpy(rng.integers(-3, 4, shape)).bfloat16()


@pytest.fixture
def used(monkeypatch):
    """The shapes of inputs that were multiplied by a packed weight, which the estimates are made to prefer."""
    seen, product = [], packed_weights.PackedWeight.product

    def spy(self, a, weight, options):
        result = product(self, a, weight, options)
        if result is not None:
            seen.append(tuple(a.shape))
        return result

    monkeypatch.setattr(
        pack, "saver", lambda b, m, backend, reproducible: backend or "numpy"
    )  # it packs small weights, too
    monkeypatch.setattr(packed_weights.PackedWeight, "product", spy)
    return seen


@pytest.fixture
def layer(rng):
    made = door.Linear(16, 32, dtype=torch.bfloat16, packed=True)
    with torch.no_grad():
        made.weight.copy_(whole(rng, 32, 16))
        made.bias.copy_(whole(rng, 32))
    return made


def expected(layer, x):
    return linear(x, layer.weight, layer.bias)


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16), (16,), (1, 16)])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "frozen"])
def test_inference_uses_the_packed_weight(mode, shape, layer, used, rng):
    x = whole(rng, *shape)
    if mode == "frozen":
        layer.requires_grad_(False)
    with torch.enable_grad() if mode == "frozen" else getattr(torch, mode)():
        for _ in range(3):
            assert torch.equal(layer(x), expected(layer, x))
    assert used == [shape] * 3
    assert layer.packed_bytes >= layer.weight.nbytes


def other(layer):
    """Another weight, which differs in an element that layers do not compare in each call."""
    weight = layer.weight.detach().clone()
    weight[31, 15] += 2
    return weight


def add(layer):
    with torch.no_grad():
        layer.weight.add_(1)


def one_element(layer):
    with torch.no_grad():
        layer.weight[31, 15] += 2


def through_a_view(layer):
    view = layer.weight.detach().t()
    view[3, 31] += 2


def in_inference_mode(layer):
    with torch.inference_mode():
        layer.weight.mul_(2)


def optimizer(layer):
    sgd = torch.optim.SGD(layer.parameters(), 1.0)
    layer.weight.grad = torch.ones_like(layer.weight)
    sgd.step()


def data(layer):
    layer.weight.data = other(layer)


def same_address(layer):
    """Free the memory and let another weight have it, as offloading does."""
    address, weight = layer.weight.data_ptr(), other(layer)
    layer.weight.data = torch.empty(0, dtype=torch.bfloat16)
    again = [torch.empty(32, 16, dtype=torch.bfloat16) for _ in range(64)]
    again.sort(key=lambda x: x.data_ptr() != address)
    again[0].copy_(weight)
    layer.weight.data = again[0]


def uncounted(layer):
    """A write of every element that torch does not count."""
    before = layer.weight._version
    layer.weight.data.add_(1)
    assert layer.weight._version == before


def load(layer):
    layer.load_state_dict({"weight": other(layer), "bias": layer.bias})


def assign(layer):
    layer.load_state_dict({"weight": other(layer), "bias": layer.bias}, assign=True)


def parameter(layer):
    layer.weight = torch.nn.Parameter(other(layer))


def registered(layer):
    layer._parameters["weight"] = torch.nn.Parameter(other(layer))


def vector(layer):
    torch.nn.utils.vector_to_parameters(torch.ones(32 * 17, dtype=torch.bfloat16), layer.parameters())


def set_(layer):
    with torch.no_grad():
        layer.weight.set_(other(layer))


def half(layer):
    layer.half()


def to(layer):
    layer.to(torch.float32)


def transposed_strides(layer):
    layer.weight.data = other(layer).t().contiguous().t()


CHANGES = [
    add, one_element, through_a_view, in_inference_mode, optimizer, data, same_address, uncounted, load, assign,
    parameter, registered, vector, set_, half, to, transposed_strides,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda x: x.__name__)
@torch.no_grad()
def test_a_changed_weight_is_never_multiplied_as_it_was(change, layer, used, rng):
    x = whole(rng, 4, 16)
    layer(x)
    assert len(used) == 1
    for _ in range(2):
        before = layer.weight.detach().float().clone()
        change(layer)
        x = x.to(layer.weight.dtype)
        if change not in (half, to, vector):
            assert not torch.equal(layer.weight.detach().float(), before)
        assert torch.equal(layer(x), expected(layer, x))
        assert torch.equal(layer(x), expected(layer, x))


@torch.no_grad()
def test_a_weight_that_shares_its_storage_with_the_packed_one(layer, used, rng):
    """Another tensor of the same memory has a version counter of its own."""
    x = whole(rng, 4, 16)
    layer(x)
    version, alias = layer.weight._version, torch.nn.Parameter(layer.weight.data)
    alias[31, 15] += 2
    while alias._version < version:
        alias.mul_(1)
    assert alias._version == version
    layer._parameters["weight"] = alias
    assert torch.equal(layer(x), expected(layer, x))


def test_a_write_that_fsdp_hides(layer, used, rng):
    """FSDP fills the same memory with gathered weights, keeps the version counter, and sets the weight again."""
    x, weight = whole(rng, 4, 16), layer.weight
    with torch.no_grad():
        layer(x)
        with torch.autograd._unsafe_preserve_version_counter(weight):
            weight[31, 15] += 2
        layer.weight = weight
        assert torch.equal(layer(x), expected(layer, x))


def test_training_after_inference(layer, used, rng):
    x = whole(rng, 4, 16)
    with torch.no_grad():
        layer(x)
    assert layer.packed_bytes
    got = layer(x)
    assert layer.packed_bytes == 0, "a product that autograd records frees the packed weight"
    got.sum().backward()
    assert torch.equal(layer.weight.grad, x.sum(0).expand(32, 16))
    assert len(used) == 1
    torch.optim.SGD(layer.parameters(), 1.0).step()
    with torch.no_grad():
        assert torch.equal(layer(x), expected(layer, x))
    assert len(used) == 2
    layer.requires_grad_(False)
    layer(x.clone().requires_grad_()).sum().backward()
    assert len(used) == 2


def compiled(layer, x):
    return torch.compile(layer, backend="eager", fullgraph=True)(x)


def exported(layer, x):
    return torch.export.export(layer, (x,)).module()(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def jit_trace(layer, x):
    return torch.jit.trace(layer, x)(x)


def jit_script(layer, x):
    return torch.jit.script(layer)(x)


def vmap(layer, x):
    return torch.func.vmap(layer)(x)


def functional(layer, x):
    changed = {name: value.detach() + 1 for name, value in layer.named_parameters()}
    assert torch.equal(torch.func.functional_call(layer, changed, x), linear(x, changed["weight"], changed["bias"]))
    return layer(x)


def autocast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


def replica(layer, x):
    other = layer._replicate_for_data_parallel()
    other.weight, other.bias = layer.weight.detach() * 1, layer.bias.detach() * 1
    other.weight[0] = 0
    assert torch.equal(other(x), linear(x, other.weight, other.bias))
    return layer(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "how", [compiled, exported, jit_trace, jit_script, vmap, functional, autocast, replica], ids=lambda x: x.__name__
)
@torch.no_grad()
def test_what_is_traced_or_transformed_multiplies_the_weight_itself(how, layer, used, rng):
    x = whole(rng, 4, 16)
    layer(x)
    assert torch.equal(how(layer, x), expected(layer, x))
    add(layer)
    assert torch.equal(how(layer, x), expected(layer, x))
    assert torch.equal(layer(x), expected(layer, x))


@torch.no_grad()
def test_options_that_change_are_followed(layer, used, rng):
    x = whole(rng, 4, 16)
    assert torch.equal(layer(x), expected(layer, x))
    layer.activation = "relu"
    assert torch.equal(layer(x), torch.relu(expected(layer, x)))
    assert len(used) == 2


@pytest.mark.parametrize(
    "case", ["parametrized", "inference tensor", "shared memory", "buffer", "negated", "negated data"]
)
@torch.no_grad()
def test_weights_that_are_not_packed(case, layer, used, rng):
    x = whole(rng, 4, 16)
    if case == "parametrized":
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
    elif case == "inference tensor":
        with torch.inference_mode():
            layer.weight = torch.nn.Parameter(whole(rng, 32, 16), requires_grad=False)
    elif case == "shared memory":
        layer.share_memory()
    elif case == "negated":
        layer.weight = torch.nn.Parameter(torch._neg_view(layer.weight.detach()))
    elif case == "negated data":
        layer.weight.data = torch._neg_view(layer.weight.detach())
    else:
        weight = layer.weight.detach()
        del layer.weight
        layer.register_buffer("weight", weight)
    assert torch.equal(layer(x), expected(layer, x))
    assert not used
    assert layer.packed_bytes == 0


@torch.no_grad()
def test_copies_have_no_packed_weight(layer, used, rng):
    x, saved = whole(rng, 4, 16), io.BytesIO()
    before = pickle.dumps(layer)
    layer(x)
    assert pickle.dumps(layer) == before
    assert [*layer.state_dict()] == ["weight", "bias"]
    torch.save(layer, saved)
    saved.seek(0)
    copies = [copy.copy(layer), copy.deepcopy(layer), torch.load(saved, weights_only=False)]
    for each in copies:
        assert each.packed
        assert each.packed_bytes == 0
        assert torch.equal(each(x), expected(layer, x))
    assert len(used) == 4


@torch.no_grad()
def test_the_packed_weight_is_freed_with_its_layer(rng, used):
    layer = door.Linear(16, 32, dtype=torch.bfloat16, packed=True)
    layer(whole(rng, 4, 16))
    held, weight = weakref.ref(layer._held), weakref.ref(layer.weight)
    layer.drop_packed()
    gc.collect()
    assert held() is None
    layer(whole(rng, 4, 16))
    held, storage = weakref.ref(layer._held), layer._held._storage
    del layer
    gc.collect()
    assert held() is weight() is None
    assert storage.expired()


@torch.no_grad()
def test_settings_in_force_are_followed(layer, used, rng):
    x = whole(rng, 4, 16)
    layer(x)
    with gemmhub.use(backend="numpy"):
        assert torch.equal(layer(x), expected(layer, x))
    assert torch.equal(layer(x), expected(layer, x))


@torch.no_grad()
def test_threads_share_a_layer(layer, rng):
    inputs = [whole(rng, rows, 16) for rows in range(1, 9)]
    results = [expected(layer, x) for x in inputs]
    wrong = []

    def run(offset):
        for turn in range(60):
            which = (turn + offset) % len(inputs)
            with torch.no_grad():
                if not torch.equal(layer(inputs[which]), results[which]):
                    wrong.append(which)
            if turn % 7 == 0:
                layer.drop_packed()

    threads = [threading.Thread(target=run, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_only_what_saves_time_is_packed(rng):
    """No packed form of float32 is faster, and one row of a large weight is read as it lies."""
    wide = door.Linear(512, 512, packed=True)
    wide(torch.ones(4, 512))
    assert wide.packed_bytes == 0
    narrow = door.Linear(1024, 1024, dtype=torch.bfloat16, packed=True)
    narrow.weight.copy_(torch.from_numpy(rng.integers(-1, 2, (1024, 1024))))
    x = torch.from_numpy(rng.integers(-1, 2, (8, 1024))).bfloat16()
    narrow(x)
    assert (narrow.packed_bytes > 0) == (pack.saver(narrow.weight.detach().t(), 8, None) is not None)
    for _ in range(2):
        assert torch.equal(narrow(x), gemmhub.matmul(x, narrow.weight.t(), bias=narrow.bias))
        narrow.weight[5] = 2
    plain = door.Linear(1024, 1024, dtype=torch.bfloat16)
    plain(torch.ones(8, 1024, dtype=torch.bfloat16))
    assert plain.packed_bytes == 0, "nothing is packed that was not asked for"


def test_the_memory_of_a_model_and_its_undoing(used, rng):
    with torch.no_grad():
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, dtype=torch.bfloat16) for _ in range(3)))
        first = door.accelerate(model[0], packed=True)
        second = door.accelerate(model, packed=True)
        assert second.packed_bytes == 0
        x = whole(rng, 4, 16)
        result = model(x)
        assert second.packed_bytes == sum(layer.packed_bytes for layer in model) > 0
        second.undo()
        assert [type(layer) is torch.nn.Linear for layer in model] == [False, True, True]
        assert second.packed_bytes == first.packed_bytes == model[0].packed_bytes > 0
        assert torch.equal(model[0](x), expected(model[0], x))
        assert vars(model[1]).keys() == vars(torch.nn.Linear(16, 16)).keys()
        first.undo()
        assert {type(layer) is torch.nn.Linear for layer in model} == {True}
        third = door.accelerate(model)
        second.undo()  # again: the layers are the third's now
        assert {type(layer) is nn.Replaced for layer in model} == {True}
        with third:
            assert torch.equal(model(x), result)
        assert {type(layer) is torch.nn.Linear for layer in model} == {True}


def test_undoing_leaves_later_changes(rng):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    done = door.accelerate(model)
    torch.nn.utils.parametrizations.weight_norm(model[0])
    kind = type(model[1])
    model[1].__class__ = type("Own", (kind,), {})
    x = torch.ones(2, 8)
    expected = model(x)
    done.undo()
    assert torch.nn.utils.parametrize.is_parametrized(model[0])
    assert not isinstance(model[0], door.Linear)
    assert type(model[1]).__name__ == "Own"
    assert torch.allclose(model(x), expected)
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[0]) is torch.nn.Linear


class Timing:
    def __init__(self, minimum):
        self.minimum = minimum


def test_layers_that_torch_computes_faster_are_left(monkeypatch):
    timed = []

    def interleave(calls, **options):
        first, second = [call() for call in calls]
        assert torch.equal(first, second)
        timed.append(tuple(first.shape))
        return [Timing(5e-5), Timing(4e-5 if first.shape[-1] == 8 else 6e-5)]

    monkeypatch.setattr("gemmhub._doors.torch.acceleration.interleave", interleave)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.Linear(8, 16))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(1)
            layer.bias.fill_(2)
    done = door.accelerate(model, measure=3)
    assert timed == [(3, 16), (3, 8)], "each size is timed once"
    assert done.replaced == ("0", "2")
    assert done.left == {"1": "a Linear that torch computes faster: 40 us by torch, 50 us by gemmhub, for 3 rows"}
    assert type(model[1]) is torch.nn.Linear
    assert vars(model[1]).keys() == vars(torch.nn.Linear(16, 8)).keys()


def test_measurement_on_this_machine():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    done = door.accelerate(model, measure=2)
    assert len(done.replaced) in (0, 2), "layers of one size share one verdict"
    assert all("for 2 rows" in reason for reason in done.left.values())


@pytest.mark.parametrize("measure", [0, -1, True, 1.5, "8"])
def test_rows_that_cannot_be_measured(measure):
    layer = torch.nn.Linear(8, 8)
    with pytest.raises(InputError, match=r"measure: .*; allowed: None or a positive number of rows"):
        door.accelerate(layer, measure=measure)
    assert type(layer) is torch.nn.Linear


def test_arguments_that_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, device="meta"))
    with pytest.raises(InputError, match="measure: 4 rows, and the weight of 1 is sharded, or on the device meta"):
        door.accelerate(model, measure=4)
    with pytest.raises(InputError, match="packed: 1; allowed: True or False"):
        door.accelerate(model, packed=1)
    with pytest.raises(InputError, match="packed: None; allowed: True or False"):
        door.Linear(8, 8, packed=None)
    assert type(model[0]) is torch.nn.Linear
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    with pytest.raises(gemmhub.NoBackendError):
        door.accelerate(model, backend="cublas", measure=2)
    assert type(model[0]) is torch.nn.Linear
