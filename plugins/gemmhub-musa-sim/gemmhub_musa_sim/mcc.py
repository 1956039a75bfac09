"""``mcc``: the compiler of a simulated home. It takes the vendor's flags and calls g++, or nvcc for the CUDA engine.

In a home made with ``checks``, or with ``MUSA_SIM_CHECK=1`` in the environment, kernels are compiled with the checker's
hooks (:mod:`checks`): slower by an order of magnitude. ``mcc --version`` reports which, so that a cache keyed on it
never mixes the two.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmhub_musa_sim.command import Command, UsageError, architecture, parse
from gemmhub_musa_sim.cuda import nvcc
from gemmhub_musa_sim.profiles import Profile
from gemmhub_musa_sim.rewrite import LaunchError, rewrite
from gemmhub_musa_sim.runtime.toolchain import cxx, processor_flags

Engine = Literal["simt", "cuda"]

CHECK_VARIABLE = "MUSA_SIM_CHECK"

_INSTRUMENT = Path(__file__).parent / "simt" / "instrument.cpp"
_HOOKS = (
    "-O1",
    "-g",
    "-fsanitize=thread",
    "-fsanitize=bounds,alignment",
    "--param",
    "tsan-instrument-func-entry-exit=0",
)
_LESS = {"-O2": "-O1", "-O3": "-O1"}
"""Kernels run a few times on small problems: compiling them is what takes long."""


def _digest(home: Path) -> str:
    """Return a hash of the simulator: its headers, and the modules that rewrite sources and call the compiler."""
    digest = hashlib.sha256()
    own = Path(__file__).parent
    modules = [own / name for name in ("mcc.py", "command.py", "rewrite.py")]
    for path in [*modules, _INSTRUMENT, *sorted((home / "include").rglob("*.h"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Compiler:
    """The simulated mcc of one home."""

    home: Path
    toolkit: str
    engine: Engine
    checks: bool = False

    @property
    def checked(self) -> bool:
        """Whether kernels are compiled with the checker's hooks."""
        return os.environ.get(CHECK_VARIABLE, str(int(self.checks))) not in ("", "0")

    def version(self) -> str:
        """Return the vendor's line, then a line with everything of this simulator that a compiled file depends on."""
        if self.engine == "cuda":
            return f"mcc version {self.toolkit}\nsimulator: engine cuda, {nvcc.describe()}\n"
        hooks = "with" if self.checked else "without"
        machine = " ".join(processor_flags())
        build = f"build {_digest(self.home)}"
        return f"mcc version {self.toolkit}\nsimulator: engine simt, {hooks} checks, {build}, {cxx()} {machine}\n"

    def run(self, arguments: list[str]) -> int:
        """Run the command line; return the exit status."""
        if not arguments:
            return self._complain("no input files")
        if arguments[0] in ("--version", "-v") and len(arguments) == 1:
            sys.stdout.write(self.version())
            return 0
        try:
            command = parse(arguments)
            if self.engine == "cuda":
                return nvcc.compile_with(command, self.home)
            return self._compile(command)
        except UsageError as error:
            return self._complain(str(error))
        except LaunchError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        except FileNotFoundError as error:
            return self._complain(f"{error.filename}: not found")

    def _complain(self, text: str) -> int:
        sys.stderr.write(f"mcc: error: {text} (simulated home {self.home})\n")
        return 1

    def _compile(self, command: Command) -> int:
        with tempfile.TemporaryDirectory(prefix="mcc-") as folder:
            objects: list[str] = []
            for number, (source, musa) in enumerate(command.sources):
                made = Path(folder) / f"{number}-{source.stem}.o"
                if command.stop == "compile":
                    made = command.output or Path(source.stem + ".o")
                status = (self._musa if musa else self._host)(command, source, made, Path(folder))
                if status:
                    return status
                objects.append(str(made))
            if command.stop != "link":
                return 0
            device_code = any(musa for _, musa in command.sources) or bool(command.objects)
            return self._link(command, objects, Path(folder), hooks=device_code and self.checked)

    def _musa(self, command: Command, source: Path, made: Path, folder: Path) -> int:
        arch = architecture(command)
        hooks = self.checked
        preprocessed, rewritten = folder / f"{made.stem}.ii", folder / f"{made.stem}.rewritten.ii"
        defines = [
            "-D__MUSACC__=1",
            f"-D__MUSACC_VER_MAJOR__={self.toolkit.split('.')[0]}",
            "-D__MUSA__=1",
            f"-D__MUSA_ARCH__={arch.removeprefix('mp_')}0",
            f"-D__MUSA_ARCH_LIST__={arch.removeprefix('mp_')}0",
            f"-DMUSA_SIM_INSTRUMENTED={int(hooks)}",
        ]
        include = ["-isystem", str(self.home / "include"), "-include", "musa_runtime.h"]
        common = [command.standard, *command.compiler, *processor_flags()]
        step = [cxx(), "-E", "-x", "c++", *common, command.optimisation, *defines, *command.preprocessor, *include]
        status = self._call(command, [*step, str(source), "-o", str(preprocessed)])
        if status:
            return status
        text = rewrite(preprocessed.read_text(errors="surrogateescape"))
        if command.stop == "preprocess":
            return self._write(command, text)
        rewritten.write_text(text, errors="surrogateescape")
        level = list(_HOOKS) if hooks else [_LESS.get(command.optimisation, command.optimisation), "-g1"]
        quiet = ["-Wno-unknown-pragmas", "-Wno-attributes", "-fno-gnu-unique"]
        # A frame larger than a thread's stack must not step over the guard page at its end.
        level.append("-fstack-clash-protection")
        # Always position-independent: a program must read threadIdx where libmusart writes it, not in its own copy.
        step = [cxx(), "-fPIC", "-x", "c++-cpp-output", *common, *level, *quiet, "-c", str(rewritten), "-o", str(made)]
        return self._call(command, step)

    def _host(self, command: Command, source: Path, made: Path, folder: Path) -> int:
        include = ["-isystem", str(self.home / "include")]
        step = [cxx(), "-x", "c++", command.standard, *command.compiler, command.optimisation, *command.preprocessor]
        stop = ["-E"] if command.stop == "preprocess" else ["-c", "-o", str(made)]
        return self._call(command, [*step, *include, *stop, str(source)])

    def _link(self, command: Command, objects: list[str], folder: Path, *, hooks: bool) -> int:
        if hooks:
            instrument = folder / "instrument.o"
            step = [cxx(), "-std=c++17", "-O2", "-fPIC", "-isystem", str(self.home / "include"), "-c", str(_INSTRUMENT)]
            status = self._call(command, [*step, "-o", str(instrument)])
            if status:
                return status
            objects = [*objects, str(instrument)]
        # As with the vendor's, a library finds libmusart in the process that loads it. A program needs its path.
        form = ["-shared", "-Wl,-Bsymbolic"] if command.shared else [f"-Wl,-rpath,{self.home / 'lib'}"]
        output = command.output or Path("a.out")
        step = [cxx(), *form, *command.compiler, *objects, *command.objects, "-o", str(output), *command.linker]
        return self._call(command, step)

    def _write(self, command: Command, text: str) -> int:
        if command.output:
            command.output.write_text(text, errors="surrogateescape")
        else:
            sys.stdout.write(text)
        return 0

    @staticmethod
    def _call(command: Command, step: list[str]) -> int:
        if command.verbose:
            sys.stderr.write(" ".join(step) + "\n")
        return subprocess.run(step, check=False).returncode


_WRAPPER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec {python} "$here/mcc.py" "$@"
"""

_PROGRAM = """import sys
from pathlib import Path

from gemmhub_musa_sim.mcc import Compiler

sys.exit(Compiler(Path(__file__).resolve().parent.parent, {toolkit!r}, {engine!r}, {checks!r}).run(sys.argv[1:]))
"""


def install(home: Path, profile: Profile, engine: Engine = "simt", checks: bool = False) -> Path:
    """Write ``home/bin/mcc``; its path. With ``checks`` its kernels have the checker's hooks."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    python = "'" + sys.executable.replace("'", "'\\''") + "'"
    (folder / "mcc.py").write_text(_PROGRAM.format(toolkit=profile.toolkit, engine=engine, checks=checks))
    wrapper = folder / "mcc"
    wrapper.write_text(_WRAPPER.format(python=python))
    wrapper.chmod(0o755)
    return wrapper
