"""The compiled tile instructions of AMX: what is built is run, emulated where the CPU has none, and read."""

from __future__ import annotations

import platform
import re
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import amx
import calls
import numpy as np
import pytest
from gemmhub_cpu import library, sources
from gemmhub_cpu.units import UNITS

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub.numpy_backend.probe import cpu_flags

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86_64"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]
PROGRAM = Path(__file__).parent / "amx_tiles.cpp"
AMX_H = "x86_64/amx.h"
EIGHT_BYTES = (
    'asm volatile("ldtilecfg %0" : : "m"(kTiles));',
    "TileConfiguration tiles{};"
    "tiles.palette = 1;"
    "for (int i = 0; i < 8; ++i) tiles.row_bytes[i] = 64, tiles.rows[i] = 16;"
    'asm volatile("ldtilecfg %0" : : "m"(*reinterpret_cast<const long long*>(&tiles)));',
)
"""What GCC 12's _tile_loadconfig does: of the 64 bytes, its operand has 8."""
CLOBBER = ': "memory");', ");"
"""What _tile_loadd and its like do."""
REVERSED = "tdpbssd %%tmm%c2, %%tmm%c1", "tdpbssd %%tmm%c1, %%tmm%c2"
ONE_SHORT = "{16, 16, 16, 16, 16, 16, 16, 16}", "{16, 16, 16, 16, 16, 16, 16, 15}"


def tiles(folder: Path, *changes: tuple[str, str], level: str = "-O2") -> subprocess.CompletedProcess[str]:
    """Compile the program with amx.h changed so, and run it."""
    kernels = folder / "kernels"
    shutil.copytree(sources.FOLDER, kernels)
    text = (kernels / AMX_H).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (kernels / AMX_H).write_text(text, encoding="utf-8")
    program = folder / "tiles"
    files = [PROGRAM, amx.SOURCE, kernels / "x86_64" / "int8_amx.cpp"]
    options = [level, "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", f"-I{kernels}"]
    subprocess.run(["g++", *options, *map(str, files), "-o", str(program)], check=True, capture_output=True, text=True)
    return subprocess.run([str(program)], capture_output=True, text=True, timeout=60)


emulated = pytest.mark.skipif("amx_tile" in cpu_flags(), reason="the CPU may take what is left on the stack")


@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3"])
def test_compiled_tiles_multiply(level: str, tmp_path: Path) -> None:
    done = tiles(tmp_path, level=level)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        pytest.param([EIGHT_BYTES], {-signal.SIGSEGV}, marks=emulated),
        ([CLOBBER], {1}),
        ([REVERSED], {1}),
        ([ONE_SHORT], {1, -signal.SIGILL}),
    ],
    ids=["8 bytes of the configuration", "no memory clobbers", "a and b exchanged", "a tile of 15 rows"],
)
def test_faults_of_the_statements_are_seen(changes: list[tuple[str, str]], ends: set[int], tmp_path: Path) -> None:
    done = tiles(tmp_path, *changes)
    assert done.returncode in ends, done


@pytest.mark.skipif("avx2" not in cpu_flags(), reason="the CPU has no AVX2")
def test_the_instruction_that_rounds_to_bfloat16(tmp_path: Path) -> None:
    program = tmp_path / "rounding"
    files = [Path(__file__).parent / "bfloat16_rounding.cpp", amx.SOURCE]
    subprocess.run(["g++", "-O2", "-std=c++17", *map(str, files), "-o", str(program)], check=True)
    assert subprocess.run([str(program)], timeout=60).returncode == 0


def configurations(library: Path) -> list[bytes]:
    """The 64 bytes that each ldtilecfg of a compiled library reads; empty where they are not constant."""
    lines = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    data, found = library.read_bytes(), []
    offset, size, count = struct.unpack_from("<Q14xHH", data, 32)  # of the program headers
    for line in re.findall(r".*\bldtilecfg\b.*", lines):
        target = re.search(r"\(%rip\)\s+# ([0-9a-f]+)", line)
        for i in range(count if target else 0):
            kind, flags, start, address, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
            at = int(target[1], 16) - address if target else -1
            if kind == 1 and not flags & 2 and 0 <= at <= length - 64:  # loaded, and never written
                found.append(data[start + at : start + at + 64])
                break
        else:
            found.append(b"")
    return found


def test_every_configuration_of_the_library_is_whole() -> None:
    """Read from the instructions, so that no path that no test takes has another."""
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump (binutils)")
    built = native.build(library.recipe(sources.library()))
    assert isinstance(built, Path)
    every = configurations(built)
    assert len(every) == 3  # of the units for int8, bfloat16 and float16
    expected = bytes([1] + [0] * 15) + np.array([64] * 8 + [0] * 8, "<u2").tobytes() + bytes([16] * 8 + [0] * 8)
    assert set(every) == {expected}


def test_the_emulator_runs_the_shipped_library() -> None:
    """Where the CPU has no AMX, tests of the AMX units would otherwise prove nothing."""
    loaded, names, why = library.load()
    if loaded is None:
        pytest.skip(why)
    if "int8 on AMX" in names:
        pytest.skip("this CPU has AMX: nothing is emulated")
    emulator = amx.emulator()
    assert not isinstance(emulator, Refusal)
    unit = next(unit for unit in UNITS if unit.name == "int8 on AMX")
    a, b = (np.random.default_rng().integers(-128, 128, (40, 40), dtype=np.int8) for _ in range(2))
    out, memory = np.empty((40, 40), np.int32), np.empty(1 << 22, np.uint8)
    with amx.emulated(emulator) as executed:
        workspace = memory.ctypes.data, memory.nbytes
        assert loaded.gemmhub_cpu_multiply(calls.described(unit, a, b, out, workspace=workspace)) == 0
        assert executed() > 10
    assert np.array_equal(out, a.astype(np.int32) @ b.astype(np.int32))
