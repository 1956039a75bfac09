"""Memory traffic of gemmhub-musa-kernels' pipelined kernel and of its first draft, counted on the simulator.

    python -m benchmarks.run.musa_kernels_counts [--write] [--quick] [--compiled]

No Moore Threads card is available to the project, so nothing here is a time. Lines of 128 bytes, bank conflicts and
barriers are counted while the simulator runs the kernels (gemmhub_musa_sim.counters has the rules); registers are
nvcc's, through the simulator's CUDA headers. ``--write`` writes the numbers to
benchmarks/results/cpu/musa_kernels_counts.json and the tables to docs/musa-kernels.md. That takes minutes on two
cores; ``--quick`` uses small sizes and takes seconds. ``--compiled`` counts nothing on the simulator: it keeps what the
file has of it, and renews the registers and the estimates.

The first draft (plugins/gemmhub-musa-kernels/tests/kernels/first_draft.mu) is a straightforward kernel: correct for
multiples of 128 as m and n and of 64 as k, with up to 4 columns of tiles or a multiple of 4. For other sizes A and B
must be padded, and the result copied out: that is counted as reading and writing each once.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path

from benchmarks.lib import results
from benchmarks.pages import musa_kernels
from benchmarks.pages import tables as pages

ROOT = Path(__file__).resolve().parents[2]
RESULT = musa_kernels.RESULT
PAGE = ROOT / "docs" / "musa-kernels.md"
DRAFT = ROOT / "plugins" / "gemmhub-musa-kernels" / "tests" / "kernels" / "first_draft.mu"
KERNELS = ROOT / "plugins" / "gemmhub-musa-kernels" / "gemmhub_musa_kernels" / "kernels"
SIZES = ((1024, 1024, 1024), (1000, 1000, 1000), (1023, 1021, 1019), (129, 1023, 77))
QUICK = ((256, 256, 128), (130, 129, 65))
WAYS = (("ccc", "usual"), ("ccc", "plain"), ("crr", "usual"), ("rrr", "usual"), ("rcr", "usual"), ("crc", "packed"))
"""Storage orders of A, B and the result, and the mode: an untuned call, a call without copies, a packed B."""
TILE = "pipelined-128x128x32-2x2warps"
DEPTH = 32
"""Length of k of a step, in the draft and in the tile."""
SHARED_OF_MULTIPROCESSOR = 72 * 1024
"""Shared memory of a block on an S4000 in bytes; published kernels rely on at least as much for a multiprocessor."""
REGISTERS_OF_MULTIPROCESSOR = 64 * 1024
"""Registers of a multiprocessor of an NVIDIA GPU, the target of the compiler here."""


@dataclass(frozen=True)
class Row:
    """The counts of one code path for one product."""

    size: str
    orders: str
    way: str
    read_bytes: int
    """Bytes read from global memory, in lines of 128 bytes, by all launches."""
    written_bytes: int
    spare_lines: int
    """Number of lines that the product's kernel moves beyond the minimum for its requests."""
    copied_spare_lines: int
    """Number of such lines in copies of operands before the product."""
    bank_conflicts: int
    """Cycles of shared memory beyond the minimum, with banks of 8 bytes, in the product's kernel."""
    barriers_per_step: float
    """Barriers of a block for each step, without those before the first step and after the last."""


