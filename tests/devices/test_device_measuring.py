"""tune, compare, spot_check and pack on device arrays, and the clock that times them."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import DTYPES, Addresses, add, small

import gemmhub
from gemmhub._arrays.cupy.operands import cupy_arrays
from gemmhub._arrays.torch.operands import torch_arrays
from gemmhub._base import device_clock
from gemmhub._base.device_clock import DeviceClock
from gemmhub._call import describe
from gemmhub._choice import records
from gemmhub._measure import compare, fresh
from gemmhub.errors import DeviceError, InputError, NoBackendError

F32 = np.dtype(np.float32)


@pytest.fixture(params=[0, 1])
def device(request):
    return request.param


@pytest.fixture
def pair(library, backend, device, rng):
    return library.array(small(rng, (5, 6)), device), library.array(small(rng, (6, 7)), device)


def arrays_of(library, device):
    return cupy_arrays(device) if library.name == "cupy" else torch_arrays("cuda", device)


@pytest.mark.parametrize("stream", [None, 0x40])
def test_tune_times_every_candidate_on_its_device(library, backend, machine, pair, device, stream):
    """On the stream that was asked for, with the events on that stream, too."""
    slow = add(Addresses("slow"))
    slow.wrong = 0
    with library.current(0x20, device):
        found = gemmhub.tune(*pair, stream=stream)
    wanted = 0x20 if stream is None else stream
    assert {(row.backend, row.candidate) for row in found.rows} == {
        (name, candidate) for name in ("addresses", "slow") for candidate in ("first", "second")
    }
    assert all(row.seconds > 0 for row in found.rows)
    assert set(backend.streams) == set(slow.streams) == {wanted}
    assert {entry[1] for entry in machine.log if entry[0] in ("record", "fill")} == {wanted}
    assert machine.done("synchronize")
    assert machine.device == 0
    assert records.path().exists()
    assert gemmhub.explain(*pair)[found.best.backend].source == "measured"


def test_tune_leaves_wrong_candidates_out(library, backend, pair):
    liar = add(Addresses("liar", seconds=1e-9))
    liar.wrong = 100
    found = gemmhub.tune(*pair)
    assert {row.backend for row in found.rows if row.seconds is None} == {"liar"}
    assert gemmhub.explain(*pair).chosen == "addresses"
    liar.wrong, backend.broken = 0, RuntimeError("launch failed")
    found = gemmhub.tune(*pair)
    assert {row.backend for row in found.rows if row.seconds is None} == {"addresses"}
    assert all("launch failed" in row.remark for row in found.rows if row.seconds is None)
    liar.wrong = 100
    with pytest.raises(NoBackendError, match="nothing to tune"):
        gemmhub.tune(*pair)


def test_tune_touches_no_operand(library, backend, pair, device, rng):
    a, b = pair
    z = small(rng, (5, 7))
    out, bias = library.array(z, device), library.array(z[0], device)
    x, y = a.host.copy(), b.host.copy()
    gemmhub.tune(a, b, out=out, c=out, beta=2, bias=bias)
    for array, before in ((a, x), (b, y), (out, z), (bias, z[0])):
        assert np.array_equal(array.host, before)


def test_the_products_of_a_function_are_tuned_on_their_device(library, backend, machine, pair, device, rng):
    """On new arrays of their library, of the same layouts; the caller's are not touched."""
    a, b = pair
    x, y = a.host.copy(), b.host.copy()
    out, bias = library.array(small(rng, (5, 7)), device), library.array(small(rng, (7,)), device)
    stack = library.array(small(rng, (3, 5, 6)), device)

    def function():
        gemmhub.matmul(a, b)
        gemmhub.matmul(a, b, out=out, bias=bias)
        gemmhub.matmul(stack, b)
        return gemmhub.matmul(a, b, out=out, bias=bias)

    function()
    before = out.host.copy()
    result = gemmhub.tune(function)
    assert [(p.problem.partition(" ")[0], p.calls, p.remark) for p in result.products] == [
        ("5x7x6", 1, ""), ("5x7x6", 2, ""), ("15x7x6", 1, "")
    ]  # fmt: skip
    assert all(row.seconds > 0 for product in result.products for row in product.rows)
    assert {record.device for record in records.read(records.path()).all} == {f"cuda:{device}"}
    for array, old in ((a, x), (b, y), (out, before)):
        assert np.array_equal(array.host, old)
    assert gemmhub.explain(a, b)["addresses"].source == "measured"


