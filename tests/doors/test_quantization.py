"""gemmhub.quantize and scales of other layouts with arrays of torch and JAX: the numbers that NumPy's have."""

from __future__ import annotations

import numpy as np
import pytest
from products import E4M3, E5M2, F32, F64, I8

import gemmhub
from gemmhub import accuracy, scale_layouts
from gemmhub.errors import AllocationError, DTypeError, InputError

torch = pytest.importorskip("torch", reason="torch is not installed")
jax = pytest.importorskip("jax", reason="jax is not installed")

GROUPS = [("tensor", None), ("row", None), ("column", None), *(("block", x) for x in ((1, 128), (128, 1), (128, 128)))]
LIBRARIES = {"torch": torch.from_numpy, "jax": jax.numpy.asarray}


def host(x):
    """The numbers of an array, in NumPy's float32."""
    return x.float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x).astype(F32)


def drawn(rng, shape):
    return (rng.standard_normal(shape) * np.exp2(rng.normal(0, 4, shape))).astype(F32)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("target", [E4M3, E5M2, I8], ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_results_of_numpy(library, target, group, rng):
    """Results have the array's type and shape. A division may be a multiplication by the reciprocal: elements are
    compared by the bound, scales to a rounding."""
    granularity, block = group
    for shape in ((2, 130, 257), (4, 0)) if target == I8 else ((2, 130, 257),):
        x = drawn(rng, shape)
        given = LIBRARIES[library](x)
        q, scale = gemmhub.quantize(given, target, granularity, block=block)
        assert type(q) is type(scale) is type(given)
        assert tuple(q.shape) == shape
        assert str(q.dtype).rpartition(".")[2] == target.name
        assert str(scale.dtype).rpartition(".")[2] == "float32"
        expected = gemmhub.quantize(x, target, granularity, block=block)[1]
        assert tuple(scale.shape) == expected.shape
        assert np.all(np.abs(host(scale) - expected) <= 2.0**-22 * expected)
        bound = accuracy.quantization_bound(x, host(scale), target)
        error = np.abs(x - host(q).astype(F64) * scale_layouts.spread(host(scale).astype(F64), shape))
        assert np.max(error / bound, initial=0) <= 1
        again, same = gemmhub.quantize(given, target, granularity, block=block, scale=scale)
        assert np.array_equal(host(again), host(q))
        assert np.array_equal(host(same), host(scale))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("target", [E4M3, E5M2, I8], ids=str)
def test_numbers_that_are_not_finite(library, target):
    x = np.array([[1, np.nan, -2], [np.inf, 4, -np.inf], [0, -0.0, 0], [1e-45, 0, -1e-44]], F32)
    q, scale = (host(y) for y in gemmhub.quantize(LIBRARIES[library](x), target, "row"))
    largest = gemmhub.dtypes.info(target).largest
    restored = q * scale
    assert np.isnan(restored[0]).tolist() == [target == I8, True, target == I8]
    assert q[1].tolist() == [largest, largest, -largest]
    assert scale[2, 0] == 1
    assert scale[3, 0] >= 2.0**-126 or scale[3, 0] == 1
    assert np.all(np.abs(restored[2:]) <= 2.0**-120)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("of_a", "of_b"), [(GROUPS[0], GROUPS[0]), (GROUPS[1], GROUPS[2]), (GROUPS[3], GROUPS[5])])
def test_a_product(library, of_a, of_b, rng):
    make = LIBRARIES[library]
    x, w = drawn(rng, (6, 260)), drawn(rng, (260, 140))
    p, scale_a = gemmhub.quantize(make(x), "float8_e4m3fn", of_a[0], block=of_a[1])
    q, scale_b = gemmhub.quantize(make(w), "float8_e4m3fn", of_b[0], block=of_b[1])
    got = gemmhub.matmul(p, q, out_dtype="float32", scale_a=scale_a, scale_b=scale_b)
    assert type(got) is type(p)
    dx = accuracy.quantization_bound(x, host(scale_a), E4M3)
    dw = accuracy.quantization_bound(w, host(scale_b), E4M3)
    model = accuracy.error_model(E4M3, E4M3, F32, F32)
    scales = {"scale_a": host(scale_a), "scale_b": host(scale_b)}
    own = accuracy.reference(host(p).astype(E4M3), host(q).astype(E4M3), model=model, out_dtype=F32, **scales).bound
    bound = dx @ np.abs(w) + np.abs(x) @ dw + dx @ dw + own
    assert np.all(np.abs(host(got) - x.astype(F64) @ w.astype(F64)) <= bound)


