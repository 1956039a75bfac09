"""Device arrays that cannot be multiplied: the error names the argument and what is allowed; nothing is written."""

from __future__ import annotations

import subprocess
import sys
import types

import numpy as np
import pytest
from address_backend import Addresses, add, small

import gemmhub
from gemmhub._base import registered
from gemmhub.errors import (
    AllocationError,
    DeviceError,
    DTypeError,
    InputError,
    KernelError,
    NoBackendError,
    OutputError,
    ShapeError,
)

F32 = np.dtype(np.float32)


def ones(*shape):
    return np.ones(shape, F32)


def refused(kind, a, b, **options):
    """The error of every public function, cold and after a valid call; they agree."""
    raised = []
    for function in (gemmhub.matmul, gemmhub.explain, gemmhub.plan, gemmhub.tune, gemmhub.matmul):
        with pytest.raises(InputError) as caught:
            function(a, b, **options)
        assert type(caught.value) is kind, caught.value
        raised.append(caught.value)
    assert len({str(error) for error in raised}) == 1
    assert all((raised[0].argument, raised[0].given, raised[0].allowed))
    return raised[0]


@pytest.fixture
def pair(library, backend):
    """Operands of a product that has been computed before."""
    a, b = library.array(ones(3, 4)), library.array(ones(4, 5))
    for _ in range(2):
        gemmhub.matmul(a, b)
    return a, b


@pytest.mark.parametrize("scalars", [{"alpha": 1e40}, {"alpha": -1e-40}, {"alpha": 2, "beta": 1e-50}], ids=str)
def test_scalars_that_float32_cannot_hold(library, backend, pair, scalars):
    """Kernels take them in float32, where they would be infinite, zero or imprecise."""
    a, b = pair
    c = {"c": library.array(ones(3, 5))} if "beta" in scalars else {}
    out = library.array(ones(3, 5))
    before = out.host.copy()
    error = refused(InputError, a, b, out=out, **scalars, **c)
    assert error.argument == ("beta" if c else "alpha")
    assert "cuda" in error.given
    planned = gemmhub.plan(a, b, alpha=2, **({"beta": 2} | c if c else {}))
    with pytest.raises(InputError, match=error.argument):
        planned(a, b, out, **scalars, **c)
    assert np.array_equal(out.host, before)


@pytest.mark.parametrize("argument", ["a", "b", "out", "c", "bias"])
def test_operands_on_two_devices(library, backend, pair, argument):
    a, b = pair
    shapes = {"a": (3, 4), "b": (4, 5), "out": (3, 5), "c": (3, 5), "bias": (5,)}
    given = {"a": a, "b": b, argument: library.array(ones(*shapes[argument]), device=1)}
    options = {"beta": 1} if argument == "c" else {}
    error = refused(DeviceError, given.pop("a"), given.pop("b"), **given, **options)
    assert argument in error.argument
    assert f"{argument} is {library.name} on cuda:1" in error.given
    assert f"{library.name} on cuda:0" in error.given


@pytest.mark.parametrize("argument", ["a", "b", "out", "c", "bias"])
def test_numpy_beside_device_arrays(library, pair, argument):
    a, b = pair
    shapes = {"a": (3, 4), "b": (4, 5), "out": (3, 5), "c": (3, 5), "bias": (5,)}
    given = {"a": a, "b": b, argument: ones(*shapes[argument])}
    options = {"beta": 1} if argument == "c" else {}
    error = refused(DeviceError, given.pop("a"), given.pop("b"), **given, **options)
    assert f"{argument} is numpy on cpu" in error.given


@pytest.mark.parametrize("argument", ["a", "b", "out", "c", "bias"])
def test_lists_beside_device_arrays(library, pair, argument):
    """Nothing is copied to a device behind the caller's back."""
    a, b = pair
    values = {"a": [[1.0] * 4] * 3, "b": [[1.0] * 5] * 4, "out": [[0.0] * 5] * 3, "c": 1.0, "bias": [1.0] * 5}
    given = {"a": a, "b": b, argument: values[argument]}
    options = {"beta": 1} if argument == "c" else {}
    error = refused(DeviceError, given.pop("a"), given.pop("b"), **given, **options)
    assert error.argument == argument
    assert f"{library.name} arrays on cuda:0" in error.allowed


