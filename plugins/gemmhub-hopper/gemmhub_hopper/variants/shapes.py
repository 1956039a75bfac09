"""The tile shapes from which the cost model chooses.

They were selected by replaying timings and estimates of random products (aligned, of odd sizes, with epilogues, of few
rows; 16 bits, tf32 and float32): from a larger set, the shape whose loss costs the least time was dropped, again and
again. The model decides which shape suits which product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gemmhub_hopper.variants.config import F16X3, SHARED_LIMIT, Form, Shape, Variant

_DERIVED = ("warpgroups_per_tile", "out_n")
"""Properties whose formulas do not take arrays: they are collected from each shape."""


class Shapes(Shape):
    """Many shapes at once: every number is an array, and so are the properties that are computed from it."""

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Shapes:
        """Return ``shapes`` as arrays."""
        return cls._of_columns(
            lambda name: np.array([getattr(x, name) for x in shapes], bool if name == "pingpong" else int)
        )

    def some(self, which: Any) -> Shapes:
        """Return the shapes of these indices, in that order."""
        return self._of_columns(lambda name: getattr(self, name)[which])

    @classmethod
    def _of_columns(cls, column: Any) -> Shapes:
        shapes = cls(*(column(field.name) for field in fields(Shape)))
        shapes.__dict__.update({name: column(name) for name in _DERIVED})
        return shapes


class ShapeList(tuple[Shape, ...]):
    """A list of shapes, also as arrays."""

    @cached_property
    def arrays(self) -> Shapes:
        return Shapes.of(self)

    @cached_property
    def by_name(self) -> dict[str, Shape]:
        """The shapes by their names."""
        return {shape.name: shape for shape in self}


SPLIT_SHAPES = ShapeList((
    Shape(128, 128, 4), Shape(128, 64, 5), Shape(64, 64, 9, consumers=1), Shape(64, 16, 9, consumers=1),
))  # fmt: skip
"""Shapes for split operands: a stage has three planes of each, and half as many bytes along K."""


def _shape(m: int, n: int, **options: Any) -> Shape:
    """Return a shape with as many stages, up to 12, as fit beside a staging buffer of each consumer."""
    stage = (m + -(-n // 64) * 64) * 128
    return Shape(m, n, min(12, (SHARED_LIMIT - 20000) // stage), **options)


SHAPES = ShapeList((
    *(_shape(128, n) for n in (16, 96, 144, 160, 192, 224, 256)),
    *(_shape(64, n, consumers=1) for n in (16, 32, 64, 96, 128, 160)),
    *(_shape(128, n, pingpong=True) for n in (128, 160)), *(_shape(64, n, pingpong=True) for n in (128, 192, 256)),
    _shape(128, 256, cluster_m=2), _shape(128, 192, cluster_m=2, pingpong=True),
    *(_shape(64, n, consumers=1, cluster_m=4) for n in (64, 128)),
    # Products of few tiles: a large cluster reads what it shares from L2 once.
    _shape(128, 160, cluster_m=4, cluster_n=2),
    # CTAs of a cluster share K; larger tiles, which L2 is slow to feed, multicast one operand besides.
    *(_shape(64, 16, consumers=1, cluster_k=k) for k in (4, 8)), _shape(64, 32, consumers=1, cluster_k=2),
    *(_shape(64, 64, consumers=1, cluster_k=k) for k in (4, 8)),
    _shape(64, 64, consumers=1, cluster_m=2, cluster_k=4), _shape(64, 64, consumers=1, cluster_m=4, cluster_k=2),
))  # fmt: skip
"""Shapes for 16-bit and tf32 operands, of widths that are multiples of 16: wgmma seems to read a b that is contiguous
along N 16 columns at a time (benchmarks/results/h200/hopper_widths.txt). For narrow problems the operands are swapped,
so that the narrow side is the kernel's n.
"""


def _register_shape(m: int, n: int, **options: Any) -> Shape:
    """Return a shape with as many stages, up to 12, of float32 elements of a and planes of b as fit."""
    return Shape(m, n, min(12, (SHARED_LIMIT - 20000) // (128 * m + 192 * -(-n // 64) * 64)), **options)


F16_PLANES_SHAPES = ShapeList((
    Shape(128, 128, 6), Shape(128, 96, 7), Shape(64, 64, 12, consumers=1),
    Shape(128, 128, 6, cluster_m=2), Shape(128, 112, 6), Shape(128, 64, 8),
))  # fmt: skip
"""Shapes for float32 split into float16 planes: the sums of a thread take three sets of registers."""

REGISTER_SHAPES = ShapeList((
    *(_register_shape(128, n) for n in (16, 32, 48, 64, 96)),
    *(_register_shape(64, n, consumers=1) for n in (16, 32, 48, 64)),
))  # fmt: skip
"""Shapes for a split a that goes through registers: while it streams, the narrow b is read from shared memory."""


F16_REGISTER_SHAPES = ShapeList(
    Shape(128, n, min(12, (SHARED_LIMIT - 20000) // (128 * 128 + 128 * n))) for n in (64, 80, 96, 112)
)
"""Shapes where a goes through registers as float16 planes."""


def _shifted_shape(m: int, n: int, **options: Any) -> Shape:
    """Return a shape with as many stages, up to 12, of shifted rows of a and of b as fit beside staging buffers."""
    return Shape(m, n, min(12, (SHARED_LIMIT - 20000) // (144 * m + 128 * -(-n // 64) * 64)), **options)


SHIFTED_SHAPES = ShapeList((
    *(_shifted_shape(128, n) for n in (96, 160, 192, 256)),
    *(_shifted_shape(128, n, cluster_m=2) for n in (128, 192, 256)),
    *(_shifted_shape(64, n, consumers=1) for n in (32, 64, 96, 128, 160)),
))  # fmt: skip
"""Shapes for 16-bit and tf32 operands of shifted rows."""


def _small_shape(m: int, n: int, **options: Any) -> Shape:
    """Return a shape with as many stages, up to 8, of float32 elements as fit beside two buffers of planes of b."""
    room = SHARED_LIMIT - 22000 - 384 * n
    return Shape(m, n, min(8, room // (128 * m + 128 * -(-n // 32) * 32)), **options)


SMALL_SHAPES = ShapeList((
    *(_small_shape(64, n, consumers=1, cluster_k=k) for n in (16, 32) for k in (1, 2, 4, 8)),
    *(_small_shape(64, 48, consumers=1, cluster_k=k) for k in (1, 4, 8)),
    _small_shape(64, 64, consumers=1, cluster_k=4),
    *(_small_shape(64, 96, consumers=1, cluster_k=k) for k in (1, 2)),
    *(_small_shape(128, 32, cluster_k=k) for k in (1, 2)), *(_small_shape(128, 64, cluster_k=k) for k in (1, 2, 4)),
    _small_shape(128, 80),
))  # fmt: skip
"""Shapes for small products of float32, where the kernel splits both operands itself."""


EIGHT_BIT_SHAPES = ShapeList((
    *(_shape(64, n, consumers=1) for n in (16, 32, 64, 128)),
    *(_shape(64, n, consumers=1, cluster_k=4) for n in (16, 32, 64)),
    *(_shape(128, n) for n in (64, 96, 128)), *(_shape(128, n, cluster_k=2) for n in (64, 128)),
    # L2 feeds the double rate of 8-bit operands only to large tiles that multicast.
    *(_shape(128, n, cluster_m=2) for n in (128, 160, 192)), _shape(256, 128, cluster_n=2),
))  # fmt: skip
"""Shapes for 8-bit operands."""


_GROUPED = frozenset((
    "64x16x12", "64x32x12", "64x64x12", "64x96x8", "64x128x8", "64x160x6", "64x128x8p", "64x192x6p", "64x256x5p",
    "128x16x8", "128x96x6", "128x144x5", "128x160x5", "128x192x5", "128x224x4", "128x256x4", "128x128x6p", "128x160x5p",
    "128x256x4c2x1", "128x192x5pc2x1",
))  # fmt: skip
GROUPED_SHAPES = ShapeList((*(x for x in SHAPES if x.name in _GROUPED), *(_shape(128, n) for n in (32, 48, 64))))
"""Shapes for grouped products: their K is not split, and rows of a tile past the end of a group are wasted."""


GROUPED_EIGHT_BIT_SHAPES = ShapeList(x for x in EIGHT_BIT_SHAPES if x.cluster_k == 1)
"""The same for 8-bit operands."""
GROUPED_SMALL_SHAPES = ShapeList(x for x in SMALL_SHAPES if x.cluster_k == 1)
"""The same for float32, both operands of which the kernel splits itself."""


def shapes(form: Form) -> ShapeList:
    """Return the shapes for ``form``."""
    return symmetric_shapes(form) if form.symmetric else _shapes(form)


@lru_cache(maxsize=256)
def symmetric_shapes(form: Form) -> ShapeList:
    """Return the shapes for a symmetric ``form``: those of other results, with room for a second staging buffer.

    Most of those without have it with one stage less.
    """
    fewer = ShapeList(_with_room(shape, form) for shape in _shapes(form))
    return ShapeList(dict.fromkeys(fewer))


def _with_room(shape: Shape, form: Form) -> Shape:
    while shape.stages > 2 and Variant(shape, form).num_store_stages == 1:
        shape = replace(shape, stages=shape.stages - 1)
    return shape


def _shapes(form: Form) -> ShapeList:
    if form.divided and form.input == "split":
        return GROUPED_SMALL_SHAPES
    if form.divided:
        return GROUPED_EIGHT_BIT_SHAPES if form.input_bytes == 1 else GROUPED_SHAPES
    if form.input_bytes == 1:
        return EIGHT_BIT_SHAPES
    if form.shifted:
        return SHIFTED_SHAPES
    if form.input == F16X3:
        return F16_REGISTER_SHAPES if form.registers_a else F16_PLANES_SHAPES
    if form.input == "split":
        return SMALL_SHAPES if form.split_planes_b else REGISTER_SHAPES if form.registers_a else SPLIT_SHAPES
    return SHAPES
