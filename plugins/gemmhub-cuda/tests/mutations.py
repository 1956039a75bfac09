"""Faults put into a kernel one at a time: the emulator, or the comparison with the exact product, must detect each.

A table gives each fault a name, and has the product that shows it and the texts to replace: ``(product, [file,] old,
new)``, in the kernel's own file where none is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import emulated
import pytest
from mma_product import Launch, Product

SEEDS = 12
"""Interleavings of threads that are tried for a fault; the first that detects it ends the test."""


@dataclass(frozen=True)
class Mutation:
    """One fault."""

    product: Product
    changes: tuple[tuple[str, str, str], ...]
    """Files of the kernel, their old and new texts."""

    def build(self):
        """Compile the changed kernel. Raises AssertionError where the kernel does not have an old text."""
        variant = self.product.variant
        emulated.built(variant.main, variant.macros, self.changes)

    def check(self):
        """Fail unless some interleaving ends in an error of the emulator or in a wrong result."""
        self.build()  # a text that is not there, or a kernel that does not compile, is not a detected fault
        launch = Launch(self.product, changes=self.changes)
        for seed in range(SEEDS):
            try:
                launch.check(seed)
            except AssertionError:
                return
        pytest.fail("not detected by the emulator or by a comparison of results")


def _mutation(product, *texts):
    return Mutation(product, (texts if len(texts) == 3 else (product.variant.main, *texts),))


def every(table):
    """Give a test each fault of ``table`` as ``mutation``."""
    given = [pytest.param(_mutation(*fault), id=name.replace(" ", "-")) for name, fault in table.items()]
    return pytest.mark.parametrize("mutation", given)


def products(table):
    """Give a test each product of ``table`` as ``product``."""
    return pytest.mark.parametrize("product", dict.fromkeys(product for product, *_ in table.values()), ids=str)


def check_without_faults(product):
    """Run the unchanged kernel: several interleavings, all with right results."""
    Launch(product).check_interleavings(3)
