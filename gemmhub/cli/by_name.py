"""Devices by name: the array library that reaches "cuda:1", the device's model, and copies of operands to it.

Unlike :mod:`gemmhub._arrays.find`, which handles arrays that exist already, this module imports cupy or torch, for a
device that the user named.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub._arrays.cupy.operands import CupyArrays, cupy_arrays
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.named_device import parse_device
from gemmhub._arrays.plugin_arrays import plugin_arrays
from gemmhub._arrays.torch.operands import TorchArrays, torch_arrays
from gemmhub._base import device_types
from gemmhub.array_library import ArrayLibrary
from gemmhub.capability import Absent, Device, Refusal
from gemmhub.errors import AllocationError, BackendError, DeviceError, DTypeError, GemmhubError, InputError

Array = Any

ORDERS = ("row", "col")
"""Storage orders of matrices of random numbers: by rows or by columns."""

_REMEDIES = {"torch": "pip install torch", "cupy": "pip install cupy-cuda13x (or cupy-cuda12x)"}


@dataclass(frozen=True)
class LibraryStatus:
    """The devices that an installed library finds on this machine; ``reason`` explains empty ``devices``."""

    library: str
    version: str
    devices: tuple[str, ...]
    reason: str = ""


def arrays_for(device: str = "cpu", library: str | None = None) -> ArrayLibrary:
    """The array library ``library`` on ``device``; the first one that reaches the device where none is named.

    Imports the library. Raises InputError for unknown names, DeviceError where the library or the device is missing.
    """
    wanted = parse_device(device)
    if wanted.type == "cpu":
        if library not in (None, "numpy"):
            raise InputError("library", f"{library} for the device cpu", "numpy", "name a device, such as cuda")
        return NUMPY
    known = libraries(wanted.type)
    if library is not None and library not in known:
        raise InputError("library", f"{library!r} for {wanted}", ", ".join(known))
    refusals = []
    for name in known if library is None else (library,):
        count = _count(name, wanted.type)
        if isinstance(count, Refusal):
            refusals.append(count)
        elif wanted.index >= count:
            last = f"{wanted.type}:{count - 1}"
            refusals.append(Refusal(f"{name} sees {count} {wanted.type} device(s)", f"name one up to {last}"))
        else:
            return _arrays_on(name, wanted)
    raise DeviceError(
        "device",
        f"{wanted} cannot be used: " + "; ".join(refusal.reason for refusal in refusals),
        "cpu, and the devices that `gemmhub doctor` lists",
        " or ".join(refusal.remedy for refusal in refusals),
    )


def libraries(type_name: str) -> tuple[str, ...]:
    """The libraries that reach devices of a registered type, in the order of preference (torch has fp8)."""
    own = [name for name, library in plugin_arrays().items() if library.device_type.name == type_name]
    return (*device_types.device_type(type_name).libraries, *own)


def _arrays_on(library: str, device: Device) -> ArrayLibrary:
    if library in plugin_arrays():
        return plugin_arrays()[library].arrays(device.index)
    return cupy_arrays(device.index) if library == "cupy" else torch_arrays(device.type, device.index)


def library_statuses() -> list[LibraryStatus]:
    """Every installed device library with the devices it sees. Never raises, however broken one is."""
    statuses = []
    plugin_libraries = plugin_arrays()  # registers device types
    types = [device_types.device_type(name) for name in device_types.names()]
    for name in sorted({name for known in types for name in known.libraries}):
        module = _import(name)
        if isinstance(module, Absent):
            continue
        if isinstance(module, Refusal):
            statuses.append(LibraryStatus(name, "", (), module.reason))
            continue
        devices, reasons = [], []
        for known in (known for known in types if name in known.libraries):
            count = _count(name, known.name)
            if isinstance(count, Refusal):
                if not known.extension and (name != "torch" or known.accepts(module)):
                    reasons.append(count.reason)  # another build of torch is not meant for this type
                continue
            for index in range(count):
                devices.append(f"{known.name}:{index} {_try_name(name, Device(known.name, index))}".rstrip())
        version = str(getattr(module, "__version__", ""))
        statuses.append(LibraryStatus(name, version, tuple(devices), "" if devices else "; ".join(reasons)))
    for name, type_name in ((name, own.device_type.name) for name, own in plugin_libraries.items()):
        count = _count(name, type_name)
        if isinstance(count, Refusal):
            statuses.append(LibraryStatus(name, "", (), count.reason))
        else:
            names = (f"{type_name}:{i} {_try_name(name, Device(type_name, i))}".rstrip() for i in range(count))
            statuses.append(LibraryStatus(name, "", tuple(names)))
    return statuses


def _try_name(library: str, device: Device) -> str:
    try:
        return _name(library, device)
    except Exception:  # foreign code, called for a name only
        return ""


def _name(library: str, device: Device) -> str:
    if library in plugin_arrays():
        return plugin_arrays()[library].device_name(device.index)
    module: Any = importlib.import_module(library)
    if library == "torch":
        return str(getattr(module, device_types.device_type(device.type).torch).get_device_name(device.index))
    name = module.cuda.runtime.getDeviceProperties(device.index)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def device_name(arrays: ArrayLibrary) -> str:
    """The model name of the device."""
    if arrays.device.type == "cpu":
        from gemmhub.numpy_backend.probe import cores, cpu_name

        return f"{cpu_name()}, {cores()} cores"
    return _name(arrays.name, arrays.device)


def library_versions(arrays: ArrayLibrary) -> dict[str, str]:
    """Versions of the array library and of the runtime it was built for."""
    if isinstance(arrays, TorchArrays):
        torch, type_name = arrays.module, arrays.device.type
        return {"torch": str(torch.__version__), type_name: str(getattr(torch.version, type_name, None) or "unknown")}
    if isinstance(arrays, CupyArrays):
        runtime = arrays.module.cuda.runtime
        return {
            "cupy": str(arrays.module.__version__),
            "cuda": _decimal(runtime.runtimeGetVersion()),
            "cuda driver": _decimal(runtime.driverGetVersion()),
        }
    plugin_library = plugin_arrays().get(arrays.name)
    return {"numpy": np.__version__} if plugin_library is None else plugin_library.versions()


def _decimal(version: int) -> str:
    """CUDA's 12040 as "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"