@pytest.mark.parametrize("form", ["transposed", "strided", "reversed", "broadcast", "repeated row"])
def test_layouts_of_a_function_on_a_device(library, backend, device, rng, form):
    """Of the same record, or the table has the reason; broadcast and repeated elements have their memory once."""
    if form == "reversed" and library.name == "torch":
        pytest.skip("torch has no negative strides")
    host = {
        "transposed": np.asfortranarray,
        "strided": lambda y: np.repeat(y, 2, axis=0)[::2],
        "reversed": lambda y: y[::-1],
        "broadcast": lambda y: np.broadcast_to(y, (3, *y.shape)),
        "repeated row": lambda y: np.broadcast_to(y[:1], y.shape),
    }[form](small(rng, (6, 7)))
    b = library.array(host, device)
    a = library.array(small(rng, (3, 5, 6) if form == "broadcast" else (5, 6)), device)
    (product,) = gemmhub.tune(gemmhub.matmul, a, b).products
    known = {record.problem for record in records.read(records.path()).all}
    if product.remark:
        assert form == "repeated row"
        assert product.remark.startswith("not tuned: new operands are 5x7x6")
        assert not known
    else:
        assert known == {gemmhub.explain(a, b).problem.key}


@pytest.mark.parametrize("offset", [0, 4, 16, 100])
def test_operands_of_a_function_are_aligned_as_the_callers(library, backend, device, rng, offset, monkeypatch):
    """Loads of 16 bytes would be timed otherwise, though the caller's operands do not allow them."""
    a, b = (library.array(small(rng, shape), device, offset=offset) for shape in ((5, 6), (6, 7)))
    known, real = [], fresh.operands_like

    def operands_like(product):
        made = real(product)
        known.append(describe.describe(made["a"], made["b"], None, product.request).problem)
        return made

    monkeypatch.setattr(fresh, "operands_like", operands_like)
    (product,) = gemmhub.tune(gemmhub.matmul, a, b).products
    own = gemmhub.explain(a, b).problem
    assert not product.remark
    assert (known[0].a.alignment, known[0].b.alignment) == (own.a.alignment, own.b.alignment)


def test_operands_that_cannot_be_aligned_so_are_not_tuned(library, backend, pair, device, rng, monkeypatch):
    a, b = (library.array(small(rng, shape), device, offset=4) for shape in ((5, 6), (6, 7)))
    real = fresh.operands_like
    monkeypatch.setattr(fresh, "operands_like", lambda product: {**real(product), "a": pair[0]})
    (product,) = gemmhub.tune(gemmhub.matmul, a, b).products
    assert (product.remark, product.rows) == ("not tuned: new operands are aligned otherwise", ())


def test_specs_of_a_device_are_not_tuned(library, backend, pair):
    a, b = pair
    spec = [gemmhub.ArraySpec(x.host.shape, "float32", device=gemmhub.explain(a, b).problem.device) for x in pair]
    result = gemmhub.tune(lambda: gemmhub.plan(*spec)(a, b))
    assert [p.remark for p in result.products] == [
        f"not tuned: a, b: planned for specs on {spec[0].device}; allowed: arrays. plan for arrays to tune it"
    ]


@pytest.mark.parametrize("stream", [None, 0x40])
def test_compare(library, backend, machine, pair, device, stream, rng):
    liar = add(Addresses("liar"))
    z = small(rng, (5, 7))
    c, bias = library.array(z, device), library.array(z[:, :1].copy(), device)
    for options in ({}, {"c": c, "beta": 2, "bias": bias, "alpha": 3, "activation": "relu"}):
        liar.wrong = 0
        machine.log.clear()
        assert gemmhub.compare(*pair, stream=stream, **options)
        assert bool(machine.done("synchronize")) == (stream is not None), "the host reads on the current stream"
        liar.wrong = 50
        found = gemmhub.compare(*pair, stream=stream, **options)
        assert found.deviating == ("liar",)
        assert next(row for row in found.rows if row.backend == "liar").difference == 50
        assert found.rows[-1].backend == "numpy"
        assert found.rows[-1].remark.startswith("on the host")
    (row,) = gemmhub.compare(*pair, backends=["numpy"]).rows
    assert row.ok
    with pytest.raises(InputError, match="nobody"):
        gemmhub.compare(*pair, backends=["nobody"])


