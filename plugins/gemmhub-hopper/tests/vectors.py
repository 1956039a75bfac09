"""Products of a few vectors, for the emulator and for a card, each by one division of K among threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.config import Shape
from products import EightBitProduct, Product

from gemmhub.dtypes import as_dtype


@dataclass(frozen=True)
class Vector(Product):
    """A product of vectors; ``spread`` is the division of K, as in the kernel's name."""

    spread: int | str = 0
    types: tuple[str, str] | None = None
    """Dtypes of a and b; else both are ``dtype``."""

    @property
    def problem(self):
        asked = super().problem
        if self.types is None:
            return asked
        a, b = (replace(x, dtype=as_dtype(name)) for x, name in zip((asked.a, asked.b), self.types))
        return replace(asked, a=a, b=b)

    @property
    def choice(self):
        lowerings = lower.lowerings(self.problem)
        return next(x for x in gemv.choices(lowerings) if x.name == f"gemv{self.spread}")

    def __str__(self):
        types = "-".join(self.types or [self.dtype])
        return f"gemv{self.spread}-{self.m}x{self.n}x{self.k}-{self.a[0]}{self.b[0]}{self.d[0]}-{types}"

    @property
    def macros(self):
        return [self.choice.kernel.macros]

    @property
    def sources(self):
        return [sources.gemv(self.choice.kernel)]

    def launch(self, backend):
        return backend.gemv(0, self.choice)


def vector(m, n, k, b="row", dtype="bfloat16", spread=32, **more):
    return Vector(Shape(64, 64, 2), m, n, k, b=b, dtype=dtype, spread=spread, **more)


def mixed(m, n, k, b="row", types=("bfloat16", "float32"), spread=32, **more):
    return vector(m, n, k, b, "float32", spread, types=types, **more)


@dataclass(frozen=True)
class EightBitVector(Vector, EightBitProduct):
    """The same of 8-bit operands."""

    def __str__(self):
        words = [super().__str__(), self.out, self.dtype_b, self.scale_a, self.scale_b]
        return "-".join(filter(None, words))


def eight_bit(m, n, k, b="col", dtype="float8_e4m3fn", spread=32, out="float32", **more):
    return EightBitVector(Shape(64, 64, 2), m, n, k, b=b, dtype=dtype, spread=spread, out=out, **more)


