"""muDNN through glue compiled against the installed header, as its class layouts and numbers are not public.

Up to SDK 5.0 <mudnn.h> is a C++ API; from 5.1 that is <mudnncxx/mudnn.h>, with a library of its own, and <mudnn.h>
holds a C API. The C++ API is taken where there is one.
"""

from __future__ import annotations

import ctypes
import re
import time
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmhub_musa import compile as compilers
from gemmhub_musa.backend import CallError
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Absent, Refusal
from gemmhub_mudnn.lower import DTYPES, Form, Tensor

NO_ADDEND, IN_PLACE, SEPARATE = 0, 1, 2
BFLOAT16, DETERMINISTIC, SEPARATE_ADDEND, BIAS, BIAS_ON_ADDEND = 1, 2, 4, 8, 16
"""Features of the installed header; as in glue.h."""

PATIENCE = 150.0
"""Seconds for all attempts to compile the glue together."""

_SOURCES = Path(__file__).parent / "glue"
_C_API = re.compile(r"\bmudnnCreateBatchMatMulDescriptor\b")


@dataclass(frozen=True)
class Generation:
    """One API of muDNN."""

    name: str
    header: str
    library: str
    source: str
    macros: tuple[str, ...] = ()


CXX_APART = Generation("C++ API", "mudnncxx/mudnn.h", "mudnncxx", "cxx_api.cpp", ("GEMMHUB_MUDNNCXX",))
CXX = Generation("C++ API", "mudnn.h", "mudnn", "cxx_api.cpp")
C = Generation("C API", "mudnn.h", "mudnn", "c_api.cpp")


def generations(sdk: Sdk) -> tuple[Generation, ...]:
    """Return the APIs that the installed headers may have, the preferred one first."""
    found = [CXX_APART] if sdk.has_header(CXX_APART.header) else []
    if sdk.include is not None and sdk.has_header("mudnn.h"):
        text = "".join(path.read_text(errors="replace") for path in sorted(sdk.include.glob("mudnn*.h")))
        found += [C, CXX] if _C_API.search(text) else [CXX]
    return tuple(found)


def load(sdk: Sdk, arch: str) -> Library | Absent:
    """Return the glue for the installed muDNN: from the cache, or compiled now. ``arch`` is the architecture for mcc.

    The host's compiler compiles the glue where the header allows it; else mcc does. Never raises.
    """
    found = generations(sdk)
    if not found:
        where = f"{sdk.include} has" if sdk.include else "the MUSA installation has"
        return Absent(f"{where} no mudnn.h", "install muDNN with its headers, and set MUSA_HOME to the installation")
    refusals: list[Refusal] = []
    until = time.monotonic() + PATIENCE
    for by_mcc in (False, True):
        for generation in found:
            left = until - time.monotonic()
            if left <= 0:
                break
            answer = _load(sdk, generation, arch if by_mcc else None, left)
            if isinstance(answer, Library):
                return answer
            if answer not in refusals:
                refusals.append(answer)
    first = refusals[0]
    return Absent("; ".join(refusal.reason for refusal in refusals), first.remedy, first.traceback)


def files(sdk: Sdk, arch: str) -> list[str]:
    """Return the names of the glue's files that :func:`load` would load, as far as they compile; nothing is loaded."""
    built = [_build(sdk, generation, None, PATIENCE) for generation in generations(sdk)]
    if not any(isinstance(each, Path) for each in built):
        built = [_build(sdk, generation, arch, PATIENCE) for generation in generations(sdk)]
    return [each.name for each in built if isinstance(each, Path)]


def _load(sdk: Sdk, generation: Generation, arch: str | None, seconds: float) -> Library | Refusal:
    vendor = sdk.library(generation.library)
    if isinstance(vendor, Refusal):
        return vendor
    built = _build(sdk, generation, arch, seconds)
    if isinstance(built, Refusal):
        return built
    # Its references to muDNN are resolved now, or it is not loaded.
    glue = sdk.loader.load(built)
    if isinstance(glue, Refusal):
        return glue
    return Library(glue, generation, vendor.where)


