"""Devices by name: the array library that reaches "cuda:1", the device's model, and copies of operands to it.

Unlike :mod:`gemmhub._arrays.find`, which handles arrays that exist already, this module imports cupy or torch: only
the command line and the benchmarks use it, for a device that the user named.

A plugin with its own arrays names a module in the entry-point group ``gemmhub.arrays``, under the ``name`` of its
arrays: see :class:`ArrayLibrary`.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from gemmhub._arrays.cupy.operands import CupyArrays, cupy_arrays
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.torch.operands import TorchArrays, torch_arrays
from gemmhub.array_library import ArrayLibrary
from gemmhub.capability import CPU, Absent, Device, Refusal
from gemmhub.errors import AllocationError, BackendError, DeviceError, DTypeError, GemmhubError, InputError

Array = Any

LIBRARIES = {"cuda": ("torch", "cupy"), "musa": ("torch",)}
"""Built-in libraries that reach devices of a kind, in the order of preference (torch has fp8)."""
ORDERS = ("row", "col")
"""How a matrix of random numbers is stored: by rows or by columns."""

GROUP = "gemmhub.arrays"
"""The entry-point group for arrays that plugins provide."""


class PluginArrays(Protocol):
    """The module that a plugin registers for its arrays."""

    kind: str
    """The kind of device that the arrays are on: "musa"."""

    def count(self) -> int | Refusal:
        """The number of devices; a Refusal instead of 0."""

    def arrays(self, index: int) -> ArrayLibrary:
        """The library's arrays on one device."""

    def device_name(self, index: int) -> str:
        """The model name of one device."""

    def versions(self) -> dict[str, str]:
        """Versions of the library and of its runtime, by name."""


_REMEDIES = {"torch": "pip install torch", "cupy": "pip install cupy-cuda13x (or cupy-cuda12x)"}


@dataclass(frozen=True)
class LibraryStatus:
    """What an installed device library finds on this machine; ``reason`` explains empty ``devices``."""

    library: str
    version: str
    devices: tuple[str, ...]
    reason: str = ""


def parse_device(name: str) -> Device:
    """The device called "cpu", "cuda", "cuda:1", "musa" or the like; InputError for other names."""
    found = re.fullmatch(r"(cuda|musa)(?::(\d{1,4}))?", name)
    if name == "cpu":
        return CPU
    if found is None:
        raise InputError("device", repr(name), "cpu, cuda, cuda:N, musa, musa:N")
    return Device(found[1], int(found[2] or 0))


def arrays_for(device: str = "cpu", library: str | None = None) -> ArrayLibrary:
    """The array library ``library`` on ``device``; the first one that reaches the device where none is named.

    Imports the library. Raises InputError for unknown names, DeviceError where the library or the device is missing.
    """
    wanted = parse_device(device)
    if wanted.kind == "cpu":
        if library not in (None, "numpy"):
            raise InputError("library", f"{library} for the device cpu", "numpy", "name a device, such as cuda")
        return NUMPY
    known = libraries(wanted.kind)
    if library is not None and library not in known:
        raise InputError("library", f"{library!r} for {wanted}", ", ".join(known))
    refusals = []
    for name in known if library is None else (library,):
        count = _count(name, wanted.kind)
        if isinstance(count, Refusal):
            refusals.append(count)
        elif wanted.index >= count:
            last = f"{wanted.kind}:{count - 1}"
            refusals.append(Refusal(f"{name} sees {count} {wanted.kind} device(s)", f"name one up to {last}"))
        else:
            return _arrays_on(name, wanted)
    raise DeviceError(
        "device",
        f"{wanted} cannot be used: " + "; ".join(refusal.reason for refusal in refusals),
        "cpu, and the devices that `gemmhub doctor` lists",
        " or ".join(refusal.remedy for refusal in refusals),
    )


def libraries(kind: str) -> tuple[str, ...]:
    """The libraries that reach devices of a kind, in the order of preference."""
    return (*LIBRARIES[kind], *(name for name, found in plugin_arrays().items() if found.kind == kind))


@cache
def plugin_arrays() -> dict[str, PluginArrays]:
    """Arrays that plugins provide, by name. One that fails to load is skipped: its backends report the reason."""
    found = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = point.load()
        except Exception:  # a plugin's code
            continue
    return found


def _arrays_on(library: str, device: Device) -> ArrayLibrary:
    if library in plugin_arrays():
        return plugin_arrays()[library].arrays(device.index)
    return cupy_arrays(device.index) if library == "cupy" else torch_arrays(device.kind, device.index)


def library_statuses() -> list[LibraryStatus]:
    """Every installed device library with the devices it sees. Never raises, however broken one is."""
    found = []
    for name in sorted({name for names in LIBRARIES.values() for name in names}):
        module = _import(name)
        if isinstance(module, Absent):
            continue
        if isinstance(module, Refusal):
            found.append(LibraryStatus(name, "", (), module.reason))
            continue
        devices, reasons = [], []
        for kind in (kind for kind, names in LIBRARIES.items() if name in names):
            count = _count(name, kind)
            if isinstance(count, Refusal):
                reasons += [count.reason] if kind == "cuda" else []  # a torch without torch_musa is not meant for MUSA
                continue
            for index in range(count):
                devices.append(f"{kind}:{index} {_try_name(name, Device(kind, index))}".rstrip())
        version = str(getattr(module, "__version__", ""))
        found.append(LibraryStatus(name, version, tuple(devices), "" if devices else "; ".join(reasons)))
    for name, brought in plugin_arrays().items():
        count = _count(name, brought.kind)
        if isinstance(count, Refusal):
            found.append(LibraryStatus(name, "", (), count.reason))
        else:
            names = (f"{brought.kind}:{i} {_try_name(name, Device(brought.kind, i))}".rstrip() for i in range(count))
            found.append(LibraryStatus(name, "", tuple(names)))
    return found


