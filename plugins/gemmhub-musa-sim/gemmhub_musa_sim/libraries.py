"""Builds the stub libraries libmublas, libmublasLt and libmudnn.

One object file computes the products of all of them; it is the same in every SDK generation and part of each library.
The rest of a library is compiled against the headers of its generation, and exports only the vendor's names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit.native import Recipe, build
from gemmhub_musa_sim.enums import enums
from gemmhub_musa_sim.profiles import Profile, Symbols
from gemmhub_musa_sim.runtime.toolchain import cxx

_HERE = Path(__file__).parent
_PRODUCT, _MUBLAS, _MUBLAS_LT, _MUDNN = (
    _HERE / folder for folder in ("blas/product", "blas/mublas", "blas/mublaslt", "mudnn")
)


@dataclass(frozen=True)
class _Library:
    """One of the vendor's libraries."""

    soname: str
    sources: tuple[Path, ...]
    defines: tuple[str, ...] = ()


def _own(profile: Profile, symbols: Symbols) -> list[_Library]:
    modes = list(enums(profile)["mublasMath_t"])
    version = f"MUSA_SIM_NUMBER={profile.number}"
    mublas = [
        version,
        f"MUSA_SIM_STATUS_TEXT={profile.status_text}",
        f"MUSA_SIM_DEFAULT_MATH={modes[0]}",
        f"MUSA_SIM_TF32_MATH={profile.tf32_math_mode}",
        f"MUSA_SIM_MATH_MODES={','.join(modes)}",
    ]
    if profile.sdk != "3.1":
        mublas.append("MUSA_SIM_FP8")
    if profile.sdk == "3.1" or symbols == "scanned":
        mublas.append("MUSA_SIM_OLD_OVERLOAD")
    cxx_sources = tuple(_MUDNN / name for name in ("matmul.cpp", "cxx_base.cpp", "cxx_matmul.cpp"))
    cxx_header = "mudnncxx/mudnn.h" if profile.mudnn_cxx else "mudnn.h"
    cxx_api = _Library(profile.mudnn_cxx or profile.mudnn, cxx_sources, (f"MUSA_SIM_MUDNN_CXX_HEADER=<{cxx_header}>",))
    made = [_Library(profile.mublas, tuple(sorted(_MUBLAS.glob("*.cpp"))), tuple(mublas)), cxx_api]
    if profile.mublas_lt:
        full = ("MUSA_SIM_FULL_LT",) if profile.sdk == "5.1" else ()
        made.append(_Library(profile.mublas_lt, tuple(sorted(_MUBLAS_LT.glob("*.cpp"))), ("MUSA_SIM_FP8", *full)))
    if profile.mudnn_cxx:
        made.append(_Library(profile.mudnn, (_MUDNN / "matmul.cpp", _MUDNN / "c_api.cpp")))
    return made


def build_libraries(profile: Profile, symbols: Symbols, include: Path, runtime: Path) -> dict[str, Path] | Refusal:
    """Return each library's file by its soname, from the cache or compiled now.

    ``include`` is the folder of the generation's headers (headers.folder), ``runtime`` the built libmusart.
    """
    from scipy_openblas32 import get_lib_dir, get_library

    openblas = Path(get_lib_dir()) / f"lib{get_library()}.so"
    flags = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")
    folders = tuple(f"-I{folder}" for folder in (_PRODUCT, _HERE / "runtime", _HERE / "runtime/include"))
    depends = tuple(
        sorted(path for folder in (_PRODUCT, _MUBLAS, _MUBLAS_LT, _MUDNN) for path in folder.glob("*.h"))
        + [_HERE / "runtime/musa_sim.h", _HERE / "runtime/include/driver_types.h"]
    )
    sources = tuple(sorted(_PRODUCT.glob("*.cpp")))
    object_flags = (*flags, "-r", "-nostdlib", *folders, f'-DMUSA_SIM_OPENBLAS="{openblas}"')
    product = build(Recipe((cxx(),), object_flags, sources, depends, name="product", suffix=".o"))
    if isinstance(product, Refusal):
        return product
    built = {}
    generated = tuple(sorted(include.rglob("*.h")))
    for library in _own(profile, symbols):
        own_flags = tuple(f"-D{define}" for define in library.defines) + (
            f"-Wl,-soname,{library.soname}",
            "-Wl,-rpath,$ORIGIN",
        )
        made = build(
            Recipe(
                (cxx(),),
                (*flags, "-shared", f"-I{include}", *folders, *own_flags, "-ldl"),
                (*library.sources, product, runtime),
                (*depends, *generated),
                name=library.soname.split(".")[0],
            )
        )
        if isinstance(made, Refusal):
            return made
        built[library.soname] = made
    return built