def test_compare_waits_for_no_reference_that_takes_long(library, backend, pair, monkeypatch):
    monkeypatch.setattr(compare, "_REFERENCE_SECONDS", 0.0)
    assert "numpy" not in {row.backend for row in gemmhub.compare(*pair).rows}
    assert "numpy" in {row.backend for row in gemmhub.compare(*pair, backends=["numpy", backend.name]).rows}


def test_spot_check(library, backend, pair, device, rng):
    a, b = pair
    c = gemmhub.matmul(a, b)
    assert gemmhub.spot_check(a, b, c)
    assert gemmhub.spot_check(a, b, c.host)
    assert gemmhub.spot_check(a.host, b, c)
    c.host[2, 3] += 1
    found = gemmhub.spot_check(a, b, c)
    assert not found
    assert found.where == (2, 3)


def test_a_batch_that_is_decided_as_one_matrix_is_compared_with_its_epilogue(library, backend, device, rng):
    liar = add(Addresses("liar"))
    x, y = small(rng, (3, 5, 6)), small(rng, (6, 7))
    a, b, bias = library.array(x, device), library.array(y, device), library.array(y[0].copy(), device)
    c = library.array(small(rng, (3, 5, 7)), device)
    for options in ({"bias": bias}, {"bias": bias, "c": c, "beta": 2, "activation": "relu"}):
        liar.wrong = 0
        assert gemmhub.compare(a, b, **options)
        liar.wrong = 50
        assert gemmhub.compare(a, b, **options).deviating == ("liar",)


def test_spot_check_takes_options_on_the_device_or_on_the_host(library, backend, machine, pair, device, rng):
    a, b = pair
    z = small(rng, (5, 7))
    c, bias = library.array(z, device), library.array(z[0].copy(), device)
    options = {"c": c, "beta": 2, "bias": bias, "alpha": 3, "activation": "relu"}
    result = gemmhub.matmul(a, b, **options)
    assert gemmhub.spot_check(a, b, result, **options)
    assert gemmhub.spot_check(a, b, result.host, **{**options, "c": z, "bias": z[0]})
    assert not gemmhub.spot_check(a, b, result, **{**options, "beta": 1})
    machine.log.clear()
    assert gemmhub.spot_check(a, b, result, stream=0x40, **options)
    assert machine.done("synchronize"), "the host reads on the current stream"
    result.host[2, 3] += 1
    assert gemmhub.spot_check(a, b, result, **options).where == (2, 3)


def test_the_clock_leaves_no_call_out(library, machine, device):
    """Fills go first, then the events around exactly the calls that were asked for."""
    clock = arrays_of(library, device).clock()
    assert isinstance(clock, DeviceClock)
    assert clock.cache_bytes == 2 * 2**16

    def call():
        machine.log.append(("call",))
        machine.clock += 2.0  # milliseconds

    seconds = clock.measure(call, 5)
    assert seconds == pytest.approx(2e-3)
    machine.log.clear()
    assert clock.measure(call, 1000) == pytest.approx(2e-3)
    names = [entry[0] for entry in machine.log]
    last = len(names) - 1 - names[::-1].index("fill")
    assert names[last + 1 :] == ["record", *["call"] * 64, "record", "synchronize"]
    assert machine.device == 0


def fills_of(machine):
    """The number of fills between the last stretch's events around them."""
    records = [i for i, entry in enumerate(machine.log) if entry[0] == "record"]
    return [entry[0] for entry in machine.log[records[-3] : records[-2]]].count("fill")


@pytest.fixture
def host(monkeypatch):
    """The host's time, in a list of one that a test advances."""
    now = [0.0]
    monkeypatch.setattr(device_clock, "perf_counter", lambda: now[0])
    return now