def _build(sdk: Sdk, generation: Generation, arch: str | None, seconds: float) -> Path | Refusal:
    source, flags = _SOURCES / generation.source, [f"-D{macro}" for macro in generation.macros]
    name, depends = f"mudnn_{source.stem}", (_SOURCES / "glue.h",)
    if arch is None:
        return compilers.compile_host(source, sdk, name=name, flags=flags, depends=depends, timeout=seconds)
    return compilers.compile_mu(
        source, sdk, arch, name=name, flags=flags, libraries=(), depends=depends, timeout=seconds
    )


class _Tensor(ctypes.Structure):
    _fields_ = (("rank", c_int64), ("dims", c_int64 * 3), ("strides", c_int64 * 3))


class _Form(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("type", "tensor_math", "trans_a", "trans_b")),
        *((name, c_int32) for name in ("addend", "with_bias", "deterministic", "result_type")),
        *((name, _Tensor) for name in ("a", "b", "c", "d", "bias")),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("a", "b", "c", "d", "bias")),
        ("alpha", c_double), ("beta", c_double), ("stream", c_void_p),
        ("workspace", c_void_p), ("workspace_bytes", c_size_t),
    )  # fmt: skip


Grow = ctypes.CFUNCTYPE(c_void_p, c_size_t)


class MudnnError(CallError):
    """The library, or the glue before it, returned an error; the text is its message."""


class Library:
    """The loaded glue for the API ``generation``; ``where`` is the file of muDNN that it calls."""

    def __init__(self, glue: ctypes.CDLL, generation: Generation, where: str) -> None:
        self.generation, self.where = generation, where
        self._glue = glue
        glue.gemmhub_mudnn_message.restype = c_char_p
        glue.gemmhub_mudnn_create.argtypes = [c_int, Grow, POINTER(c_void_p)]
        glue.gemmhub_mudnn_plan.argtypes = [c_void_p, POINTER(_Form), POINTER(c_void_p)]
        glue.gemmhub_mudnn_workspace.argtypes = [c_void_p, POINTER(c_size_t)]
        glue.gemmhub_mudnn_run.argtypes = [c_void_p, POINTER(_Call)]
        glue.gemmhub_mudnn_forget.argtypes = [c_void_p]
        glue.gemmhub_mudnn_forget.restype = None
        self.features: int = glue.gemmhub_mudnn_features()

    def _check(self, status: int) -> None:
        if status:
            raise MudnnError(self._glue.gemmhub_mudnn_message().decode(errors="replace"))

    def create(self, device: int, grow: Any) -> int:
        """Return a handle for ``device``, the current one. ``grow`` is called when a run needs more memory."""
        handle = c_void_p()
        self._check(self._glue.gemmhub_mudnn_create(device, grow, ctypes.byref(handle)))
        return handle.value or 0

    def plan(self, handle: int, form: Form, addend: int) -> int:
        """Return a plan for ``form``, which :meth:`forget` frees. ``addend`` is NO_ADDEND, IN_PLACE or SEPARATE."""
        tensors = (_tensor(x, form.stack) for x in (form.a, form.b, form.c, form.d))
        words = _Form(
            DTYPES.index(form.dtype), form.tensor_math, form.trans_a, form.trans_b, addend, form.bias,
            form.deterministic, DTYPES.index(form.result), *tensors, _Tensor(1, (form.d.cols,), (1,)),
        )  # fmt: skip
        plan = c_void_p()
        self._check(self._glue.gemmhub_mudnn_plan(handle, ctypes.byref(words), ctypes.byref(plan)))
        return plan.value or 0

    def workspace(self, plan: int) -> int:
        """Return the bytes of workspace that a run needs, as the library reports them."""
        nbytes = c_size_t()
        self._check(self._glue.gemmhub_mudnn_workspace(plan, ctypes.byref(nbytes)))
        return nbytes.value

    def run(self, plan: int, *call: Any) -> None:
        """Run ``plan``; ``call`` is addresses of a, b, c, d and bias, alpha, beta, stream, workspace and its size."""
        self._check(self._glue.gemmhub_mudnn_run(plan, ctypes.byref(_Call(*call))))

    def forget(self, plan: int) -> None:
        """Free a plan."""
        self._glue.gemmhub_mudnn_forget(plan)


def _tensor(tensor: Tensor, stack: bool) -> _Tensor:
    if stack:
        return _Tensor(3, (tensor.count, tensor.rows, tensor.cols), (tensor.stride, tensor.ld, 1))
    return _Tensor(2, (tensor.rows, tensor.cols), (tensor.ld, 1))