@contextmanager
def entered(arrays: ArrayLibrary) -> Iterator[None]:
    """Make the device of the arrays the current one for a block.

    An error that the array library reports, often later than the call that failed, becomes a BackendError.
    """
    if arrays.device.type == "cpu":
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
    if arrays.device.type != "cpu":
        arrays.synchronize()


def place(x: Array, arrays: ArrayLibrary, order: str = "row", argument: str = "x") -> Array:
    """The ndarray ``x`` as an array of ``arrays``, stored by columns for the ``order`` "col".

    (On the CPU it is ``x`` itself for "row".) Raises InputError for another order, DTypeError where the library
    has no such dtype and AllocationError where the device is full.
    """
    if order not in ORDERS:
        raise InputError("order", repr(order), ", ".join(ORDERS))
    host = x if order == "row" else np.ascontiguousarray(x.swapaxes(-1, -2))
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
    return there if order == "row" else there.T if there.ndim == 2 else there.swapaxes(-1, -2)


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


def _count(library: str, type_name: str) -> int | Refusal:
    """The number of devices of a registered type that the library sees; a Refusal instead of 0."""
    if library in plugin_arrays():
        try:
            return plugin_arrays()[library].count()
        except Exception as error:  # a plugin's code
            return Refusal(
                f"{library} sees no {type_name.upper()} device: {one_line(error)}", f"`gemmhub doctor {type_name}`"
            )
    module = _import(library)
    if isinstance(module, Refusal):
        return module
    known, title = device_types.device_type(type_name), type_name.upper()
    if known.extension and library == "torch":
        extension = _import(known.extension)
        if isinstance(extension, Refusal):
            return extension
    try:
        if library == "cupy":
            count = 0 if module.cuda.runtime.is_hip else int(module.cuda.runtime.getDeviceCount())
        else:
            usable = known.accepts(module) and getattr(module, known.torch).is_available()
            count = int(getattr(module, known.torch).device_count()) if usable else 0
    except Exception as error:  # foreign code
        return Refusal(f"{library} sees no {title} device: {one_line(error)}", f"check the {title} driver")
    if count == 0:
        return Refusal(f"{library} sees no {title} device", f"check the driver, and that {library} is a {title} build")
    return count
