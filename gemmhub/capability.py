"""Devices, and the answers of a backend: ready, absent, refusal, copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemmhub._base import printing, processors


@dataclass(frozen=True)
class Device:
    """The device of operands.

    ``type`` is "cpu", "cuda" or another registered device type; ``index`` counts the devices of a type.
    """

    type: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"


CPU = Device()


@dataclass(frozen=True)
class Refusal:
    """A backend's answer that it cannot run a problem: ``reason`` states why, ``remedy`` what the reader can do.

    Of its texts, what a terminal would interpret becomes an escape.
    """

    reason: str
    remedy: str
    traceback: str | None = field(default=None, repr=False, compare=False)
    """The traceback, where the refusal came from an exception."""
    any_layout: bool = field(default=False, repr=False, compare=False, kw_only=True)
    """Whether operands of the same dtypes and sizes are refused for any strides and alignment. Such a refusal adds no
    cost to calls that another backend runs."""
    any_size: bool = field(default=False, repr=False, compare=False, kw_only=True)
    """Whether operands of the same dtypes, orders and numbers of dimensions are refused for any sizes."""

    def __post_init__(self) -> None:
        for name in ("reason", "remedy", "traceback"):
            text = getattr(self, name)
            if isinstance(text, str):
                object.__setattr__(self, name, printing.lines(text))

    @property
    def transient(self) -> str:
        """The cause of a temporary refusal: "memory", "stack" or "loading". A temporary refusal is not cached."""
        return ""


@dataclass(frozen=True)
class Busy(Refusal):
    """A refusal of a call that the loading thread itself makes while the backend is being loaded."""

    @property
    def transient(self) -> str:
        return "loading"


@dataclass(frozen=True)
class Raised(Refusal):
    """A refusal that stands for an exception in a plugin's code."""

    kind: type[BaseException] = field(default=Exception, repr=False, compare=False)
    """Class of the exception. (The exception itself would keep the operands of the call alive.)"""

    @property
    def transient(self) -> str:
        if issubclass(self.kind, MemoryError):
            return "memory"
        return "stack" if issubclass(self.kind, RecursionError) else ""


@dataclass(frozen=True)
class Absent(Refusal):
    """The backend cannot run here at all: no device, no library, a driver too old."""


@dataclass(frozen=True)
class Ready:
    """The backend can run here.

    ``devices`` are those it can use; ``versions`` are of everything its speed depends on (libraries, drivers,
    compilers, the device's name) and part of the key of tuning records; ``features`` is text for readers, and so are
    ``warnings``, faults that ``gemmhub doctor`` reports. gemmhub adds the version of the plugin's distribution.
    """

    devices: tuple[Device, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    threads: Callable[[], str] = field(default=processors.threads, repr=False, compare=False)
    """Function that returns the thread limits of a product on the CPU that the calling thread starts now. They are part
    of the key of tuning records. By default those of NumPy's BLAS; a backend with its own threads returns theirs."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """A copy of an operand that running a problem makes, and its cost."""

    operand: str
    """Name of the operand: "a", "b", "c", "bias" or "out"."""
    nbytes: int
    """Upper limit of the bytes that the copy writes."""
    why: str

    def __str__(self) -> str:
        size = f"{self.nbytes / 2**20:.3g} MiB" if self.nbytes >= 2**20 else f"{self.nbytes} bytes"
        return f"{self.operand}: {size}, {self.why}"
