"""CPU arrays of torch and JAX where DLPack alone lacks information: fakes, and the libraries if present."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from products import BF16, E4M3, F16, F32, F64, I8, I32, I64, draw, ratio

import gemmhub
from gemmhub.errors import DeviceError, InputError

WAYS = (gemmhub.matmul, gemmhub.explain, gemmhub.plan, gemmhub.matmul)


class Tensor:
    """A fake of a torch tensor's attributes beside DLPack."""

    requires_grad = False
    negated = conjugated = False

    def __init__(self, data):
        self.data = data
        self.shape, self.dtype, self.device = data.shape, f"fake.{data.dtype}", "cpu"

    def stride(self):
        return self.data.strides

    def data_ptr(self):
        return self.data.ctypes.data

    def is_neg(self):
        return self.negated

    def is_conj(self):
        return self.conjugated

    def detach(self):
        return Tensor(self.data)

    def __dlpack__(self, **options):
        if self.requires_grad or self.conjugated:  # not of negated ones: as torch
            raise BufferError("cannot be exported")
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return 1, 0


def convert(x):
    made = Tensor(np.from_dlpack(x.astype(library.converted.get(x.dtype, x.dtype))).copy())
    made.dtype = made.data.dtype
    return made


library = types.ModuleType("fake")
library.from_dlpack = convert
Tensor.__module__ = "fake"


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    """The module that these tensors are of. ``converted``: dtypes that it does not have, and what it makes of them."""
    monkeypatch.setitem(sys.modules, "fake", library)
    library.converted = {}
    return library


def test_lazily_negated_and_conjugated_tensors_are_refused(rng):
    """Their memory holds other numbers than their elements."""
    plain = Tensor(draw(rng, (4, 4), F32))
    negated, conjugated = Tensor(plain.data), Tensor(draw(rng, (4, 4), np.dtype(np.complex64)))
    gemmhub.matmul(plain, plain)  # a warm call must see it, too
    negated.negated = conjugated.conjugated = True
    for function in WAYS:
        for a, b, argument in ((negated, plain, "a"), (plain, negated, "b")):
            with pytest.raises(InputError, match="resolve_neg") as raised:
                function(a, b)
            assert raised.value.argument == argument
        with pytest.raises(InputError, match="resolve_conj"):
            function(conjugated, conjugated)
    with pytest.raises(InputError, match="resolve_neg"):
        gemmhub.matmul(plain, plain, out=negated)
    with pytest.raises(InputError, match="resolve_neg"):
        gemmhub.spot_check(negated, plain, plain)


def test_libraries_are_named_and_do_not_mix(monkeypatch, rng):
    class Other(Tensor):
        pass

    Other.__module__ = "other"
    monkeypatch.setitem(sys.modules, "other", types.SimpleNamespace(from_dlpack=convert))
    a, b = Tensor(draw(rng, (4, 4), F32)), Other(draw(rng, (4, 4), F32))
    for x, given in ((b, "a is fake on cpu, b is other on cpu"), (b.data, "a is fake on cpu, b is numpy on cpu")):
        for _ in range(2):
            with pytest.raises(DeviceError) as raised:
                gemmhub.matmul(a, x)
            assert raised.value.given == given


@pytest.mark.parametrize(("package", "name"), [("jax", "Tracer"), ("torch", "Proxy")])
def test_arrays_of_traced_functions_are_refused(package, name, rng):
    base = type(name, (), {"__module__": f"{package}._src.core"})

    class Traced(base):
        shape, dtype = (4, 4), F32

        def __getattr__(self, attribute):
            raise TypeError(f"a tracer has no {attribute}")

    x = draw(rng, (4, 4), F32)
    for function in WAYS:
        with pytest.raises(InputError, match=r"b: a .*Traced, with which \w+ traces a function.*outside"):
            function(x, Traced())


