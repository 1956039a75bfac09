"""The types of devices, and how torch reaches each; :mod:`gemmhub.array_library` exports these names.

CUDA is built in. A plugin registers another type by a module that its distribution names in the entry-point group
``gemmhub.arrays`` (:mod:`gemmhub._arrays.plugin_arrays`), a program by :func:`register_device_type`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmhub._base.wording import instance
from gemmhub.errors import InputError


def _any_build(torch: Any) -> bool:
    return True


@dataclass(frozen=True)
class DeviceType:
    """A type of devices, and how the tensors of torch on them are reached.

    torch's module of the type, ``torch.cuda`` for example, has ``device``, ``stream``, ``ExternalStream``,
    ``current_stream``, ``default_stream``, ``synchronize``, ``is_available``, ``device_count`` and ``get_device_name``,
    for timing also ``Event`` and ``get_device_properties``; a torch without ``OutOfMemoryError`` has that there, too.
    """

    name: str
    """The type of :class:`gemmhub.Device`: lower-case letters, digits and underscores, such as "cuda"."""
    torch: str = ""
    """The type of ``torch.device``, and the name of torch's module for it; by default ``name``."""
    stream: str = ""
    """The attribute in which torch's streams have their native handle, an int; by default "TORCH_stream", where TORCH
    is torch's name of the type."""
    extension: str = ""
    """The module that adds the type to torch, such as "torch_musa"; empty where torch has it."""
    accepts: Callable[[Any], bool] = _any_build
    """A function of the module torch: whether its devices are of this type. A build for ROCm calls its devices "cuda",
    as the one for CUDA does."""
    libraries: tuple[str, ...] = ("torch",)
    """The array libraries among torch and cupy that reach such devices, in the order of preference."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "torch", self.torch or self.name)
        object.__setattr__(self, "stream", self.stream or f"{self.torch}_stream")


def _built_for_cuda(torch: Any) -> bool:
    return not torch.version.hip


_types = {"cuda": DeviceType("cuda", accepts=_built_for_cuda, libraries=("torch", "cupy"))}


def register_device_type(new: DeviceType) -> None:
    """Make arrays on devices of a type operands, where torch reaches them. Registering an equal one again is no error.

    Raises InputError for a name that cannot be used, and for one that is registered differently.
    """
    name = getattr(new, "name", None)
    if not isinstance(new, DeviceType) or not isinstance(name, str):
        raise InputError(
            "new",
            f"{instance(type(new))} with the name {name!r}",
            "a gemmhub.array_library.DeviceType with a name",
        )
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) is None or name in ("cpu", "meta"):
        raise InputError("new", f"the name {name!r}", "lower-case letters, digits and underscores, not cpu or meta")
    if _types.setdefault(name, new) != new:
        raise InputError("new", f"another type {name!r}", "one type of each name", f"registered is {_types[name]!r}")


def device_type(name: str) -> DeviceType:
    """Return the registered type of this name. Raises InputError for others."""
    if name not in _types:
        raise InputError("device", f"the type {name!r}", listed(), "install the plugin that registers it")
    return _types[name]


def names() -> tuple[str, ...]:
    """Return the names of the registered types, in the order of registration."""
    return tuple(_types)


def listed() -> str:
    """Return the types whose arrays may be operands, for messages."""
    return ", ".join(("cpu", *_types))


def of_torch(name: str, torch: Any) -> DeviceType | None:
    """Return the registered type of devices that this torch calls ``name``; None where there is none."""
    for known in tuple(_types.values()):
        if known.torch == name and known.accepts(torch):
            return known
    return None


def stream_attributes() -> tuple[str, ...]:
    """Return the attributes in which streams of torch have their native handles."""
    return tuple(dict.fromkeys(known.stream for known in tuple(_types.values())))
