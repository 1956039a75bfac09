"""The steps of the ladder, read from their sources: each file of this folder is one, named FAMILY_NUMBER_WORD.cu.

The first line of a file is the idea; the line of constants has the tile sizes. Kernels take a structure of
three addresses and three sizes (common.cuh), and m, n and k that are multiples of the tile.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import c_int, c_uint64
from dataclasses import dataclass
from pathlib import Path

from gemmhub_nvidia import sources
from gemmhub_nvidia.nvrtc import Source

FOLDER = Path(__file__).parent
FAMILIES = {"sgemm": ("float32", "nn", 4), "mma": ("bfloat16", "nt", 2)}
"""Dtype of operands and result, storage order (nt: b is n x k), bytes of an element."""
KERNEL = "gemm"
"""Name of the kernel in every file."""
_CONSTANTS = r"constexpr int TILE_M = (\d+), TILE_N = (\d+), TILE_K = (\d+), THREADS = (\d+), SHARED_BYTES = (\d+);"


class Params(ctypes.Structure):
    """Operands of common.cuh."""

    _fields_ = tuple((name, c_uint64) for name in "abc") + tuple((name, c_int) for name in "mnk")


@dataclass(frozen=True)
class Step:
    """One step, from one file."""

    path: Path
    family: str
    number: int
    idea: str
    tile: tuple[int, int, int]
    """Tile sizes of a CTA along m, n and k."""
    threads: int
    shared_bytes: int

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def element_bytes(self) -> int:
        return FAMILIES[self.family][2]

    def refusal(self, m: int, n: int, k: int) -> str | None:
        """Return the reason why the kernel does not take a product; None where it does."""
        for side, size, tile in zip("mnk", (m, n, k), self.tile):
            if size % tile or size < tile:
                return f"{self.name} takes multiples of {tile} for {side}, not {size}"
        return None

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        return n // self.tile[1], m // self.tile[0], 1

    def source(self, capability: tuple[int, int]) -> Source:
        """Return the source for NVRTC. It needs gemmhub-cuda, whose wrappers of instructions the kernels use."""
        arch = "sm_{}{}".format(*capability)
        texts = {path.name: path.read_text() for path in (self.path, FOLDER / "common.cuh")}
        wrappers = {name: sources.files("gemmhub_cuda")[name] for name in ("device.cuh", "ptx.cuh")}
        return sources.source(f"ladder-{self.name}-{arch}", self.path.name, {**texts, **wrappers}, arch, {})


def read(path: Path) -> Step:
    """Return the step of a file; ValueError where it is none."""
    family, number, _ = path.stem.split("_", 2)
    text = path.read_text()
    found = re.search(_CONSTANTS, text)
    if family not in FAMILIES or found is None or not text.startswith("// "):
        raise ValueError(f"{path} is no step of the ladder")
    m, n, k, threads, shared = map(int, found.groups())
    idea = re.split("[:;,.]( |$)", text.partition("\n")[0].removeprefix("// "))[0]
    return Step(path, family, int(number), idea, (m, n, k), threads, shared)


def steps(family: str) -> list[Step]:
    """Return the steps of a family in order."""
    return sorted(map(read, FOLDER.glob(f"{family}_*.cu")), key=lambda step: step.number)
