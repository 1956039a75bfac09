"""Products with a gated activation: tests/test_gates.py runs them on the host."""

from __future__ import annotations

from gemmhub_hopper.variants.config import Shape
from grouped_products import GroupedProduct, ScaledGroups
from products import SMALL, TURNS, Bf16x3Product, EightBitProduct, Product

_ALPHA = {"alpha": 2.0**-6}
"""Arguments of gates of about one: what functions lose where they cancel is small beside the result."""
_HALVES, _PAIRS = {"activation": "swiglu", **_ALPHA}, {"activation": "swiglu_interleaved", **_ALPHA}
_GELU = {"activation": "geglu", **_ALPHA}
_WIDE = Shape(64, 128, 3, consumers=1)
_E4M3, _INT8 = {"dtype": "float8_e4m3fn"}, {"dtype": "int8"}

PRODUCTS = (
    # b contiguous along K, then along N, where halves begin at any column, at a multiple of eight, or b is copied.
    Product(SMALL, 64, 128, 64, b="col", **_HALVES),
    Product(SMALL, 72, 146, 264, b="col", **_HALVES),
    Product(_WIDE, 72, 272, 264, **_HALVES),
    Product(_WIDE, 72, 264, 264, **_HALVES),
    Product(SMALL, 72, 2, 72, b="col", **_HALVES),
    Product(SMALL, 1, 76, 200, b="col", **_GELU),
    Product(SMALL, 72, 136, 264, **_PAIRS),
    Product(SMALL, 73, 134, 72, b="col", **_PAIRS),
    # Results: of every dtype and order, by TMA and by warps; store blocks that overlap.
    Product(SMALL, 72, 144, 72, b="col", out="float32", **_HALVES),
    Product(SMALL, 72, 146, 72, b="col", out="float32", d="col", **_GELU),
    Product(SMALL, 71, 144, 72, b="col", d="col", **_HALVES),
    Product(SMALL, 72, 144, 72, b="col", d="col", **_HALVES),
    Product(SMALL, 72, 144, 72, b="col", d="col", **_PAIRS),
    Product(SMALL, 72, 144, 72, b="col", d="col", out="float32", **_PAIRS),
    Product(SMALL, 72, 144, 72, out="float32", **_PAIRS),
    Product(SMALL, 72, 144, 72, dtype="float16", b="col", offset=1, **_PAIRS),
    Product(Shape(64, 160, 3, consumers=1), 72, 328, 72, b="col", **_HALVES),
    Product(Shape(64, 224, 3, consumers=1), 72, 464, 72, bias="n", **_PAIRS),
    # Shapes: two consumers, fragments, ping-pong, multicast along either side, split-K.
    Product(Shape(128, 256, 4), 264, 528, 264, **_HALVES),
    Product(Shape(256, 128, 4, cluster_n=2), 264, 528, 136, b="col", **_HALVES),
    Product(TURNS, 200, 272, 264, b="col", **_GELU),
    Product(Shape(64, 64, 3, cluster_m=4, consumers=1), 264, 136, 328, b="col", **_HALVES),
    Product(Shape(128, 64, 3, cluster_m=2), 264, 136, 328, **_PAIRS),
    Product(SMALL, 72, 136, 520, b="col", splits=3, **_HALVES),
    # Terms before the gate; batches; no product.
    Product(SMALL, 72, 146, 72, b="col", bias="n", **_HALVES),
    Product(SMALL, 72, 146, 72, bias="n", bias_type="bfloat16", **_PAIRS),
    Product(SMALL, 72, 144, 72, b="col", bias="m", batch=(2,), **_HALVES),
    Product(SMALL, 72, 144, 72, b="col", bias="n", activation="swiglu", alpha=0),
    Product(SMALL, 72, 144, 0, b="col", bias="n", activation="swiglu_interleaved"),
    # tf32, two bfloat16 planes, 8-bit operands with scales as factors of results and of blocks of K.
    Product(SMALL, 72, 146, 132, b="col", dtype="tf32", **_HALVES),
    Product(SMALL, 72, 144, 132, dtype="tf32", **_PAIRS),
    Bf16x3Product(SMALL, 72, 146, 136, b="col", **_HALVES),
    Bf16x3Product(_WIDE, 72, 272, 136, **_HALVES),
    Bf16x3Product(SMALL, 71, 144, 136, **_PAIRS),
    EightBitProduct(SMALL, 72, 144, 272, b="col", **_E4M3, scale_a="row", scale_b="column", bias="n", **_HALVES),
    EightBitProduct(SMALL, 72, 144, 272, b="col", **_E4M3, scale_a="row", scale_b="column", out="bfloat16", **_PAIRS),
    EightBitProduct(SMALL, 72, 292, 400, b="col", **_E4M3, scale_a="1x128", scale_b="128x128", **_HALVES),
    EightBitProduct(SMALL, 72, 292, 400, b="col", **_E4M3, scale_a="1x128", scale_b="128x1", **_PAIRS),
    EightBitProduct(_WIDE, 72, 400, 400, b="col", **_E4M3, scale_a="1x128", scale_b="128x128", out="float16", **_GELU),
    EightBitProduct(SMALL, 72, 146, 272, **_INT8, scale_a="row", scale_b="column", **_HALVES),
    EightBitProduct(SMALL, 72, 144, 272, b="col", **_INT8, out="bfloat16", **_PAIRS),
)  # fmt: skip

ENDS = (1, 1, 131, 138, 338, 338, 403)
"""Ends of groups of one row, none, more than two tiles, few, many, none, and one tile and a row."""
SPLIT = Product(SMALL, 40, 64, 1032, b="col", splits=16, **_PAIRS)
"""Of so many splits that each would reduce a slice, had it no gate."""
GROUPED = (
    GroupedProduct(SMALL, ENDS, 411, 272, 200, b="col", bias="batch n", **_HALVES),
    GroupedProduct(SMALL, ENDS, 411, 146, 200, b="col", **_HALVES),
    GroupedProduct(SMALL, ENDS, 411, 272, 200, bias="n", **_PAIRS),
    GroupedProduct(Shape(128, 128, 3, cluster_m=2), ENDS, 403, 272, 200, out="float32", **_GELU),
    GroupedProduct(_WIDE, ENDS, 411, 72, 272, "k", a="col", bias="batch n", **_HALVES),
    ScaledGroups(SMALL, ENDS, 411, 272, 272, granularity="rows", **_HALVES),
    ScaledGroups(SMALL, ENDS, 411, 272, 272, granularity="blocks", out="float32", **_PAIRS),
)
"""The same of groups, whose rows beyond the last end are zeros."""
