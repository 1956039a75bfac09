"""The table of other libraries' layouts of quantization scales, and their conversion to gemmhub's.

gemmhub's scale of ``a`` has the dimensions of a, (m or 1, blocks of k or 1), that of ``b`` those of b, (blocks of k or
1; n, blocks of n, or 1), with any strides: which dimension is contiguous (MN-major, K-major) makes no difference.
Other libraries transpose scales, pad dimensions to multiples of 4 for TMA, or have blocks of 128 rows of a.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gemmhub._base.wording import did_you_mean, instance
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.operands import BLOCK

Array = Any

__all__ = ["LAYOUTS", "REFUSED", "ScaleLayout", "convert", "spread"]


class ScaleLayout(NamedTuple):
    """The shapes that one library gives to one granularity of scales.

    A dimension is "m" or "n" (one for each row of a or column of b), "m/128", "n/128" or "k/128" (one for each block),
    or "1". One that ends in "+" is rounded up to a multiple of 4: what is beyond the last block is ignored.
    """

    a: tuple[str, ...] | None
    """Dimensions of the scale of a; () is one element; None: the library has no such scale of a."""
    b: tuple[str, ...] | None
    """Dimensions of the scale of b."""


_ONE: tuple[str, ...] = ()

LAYOUTS: dict[str, ScaleLayout] = {
    "torch._scaled_mm TensorWise": ScaleLayout(_ONE, _ONE),
    "torch._scaled_mm RowWise": ScaleLayout(("m", "1"), ("1", "n")),
    "torch._scaled_mm BlockWise1x128": ScaleLayout(("m", "k/128"), ("k/128", "n")),
    "torch._scaled_mm BlockWise128x128": ScaleLayout(("m/128", "k/128"), ("k/128", "n/128")),
    "torch.scaled_mm TensorWise": ScaleLayout(_ONE, _ONE),
    "torch.scaled_mm RowWise": ScaleLayout(("m", "1"), ("1", "n")),
    "torch.scaled_mm BlockWise1x128": ScaleLayout(("m", "k/128"), ("n", "k/128")),
    "torch.scaled_mm BlockWise128x128": ScaleLayout(("k/128+", "m/128"), ("k/128+", "n/128")),
    "deep_gemm 1x128": ScaleLayout(("m", "k/128"), ("n", "k/128")),
    "deep_gemm 128x128": ScaleLayout(None, ("n/128", "k/128")),
    "deep_gemm k-grouped": ScaleLayout(("k/128", "m"), ("k/128", "n")),
    "transformer_engine tensor": ScaleLayout(_ONE, _ONE),
    "transformer_engine 1D compact": ScaleLayout(("m", "k/128"), ("n", "k/128")),
    "transformer_engine 1D GEMM-ready": ScaleLayout(("k/128", "m+"), ("k/128", "n+")),
    "transformer_engine 2D compact": ScaleLayout(("m/128", "k/128"), ("n/128", "k/128")),
    "vllm tensor": ScaleLayout(_ONE, _ONE),
    "vllm token": ScaleLayout(("m", "1"), None),
    "vllm channel": ScaleLayout(None, ("n", "1")),
    "vllm block": ScaleLayout(("m", "k/128"), ("n/128", "k/128")),
    "cublasLt SCALAR_32F": ScaleLayout(_ONE, _ONE),
    "cublasLt OUTER_VEC_32F": ScaleLayout(("m",), ("n",)),
    "cublasLt VEC128_32F": ScaleLayout(("k/128", "m"), ("k/128", "n")),
    "cublasLt BLK128x128_32F": ScaleLayout(("m/128", "k/128+"), ("n/128", "k/128+")),
}
"""The layouts that :func:`convert` takes, by library and granularity; docs/quantization.md names the sources. cuBLASLt
takes addresses: the shapes are those of its memory read as a row-major array, with gemmhub's a and b."""

_MX = "its scales are e8m0 (powers of 2), one for each 32 elements of k"
_NV = "its scales are float8_e4m3fn, one for each 16 elements of k, of 4-bit elements"
REFUSED: dict[str, str] = {
    "torch._scaled_mm BlockWise1x32": _MX, "torch.scaled_mm BlockWise1x32": _MX, "cublasLt VEC32_UE8M0": _MX,
    "transformer_engine MXFP8": _MX, "vllm MXFP8": _MX, "torch._scaled_mm BlockWise1x16": _NV,
    "torch.scaled_mm BlockWise1x16": _NV, "cublasLt VEC16_UE4M3": _NV, "transformer_engine NVFP4": _NV,
    "vllm NVFP4": _NV, "deep_gemm packed UE8M0": "it packs the exponents of four scales into an int32",
}  # fmt: skip
"""The layouts that gemmhub has no product for, each with the reason."""


