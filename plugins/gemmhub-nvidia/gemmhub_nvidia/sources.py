"""The source of a kernel for NVRTC: files of a plugin, headers that plugins share, a generated one of activations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from gemmhub.kit import epilogue_source
from gemmhub_nvidia.nvrtc import Source


@cache
def files(package: str) -> dict[str, str]:
    """Return the kernels and headers of ``package``, in its folder ``kernels``: texts by file name."""
    folder = resources.files(package) / "kernels"
    return {path.name: path.read_text() for path in folder.iterdir() if path.name.endswith((".cu", ".cuh"))}


def shared() -> dict[str, str]:
    """Return the headers that plugins share: PTX instructions as functions, and what activations use."""
    return files("gemmhub_nvidia")


def activations(names: Iterable[str]) -> dict[str, str]:
    """Return the header of the activations called ``names``, which activation_functions.cuh includes."""
    return {"activations.cuh": epilogue_source.source(names)}


def source(name: str, main: str, texts: Mapping[str, str], architecture: str, macros: Mapping[str, object]) -> Source:
    """Return what NVRTC compiles to a cubin: the file ``main`` of ``texts``, which may include shared headers.

    ``architecture`` is that of ptxas, such as "sm_90a".
    """
    options = f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in macros.items())
    return Source(name, main, {**shared(), **texts}, options)