class Counter:
    """Counters of products on a simulated S4000. All kernels are compiled with the checker's hooks."""

    def __init__(self, folder: Path) -> None:
        from gemmhub_musa_sim import make_home

        self.folder = folder
        os.environ["MUSA_HOME"] = str(make_home(folder / "home", checks=True))
        os.environ["MUSA_SIM_QUIET"] = "1"  # the draft has races
        from gemmhub_musa import runtime, sdk
        from gemmhub_musa_kernels.backend import MusaKernelsBackend

        self.backend = MusaKernelsBackend()
        self.backend.probe()
        self.sdk, self.runtime = sdk.find(), runtime.load()

    def _counted(self, run, *nbytes):
        """Return the counters of each kernel of ``run(*addresses)`` on zeros of those sizes."""
        from gemmhub_musa_sim import counters

        places = [self.runtime.malloc(size) for size in nbytes]
        for place, size in zip(places, nbytes):
            self.runtime.memset(place, 0, size)
        with counters.counting():
            run(*places)
        found = counters.read()
        for place in places:
            self.runtime.free(place)
        return found

    def _load_draft(self):
        """Load the draft again: it assumes that the operand at a known address has not changed."""
        from gemmhub_musa.compile import compile_mu

        built = compile_mu(DRAFT, self.sdk, "mp_22", name="first_draft")
        assert isinstance(built, Path), built
        copy = self.folder / f"draft-{len(list(self.folder.iterdir()))}.so"
        copy.write_bytes(built.read_bytes())
        call = ctypes.CDLL(str(copy)).draft_gemm
        call.argtypes, call.restype = (*[ctypes.c_void_p] * 3, *[ctypes.c_int] * 3), None
        return call

    def draft(self, size):
        m, n, k = padded(size)
        call = self._load_draft()
        found = self._counted(lambda a, b, c: call(a, b, c, m, n, k), 2 * m * k, 2 * k * n, 2 * m * n)
        made = row(size, "ccc", "first draft", found, "draft_gemm_kernel", k, others=1)
        if (m, n, k) == size:
            return made
        given, needed = (2 * (x * z + z * y) for x, y, z in (size, (m, n, k)))
        result = 2 * size[0] * size[1]
        return replace(
            made,
            way=f"first draft, padded to {m}x{n}x{k}",
            read_bytes=made.read_bytes + given + result,
            written_bytes=made.written_bytes + needed + result,
        )

    def ours(self, size, orders, how):
        from gemmhub.capability import Device
        from gemmhub.dtypes import as_dtype
        from gemmhub.layout import MatrixLayout
        from gemmhub.problem import GemmProblem, Operand

        (m, n, k), half = size, as_dtype("float16")
        named = [{"c": "col", "r": "row"}[order] for order in orders]
        shapes = (m, k), (k, n), (m, n)
        operands = [Operand(half, MatrixLayout.contiguous(*x, (), order), 256) for x, order in zip(shapes, named)]
        problem = GemmProblem(
            m=m, n=n, k=k, a=operands[0], b=operands[1], out=operands[2], compute_dtype=as_dtype("float32"),
            device=Device("musa", 0), packed_by=self.backend.name if how == "packed" else None,
        )  # fmt: skip
        offered = {each.name: each for each in self.backend.offer(problem).candidates}
        chosen = offered.get(f"{TILE}-copying", offered[TILE]) if how != "plain" else offered[TILE]
        kernel = self.backend.prepare(problem, chosen.name, 2**30)
        b_columns = -(-n // 64) * 64 if how == "packed" else n
        nbytes = 2 * m * k, 2 * k * b_columns, 2 * m * n
        found = self._counted(lambda a, b, c: kernel.run(a, b, c, 1, 0, 0), *nbytes)
        copied = ", ".join(copy.operand.upper() for copy in chosen.copies)
        way = "B packed" if how == "packed" else ""
        way += (", " if way and copied else "") + (f"{copied} copied first" if copied else "")
        return row(size, orders, way or "as it lies", found, "pipelined_gemm", k, others=4)


def padded(size):
    """Return the next size for which the draft is correct."""
    m, n, k = (ceil(x / by) * by for x, by in zip(size, (128, 128, 64)))
    return m, ceil(n / 512) * 512 if m > 128 and n > 512 else n, k


def row(size, orders, way, found, kernel, k, others):
    """Return a row of the table; ``others`` are the barriers of a block that belong to no step."""
    (main,) = (x for x in found if x.kernel.startswith(kernel))

    def spare(counters):
        return sum(site.transactions - site.ideal_transactions for site in counters.sites if site.space == "global")

    return Row(
        "x".join(map(str, size)), orders, way,
        sum(x.read_bytes for x in found), sum(x.written_bytes for x in found),
        spare(main), sum(spare(x) for x in found if x is not main), main.bank_conflicts_8,
        round((main.barriers / main.blocks - others) / ceil(k / DEPTH), 3),
    )  # fmt: skip


def counted(sizes):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(Path(folder))
        for size in sizes:
            rows.append(counter.draft(size))
            for orders, how in WAYS:
                found = counter.ours(size, orders, how)
                if found not in rows:
                    rows.append(found)
            print(f"counted {rows[-1].size}", flush=True)
    return rows


# Registers


@dataclass(frozen=True)
class Resources:
    """One tile's kernels, compiled by nvcc for sm_80 through the simulator's CUDA headers: the most of all orders."""

    kernel: str
    threads: int
    registers: int
    spilled_bytes: int
    shared_bytes: int

    @property
    def blocks(self) -> int:
        """The number of blocks that fit the registers and the shared memory of a multiprocessor."""
        by_registers = REGISTERS_OF_MULTIPROCESSOR // (self.registers * self.threads)
        return min(by_registers, SHARED_OF_MULTIPROCESSOR // self.shared_bytes)


KINDS = tuple(itertools.product((False, True), repeat=3))
"""Kernels of pipelined.mu by template arguments: A contiguous along k, B contiguous along k, whole tiles."""
MEASURED = {"mp_22": 5, "mp_31": 2}
"""How many tiles of each architecture are compiled, from the first one on."""


def resources():
    """Return the resources of the draft and of the first tiles; or the reason why there are none."""
    from gemmhub_musa_kernels import sources, tiles
    from gemmhub_musa_kernels.choose import Candidate, defines
    from gemmhub_musa_kernels.sources import PIPELINED, WARP
    from gemmhub_musa_sim.cuda import nvcc

    from gemmhub.dtypes import as_dtype

    if nvcc.describe() == "no nvcc":
        return "nvcc is not installed, so the registers of the kernels are not counted"
    half = as_dtype("float16")
    found = [Resources("first draft", 512, *compiled(nvcc, DRAFT, ())[0], 34816)]
    for arch, count in MEASURED.items():
        warp = WARP[arch]
        for tile in tiles.of(warp)[:count]:
            flags = ("-I", str(KERNELS), *defines(Candidate(PIPELINED, tile), arch, half, half))
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "pipelined.mu"
                file.write_text(sources.text("pipelined"))
                numbers = dict(zip(KINDS, compiled(nvcc, file, flags)))
            shared = max(tile.shared_bytes(warp, *kind[:2]) for kind in KINDS)
            for whole in (False, True):
                registers, spilled = (max(numbers[kind][i] for kind in KINDS if kind[2] == whole) for i in (0, 1))
                name = f"{arch}, {tile}" + ", whole tiles" * whole
                found.append(Resources(name, tile.threads(warp), registers, spilled, shared))
    return found


# Estimates


def estimates():
    """Return the estimated TFLOPS of the first tiles on an S4000 at large sizes, with the cycles of an instruction."""
    from gemmhub_musa_kernels import model, tiles

    operations = 2 * tiles.EDGE[128] ** 2 * tiles.DEPTH * model.MULTIPROCESSORS * model.CLOCK / 1e12
    found = []
    for tile in tiles.of(128)[: MEASURED["mp_22"]]:
        cycles = model.instruction_cycles(tile, 128)
        moved = cycles - model.instruction_cycles(tile, 128, hidden=True)
        found.append({"tile": str(tile), "moving": moved, "cycles": round(cycles, 1), "tflops": operations / cycles})
    return found


def compiled(nvcc, source, flags):
    """Return (registers, spilled bytes) of each product kernel of the file, in the order of KINDS."""
    options = f"-arch=sm_80 -std=c++17 -O2 -include musa_runtime.h -Xptxas -v -x cu -cubin -o {os.devnull}".split()
    command = [nvcc.nvcc(), *options, "-I", str(nvcc.INCLUDE), "-I", str(source.parent), *flags, str(source)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    pattern = r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    kernels = {
        name: (int(registers), int(stores) + int(loads))
        for name, stores, loads, registers in re.findall(pattern, text, re.DOTALL)
        if "transpose" not in name
    }
    return [kernels[name] for name in sorted(kernels, key=lambda name: re.findall(r"Lb(\d)E", name))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into benchmarks/results and docs")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--compiled", action="store_true", help="registers and estimates alone")
    asked = parser.parse_args()
    found = resources()
    counts = results.load(RESULT)["counts"] if asked.compiled else None
    data = {
        "counts": counts or [asdict(x) for x in counted(QUICK if asked.quick else SIZES)],
        "estimates": estimates(),
        "resources": found if isinstance(found, str) else [{**asdict(x), "blocks": x.blocks} for x in found],
    }
    print("\n".join(musa_kernels.tables(data)))
    if asked.write:
        results.save(RESULT, **data)
        pages.write(PAGE)


if __name__ == "__main__":
    main()
