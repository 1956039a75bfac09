"""Rates of gemmhub-cpu's packing beside memcpy, and of products of few rows or columns, on one core.

    python -m benchmarks.run.cpu_packing [--json FILE]

Compiled from the sources of the kernels (g++). GB/s of the operand that is packed,
or of the large operand of a product, of 4096 x 4096 elements: "along-k" where it is contiguous along K, as the weights
of a layer are stored, "across" where it is contiguous along its other dimension. Beside it, where torch is installed,
those of torch on one thread. It takes a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from gemmhub_cpu import sources
from gemmhub_cpu.native_engine import _DTYPES
from gemmhub_cpu.units import UNITS

from benchmarks.lib import results
from gemmhub._base.timing import interleave
from gemmhub.numpy_backend.probe import cpu_flags

Table = dict[str, dict[str, float]]
SIZES = {"int8": 1, "float16": 2, "bfloat16": 2}


def kernels() -> dict[str, Table]:
    """Rates by unit and dtype, case and storage order."""
    words, library = cpu_flags(), sources.library()
    here = [unit for unit in UNITS if all(flag in words for flag in unit.flags) and not unit.exact]
    names: dict[str, str] = {}
    for unit in here:
        for dtype in ("float16", "bfloat16") if unit.pair == "float" else (unit.pair,):
            names[f"{unit.index}:{_DTYPES[dtype]}:{SIZES[dtype]}"] = f"{dtype}, {unit.name}"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "cpu_packing")
        flags = ("-O2", "-std=c++17", "-pthread", "-fno-exceptions", "-fno-rtti", f"-I{sources.FOLDER}")
        files = map(str, (Path(__file__).with_suffix(".cpp"), *library.sources))
        subprocess.run(["g++", *flags, *files, "-o", str(program)], check=True)
        lines = subprocess.run([str(program), *names], check=True, capture_output=True, text=True).stdout
    tables: dict[str, Table] = {}
    for line in lines.splitlines():
        key, case, order, rate = line.split()
        tables.setdefault(names[key], {}).setdefault(case, {})[order] = float(rate)
    return tables


def torch_rows() -> dict[str, Table]:
    """The rates of torch for the same products."""
    import torch

    torch.set_num_threads(1)
    tables: dict[str, Table] = {}
    for dtype in (torch.int8, torch.float16, torch.bfloat16):
        weights = torch.ones((4096, 4096)).to(dtype)
        multiply = torch._int_mm if dtype == torch.int8 else torch.matmul
        table = tables.setdefault(f"{dtype}, torch", {})
        for m in (2, 4, 8, 16, 32):
            x = torch.ones((m, 4096)).to(dtype)
            calls = {
                ("rows", "along-k"): lambda x=x, w=weights, f=multiply: f(x, w.T),
                ("rows", "across"): lambda x=x, w=weights, f=multiply: f(x, w),
                ("columns", "along-k"): lambda x=x, w=weights, f=multiply: f(w, x.T.contiguous()),
            }
            for (name, order), timing in zip(calls, interleave(list(calls.values()), rounds=5)):
                table.setdefault(f"{name}-{m}", {})[order] = weights.nbytes * 1e-9 / min(timing.samples)
    return tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tables = kernels()
    if find_spec("torch"):
        tables |= torch_rows()
    for name, table in tables.items():
        for case, row in table.items():
            print(f"{name:34}{case:12}" + "".join(f"{order:>14} {rate:6.2f}" for order, rate in row.items()))
    if arguments.json:
        results.save(arguments.json, **tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