def test_two_libraries(library_of, backend):
    a, b = library_of("cupy").array(ones(3, 4)), library_of("torch").array(ones(4, 5))
    error = refused(DeviceError, a, b)
    assert error.given == "a is cupy on cuda:0, b is torch on cuda:0"


def test_shapes_and_outs(library, pair):
    a, b = pair
    assert refused(ShapeError, a, a).argument == "a, b"
    assert refused(ShapeError, library.array(ones()), b).argument == "a"
    assert refused(OutputError, a, b, out=library.array(ones(5, 3))).argument == "out"
    overlapping = np.lib.stride_tricks.as_strided(ones(40), (3, 5), (4, 4))
    assert "share" in refused(OutputError, a, b, out=library.array(overlapping)).given
    assert refused(OutputError, a, b, out=library.array(np.ones((3, 5), np.int32))).argument == "out"
    assert refused(ShapeError, a, b, bias=library.array(ones(4))).argument == "bias"
    assert refused(ShapeError, a, b, c=library.array(ones(4)), beta=1).argument == "c"
    crooked = np.zeros(5, [("x", "i2"), ("y", "f4")])["y"]
    if library.name == "cupy":
        assert refused(InputError, a, b, bias=library.array(crooked)).argument == "bias"


def test_a_bias_between_two_elements(library, pair):
    a, b = pair
    bias = library.array(ones(5), offset=2)
    assert refused(InputError, a, b, bias=bias).argument == "bias"


# Tensors that are no plain memory


def test_gradients_are_not_recorded(torch, library_of, backend):
    library = library_of("torch")
    a, b, out = library.array(ones(3, 4)), library.array(ones(4, 5)), library.array(ones(3, 5))
    planned = gemmhub.plan(a, b)
    for _ in range(3):
        planned(a, b), planned(a, b, out), gemmhub.matmul(a, b), gemmhub.matmul(a, b, out=out)
    for argument, x in {"a": a, "b": b, "out": out}.items():
        x.requires_grad = True
        options = {"out": out} if argument == "out" else {}
        error = refused(InputError, a, b, **options)
        assert error.argument == argument
        assert "no_grad" in error.remedy
        with pytest.raises(InputError):
            planned(a, b, **options)
        with torch.no_grad():
            for _ in range(2):
                assert gemmhub.matmul(a, b, **options).host[0, 0] == 4
                assert planned(a, b, **options).host[0, 0] == 4
        x.requires_grad = False


def test_a_plan_leaves_nothing_to_what_records_gradients(torch, library_of, backend, monkeypatch):
    library = library_of("torch")
    a, b = library.array(ones(3, 4)), library.array(ones(4, 5))
    planned = gemmhub.plan(a, b)
    planned(a, b), gemmhub.matmul(a, b)
    monkeypatch.setattr(registered, "record", lambda a, b, options, replay: "recorded")
    a.requires_grad = True
    assert gemmhub.matmul(a, b) == "recorded"
    with pytest.raises(InputError, match="requires grad"):
        planned(a, b)


def test_what_was_learned_without_grad_does_not_hold_with_it(torch, library_of, backend):
    library = library_of("torch")
    a, b, out = library.array(ones(3, 4)), library.array(ones(4, 5)), library.array(ones(3, 5))
    b.requires_grad = True
    for options in ({}, {"out": out}, {"alpha": 2}):
        with torch.no_grad():
            planned = gemmhub.plan(a, b, **options)
            for _ in range(3):
                gemmhub.matmul(a, b, **options), planned(a, b, **options)
        refused(InputError, a, b, **options)
        with pytest.raises(InputError, match="requires grad"):
            planned(a, b, **options)


