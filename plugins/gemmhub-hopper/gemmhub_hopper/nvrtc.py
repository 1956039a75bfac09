"""Compiling with NVRTC, found by cuda-pathfinder and called by ctypes; what it makes is kept on disk.

No CUDA toolkit and no header is needed. A cubin's name in the cache of :mod:`gemmhub.native` carries a hash of all
that it was made from: sources, options, the compiler's version.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import threading
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gemmhub.native import cache as disk
from gemmhub_hopper import wgmma
from gemmhub_hopper.config import Variant

ARCH = "sm_90a"
KERNEL = "gemm"
OLDEST = (12, 4)
_SOURCE = "gemm_kernel.cu"
_FORMAT = "1"
"""Part of every key: change it when what :func:`cubin` does to a variant changes."""

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "nvrtcVersion": (c_void_p, c_void_p),
    "nvrtcCreateProgram": (c_void_p, c_char_p, c_char_p, c_int, c_void_p, c_void_p),
    "nvrtcDestroyProgram": (c_void_p,),
    "nvrtcCompileProgram": (c_void_p, c_int, c_void_p),
    "nvrtcGetProgramLogSize": (c_void_p, c_void_p),
    "nvrtcGetProgramLog": (c_void_p, c_void_p),
    "nvrtcGetCUBINSize": (c_void_p, c_void_p),
    "nvrtcGetCUBIN": (c_void_p, c_void_p),
}


class CompilerError(RuntimeError):
    """NVRTC is not there, or did not compile: ``reason`` and ``remedy`` for a person."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Compiled:
    """A cubin, and what the compiler said about it."""

    cubin: bytes
    log: str

    @property
    def registers(self) -> int:
        return self._number(r"Used (\d+) registers")

    @property
    def spilled(self) -> int:
        """Bytes of spills and of stack."""
        counts = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", self.log)
        return sum(map(int, counts))

    @property
    def warnings(self) -> list[str]:
        """ptxas's remarks on wgmma that it had to serialise, and on setmaxnreg that it ignored."""
        return sorted(set(re.findall(r"\bC7[56]\d\d\b", self.log)))

    def _number(self, pattern: str) -> int:
        found = re.search(pattern, self.log)
        return int(found[1]) if found else 0


class Compiler:
    """A loaded NVRTC."""

    def __init__(self, library: Any, where: str) -> None:
        """CompilerError when it lacks a function or is too old."""
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise CompilerError(f"{where} has no function {name}", _remedy()) from None
            function.restype, function.argtypes = c_int, arguments
        self._library = library
        self.where = where
        major, minor = c_int(), c_int()
        self._check("nvrtcVersion", library.nvrtcVersion(byref(major), byref(minor)))
        self.version = (major.value, minor.value)
        if self.version < OLDEST:
            raise CompilerError(
                f"{where} is NVRTC {major.value}.{minor.value}, {OLDEST[0]}.{OLDEST[1]} is needed", _remedy()
            )

    def _check(self, name: str, status: int) -> None:
        if status:
            raise CompilerError(f"{name} failed with status {status} ({self.where})", _remedy())

    def compile(self, variant: Variant, verbose: bool = False) -> Compiled:
        """Compile now. CompilerError with the compiler's words when it does not."""
        texts = sources(variant)
        names = [name for name in texts if name != _SOURCE]
        program, library = c_void_p(), self._library
        contents = (c_char_p * len(names))(*(texts[name].encode() for name in names))
        includes = (c_char_p * len(names))(*(name.encode() for name in names))
        self._check(
            "nvrtcCreateProgram",
            library.nvrtcCreateProgram(
                byref(program), texts[_SOURCE].encode(), _SOURCE.encode(), len(names), contents, includes
            ),
        )
        try:
            given = [*options(variant), *(["--ptxas-options=-v"] if verbose else [])]
            status = library.nvrtcCompileProgram(
                program, len(given), (c_char_p * len(given))(*(x.encode() for x in given))
            )
            log = self._text(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                first = next((line for line in log.splitlines() if "error" in line.lower()), log[:300])
                raise CompilerError(
                    f"NVRTC {self.version[0]}.{self.version[1]} does not compile {variant.shape.name}: {first.strip()}",
                    "report it with the output of `gemmhub doctor hopper`",
                )
            return Compiled(self._text(program, "nvrtcGetCUBIN"), log)
        finally:
            library.nvrtcDestroyProgram(byref(program))

    def _text(self, program: c_void_p, what: str) -> bytes:
        size = c_size_t()
        self._check(what, getattr(self._library, f"{what}Size")(program, byref(size)))
        text = ctypes.create_string_buffer(max(1, size.value))
        self._check(what, getattr(self._library, what)(program, text))
        return text.raw[: size.value]


def sources(variant: Variant) -> dict[str, str]:
    """The kernel and its headers, by file name; one of them is written for the variant."""
    return {**_files(), "wgmma.cuh": wgmma.header(variant)}


@cache
def _files() -> dict[str, str]:
    folder = resources.files("gemmhub_hopper") / "kernels"
    return {path.name: path.read_text() for path in folder.iterdir() if path.name.endswith((".cu", ".cuh"))}


def options(variant: Variant) -> list[str]:
    return [f"--gpu-architecture={ARCH}", "--std=c++17", *(f"-D{k}={v}" for k, v in variant.macros.items())]


def cubin(compiler: Compiler, variant: Variant) -> bytes:
    """The compiled variant: from the cache on disk, or compiled now and put there. CompilerError when that fails.

    Several processes may do it at once: each writes the same bytes in one step.
    """
    name = f"hopper-{variant.shape.name}-{_key(compiler, variant)}.cubin"
    found = disk.find(name)
    if found is not None:
        return found.read_bytes()
    compiled = compiler.compile(variant).cubin
    with suppress(OSError):  # nowhere to keep it: the next process compiles again
        disk.store(name, compiled)
    return compiled


def _key(compiler: Compiler, variant: Variant) -> str:
    digest = hashlib.sha256()
    texts = sources(variant)
    parts = [_FORMAT, str(compiler.version), *options(variant)]
    for name in sorted(texts):
        parts += [name, texts[name]]
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:24]


_lock = threading.Lock()
_loaded: Compiler | CompilerError | None = None


def load() -> Compiler:
    """The NVRTC of this process. CompilerError when there is none."""
    global _loaded
    with _lock:
        if _loaded is None:
            try:
                _loaded = _find()
            except CompilerError as error:
                _loaded = error
        if isinstance(_loaded, CompilerError):
            raise _loaded
        return _loaded


def _find() -> Compiler:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        found = load_nvidia_dynamic_lib("nvrtc")
    except (RuntimeError, OSError) as error:
        raise CompilerError(f"NVRTC, the compiler of kernels, was not found ({_line(error)})", _remedy()) from None
    where = found.abs_path or "libnvrtc"
    # NVRTC 13.0 looks for its builtins by name only: it must find them loaded.
    for path in sorted(Path(where).parent.glob("libnvrtc-builtins.so*")):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return Compiler(ctypes.CDLL(where, handle=found._handle_uint), where)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _remedy() -> str:
    return "pip install 'gemmhub-hopper[cu13]' (for a driver of CUDA 12: [cu12])"
