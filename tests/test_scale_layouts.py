"""Scales in the layouts of other libraries: products with what they are converted to, against float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
from products import E4M3, F32, F64

import gemmhub
from gemmhub import accuracy, scale_layouts
from gemmhub.errors import DTypeError, InputError, ShapeError

M, N, K = 150, 260, 700
SIZES = {"m": M, "n": N, "1": 1, "m/128": 2, "n/128": 3, "k/128": 6, "m+": 152, "n+": 260, "k/128+": 8}
"""The lengths of the dimensions of layouts, written down."""


def stored(dimensions, rng):
    """A scale in a library's layout, NaN where it is padded, and the factor of each element along its own dimension and
    k, read from that layout by index alone."""
    scale = np.asarray(np.exp2(rng.uniform(-3, 3, [SIZES[x] for x in dimensions])), F32)
    for axis, x in enumerate(dimensions):
        if x.endswith("+"):
            np.moveaxis(scale, axis, 0)[SIZES[x[:-1]] :] = np.nan
    own = next((x for x in dimensions if x[0] in "mn"), "m")
    factors = np.empty((M if own[0] == "m" else N, K), F64)
    for i in range(factors.shape[0]):
        for block in range(6):
            along = {"1": 0, "k": block, "m": i, "n": i, "m/128": i // 128, "n/128": i // 128, "k/128": block}
            index = tuple(along[x.rstrip("+")] for x in dimensions)
            factors[i, block * 128 : (block + 1) * 128] = scale[index]
    return scale, factors


@pytest.mark.parametrize("scale", [[[1.0, 2.0], [3.0, 4.0]], 1.0, None, "scale"], ids=repr)
def test_a_scale_that_is_no_array(scale):
    with pytest.raises(InputError, match=r"scale: .*; allowed: an array of NumPy, torch or JAX"):
        scale_layouts.convert(scale, "deep_gemm 128x128", "scale_b", 256, 256)


ROWS = [(name, side) for name, x in scale_layouts.LAYOUTS.items() for side in "ab" if getattr(x, side) is not None]


@pytest.mark.parametrize(("name", "side"), ROWS)
def test_a_product_with_converted_scales(name, side, rng):
    dimensions = getattr(scale_layouts.LAYOUTS[name], side)
    scale, factors = stored(dimensions, rng)
    size = M if side == "a" else N
    if not dimensions:
        factors = np.full((size, K), float(scale))
    got = scale_layouts.convert(scale, name, f"scale_{side}", size, K)
    own, other = rng.standard_normal((size, K)).astype(E4M3), rng.standard_normal((5, K)).astype(E4M3)
    a, b = (own, other.T) if side == "a" else (other, own.T)
    out = gemmhub.matmul(a, b, out_dtype="float32", **{f"scale_{side}": got})
    exact = (own.astype(F64) * factors) @ other.T.astype(F64)
    model = accuracy.error_model(E4M3, E4M3, F32, F32)
    bound = accuracy.reference(a, b, model=model, out_dtype=F32, **{f"scale_{side}": got}).bound
    error = np.abs((out if side == "a" else out.T) - exact)
    assert (error <= (bound if side == "a" else bound.T)).all()
    assert np.isfinite(got).all()
    assert np.shares_memory(got, scale) == ("m/128" not in dimensions)  # blocks of rows of a are repeated


@pytest.mark.parametrize("name", ["deep_gemm 1x128", "torch.scaled_mm BlockWise1x128"])
def test_strides_of_the_library(name, rng):
    """Scales that are contiguous along m, and aligned to 16 bytes, are the same scales."""
    scale, _ = stored(("m", "k/128"), rng)
    aligned = np.full((6, 152), np.nan, F32).T[:M]
    aligned[:] = scale
    assert np.array_equal(scale_layouts.convert(aligned, name, "scale_a", M, K), scale)


def test_stacks(rng):
    scale = np.stack([stored(("n/128", "k/128"), rng)[0] for _ in range(4)])
    got = scale_layouts.convert(scale, "vllm block", "scale_b", N, K)
    assert got.shape == (4, 6, 3)
    assert np.array_equal(got[2], scale[2].T)
    assert np.shares_memory(got, scale)


def test_quantize_gives_the_layout_that_torch_has(rng):
    """RowWise and TensorWise are gemmhub's own shapes."""
    x = rng.standard_normal((M, K), dtype=F32)
    for recipe, granularity in (("TensorWise", "tensor"), ("RowWise", "row"), ("BlockWise1x128", "block")):
        scale = gemmhub.quantize(x, E4M3, granularity)[1]
        assert scale_layouts.convert(scale, f"torch._scaled_mm {recipe}", "scale_a", M, K) is not None


def test_spread():
    scale = np.arange(6, dtype=F32).reshape(2, 3)
    got = scale_layouts.spread(scale, (130, 300))
    assert got.shape == (130, 300)
    assert got[127, 255] == 1
    assert got[128, 256] == 5
    assert scale_layouts.spread(scale[:1, :1], (130, 300)).shape == (1, 1)
    assert scale_layouts.spread(scale, (2, 3)) is scale


@pytest.mark.parametrize("name", scale_layouts.REFUSED)
def test_formats_of_fewer_bits_are_refused(name):
    with pytest.raises(InputError, match=re.escape(scale_layouts.REFUSED[name])):
        scale_layouts.convert(np.ones((M, 6), F32), name, "scale_a", M, K)


@pytest.mark.parametrize(
    ("shape", "layout", "argument", "error", "message"),
    [
        ((3, 6), "deepgemm 128x128", "scale_b", InputError, "did you mean 'deep_gemm 128x128'?"),
        ((3, 6), "deep_gemm 128x128", "scale_a", InputError, "scale_a of layout 'deep_gemm 128x128', which is for"),
        ((M, 1), "vllm token", "scale_b", InputError, "which is for scale_a alone; allowed: scale_a"),
        ((3, 6), "deep_gemm 128x128", "a", InputError, "argument: 'a'; allowed: scale_a, scale_b"),
        ((6, 3), "deep_gemm 128x128", "scale_b", ShapeError, "shape (6, 3); allowed: (n/128 = 3, k/128 = 6)"),
        ((6, 3), "torch.scaled_mm BlockWise128x128", "scale_b", ShapeError, "allowed: (k/128+ = 8, n/128 = 3)"),
        ((3,), "vllm tensor", "scale_b", ShapeError, "shape (3,); allowed: one element, as 'vllm tensor' has"),
        ((M, 1), "cublasLt OUTER_VEC_32F", "scale_a", ShapeError, "shape (150, 1); allowed: (m = 150)"),
    ],
)  # fmt: skip
def test_refusals(shape, layout, argument, error, message):
    with pytest.raises(error, match=re.escape(message)):
        scale_layouts.convert(np.ones(shape, F32), layout, argument, M if argument == "scale_a" else N, K)


def test_scales_of_8_bits_are_refused():
    with pytest.raises(DTypeError, match=r"scale: dtype int32; allowed: float32\. e8m0 and packed scales"):
        scale_layouts.convert(np.ones((M, 6), np.int32), "deep_gemm 1x128", "scale_a", M, K)
