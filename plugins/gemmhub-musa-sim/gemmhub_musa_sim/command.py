"""The command line of the simulated ``mcc``, taken apart: the vendor's flags, by what the simulator does with them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ARCHITECTURES = ("mp_21", "mp_22", "mp_31")

_PREPROCESSOR_ONE = ("-D", "-U", "-I", "-isystem", "-iquote", "-idirafter", "-include")
"""Options for the preprocessor alone that take a value, in the same word or the next one."""
_LINKER_ONE = ("-L", "-l", "-Wl,", "-Xlinker")
_IGNORED_WITH_VALUE = ("-mllvm",)
_SOURCES = (".mu", ".cu", ".cpp", ".cc", ".cxx", ".c")


class UsageError(Exception):
    """The command line requires what the simulator cannot do; the message is for the user."""


@dataclass
class Command:
    """A command line, taken apart."""

    sources: list[tuple[Path, bool]] = field(default_factory=list)
    """Source files, each with whether it is MUSA code."""
    objects: list[str] = field(default_factory=list)
    output: Path | None = None
    stop: Literal["link", "compile", "preprocess"] = "link"
    shared: bool = False
    preprocessor: list[str] = field(default_factory=list)
    compiler: list[str] = field(default_factory=list)
    linker: list[str] = field(default_factory=list)
    architectures: list[str] = field(default_factory=list)
    optimisation: str = "-O2"
    standard: str = "-std=gnu++17"
    verbose: bool = False


def parse(arguments: list[str]) -> Command:
    """Return the command that ``arguments`` describe.

    Raises UsageError for what the simulator cannot do, and for an option without its value.
    """
    command = Command()
    language = ""
    rest = iter(arguments)

    def value(option: str) -> str:
        given = next(rest, None)
        if given is None:
            raise UsageError(f"{option} needs a value")
        return given

    def with_value(argument: str, options: tuple[str, ...]) -> list[str] | None:
        for option in options:
            if argument == option:
                return [argument, value(option)]
            if argument.startswith(option):
                return [argument]
        return None

    for argument in rest:
        if argument in ("--cuda-device-only", "-S", "-emit-llvm", "--cuda-host-only"):
            raise UsageError(
                f"{argument}: a simulated card runs no device images; compile with -fPIC -shared and load the library"
            )
        if argument == "-x":
            language = value("-x")
            if language not in ("musa", "c++", "none"):
                raise UsageError(f"-x {language}: the languages are musa and c++")
        elif argument == "-o":
            command.output = Path(value("-o"))
        elif argument in ("-c", "-E"):
            command.stop = "compile" if argument == "-c" else "preprocess"
        elif argument == "-shared":
            command.shared = True
        elif argument in ("-v", "-###"):
            command.verbose = True
        elif argument.startswith(("--offload-arch=", "--cuda-gpu-arch=")):
            command.architectures += argument.split("=", 1)[1].split(",")
        elif argument in _IGNORED_WITH_VALUE:
            value(argument)
        elif argument.startswith("-mtgpu") or argument.startswith("--musa-path="):
            pass
        elif argument.startswith("-Od"):
            pass  # the optimisation of device code, a flag of its own in mcc
        elif argument.startswith("-O"):
            command.optimisation = argument
        elif argument.startswith(("-std=", "--std=")):
            command.standard = argument.replace("--std", "-std")
        elif (taken := with_value(argument, _PREPROCESSOR_ONE)) is not None:
            command.preprocessor += taken
        elif (taken := with_value(argument, _LINKER_ONE)) is not None:
            command.linker += taken
        elif argument.startswith("-"):
            command.compiler.append(argument)
        elif argument.endswith(_SOURCES) or language not in ("", "none"):
            musa = language == "musa" or (language in ("", "none") and argument.endswith((".mu", ".cu")))
            command.sources.append((Path(argument), musa))
        else:
            command.objects.append(argument)
    for architecture in command.architectures:
        if architecture not in ARCHITECTURES:
            raise UsageError(f"--offload-arch={architecture}: allowed: {', '.join(ARCHITECTURES)}")
    if not command.sources and not command.objects:
        raise UsageError("no input files")
    if command.stop != "link" and command.output and len(command.sources) > 1:
        raise UsageError(f"{len(command.sources)} sources cannot all become {command.output}")
    return command


def architecture(command: Command) -> str:
    """Return the architecture to build for: the device's if the command names it, else the last one that it names."""
    asked = list(dict.fromkeys(command.architectures)) or ["mp_22"]
    wanted = os.environ.get("MUSA_SIM_ARCH", "22").removeprefix("mp_")
    return f"mp_{wanted}" if f"mp_{wanted}" in asked else asked[-1]
