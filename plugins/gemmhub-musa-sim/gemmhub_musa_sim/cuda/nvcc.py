"""The CUDA engine: MUSA sources compiled by nvcc, with this folder's headers in place of the simulator's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub_musa_sim.command import Command, architecture
from gemmhub_musa_sim.cuda import gpu

INCLUDE = Path(__file__).parent / "include"
ARCH_VARIABLE = "MUSA_SIM_CUDA_ARCH"
"""The variable for the architecture to compile for ("sm_90"): by default the first GPU's, and sm_80 without one."""
_PLACES = ("-isystem", "-iquote", "-idirafter", "-I")
"""Options that name a folder of headers."""
_VALUES = (*_PLACES, "-include", "-D", "-U")


def nvcc() -> str:
    """Return the compiler: CUDACXX, else that on PATH, else that in the usual place, which may be missing."""
    chosen = os.environ.get("CUDACXX") or shutil.which("nvcc")
    return chosen or (shutil.which("/usr/local/cuda/bin/nvcc") or "nvcc")


def arch() -> str:
    """Return the architecture to compile for by its own name, not as "native": compiled code is kept under it."""
    found = gpu.capability()
    return os.environ.get(ARCH_VARIABLE) or ("sm_80" if isinstance(found, Refusal) else "sm_{}{}".format(*found))


def describe() -> str:
    """nvcc's release and the architecture, in a line."""
    try:
        done = subprocess.run([nvcc(), "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return "no nvcc"
    release = next((line.strip() for line in done.stdout.splitlines() if "release" in line), "nvcc of unknown release")
    return f"{release}, {arch()}, shim {_digest()}"


def _digest() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(INCLUDE.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def compile_with(command: Command, home: Path) -> int:
    """Run the command line with nvcc; return the exit status."""
    musa_arch = architecture(command).removeprefix("mp_") + "0"
    defines = ["-D__MUSACC__=1", "-D__MUSA__=1", f"-D__MUSA_ARCH__={musa_arch}", f"-D__MUSA_ARCH_LIST__={musa_arch}"]
    base = [
        nvcc(),
        f"-arch={arch()}",
        command.standard.replace("gnu++", "c++"),
        _level(command.optimisation),
        "-lineinfo",
    ]
    base += [*_host_flags(command.compiler), *_preprocessor(command.preprocessor, home / "include"), "-I", str(INCLUDE)]
    with tempfile.TemporaryDirectory(prefix="mcc-") as folder:
        objects: list[str] = []
        for number, (source, musa) in enumerate(command.sources):
            made = Path(folder) / f"{number}-{source.stem}.o"
            if command.stop != "link":
                made = command.output or Path(source.stem + ".o")
            language = ["-x", "cu", *defines, "-include", "musa_runtime.h"] if musa else ["-x", "c++"]
            stop = ["-c", "-o", str(made)]
            if command.stop == "preprocess":
                stop = ["-E", *(["-o", str(command.output)] if command.output else [])]
            step = [*base, *language, *stop, str(source)]
            status = _call(command, step)
            if status:
                return status
            objects.append(str(made))
        if command.stop != "link":
            return 0
        form = ["-shared"] if command.shared else []
        step = [nvcc(), f"-arch={arch()}", *form, *objects, *command.objects, "-o", str(command.output or "a.out")]
        return _call(command, [*step, *_linker_flags(command.linker)])


def _level(optimisation: str) -> str:
    return optimisation if optimisation in ("-O0", "-O1", "-O2", "-O3") else "-O3"


def _host_flags(flags: list[str]) -> Iterator[str]:
    """Yield ``flags`` for nvcc; flags that it lacks are passed on to the host's compiler."""
    for flag in flags:
        yield from [flag] if flag in ("-g", "-G", "-w") else ["-Xcompiler", flag.replace(",", r"\,")]


def _linker_flags(flags: list[str]) -> Iterator[str]:
    for flag in flags:
        yield from ["-Xlinker", flag.removeprefix("-Wl,")] if flag.startswith("-Wl,") else [flag]


def _preprocessor(options: list[str], folder: Path) -> Iterator[str]:
    """Yield ``options`` for nvcc, without ``folder`` as a place of headers: the simulator's share names with CUDA's."""
    rest = iter(options)
    for option in rest:
        name = next(prefix for prefix in _VALUES if option.startswith(prefix))
        value = option[len(name) :] or next(rest)
        if name in _PLACES and Path(value).resolve() == folder.resolve():
            continue
        # nvcc ends a definition at a comma, and lacks some options that name folders.
        if name in ("-iquote", "-idirafter"):
            yield from ["-Xcompiler", f"{name},{value}"]
        else:
            yield from [name, value.replace(",", r"\,") if name == "-D" else value]


def _call(command: Command, step: list[str]) -> int:
    if command.verbose:
        sys.stderr.write(" ".join(step) + "\n")
    return subprocess.run(step, check=False).returncode