def convert(scale: Array, layout: str, argument: str, size: int, k: int) -> Array:
    """Return a scale of another library's layout as :func:`gemmhub.matmul` takes it.

    Parameters
    ----------
    scale : float32 array of NumPy, torch or JAX; dimensions before those of the layout are batch dimensions.
    layout : a key of :data:`LAYOUTS`, such as ``"deep_gemm 128x128"``.
    argument : ``"scale_a"`` or ``"scale_b"``: the argument of :func:`gemmhub.matmul` that it is for.
    size : rows of a, m, or columns of b, n.
    k : columns of a and rows of b.

    Returns
    -------
    A view of the scale; a copy where blocks of rows of a are repeated for each row, and where the library has no views.

    Raises
    ------
    InputError : an unknown layout, one that is refused (:data:`REFUSED`) or that is not for this operand; a
        ``scale`` that is no array.
    ShapeError : a shape that is not the layout's.
    DTypeError : a dtype that is not float32.

    Examples
    --------
    >>> from gemmhub import scale_layouts
    >>> stored = np.ones((2, 3), np.float32)  # DeepGEMM: blocks of n by blocks of k
    >>> scale_layouts.convert(stored, "deep_gemm 128x128", "scale_b", 256, 384).shape
    (3, 2)
    """
    if argument not in ("scale_a", "scale_b"):
        raise InputError("argument", repr(argument), "scale_a, scale_b", "name the argument of gemmhub.matmul")
    if layout in REFUSED:
        raise InputError(
            "layout", f"{layout!r}: {REFUSED[layout]}", f"float32 scales, per tensor, row, column or block of {BLOCK}",
            "quantize the matrix anew with gemmhub.quantize",
        )  # fmt: skip
    if layout not in LAYOUTS:
        raise InputError("layout", repr(layout), ", ".join(LAYOUTS), did_you_mean(layout, LAYOUTS))
    operand = argument[-1]
    stored = LAYOUTS[layout].a if operand == "a" else LAYOUTS[layout].b
    if stored is None:
        other = "scale_b" if operand == "a" else "scale_a"
        raise InputError("argument", f"{argument} of layout {layout!r}, which is for {other} alone", other)
    if not (hasattr(scale, "dtype") and hasattr(scale, "shape")):
        raise InputError(
            "scale", instance(type(scale)), "an array of NumPy, torch or JAX", "convert it to an array of float32"
        )
    if str(scale.dtype).rpartition(".")[2] != "float32":
        raise DTypeError("scale", f"dtype {scale.dtype}", "float32", "e8m0 and packed scales are not supported")
    shape = tuple(scale.shape)
    if not stored:
        if any(x != 1 for x in shape):
            raise ShapeError("scale", f"shape {shape}", f"one element, as {layout!r} has")
        return scale
    own = "m" if operand == "a" else "n"
    if shape[-len(stored) :] != tuple(_length(x, size, k) for x in stored):
        lengths = ", ".join(f"{x} = {_length(x, size, k)}" for x in stored)
        raise ShapeError("scale", f"shape {shape}", f"({lengths}), batch dimensions before")
    if len(stored) == 1:
        return scale
    kinds = [x.rstrip("+") for x in stored]
    if kinds[0].startswith(own) == (operand == "b"):  # b's own dimension is its last
        scale, kinds = scale.swapaxes(-1, -2), kinds[::-1]
    rows, columns = (_length(x, size, k) for x in kinds)
    scale = scale[..., :rows, :columns]
    return spread(scale, (size, columns)) if kinds[0] == "m/128" else scale


def _length(dimension: str, size: int, k: int) -> int:
    """The length of a dimension of a layout."""
    name, _, block = dimension.rstrip("+").partition("/")
    length = 1 if name == "1" else k if name == "k" else size
    length = -(-length // BLOCK) if block else length
    return -(-length // 4) * 4 if dimension.endswith("+") else length


def spread(scale: Array, shape: tuple[int, ...]) -> Array:
    """Return factors that broadcast to a stack of matrices of this shape: those of blocks repeated for each element.

    Parameters
    ----------
    scale : array of NumPy, torch or JAX, each dimension 1, the matrix's size, or its number of blocks of 128.
    shape : shape of the matrix or stack.

    Returns
    -------
    The scale itself, or a copy with repeated elements.
    """
    for axis in (-2, -1):
        if len(scale.shape) >= 2 and scale.shape[axis] not in (1, shape[axis]):
            repeat = scale.repeat_interleave if hasattr(scale, "repeat_interleave") else scale.repeat
            scale = repeat(BLOCK, axis)
            scale = scale[..., : shape[axis], :] if axis == -2 else scale[..., : shape[axis]]
    return scale
