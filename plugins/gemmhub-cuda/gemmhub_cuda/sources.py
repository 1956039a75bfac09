"""The sources and compiler options of a variant."""

from __future__ import annotations

from functools import cache
from importlib import resources

from gemmhub.kit import epilogue_source
from gemmhub.kit.nvrtc import Source
from gemmhub_cuda import form
from gemmhub_cuda.variant import Variant

KERNEL = "gemm"
"""Name of the function, the same in every source."""


def source(variant: Variant, capability: tuple[int, int]) -> Source:
    """Return the kernel and its headers, for cards of that compute capability."""
    return Source(
        name=f"cuda-{variant.name}-sm{capability[0]}{capability[1]}",
        main=variant.main,
        files={**_files(), **activations()},
        options=(
            f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17",
            *(f"-D{name}={value}" for name, value in variant.macros.items()),
        ),
    )  # fmt: skip


def activations() -> dict[str, str]:
    """Return the header of the activations: its name and its text."""
    return {"activations.cuh": epilogue_source.source(form.ACTIVATIONS)}


@cache
def _files() -> dict[str, str]:
    folder = resources.files("gemmhub_cuda") / "kernels"
    return {path.name: path.read_text() for path in folder.iterdir() if path.name.endswith((".cu", ".cuh"))}
