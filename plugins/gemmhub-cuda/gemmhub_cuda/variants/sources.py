"""The sources and compiler options of a variant."""

from __future__ import annotations

from gemmhub_nvidia import sources
from gemmhub_nvidia.nvrtc import Source

from gemmhub_cuda.variants import form, limits
from gemmhub_cuda.variants.variant import Variant

KERNEL = "gemm"
"""Name of the function, the same in every source."""


def source(variant: Variant, capability: tuple[int, int]) -> Source:
    """Return the kernel and its headers, for cards of that compute capability."""
    files, arch = sources.files("gemmhub_cuda") | activations(variant.form.activation), architecture(capability)
    blocks = max(1, variant.ctas_per_sm(limits.of(capability)))
    return sources.source(name(variant, capability), variant.main, files, arch, {**variant.macros, "BLOCKS": blocks})


def architecture(capability: tuple[int, int]) -> str:
    """Return the architecture of ptxas for cards of that compute capability, such as "sm_86"."""
    return "sm_{}{}".format(*capability)


def name(variant: Variant, capability: tuple[int, int]) -> str:
    """Return the name of a variant's source."""
    return "cuda-{}-sm{}{}".format(variant.name, *capability)


def activations(activation: str | None = None) -> dict[str, str]:
    """Return the header of the activations in a kernel for ``activation``: its name and its text."""
    return sources.activations(form.activations(activation))