def test_what_the_host_launched_too_late_is_measured_again(library, machine, host, device):
    """With fills for the host's time of that stretch."""
    clock, calls, busy = arrays_of(library, device).clock(), [], range(2, 4)
    machine.fill_time = lambda now: 0.05

    def call():
        calls.append(len(machine.log))
        late = len(calls) in busy
        machine.clock += 7.0 if late else 2.0
        host[0] += 0.008 if late else 0.0005

    assert clock.measure(call, 5) == pytest.approx(2e-3)
    assert len(calls) == 1 + 5 + 5
    assert 8.0 < fills_of(machine) * 0.05 < 30.0
    # A host that stays slow is given up on.
    calls.clear()
    busy = range(1000)
    assert clock.measure(call, 2) == pytest.approx(7e-3)
    assert len(calls) <= 1 + 3 * 2


@pytest.mark.parametrize(("milliseconds", "wanted"), [(2.0, 0.1), (0.15, 0.1), (0.11, 40 * 0.1), (0.001, 40 * 0.1)])
def test_fills_last_until_the_device_is_behind(library, machine, host, device, milliseconds, wanted):
    """Soon where a call takes the device longer than the host; else once all calls are launched."""
    clock = arrays_of(library, device).clock()
    machine.fill_time = lambda now: 0.05

    def call():
        machine.clock += milliseconds
        host[0] += 1e-4

    assert clock.measure(call, 40) == pytest.approx(milliseconds * 1e-3)
    assert wanted <= fills_of(machine) * 0.05 <= 2 * wanted + 0.6


def test_a_card_that_wakes_up(library, machine, host, device):
    """The first fills of an idle card take longer than later ones: their duration is measured each time."""
    clock = arrays_of(library, device).clock()
    machine.fill_time = lambda now: 10.0 if now < 100 else 0.02

    def call():
        machine.clock += 0.01
        host[0] += 1e-4

    assert clock.measure(call, 8) == pytest.approx(1e-5)
    assert 8 * 1e-4 <= fills_of(machine) * 2e-5 <= 2 * 8 * 1e-4, "fills are timed by their later duration"


def test_pack_asks_the_backends_of_the_device(library, backend, machine, rng):
    x, y = small(rng, (5, 6)), small(rng, (6, 7))
    b = library.array(np.asfortranarray(y))
    with pytest.raises(NoBackendError, match="addresses"):
        gemmhub.pack(b)

    def pack(address, problem):
        assert address == b.host.ctypes.data
        assert (problem.b.layout.row_stride, problem.b.layout.col_stride) == (1, 6)
        return b

    backend.pack = pack
    packed = gemmhub.pack(b)
    assert str(packed.device) == "cuda:0"
    for wrong in (library.array(x, 1), x):
        for function in (gemmhub.matmul, gemmhub.plan):
            with pytest.raises(DeviceError, match="packed on cuda:0"):
                function(wrong, packed)


# What libraries do around kernels


LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "scalar": lambda x: x[0, 0].reshape(()),
    "empty": lambda x: x[:0],
    "vector": lambda x: x[1],
    "one of many": lambda x: x[:1, ::4],
    "stack": lambda x: np.stack([x, x]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_families_keep_values_and_layouts(library, machine, device, dtype, layout, rng):
    x = LAYOUTS[layout](small(rng, (3, 4), dtype))
    arrays = arrays_of(library, device)
    there = arrays.from_host(x)
    assert library.owns(there)
    assert library.device(there) == device
    assert tuple(there.shape) == x.shape
    assert np.array_equal(arrays.to_host(there), x)
    array = library.array(x, device, offset=16)
    view = arrays.view(array, "x")
    assert (view.dtype, view.shape) == (dtype, x.shape)
    assert np.array_equal(arrays.to_host(array), x)
    for copy in (arrays.clone(array), arrays.clone(view), arrays.empty_strided_like(view)):
        again = arrays.view(copy, "x")
        assert (again.dtype, again.shape) == (dtype, x.shape)
        assert x.size == 0 or again.strides == view.strides
        assert x.size == 0 or again.address % 256 == view.address % 256
        assert x.size == 0 or not arrays.overlap(again, view)
    assert np.array_equal(arrays.to_host(arrays.clone(array)), x)
    assert machine.device == 0
