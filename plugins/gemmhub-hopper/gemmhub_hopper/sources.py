"""What a variant of the kernel is compiled from."""

from __future__ import annotations

from functools import cache
from importlib import resources

from gemmhub.native.nvrtc import Source
from gemmhub_hopper import wgmma
from gemmhub_hopper.config import Variant

ARCH = "sm_90a"
KERNEL = "gemm"
"""The function's name."""


def source(variant: Variant) -> Source:
    """The kernel and its headers; one of them is written for the variant."""
    return Source(
        name=f"hopper-{variant.shape.name}",
        main="gemm_kernel.cu",
        files={**_files(), "wgmma.cuh": wgmma.header(variant)},
        options=(
            f"--gpu-architecture={ARCH}", "--std=c++17", *(f"-D{k}={v}" for k, v in variant.macros.items()),
        ),
    )  # fmt: skip


@cache
def _files() -> dict[str, str]:
    folder = resources.files("gemmhub_hopper") / "kernels"
    return {path.name: path.read_text() for path in folder.iterdir() if path.name.endswith((".cu", ".cuh"))}
