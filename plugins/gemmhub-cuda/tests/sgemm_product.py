"""One product for the float32 kernel on the emulator; see mma_product.py."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.variants.form import Form
from gemmhub_cuda.variants.sgemm import Variant
from mma_product import Product


@dataclass(frozen=True)
class Single(Product):
    """A problem for a given tile shape."""

    dtype: str = "float32"

    def __post_init__(self):
        pass  # any size goes with any alignment: see below

    @property
    def variant(self):
        """The problem's form: MN-major rows also end at a multiple of their alignment."""
        aligned = [
            next(x for x in (16, 8, 4) if x <= given and (order == "k" or 4 * side % x == 0))
            for given, order, side in zip(self.aligned, (self.a, self.b), (self.m, self.n))
        ]
        form = Form(
            self.a == "m", self.b == "n", *aligned, self.dtype, self.out, self.scaled, self.beta != 0, self.bias,
            self.bias_type, self.activation,
        )  # fmt: skip
        return Variant(self.shape, form, self.split_k or self.splits > 1)
