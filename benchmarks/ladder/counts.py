"""Counts of the steps without a card: the compiler's figures, and accesses of shared memory on the emulator.

The emulator is that of gemmhub-cuda's tests (plugins/gemmhub-cuda/tests/emulated.py): it runs the same files on the
host, and needs g++.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gemmhub_nvidia import nvrtc

from benchmarks.ladder.steps import FAMILIES, Params, Step, steps

_EMULATED = Path(__file__).resolve().parents[2] / "plugins" / "gemmhub-cuda" / "tests" / "emulated.py"
_WARP = {"sgemm": (1, 32), "mma": (16, 8)}
"""Rows and columns that a warp computes in the steps without shared memory."""
CAPABILITY = (9, 0)


def emulator() -> ModuleType:
    """Return the tests' emulator as a module."""
    spec = importlib.util.spec_from_file_location("emulated", _EMULATED)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(emulated: ModuleType, step: Step, m: int, n: int, k: int, seed: int = 0, count: bool = False) -> Any:
    """Run one product; return (a, b, c, the emulator's report). b is (k, n) in any storage order."""
    dtype, order, _ = FAMILIES[step.family]
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k) if order == "nt" else (k, n)))
    if dtype == "bfloat16":
        import ml_dtypes

        a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    # The emulator requires, as a card does, operands that begin at a multiple of 16 bytes.
    a, b, c = (_aligned(x) for x in (a, b, np.zeros((m, n), a.dtype)))
    params = Params(a.ctypes.data, b.ctypes.data, c.ctypes.data, m, n, k)
    report = emulated.run(
        str(step.path), {}, params, step.grid(m, n), step.threads, step.shared_bytes, [a, b], [c], seed, count
    )  # fmt: skip
    return a, b.T if order == "nt" else b, c, report


def _aligned(x: Any) -> Any:
    room = np.zeros(x.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    place = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    place[:] = x
    return place


def intensity(step: Step) -> float:
    """Return FLOP for each byte that a CTA (a warp, where there are no tiles) requests from L1 and L2."""
    m, n = step.tile[:2] if step.shared_bytes else _WARP[step.family]
    return 2 * m * n / ((m + n) * step.element_bytes)


def shared(emulated: ModuleType, step: Step) -> dict[str, float]:
    """Return FLOP a cycle of shared memory, and the fraction of cycles lost to bank conflicts. Empty without tiles."""
    if not step.shared_bytes:
        return {}
    m, n, k = step.tile[0], step.tile[1], 2 * step.tile[2]
    *_, report = launch(emulated, step, m, n, k, count=True)
    conflicts = sum(report.conflicts.values())
    cycles = sum(report.requests.values()) + conflicts
    return {"flop_per_shared_cycle": 2 * m * n * k / cycles, "conflicts": conflicts / cycles}


def row(emulated: ModuleType, compiler: nvrtc.Compiler, step: Step) -> dict[str, Any]:
    made = compiler.compile(step.source(CAPABILITY), verbose=True)
    return {
        "step": step.name, "idea": step.idea, "tile": list(step.tile), "threads": step.threads,
        "shared_bytes": step.shared_bytes, "flop_per_byte": intensity(step), **shared(emulated, step),
        "registers": made.registers, "spilled": made.spilled,
    }  # fmt: skip


def counted(emulated: ModuleType) -> dict[str, Any]:
    """Return the record of all steps."""
    compiler = nvrtc.load()
    families = {family: [row(emulated, compiler, step) for step in steps(family)] for family in FAMILIES}
    return {"kind": "counts", "nvrtc": "{}.{}".format(*compiler.version), "families": families}
