"""Compilation of kernels with NVRTC, located by cuda-pathfinder and called by ctypes, into the cache on disk.

No CUDA toolkit and no header is needed. A cubin's name in the cache of :mod:`gemmhub.kit.native` has a hash of
everything that it depends on: sources, options, the compiler's version. Plugins that use this depend on
``cuda-pathfinder`` and offer the extras ``cu12`` and ``cu13``, which install NVRTC.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from gemmhub.capability import Absent
from gemmhub.kit import locks
from gemmhub.kit.native import cache as disk
from gemmhub_nvidia.driver import Driver

_log = logging.getLogger("gemmhub")

OLDEST = (12, 4)
_FORMAT = "2"
"""Part of every key, to be changed together with the behaviour of :func:`cubin`."""

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
    """NVRTC is missing, or a compilation failed; ``reason`` and ``remedy`` are text for readers."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Source:
    """The sources and the options of one cubin."""

    name: str
    """Name of the cubin: file names in the cache begin with it."""
    main: str
    """Name of the file in ``files`` to compile."""
    files: Mapping[str, str]
    """Texts by file name: ``main`` and the files that it includes."""
    options: tuple[str, ...]
    """Compiler options, such as "--gpu-architecture=sm_90a"."""

    @property
    def architecture(self) -> str:
        """The architecture of the cubin, such as "sm_90a"; empty where no option names one."""
        return next((x.partition("=")[2] for x in self.options if x.startswith("--gpu-architecture=")), "")

    @cached_property
    def digest(self) -> str:
        """A hash of everything that the cubin depends on but the compiler: texts, options, and which file is main."""
        parts = [_FORMAT, self.main, str(len(self.options)), *self.options]
        for name in sorted(self.files):
            parts += [name, _text_digest(self.files[name])]
        return _hash(parts)


@dataclass(frozen=True)
class Compiled:
    """A cubin and the compiler's log."""

    cubin: bytes
    log: str

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        match = re.search(r"Used (\d+) registers", self.log)
        return int(match[1]) if match else 0

    @property
    def spilled(self) -> int:
        """Bytes of spills and of stack."""
        counts = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", self.log)
        return sum(map(int, counts))

    @property
    def warnings(self) -> list[str]:
        """ptxas's remarks on wgmma that it had to serialise, and on setmaxnreg that it ignored."""
        return sorted(set(re.findall(r"\bC7[56]\d\d\b", self.log)))