def test_subclasses_of_other_modules(rng):
    class Tagged(Tensor):
        pass

    assert Tagged.__module__ == __name__
    a, b = draw(rng, (3, 4), F16), draw(rng, (4, 5), F16)
    got = gemmhub.matmul(Tagged(a), Tagged(b))
    assert type(got) is Tensor
    assert ratio(got.data, a, b) <= 1


@pytest.mark.parametrize(("dtype", "out_dtype"), [(F32, F64), (I8, I64)], ids=str)
def test_a_library_that_converts_results_is_an_error(fake, dtype, out_dtype, rng):
    """As JAX does unless 64-bit dtypes are enabled."""
    fake.converted = {F64: F32, I64: I32}
    x = Tensor(draw(rng, (4, 4), dtype))
    for _ in range(2):
        with pytest.raises(InputError, match=rf"{out_dtype}, which fake converts to .*32.*jax_enable_x64") as raised:
            gemmhub.matmul(x, x, out_dtype=out_dtype)
        assert raised.value.argument == "out_dtype"
        gemmhub.matmul(x, x)


@pytest.mark.parametrize("tensor", [True, False])
@pytest.mark.parametrize("dtype", [BF16, E4M3], ids=str)
def test_dtypes_that_dlpack_lacks_have_a_remedy(dtype, tensor, monkeypatch):
    if not tensor:
        monkeypatch.delattr(Tensor, "data_ptr")
    x = Tensor(np.ones((2, 2), dtype))
    remedy = rf"pass x\.view\(torch\.u?int\d+\)\.numpy\(\)\.view\(ml_dtypes\.{dtype}\)" if tensor else "numpy.asarray"
    with pytest.raises(InputError, match=remedy):
        gemmhub.matmul(x, x)


class Rude:
    """Raises any exception where an attribute is missing."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name} here")


def test_objects_whose_attributes_raise_anything(rng):
    x = draw(rng, (3, 3), F32)
    for function in (gemmhub.matmul, gemmhub.explain, gemmhub.plan, gemmhub.tune, gemmhub.matmul):
        for a, b, options, argument in (
            (Rude(), x, {}, "a"),
            (x, Rude(), {}, "b"),
            (x, x, {"out": Rude()}, "out"),
            (x, x, {"c": Rude(), "beta": 1}, "c"),
            (x, x, {"bias": Rude()}, "bias"),
            (x, x, {"alpha": Rude()}, "alpha"),
            (x, x, {"c": x, "beta": Rude()}, "beta"),
            (x, x, {"out_dtype": Rude()}, "out_dtype"),
        ):
            with pytest.raises(InputError, match="Rude") as raised:
                function(a, b, **options)
            assert raised.value.argument == argument
    for options in ({"b": Rude()}, {"b": x, "a_dtype": Rude()}):
        with pytest.raises(InputError, match="Rude"):
            gemmhub.pack(options.pop("b"), **options)


def test_an_array_whose_missing_attributes_raise_anything(rng):
    class Guarded(Tensor):
        __getattr__ = Rude.__getattr__

    a, b = draw(rng, (3, 4), F16), draw(rng, (4, 5), F16)
    assert ratio(gemmhub.matmul(Guarded(a), Guarded(b)).data, a, b) <= 1


# The libraries themselves


def test_of_lazy_and_labelled_libraries():
    """Refused by name, and nothing is computed."""
    x = np.ones((4, 4), F32)
    for module, kind, make in (
        ("pandas", "DataFrame", lambda m: m.DataFrame(x)), ("pandas", "Series", lambda m: m.Series(x[0])),
        ("xarray", "DataArray", lambda m: m.DataArray(x)), ("dask.array", "Array", lambda m: m.from_array(x)),
    ):  # fmt: skip
        library = pytest.importorskip(module, reason=f"{module} is not installed")
        for _ in range(2):
            with pytest.raises(InputError, match=rf"a: a {kind} of {module.partition('.')[0]}, .*numpy\.asarray\(a\)"):
                gemmhub.matmul(make(library), x)