@pytest.mark.parametrize("change", ["conj", "negated"])
@pytest.mark.parametrize("shape", [(3, 4), (1, 1)])
def test_lazily_changed_tensors(library_of, backend, change, shape, rng):
    """Tensors that share the memory of one that was multiplied before, with pending operations."""
    library = library_of("torch")
    x = np.zeros((*shape, 2), F32)
    x[..., 0] = small(rng, shape) + 1
    wide = x.view(np.complex64)[..., 0] if change == "conj" else x[..., 0]  # torch negates every other float only
    b = library.array(np.ones((shape[1], 2), wide.dtype))
    a = library.array(wide)
    out = library.array(np.ones((shape[0], 2), wide.dtype))
    planned = gemmhub.plan(a, b)
    for _ in range(3):
        gemmhub.matmul(a, b), planned(a, b), gemmhub.matmul(a, b, out=out), planned(a, b, out)
    twin = getattr(a, change)()
    assert twin.data_ptr() == a.data_ptr()
    assert "resolve" in refused(InputError, twin, b).remedy
    refused(InputError, twin, b, out=out)
    for call in (lambda: planned(twin, b), lambda: planned(twin, b, out)):
        with pytest.raises(InputError):
            call()
    assert gemmhub.spot_check(twin, b, gemmhub.matmul(a, b)).ok == (change == "conj")
    twin = getattr(out, change)()
    if change == "conj":
        refused(InputError, a, b, out=twin)


def test_tensors_without_memory(torch, library_of, backend):
    library = library_of("torch")
    a, b = library.array(ones(3, 4)), library.array(ones(4, 5))
    sparse = library.array(ones(3, 4))
    sparse.layout = torch.sparse_coo
    assert "sparse" in refused(InputError, sparse, b).given
    nested = library.array(ones(3, 4))
    nested.is_nested = True
    assert "nested" in refused(InputError, nested, b).given

    wrapped = library.array(ones(3, 4))
    for wrapped.data_ptr in (lambda: 0, _no_storage):
        assert "without memory" in refused(InputError, wrapped, b).given
    other = library.array(ones(3, 4))
    other.dtype = torch.qint8
    assert refused(DTypeError, other, b).argument == "a"
    with pytest.raises(DTypeError):
        gemmhub.spot_check(other, b, a)


def _no_storage():
    raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


def test_subclasses_of_tensor(torch, library_of, backend):
    """Those which torch multiplies as plain tensors are taken, after a plain call as before one."""
    library = library_of("torch")
    a, b, out = library.array(ones(3, 4)), library.array(ones(4, 5)), library.array(ones(3, 5))

    def of(kind):
        return kind(a.host, a.dtype, a.device)

    class Tagged(torch.Tensor):
        pass

    class Computing(torch.nn.Parameter):
        @classmethod
        def __torch_dispatch__(cls, *arguments):
            raise AssertionError("gemmhub does not compute with subclasses")

    planned = gemmhub.plan(a, b, out=out)
    for _ in range(2):
        assert np.all(gemmhub.matmul(of(torch.nn.Parameter), b, out=out).host == 4)
        for kind in (Tagged, Computing):
            error = refused(InputError, of(kind), b)
            assert (error.argument, "as_subclass" in error.remedy) == ("a", True)
            assert kind.__name__ in error.given
            with pytest.raises(InputError, match=kind.__name__):
                planned(of(kind), b, out)


def test_a_torch_without_increment_version(torch, library_of, backend):
    a, b = library_of("torch").array(ones(3, 4)), library_of("torch").array(ones(4, 5))
    del torch.autograd.graph.increment_version
    torch.__version__ = "2.0.1"
    error = refused(InputError, a, b)
    assert (error.given, error.allowed) == ("a tensor of torch 2.0.1", "torch 2.1 or later")


def test_inference_tensors(torch, library_of, backend):
    library = library_of("torch")
    with torch.inference_mode():
        a, b, out = library.array(ones(3, 4)), library.array(ones(4, 5)), library.array(ones(3, 5))
        assert out.is_inference()
        for _ in range(2):
            assert gemmhub.matmul(a, b, out=out).host[0, 0] == 4
            assert gemmhub.matmul(a, b).host[0, 0] == 4
    for _ in range(2):
        out.host[...] = 0
        assert gemmhub.matmul(a, b, out=out).host[0, 0] == 4


def test_unknown_devices(torch, library_of, backend):
    library = library_of("torch")
    b = library.array(ones(4, 5))
    other = library.array(ones(3, 4))
    other.device = torch.device("xpu", 0)
    assert refused(DeviceError, other, b).argument == "a"
    torch.version.hip = "6.0"
    assert refused(DeviceError, b, b).argument == "a"