class Compiler:
    """A loaded NVRTC."""

    def __init__(self, library: Any, where: str) -> None:
        """Check the library; CompilerError where it lacks a function or is too old."""
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise CompilerError(f"{where} has no function {name}", _REMEDY) from None
            function.restype, function.argtypes = c_int, arguments
        self._library = library
        self.where = where
        major, minor = c_int(), c_int()
        self._check("nvrtcVersion", library.nvrtcVersion(byref(major), byref(minor)))
        self.version = (major.value, minor.value)
        if self.version < OLDEST:
            raise CompilerError(
                f"{where} is NVRTC {major.value}.{minor.value}, {OLDEST[0]}.{OLDEST[1]} is needed", _REMEDY
            )

    def _check(self, name: str, status: int) -> None:
        if status:
            raise CompilerError(f"{name} failed with status {status} ({self.where})", _REMEDY)

    def compile(self, source: Source, verbose: bool = False) -> Compiled:
        """Compile now; ``verbose`` adds registers and spills to the log. CompilerError with the compiler's message."""
        names = [name for name in source.files if name != source.main]
        program, library = c_void_p(), self._library
        contents = (c_char_p * len(names))(*(source.files[name].encode() for name in names))
        includes = (c_char_p * len(names))(*(name.encode() for name in names))
        main = source.files[source.main].encode()
        self._check(
            "nvrtcCreateProgram",
            library.nvrtcCreateProgram(byref(program), main, source.main.encode(), len(names), contents, includes),
        )
        try:
            options = [*source.options, *(["--ptxas-options=-v"] if verbose else [])]
            status = library.nvrtcCompileProgram(
                program, len(options), (c_char_p * len(options))(*(x.encode() for x in options))
            )
            log = self._text(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                first = next((line for line in log.splitlines() if "error" in line.lower()), log[:300])
                raise CompilerError(
                    f"NVRTC {self.version[0]}.{self.version[1]} does not compile {source.name}: {first.strip()}",
                    "report it with the output of `gemmhub doctor`",
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


def cubin(compiler: Compiler, source: Source) -> bytes:
    """Return the compiled source: from the cache on disk, or compiled now and stored there. CompilerError on failure.

    Several processes may do it at once: each writes the same bytes atomically.
    """
    cached = disk.read(file_name(compiler, source))
    return compile_and_store(compiler, source) if cached is None else cached


def compile_and_store(compiler: Compiler, source: Source) -> bytes:
    """Return the source, compiled now, and store it in the cache on disk. CompilerError on failure."""
    compiled = compiler.compile(source).cubin
    try:
        disk.store(file_name(compiler, source), compiled)
    except OSError as error:
        _log.warning("%s cannot be stored, so every process compiles it again: %s", source.name, error)
    return compiled


def file_name(compiler: Compiler, source: Source) -> str:
    """The file name of the cubin in the cache."""
    return f"{source.name}-{key(compiler, source)}.cubin"


def key(compiler: Compiler, source: Source) -> str:
    """A hash of everything that the cubin depends on."""
    return _hash([str(compiler.version), source.digest])


def _hash(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:24]


@lru_cache(maxsize=512)
def _text_digest(text: str) -> str:
    """Return a hash of a file: the same few are part of hundreds of sources, and a string computes its hash() once."""
    return hashlib.sha256(text.encode()).hexdigest()


_lock = locks.lock()
_loaded: Compiler | CompilerError | None = None


def load() -> Compiler:
    """Return the NVRTC of this process, loaded once; CompilerError where there is none."""
    global _loaded
    with _lock:
        if _loaded is None:
            try:
                _loaded = find()
            except CompilerError as error:
                _loaded = error
        if isinstance(_loaded, CompilerError):
            raise _loaded
        return _loaded


def find() -> Compiler:
    """Find and load NVRTC; CompilerError where there is none."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        library = load_nvidia_dynamic_lib("nvrtc")
    except (ImportError, RuntimeError, OSError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CompilerError(f"NVRTC, the compiler of kernels, was not found ({line})", _REMEDY) from None
    where = library.abs_path or "libnvrtc"
    preload(Path(where).parent)
    return Compiler(ctypes.CDLL(where, handle=library._handle_uint), where)


def preload(folder: Path) -> None:
    """Load NVRTC's builtins, in its folder: NVRTC opens them by name only, so they must be loaded already."""
    for path in sorted(folder.glob("libnvrtc-builtins.so*")):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue


def look(open_compiler: Callable[[], Compiler], driver: Driver) -> Compiler | Absent:
    """Return a compiler whose cubins ``driver`` can load; or Absent with reason and remedy."""
    try:
        compiler = open_compiler()
    except CompilerError as error:
        return Absent(error.reason, error.remedy)
    if compiler.version[0] > driver.cuda_version[0]:
        return Absent(
            "{} is NVRTC {}.{}; the driver runs up to CUDA {}.{}".format(
                compiler.where, *compiler.version, *driver.cuda_version
            ),
            f"{_install(driver.cuda_version[0])}, or update the NVIDIA driver",
        )
    return compiler


def _install(major: int) -> str:
    package = {12: "nvidia-cuda-nvrtc-cu12"}.get(major, f"nvidia-cuda-nvrtc=={major}.*")
    return f"pip install '{package}'"


_REMEDY = f"{_install(13)} (for a driver of CUDA 12: {_install(12)})"
