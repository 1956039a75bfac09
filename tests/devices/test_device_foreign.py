"""Device arrays of unknown libraries: imported by cupy or torch without a copy."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from address_backend import small

import gemmhub
from gemmhub._arrays.dlpack import adopted
from gemmhub.errors import DeviceError, DTypeError, InputError, OutputError

F32 = np.dtype(np.float32)


@pytest.fixture(params=["cupy", "torch"])
def carrier(request):
    request.getfixturevalue(request.param)
    return request.param


@pytest.fixture(params=["fakejax", "fakenumba"])
def theirs(request, carrier, backend):
    return request.getfixturevalue(request.param)


def test_results_are_the_operands_own_kind(theirs, machine, rng):
    x, y, z = small(rng, (3, 4)), small(rng, (4, 5)), small(rng, (5,))
    a, b, bias = (theirs.array(value) for value in (x, y, z))
    planned = gemmhub.plan(a, b)
    for _ in range(3):
        for call, wanted in (
            (lambda: gemmhub.matmul(a, b), x @ y),
            (lambda: gemmhub.matmul(a, b, bias=bias, alpha=2), 2 * (x @ y) + z),
            (lambda: planned(a, b), x @ y),
        ):
            c = call()
            assert type(c) is theirs.Array
            assert np.array_equal(c.host, wanted)
            assert machine.owner(c.host.ctypes.data) == 0
    assert gemmhub.explain(a, b).chosen == "addresses"
    assert gemmhub.spot_check(a, b, c)
    assert not machine.done("copy")
    assert not machine.done("synchronize")


def test_operands_are_read_in_place(theirs, backend, rng):
    a, b = theirs.array(small(rng, (3, 4))), theirs.array(small(rng, (4, 5)))
    a.host = a.host[:, 1:]  # not from its first byte on, nor dense
    b.host = b.host[1:]
    for _ in range(2):
        gemmhub.matmul(a, b)
    assert all(call[:2] == (a.host.ctypes.data, b.host.ctypes.data) for call in backend.calls)


def test_out(theirs, backend, machine, rng):
    x, y = small(rng, (4, 4)), small(rng, (4, 4))
    a, b, out = theirs.array(x), theirs.array(y), theirs.array(np.zeros((4, 4), F32))
    for _ in range(2):
        assert gemmhub.matmul(a, b, out=out) is out
        assert np.array_equal(out.host, x @ y)
    assert gemmhub.matmul(a, b, out=a) is a
    assert np.array_equal(a.host, x @ y)
    assert len(machine.done("copy")) == 1


def test_a_library_that_converts_results_is_an_error(carrier, fakejax, backend, monkeypatch, rng):
    """As JAX does unless 64-bit dtypes are enabled."""
    x = fakejax.array(small(rng, (4, 4), np.float64))
    monkeypatch.setattr(fakejax, "from_dlpack", lambda result: types.SimpleNamespace(dtype=F32))
    for _ in range(2):
        with pytest.raises(InputError, match=r"float64, which .* converts to float32.*jax_enable_x64") as raised:
            gemmhub.matmul(x, x)
        assert raised.value.argument == "out_dtype"


@pytest.mark.parametrize("shapes", [((0, 4), (4, 5)), ((3, 0), (0, 5)), ((4,), (4,)), ((2, 3, 4), (4, 5))], ids=str)
def test_shapes(theirs, shapes, rng):
    x, y = (small(rng, shape) for shape in shapes)
    for _ in range(2):
        assert np.array_equal(gemmhub.matmul(theirs.array(x), theirs.array(y)).host, x @ y)


def test_a_second_device(theirs, carrier, machine, rng):
    x, y = small(rng, (3, 4)), small(rng, (4, 5))
    a, b = theirs.array(x, 1), theirs.array(y, 1)
    if carrier == "torch" and theirs.__name__ == "fakenumba":  # torch tells the device of an address by copying
        for _ in range(2):
            with pytest.raises(DeviceError, match="another device"):
                gemmhub.matmul(a, b)
        with machine.on(1):
            assert np.array_equal(gemmhub.matmul(a, b).host, x @ y)
        return
    for _ in range(2):
        c = gemmhub.matmul(a, b)
        assert np.array_equal(c.host, x @ y)
        assert machine.owner(c.host.ctypes.data) == 1
    assert machine.device == 0
    with pytest.raises(DeviceError, match="cuda:1"):
        gemmhub.matmul(a, theirs.array(y, 0))


def test_they_do_not_mix(theirs, carrier, library_of, rng):
    a = theirs.array(small(rng, (4, 4)))
    b = library_of(carrier).array(small(rng, (4, 4)))
    with pytest.raises(DeviceError) as caught:
        gemmhub.matmul(a, b)
    assert caught.value.given == f"a is {theirs.__name__} on cuda:0, b is {carrier} on cuda:0"
    for wrong in ([[1.0] * 4] * 4, 1.0):
        with pytest.raises(DeviceError) as caught:
            gemmhub.matmul(a, a, out=wrong)
        assert caught.value.argument == "out"
    with pytest.raises(DeviceError) as caught:
        gemmhub.matmul(a, [[1.0] * 4] * 4)
    assert caught.value.argument == "b"


def test_read_only_outs(fakenumba, fakejax, carrier, backend, monkeypatch):
    a, out = fakenumba.array(np.ones((3, 3), F32)), fakenumba.array(np.zeros((3, 3), F32))
    gemmhub.matmul(a, a, out=out)
    out.readonly = True
    out.host[...] = 0
    with pytest.raises(OutputError, match="read-only"):
        gemmhub.matmul(a, a, out=out)
    assert np.all(out.host == 0)
    # JAX's arrays never change
    kind = type("ArrayImpl", (fakejax.Array,), {"__module__": "jaxlib._jax"})
    a, out = fakejax.array(np.ones((3, 3), F32)), fakejax.array(np.zeros((3, 3), F32))
    a.__class__ = out.__class__ = kind
    monkeypatch.setitem(sys.modules, "jax", fakejax)
    assert np.all(gemmhub.matmul(a, a).host == 3)
    with pytest.raises(OutputError, match="read-only"):
        gemmhub.matmul(a, a, out=out)
    assert gemmhub.tune(a, a).best.backend == "addresses"  # into arrays that nobody else holds


def test_dtypes_that_the_interface_lacks(fakenumba, carrier, backend):
    a = fakenumba.array(np.ones((3, 3), "V2"))
    with pytest.raises(InputError) as caught:
        gemmhub.matmul(a, a)
    assert caught.value.argument == "a"
    if carrier == "cupy":
        assert isinstance(caught.value, DTypeError)


def test_arrays_that_break(fakejax, fakenumba, carrier, backend, monkeypatch):
    good, broken = fakejax.array(np.ones((3, 3), F32)), fakejax.array(np.ones((3, 3), F32))
    kind = type("Broken", (fakejax.Array,), {"__dlpack__": lambda self, **_: 1 / 0, "__module__": "fakejax"})
    broken.__class__ = kind
    for a, b, argument in ((broken, good, "a"), (good, broken, "b")):
        with pytest.raises(InputError, match="cannot import") as caught:
            gemmhub.matmul(a, b)
        assert caught.value.argument == argument
    x = np.ones((3, 3), F32)
    stray = fakenumba.array(x)
    stray.host = x  # an address of the host's
    with pytest.raises(InputError) as caught:
        gemmhub.matmul(stray, stray)
    assert caught.value.argument == "a"


def test_without_a_library_that_takes_them(fakejax, fakenumba, backend, monkeypatch):
    monkeypatch.setattr(adopted, "find_spec", lambda name: None)
    for module in (fakejax, fakenumba):
        a = module.array(np.ones((3, 3), F32))
        with pytest.raises(DeviceError, match="pip install cupy") as caught:
            gemmhub.matmul(a, a)
        assert caught.value.argument == "a"
    monkeypatch.setattr(adopted, "find_spec", lambda name: object())

    def broken(name):
        raise ImportError("libcuda is missing")

    monkeypatch.setattr(adopted.importlib, "import_module", broken)
    with pytest.raises(DeviceError):
        gemmhub.matmul(a, a)


def test_cupy_is_imported_for_them_alone(fakejax, backend, machine, monkeypatch):
    """Where it is installed and no library that could is imported."""
    import cupy_module

    module = cupy_module.build(machine)
    monkeypatch.setattr(adopted, "find_spec", lambda name: object())
    monkeypatch.setattr(adopted.importlib, "import_module", lambda name: monkeypatch.setitem(sys.modules, name, module))
    x = np.ones((3, 3), F32)
    gemmhub.matmul(x, x)
    assert "cupy" not in sys.modules
    a = fakejax.array(x)
    assert np.all(gemmhub.matmul(a, a).host == 3)
    assert "cupy" in sys.modules