def _try_name(library: str, device: Device) -> str:
    try:
        return _name(library, device)
    except Exception:  # foreign code, asked for a name only
        return ""


def _name(library: str, device: Device) -> str:
    if library in plugin_arrays():
        return plugin_arrays()[library].device_name(device.index)
    module: Any = importlib.import_module(library)
    if library == "torch":
        return str(getattr(module, device.kind).get_device_name(device.index))
    name = module.cuda.runtime.getDeviceProperties(device.index)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def device_name(arrays: ArrayLibrary) -> str:
    """The model name of the device."""
    if arrays.device.kind == "cpu":
        from gemmhub.numpy_backend.probe import cores, cpu_name

        return f"{cpu_name()}, {cores()} cores"
    return _name(arrays.name, arrays.device)


def library_versions(arrays: ArrayLibrary) -> dict[str, str]:
    """Versions of the array library and of the runtime it was built for."""
    if isinstance(arrays, TorchArrays):
        torch, kind = arrays.module, arrays.device.kind
        return {"torch": str(torch.__version__), kind: str(getattr(torch.version, kind, None) or "unknown")}
    if isinstance(arrays, CupyArrays):
        runtime = arrays.module.cuda.runtime
        return {
            "cupy": str(arrays.module.__version__),
            "cuda": _decimal(runtime.runtimeGetVersion()),
            "cuda driver": _decimal(runtime.driverGetVersion()),
        }
    brought = plugin_arrays().get(arrays.name)
    return {"numpy": np.__version__} if brought is None else brought.versions()


def _decimal(version: int) -> str:
    """CUDA's 12040 as "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"


@contextmanager
def entered(arrays: ArrayLibrary) -> Iterator[None]:
    """Make the device of the arrays the current one for a block.

    An error that the array library reports, often later than the call that failed, becomes a BackendError.
    """
    if arrays.device.kind == "cpu":
        yield
        return
    try:
        with arrays.on(None):
            yield
    except GemmhubError:
        raise
    except RuntimeError as error:
        raise BackendError(f"{arrays.device} failed: {one_line(error)}") from error


def synchronize(arrays: ArrayLibrary) -> None:
    """Wait for the device. On the CPU calls return when they are done, and this does nothing."""
    if arrays.device.kind != "cpu":
        arrays.synchronize()


def place(x: Array, arrays: ArrayLibrary, order: str = "row", argument: str = "x") -> Array:
    """The ndarray ``x`` as an array of ``arrays``, stored by columns for the ``order`` "col".

    (On the CPU it is ``x`` itself for "row".) Raises InputError for another order, DTypeError where the library
    has no such dtype and AllocationError where the device is full.
    """
    if order not in ORDERS:
        raise InputError("order", repr(order), ", ".join(ORDERS))
    host = x if order == "row" else np.ascontiguousarray(x.T)
    try:
        there = arrays.from_host(host)
    except GemmhubError:
        raise
    except Exception as error:  # foreign code
        if type(error).__name__ == "OutOfMemoryError":
            raise AllocationError(f"{argument} of {x.nbytes / 2**30:.4g} GiB on {arrays.device}: {error}") from None
        if not isinstance(error, (TypeError, ValueError, KeyError)):
            raise DeviceError(
                argument, f"copying to {arrays.device} failed: {one_line(error)}", "a device that works",
                "`gemmhub doctor` lists them",
            ) from error  # fmt: skip
        other = "torch" if arrays.name == "cupy" else "another dtype"
        raise DTypeError(
            argument, f"{arrays.name} has no arrays of {x.dtype}", "dtypes of the array library", f"use {other}"
        ) from error
    return there if order == "row" else there.T


def one_line(error: Exception) -> str:
    """The class and the first line of the message of a library's exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _import(name: str) -> Any:
    """The module; Absent where it is not installed, Refusal where it is broken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return Absent(f"{name} is not installed", _REMEDIES.get(name, f"install {name}"))
        return Refusal(f"importing {name} failed: {one_line(error)}", f"install {error.name}")
    except Exception as error:  # foreign code: a driver missing, a build for another NumPy
        return Refusal(f"importing {name} failed: {one_line(error)}", f"install a {name} that fits this machine")


def _count(library: str, kind: str) -> int | Refusal:
    """The number of devices of a kind that the library sees; a Refusal instead of 0."""
    if library in plugin_arrays():
        try:
            return plugin_arrays()[library].count()
        except Exception as error:  # a plugin's code
            return Refusal(f"{library} sees no {kind.upper()} device: {one_line(error)}", f"`gemmhub doctor {kind}`")
    module = _import(library)
    if isinstance(module, Refusal):
        return module
    if kind == "musa":
        musa = _import("torch_musa")
        if isinstance(musa, Refusal):
            return musa
    title = kind.upper()
    try:
        if library == "cupy":
            count = 0 if module.cuda.runtime.is_hip else int(module.cuda.runtime.getDeviceCount())
        else:
            runtime = getattr(module, kind)
            hip = kind == "cuda" and module.version.hip
            count = 0 if hip or not runtime.is_available() else int(runtime.device_count())
    except Exception as error:  # foreign code
        return Refusal(f"{library} sees no {title} device: {one_line(error)}", f"check the {title} driver")
    if count == 0:
        return Refusal(f"{library} sees no {title} device", f"check the driver, and that {library} is a {title} build")
    return count
