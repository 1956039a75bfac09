"""Makes a simulated MUSA installation: ``bin``, ``include`` and ``lib`` under one folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from gemmhub.capability import Refusal
from gemmhub.errors import BackendError, InputError
from gemmhub_musa_sim import headers
from gemmhub_musa_sim.libraries import build_libraries
from gemmhub_musa_sim.mcc import Engine
from gemmhub_musa_sim.mcc import install as install_mcc
from gemmhub_musa_sim.profiles import DRIVER, PROFILES, Profile, Symbols
from gemmhub_musa_sim.runtime import build_driver, build_runtime, include_files

DESCRIPTION = "gemmhub-musa-sim.json"
"""The file of a home that describes it: sdk, toolkit, engine, symbols."""


def make_home(
    path: str | os.PathLike[str],
    sdk: str = "4.3",
    engine: Engine = "simt",
    symbols: Symbols | None = None,
    checks: bool = False,
) -> Path:
    """Make, or make again, the simulated home at ``path``; return its absolute path, the value for MUSA_HOME.

    ``sdk`` is the generation, "3.1", "4.3" or "5.1". ``engine`` runs the kernels that the home's `mcc` compiles:
    "simt", the simulator on the CPU, or "cuda", an NVIDIA GPU through nvcc, without muBLAS and muDNN. ``symbols``
    overrides how libmublas exports its Ex functions. ``checks`` compiles kernels with the checker's hooks (see
    :mod:`gemmhub_musa_sim.checks`).
    The libraries are compiled by the host's C++ compiler once, into gemmhub's cache. InputError for an argument,
    also where ``path`` holds anything else; BackendError where the compiler is missing or fails.
    """
    if sdk not in PROFILES:
        raise InputError("sdk", repr(sdk), ", ".join(map(repr, PROFILES)))
    if engine not in get_args(Engine):
        raise InputError("engine", repr(engine), ", ".join(map(repr, get_args(Engine))))
    if symbols is not None and symbols not in get_args(Symbols):
        raise InputError("symbols", repr(symbols), ", ".join(map(repr, get_args(Symbols))))
    profile = PROFILES[sdk]
    exported = symbols or profile.mublas_symbols
    home = Path(path).absolute()
    if home.exists() and not _may_replace(home):
        raise InputError("path", f"{home} holds something else", "a new or empty folder, or a home made earlier")

    vendor_headers = headers.folder(profile, exported)
    runtime = _built(build_runtime(profile, engine))
    libraries = {profile.musart: runtime, DRIVER: _built(build_driver(profile))}
    if engine == "simt":  # the stub libraries work on simulated memory only
        libraries |= _all_built(build_libraries(profile, exported, vendor_headers, runtime))

    for name in ("bin", "include", "lib"):
        shutil.rmtree(home / name, ignore_errors=True)
        (home / name).mkdir(parents=True)
    shutil.copytree(vendor_headers, home / "include", dirs_exist_ok=True)
    for name, file in include_files(profile).items():
        (home / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, home / "include" / name)
    _install_libraries(home / "lib", libraries)
    _install_tools(home / "bin", profile, engine, checks)
    description = {"sdk": sdk, "toolkit": profile.toolkit, "engine": engine, "symbols": exported, "checks": checks}
    (home / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    return home


def _may_replace(home: Path) -> bool:
    return home.is_dir() and ((home / DESCRIPTION).is_file() or not any(home.iterdir()))


def _built(built: Path | Refusal) -> Path:
    if isinstance(built, Refusal):
        raise BackendError(f"{built.reason}: {built.remedy}\n{built.traceback or ''}".rstrip())
    return built


def _all_built(built: dict[str, Path] | Refusal) -> dict[str, Path]:
    if isinstance(built, Refusal):
        _built(built)
        raise AssertionError
    return built


def _install_libraries(folder: Path, libraries: Mapping[str, Path]) -> None:
    """Under their sonames, with the unversioned names beside them.

    Links, not copies: two homes of a generation then hold the same files, of which the loader keeps one in memory.
    """
    for soname, file in libraries.items():
        (folder / soname).symlink_to(file)
        bare = soname[: soname.index(".so") + len(".so")]
        if bare != soname:
            (folder / bare).symlink_to(soname)


def _install_tools(folder: Path, profile: Profile, engine: Engine, checks: bool) -> None:
    """`mcc`, and `musa_version_query`, which prints the toolkit's version as JSON."""
    install_mcc(folder.parent, profile, engine, checks)
    answer = json.dumps({"musa_toolkits": {"version": profile.toolkit}})
    query = folder / "musa_version_query"
    query.write_text(f"#!/bin/sh\necho '{answer}'\n")
    query.chmod(0o755)
