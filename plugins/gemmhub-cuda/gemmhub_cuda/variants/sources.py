"""The sources and compiler options of a variant."""

from __future__ import annotations

from gemmhub_nvidia import sources
from gemmhub_nvidia.nvrtc import Source

from gemmhub_cuda.variants import form
from gemmhub_cuda.variants.variant import Variant

KERNEL = "gemm"
"""Name of the function, the same in every source."""


def source(variant: Variant, capability: tuple[int, int]) -> Source:
    """Return the kernel and its headers, for cards of that compute capability."""
    files, card = sources.files("gemmhub_cuda") | activations(), "{}{}".format(*capability)
    return sources.source(f"cuda-{variant.name}-sm{card}", variant.main, files, f"sm_{card}", variant.macros)


def activations() -> dict[str, str]:
    """Return the header of the activations: its name and its text."""
    return sources.activations(form.ACTIVATIONS)