def test_dtypes_of_torch_and_half_precision(rng):
    x = torch.from_numpy(drawn(rng, (4, 300)))
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn):
        narrow = x.to(dtype)
        q, scale = gemmhub.quantize(narrow, torch.float8_e5m2, "row")
        assert q.dtype is torch.float8_e5m2
        bound = accuracy.quantization_bound(narrow.double().numpy(), scale.numpy(), E5M2)
        assert np.all(np.abs(narrow.double().numpy() - q.double().numpy() * scale.double().numpy()) <= bound)
    with pytest.raises(DTypeError, match=r"x: dtype torch.int32; allowed: real floating"):
        gemmhub.quantize(x.int(), "int8")


def test_the_order_of_a_transposed_weight_stays(rng):
    weight = torch.from_numpy(drawn(rng, (130, 260)))
    q, _ = gemmhub.quantize(weight.t(), "int8", "column")
    assert q.stride() == (1, 260)


def test_gradients_are_refused_by_torch_and_0_in_jax(rng):
    x = drawn(rng, (4, 5))
    recorded = torch.from_numpy(x).requires_grad_()
    with pytest.raises(InputError, match="x: a tensor that requires grad: quantization has no gradient"):
        gemmhub.quantize(recorded, "int8")
    with torch.no_grad():
        _, scale = gemmhub.quantize(recorded, "int8")
    assert not scale.requires_grad
    gradient = jax.grad(lambda y: gemmhub.quantize(y, "float8_e4m3fn", "row")[1].sum())(jax.numpy.asarray(x))
    assert not np.asarray(gradient).any()


def test_under_jit(rng):
    x = jax.numpy.asarray(drawn(rng, (4, 300)))

    @jax.jit
    def both(y):
        return gemmhub.quantize(y, "float8_e4m3fn", "block")

    q, scale = both(x)
    assert q.dtype == E4M3
    bound = accuracy.quantization_bound(np.asarray(x), np.asarray(scale), E4M3)
    spread = scale_layouts.spread(host(scale).astype(F64), x.shape)
    assert np.all(np.abs(np.asarray(x) - host(q) * spread) <= bound)


def test_under_torch_compile(rng):
    """In one graph, without a warning."""
    x = torch.from_numpy(drawn(rng, (4, 300)))
    compiled = torch.compile(lambda y: gemmhub.quantize(y, "float8_e4m3fn", "block"), backend="eager", fullgraph=True)
    for got, expected in zip(compiled(x), gemmhub.quantize(x, "float8_e4m3fn", "block")):
        assert torch.equal(got.float(), expected.float())


def test_other_libraries_and_layouts_are_refused(rng):
    x = torch.from_numpy(drawn(rng, (4, 5)))
    with pytest.raises(InputError, match=r"x: layout torch\.sparse_coo; allowed: dense"):
        gemmhub.quantize(x.to_sparse(), "int8")
    with pytest.raises(InputError, match="scale: an ndarray for a Tensor"):
        gemmhub.quantize(x, "int8", scale=np.ones((), F32))


@pytest.mark.parametrize("library", LIBRARIES)
def test_conversion_of_scales(library, rng):
    """Transposed, cut, and repeated for the rows of a."""
    stored = np.exp2(rng.uniform(-3, 3, (8, 2))).astype(F32)
    stored[6:] = np.nan
    got = scale_layouts.convert(LIBRARIES[library](stored), "torch.scaled_mm BlockWise128x128", "scale_a", 150, 700)
    assert np.array_equal(host(got), np.repeat(stored[:6].T, 128, axis=0)[:150])
    got = scale_layouts.convert(LIBRARIES[library](stored), "torch.scaled_mm BlockWise128x128", "scale_b", 150, 700)
    assert np.array_equal(host(got), stored[:6])


@pytest.mark.parametrize("granularity", ["tensor", "row", "column", "block"])
def test_a_tensor_too_large_for_memory(granularity):
    """One element in memory stands for 10**15, which no address space holds."""
    x = torch.ones(1, 1).expand(10**8, 10**7)
    with pytest.raises(AllocationError, match=r"memory ran out: .*; free some"):
        gemmhub.quantize(x, "int8", granularity)