_ROWS, _BLOCKS = {"scale_a": "row", "scale_b": "column"}, {"scale_a": "1x128", "scale_b": "128x128"}
_E5M2, _INT8 = {"dtype": "float8_e5m2"}, {"dtype": "int8"}
EIGHT_BIT_VECTORS = (
    # Contiguous along K: loads of 16, 8, 4, 2 and 1 bytes, K in a warp, several warps, the CTA and several CTAs.
    *(eight_bit(m, 70, 656, **_ROWS) for m in (1, 2, 3, 8)),
    *(eight_bit(1, 70, 656, dtype_b="float8_e5m2", spread=x, out="bfloat16") for x in (8, 64, 256, 512)),
    *(eight_bit(1, 33, k, **_E5M2) for k in (264, 268, 270, 271)),
    *(eight_bit(m, 33, 271, dtype_b="float8_e5m2", **_E5M2) for m in (1, 5)),
    # Scales of blocks, with a K that ends within one; as they are, and swapped.
    *(eight_bit(m, 200, 656, **_BLOCKS) for m in (1, 2, 4, 7)), eight_bit(1, 70, 267, spread=256, **_BLOCKS),
    eight_bit(3, 70, 400, scale_a="1x128", scale_b="128x1", out="float16"), eight_bit(8, 70, 400, scale_b="128x1"),
    eight_bit(140, 2, 400, a="row", scale_a="1x128", scale_b="128x128", spread=64),
    eight_bit(1, 70, 400, scale_a="tensor x 128", scale_b="column", bias="n", activation="relu", mn_major_scales=True),
    # Contiguous along N, also with loads by cp.async.
    *(eight_bit(m, 208, 137, b="row", **_ROWS) for m in (1, 2, 4, 8)),
    eight_bit(1, 101, 137, b="row", **_E5M2), eight_bit(1, 208, 300, b="row", spread="32a", scale_a="tensor"),
    eight_bit(104, 1, 64, a="col", spread="64", scale_b="tensor", out="bfloat16"),
    # Integers: four at a time, one by one, and wrapping sums of several CTAs.
    *(eight_bit(m, 70, 656, out="int32", **_INT8) for m in (1, 4, 8)),
    eight_bit(1, 33, 263, out="int32", **_INT8), eight_bit(2, 33, 262, **_ROWS, **_INT8),
    eight_bit(1, 70, 656, spread=512, out="int32", **_INT8),
    eight_bit(1, 208, 300, b="row", spread="128a", out="int32", **_INT8),
    *(eight_bit(m, 208, 137, b="row", out="int32", **_INT8) for m in (1, 3, 8)),
    eight_bit(100, 1, 656, a="row", out="int32", **_INT8),
    eight_bit(5, 72, 64, bias="m", activation="relu", **_ROWS, **_INT8),
    # Epilogues, batches, no k.
    eight_bit(5, 72, 64, alpha=0.5, beta=2, bias="m", activation="relu", batch=(2,), **_ROWS),
    eight_bit(1, 72, 272, batch=(3,), own_scales=True, out="bfloat16", **_BLOCKS),
    eight_bit(1, 72, 64, alpha=0, beta=1, **_ROWS), eight_bit(3, 72, 0, bias="n", **_BLOCKS),
)  # fmt: skip
"""As VECTORS, for tests/test_eight_bit_gemv.py on the host and tests/test_device_eight_bit.py on a card."""
_F16 = ("float16", "float32")
_BY_F16, _BY_BF16 = ("float32", "float16"), ("float32", "bfloat16")
MIXED = (
    # 16-bit vectors by a float32 matrix: contiguous along K and N, with loads of 16, 8 and 4 bytes of the matrix.
    *(mixed(m, 70, 264, b="col") for m in (1, 3, 8)), *(mixed(m, 200, 137, types=_F16) for m in (1, 3, 8)),
    mixed(1, 33, 262, b="col", types=_F16), mixed(1, 33, 261, b="col"), mixed(3, 33, 262, b="col"),
    mixed(8, 33, 261, b="col", types=_F16), mixed(1, 102, 137, types=_F16), mixed(1, 101, 137), mixed(8, 101, 137),
    *(mixed(1, 200, 300, spread=x, types=_F16) for x in ("32a", "128a", "512a")), mixed(1, 104, 64, spread="64a"),
    # K in several warps and CTAs; strided vectors.
    mixed(1, 33, 2600, b="col", spread=1024), mixed(5, 72, 1300, spread=256), mixed(2, 33, 1300, b="col", spread=512),
    *(mixed(m, 70, 264, a="col", b="col", types=_F16) for m in (3, 8)), mixed(7, 72, 137, a="col"),
    # Swapped: a float32 matrix by 16-bit columns.
    mixed(100, 1, 264, types=_BY_BF16), mixed(70, 3, 263, b="col", types=_BY_F16, d="col"),
    mixed(72, 8, 137, a="col", types=_BY_BF16), mixed(104, 1, 137, a="col", types=_BY_F16, spread="32a"),
    # Epilogues and batches.
    mixed(5, 72, 64, alpha=0.5, beta=2, bias="m", activation="relu", batch=(2,)),
    mixed(72, 5, 64, b="col", types=_BY_F16, alpha=0.5, beta=-1, bias="n", d="col", out="bfloat16"),
    mixed(1, 72, 65, b="col", types=_F16, batch=(3,), beta=1, activation="gelu", out="float16"),
    mixed(72, 1, 66, types=_BY_BF16, batch=(2,), alpha=0, beta=1),
    # Float32 vectors by a 16-bit matrix.
    *(mixed(m, 70, 264, b="col", types=_BY_BF16) for m in (1, 3, 8)), mixed(8, 33, 261, b="col", types=_BY_F16),
    mixed(1, 33, 262, b="col", types=_BY_F16), mixed(8, 70, 264, a="col", b="col", types=_BY_BF16),
    *(mixed(m, 208, 137, types=_BY_F16) for m in (1, 3, 8)), mixed(1, 101, 137, types=_BY_BF16),
    mixed(1, 208, 300, types=_BY_BF16, spread="32a"), mixed(104, 2, 137, a="col", types=_F16),
)  # fmt: skip
"""Products of vectors whose operands have two dtypes."""
VECTORS = (
    # Contiguous along K: K divided among lanes, a warp, several warps, the CTA, several CTAs.
    *(vector(1, 70, 328, b="col", spread=spread) for spread in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)),
    # Contiguous along N, with K in one CTA and several.
    *(vector(1, 200, 137, spread=spread) for spread in (8, 16, 32, 64, 128, 256, 512, 1024)),
    # Loads by cp.async.
    *(vector(1, 200, 137, spread=f"{spread}a") for spread in (8, 16, 32, 64, 128, 256, 512, 1024)),
    # Other types, and loads of 8, 4 and 2 bytes.
    vector(1, 100, 260, b="col", dtype="float16"), vector(1, 100, 130, dtype="float16", spread=16),
    vector(1, 33, 260, b="col", dtype="float32"), vector(1, 100, 100, dtype="float32"),
    vector(1, 50, 126, b="col"), vector(1, 30, 70, spread=8), vector(1, 50, 125, b="col"), vector(1, 31, 70, spread=8),
    vector(1, 31, 70, dtype="float32", spread=8), vector(1, 100, 100, dtype="float32", spread="32a"),
    vector(1, 104, 130, dtype="float16", spread="128a"), vector(1, 33, 258, b="col", dtype="tf32"),
    # A column: the operands are swapped.
    vector(100, 1, 264, a="row"), vector(104, 1, 64, a="col"), vector(100, 1, 264, a="row", d="col"),
    # One result, no k to speak of, many waves of k.
    vector(1, 1, 640, b="col", spread=256), vector(1, 1, 8, b="col", spread=8), vector(1, 8, 1, b="col", spread=8),
    vector(1, 16, 5000, spread=64), vector(1, 16, 5000, b="col", spread=16),
    vector(1, 16, 5000, spread="64a"), vector(1, 8, 2, spread="8a"),
    # Several vectors, of any order, with a result that is contiguous along either side.
    *(vector(m, 70, 264, b="col") for m in (2, 3, 5, 8)), *(vector(m, 72, 137, a="col") for m in (2, 4, 7)),
    *(vector(m, 70, 264, a="col", b="col") for m in (2, 3, 8)), vector(100, 4, 264, dtype="float32", spread=256),
    vector(3, 72, 65, dtype="float32"), vector(6, 33, 260, b="col", dtype="float32", spread=512),
    vector(70, 3, 264, a="row", b="col", d="col"), vector(72, 8, 64, a="col", dtype="float16", out="float32"),
    vector(5, 72, 64, alpha=0.5, beta=2, bias="m", activation="relu", out="float32", batch=(2,)),
    vector(72, 5, 64, a="col", alpha=0.5, beta=-1, bias="m", d="col", dtype="float16"),
    # Several of float32 by cp.async: K in one CTA and several, more than two buffers of X, remainders of all sides.
    *(vector(m, 136, 1300, dtype="float32", spread=spread) for m, spread in ((2, "64a"), (3, "32a"), (8, "16a"))),
    *(vector(m, 70, 1300, b="col", dtype="float32", spread=x) for m, x in ((5, "32a"), (8, "64a"), (8, "16a"))),
    vector(8, 260, 1900, dtype="float32", spread="32x8a"),
    vector(6, 130, 1900, b="col", dtype="float32", spread="32x8a"),
    vector(4, 132, 2500, dtype="float32", spread="32x8a"), vector(7, 8, 4, dtype="float32", spread="16a"),
    vector(5, 1, 4, b="col", dtype="float32", spread="64a"),
    vector(70, 7, 264, b="col", d="col", dtype="float32", spread="32x8a", alpha=0.5, beta=2, bias="m"),
    vector(5, 72, 64, dtype="tf32", spread="16a", batch=(2,), beta=2, activation="relu"),
    # The same of 9 to 16 vectors.
    vector(16, 70, 1300, b="col", dtype="float32", spread="32a"), vector(9, 136, 1300, dtype="float32", spread="16a"),
    vector(13, 130, 1900, b="col", dtype="float32", spread="32x8a"), vector(11, 20, 4, dtype="float32", spread="64a"),
    vector(70, 12, 264, b="col", d="col", dtype="float32", spread="32x8a", alpha=0.5, beta=2, bias="m"),
    vector(10, 72, 64, dtype="tf32", spread="16a", batch=(2,), beta=2, activation="relu"),
    # Epilogues.
    vector(1, 72, 64, alpha=0.5, beta=2, bias="n", activation="relu", out="float32"),
    vector(72, 1, 64, alpha=-1, beta=1, bias="m", activation="gelu", bias_type="bfloat16", dtype="float16"),
    vector(1, 72, 64, alpha=0.25, bias="n", activation="gelu_tanh", out="float32"),
    vector(1, 72, 64, alpha=2, bias="m", activation="silu", out="float16"),
    vector(1, 72, 64, alpha=0, beta=1),
    # Batches.
    vector(1, 72, 64, batch=(3,)), vector(1, 72, 64, batch=(3,), spread="32a", beta=1),
    vector(104, 1, 64, a="col", spread="16a", batch=(2,)), vector(1, 72, 64, b="col", batch=(3,), spread=512, beta=1),
    vector(72, 1, 64, batch=(2,), out="float32"),
    *MIXED,
)  # fmt: skip
"""As PRODUCTS of products.py."""
