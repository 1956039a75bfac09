"""Builds libmusart and libmusa: compiled once for all SDK generations, then linked for each."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from gemmhub.capability import Refusal
from gemmhub.kit.native import Recipe, build
from gemmhub_musa_sim.cuda.nvcc import nvcc
from gemmhub_musa_sim.profiles import DRIVER, Profile
from gemmhub_musa_sim.runtime.toolchain import cxx, processor_flags

_HERE = Path(__file__).parent
_SIMT = _HERE.parent / "simt"
_BASE = Path(str(resources.files("gemmhub"))) / "testing" / "simt"
"""Fibers and barriers, which the emulators of other plugins use too."""
_VERSIONED = (_HERE / "version.cpp", _HERE / "driver.cpp")


def _headers(sdk: str) -> tuple[str, ...]:
    folders = (_HERE, _HERE / "include", _HERE / "include" / f"sdk-{sdk}", _SIMT, _SIMT / "include", _BASE.parent)
    return tuple(f"-I{folder}" for folder in folders)


def _depends() -> tuple[Path, ...]:
    return tuple(sorted(path for root in (_HERE, _SIMT, _BASE) for path in root.rglob("*.h*") if path.is_file()))


def object_recipe() -> Recipe:
    """Return the parts of libmusart that all generations share, the SIMT engine included, as one object file."""
    # Some generation's headers are needed; which makes no difference, as nothing here reads the version.
    sources = sorted(path for root in (_HERE, _SIMT, _BASE) for path in root.glob("*.cpp") if path not in _VERSIONED)
    sources = [path for path in sources if path.name != "instrument.cpp"]
    flags = (
        "-std=c++17",
        "-O2",
        "-g1",
        "-fPIC",
        "-fvisibility=hidden",
        "-r",
        "-nostdlib",
        *processor_flags(),
        *_headers("5.1"),
    )
    return Recipe((cxx(),), flags, tuple(sources), _depends(), name="musart", suffix=".o")


def runtime_recipe(profile: Profile, shared_object: Path) -> Recipe:
    """libmusart of one generation, from what :func:`object_recipe` made."""
    number = f"-DMUSA_SIM_SDK_NUMBER={profile.number}"
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared", number, f"-Wl,-soname,{profile.musart}", *_headers(profile.sdk))
    # Several generations may be loaded into one process: each calls its own functions, and a program linked with one
    # finds that one.
    own = ("-Wl,-Bsymbolic", "-Wl,--default-symver")
    sources = (shared_object, _HERE / "version.cpp")
    return Recipe((cxx(),), (*flags, *own, "-ldl", "-lpthread"), sources, _depends(), name="libmusart", suffix=".so")


def build_runtime(profile: Profile, engine: Literal["simt", "cuda"] = "simt") -> Path | Refusal:
    """Return the libmusart of that generation, from the cache or compiled now; its SONAME is ``profile.musart``.

    With the engine "cuda" it is CUDA's runtime under MUSA's names, compiled by nvcc.
    """
    if engine == "cuda":
        number = f"-DMUSA_SIM_SDK_NUMBER={profile.number}"
        flags = ("-O2", "-Xcompiler", "-fPIC", "-shared", number, "-Xlinker", f"-soname={profile.musart}")
        source = _HERE.parent / "cuda" / "musart.cpp"
        return build(Recipe((nvcc(),), flags, (source,), name="libmusart-cuda"))
    shared = build(object_recipe())
    return shared if isinstance(shared, Refusal) else build(runtime_recipe(profile, shared))


def build_driver(profile: Profile) -> Path | Refusal:
    """Return the small libmusa of that generation (SONAME ``profiles.DRIVER``), which calls the loaded libmusart."""
    number = f"-DMUSA_SIM_SDK_NUMBER={profile.number}"
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared", number, f"-Wl,-soname,{DRIVER}", *_headers(profile.sdk), "-ldl")
    return build(Recipe((cxx(),), flags, (_HERE / "driver.cpp",), _depends(), name="libmusa"))


def include_files(profile: Profile) -> dict[str, Path]:
    """Return every header of the runtime and of device code: its path under ``include``, and the file."""
    found: dict[str, Path] = {"musa_sim.h": _HERE / "musa_sim.h"}
    versioned = _HERE / "include" / f"sdk-{profile.sdk}"
    for root in (_HERE / "include", versioned, _SIMT / "include"):
        for path in sorted(root.rglob("*.h")):
            relative = path.relative_to(root)
            if not relative.parts[0].startswith("sdk-"):
                found[relative.as_posix()] = path
    return found