# What fails while running


def test_out_of_memory(library, machine, pair, rng):
    a, b = pair
    planned = gemmhub.plan(a, b)
    meeting = library.array(ones(4, 4))
    for _ in range(2):
        machine.room = 16
        for call in (gemmhub.matmul, planned, lambda a, b: gemmhub.matmul(a, b, bias=None, alpha=2)):
            with pytest.raises(AllocationError, match=r"cuda:0"):
                call(a, b)
        with pytest.raises(AllocationError):
            gemmhub.matmul(meeting, meeting, out=meeting)  # which needs a temporary
        assert np.all(meeting.host == 1)
        machine.room = float("inf")
        assert np.all(gemmhub.matmul(a, b).host == 4)
        assert np.all(planned(a, b).host == 4)


def test_a_lost_device(library, machine, pair):
    a, b = pair
    planned = gemmhub.plan(a, b)
    for _ in range(2):
        machine.lost = True
        for call in (gemmhub.matmul, planned, lambda a, b: gemmhub.matmul(a, b, alpha=2)):
            with pytest.raises(DeviceError, match="illegal memory access"):
                call(a, b)
        machine.lost = False
        assert np.all(gemmhub.matmul(a, b).host == 4)


def test_results_that_no_machine_holds(library, machine, backend):
    one = library.array(np.ones((), F32))
    wide = [library.at(machine.allocate(4, 0), 0, F32, shape, (0, 0)) for shape in ((2**40, 1), (1, 2**40))]
    assert gemmhub.explain(*wide).chosen == "addresses"
    for options in ({}, {}, {"alpha": 2}):
        with pytest.raises(AllocationError, match="GiB"):
            gemmhub.matmul(*wide, **options)
    with pytest.raises(ShapeError):
        gemmhub.matmul(one, one)


@pytest.mark.parametrize("broken", [RuntimeError("launch failed"), MemoryError("scratch")])
def test_kernels_that_fail(library, backend, pair, broken):
    a, b = pair
    planned = gemmhub.plan(a, b)
    planned(a, b)
    kind = AllocationError if isinstance(broken, MemoryError) else KernelError
    for _ in range(2):
        backend.broken = broken
        for call in (gemmhub.matmul, planned, lambda a, b: gemmhub.matmul(a, b, alpha=2)):
            with pytest.raises(kind, match="addresses") as caught:
                call(a, b)
            assert caught.value.__cause__ is broken
        backend.broken = None
        assert np.all(gemmhub.matmul(a, b).host == 4)
        assert np.all(planned(a, b).host == 4)


def test_no_backend_for_the_device(library, machine):
    a, b = library.array(ones(3, 4), device=1), library.array(ones(4, 5), device=1)
    with pytest.raises(NoBackendError, match="gemmhub-cublas"):
        gemmhub.matmul(a, b)
    add(Addresses(devices=1))
    with pytest.raises(NoBackendError, match="on cuda:1"):
        gemmhub.matmul(a, b)
    with pytest.raises(InputError, match="nowhere"):
        gemmhub.matmul(a, b, backend="nowhere")


def test_device_libraries_are_never_imported():
    """Not for NumPy arrays, nor for cupy's and torch's own, whose callers have them."""
    code = (
        "import sys, types, numpy as np, gemmhub\n"
        "x = np.ones((3, 3))\n"
        "gemmhub.matmul(x, x); gemmhub.plan(x, x)(x, x); gemmhub.explain(x, x); gemmhub.spot_check(x, x, x @ x)\n"
        "class Other:\n"
        "    __dlpack_device__ = x.__dlpack_device__\n"
        "    def __dlpack__(self, **o): return x.__dlpack__(**o)\n"
        "    def __array_namespace__(self): return np\n"
        "gemmhub.matmul(Other(), Other())\n"
        "assert not {'cupy', 'torch', 'jax'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_halves_of_modules_are_passed_over(machine, monkeypatch):
    """A library that is still being imported has no array type yet."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    x = ones(3, 3)
    assert np.array_equal(gemmhub.matmul(x, x), x @ x)
    with pytest.raises(InputError):
        gemmhub.matmul(object(), x)
