"""What a machine and a backend can do, and how they say no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """Where operands live: ``kind`` is "cpu", "cuda" or "musa"; ``index`` counts devices of a kind."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device()


@dataclass(frozen=True)
class Refusal:
    """A typed no. ``reason`` says what stands in the way, ``remedy`` what the reader can do about it."""

    reason: str
    remedy: str
    traceback: str | None = field(default=None, repr=False, compare=False)
    """Kept where the no came from an exception."""
    any_layout: bool = field(default=False, repr=False, compare=False, kw_only=True)
    """Whether operands of the same dtypes and sizes are refused whatever their strides and alignment: such a refusal
    leaves calls that another backend runs as cheap as if this one were not installed."""

    @property
    def passing(self) -> str:
        """What the no was due to, where that passes: "memory", "stack" or "loading". Such a no is not kept."""
        return ""


@dataclass(frozen=True)
class Busy(Refusal):
    """A no to a call that is made while the backend is being loaded, by the loading thread itself."""

    @property
    def passing(self) -> str:
        return "loading"


@dataclass(frozen=True)
class Raised(Refusal):
    """A no that gemmhub made of an exception in a plugin's code."""

    kind: type[BaseException] = field(default=Exception, repr=False, compare=False)
    """Its class. (Not the exception itself, which would keep the operands of the call alive.)"""

    @property
    def passing(self) -> str:
        if issubclass(self.kind, MemoryError):
            return "memory"
        return "stack" if issubclass(self.kind, RecursionError) else ""


@dataclass(frozen=True)
class Absent(Refusal):
    """The whole backend cannot run here: no device, no library, a driver too old."""


@dataclass(frozen=True)
class Ready:
    """The backend can run here.

    ``devices`` it can use; ``versions`` of what its speed depends on (libraries, drivers, compilers, the
    device's name): they go into the key of tuning records; ``features`` for people to read.
    """

    devices: tuple[Device, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """A copy of an operand that running a problem would make, and what it costs."""

    operand: str
    """ "a", "b", "c", "bias" or "out"."""
    nbytes: int
    """Bytes written by the copy, at most."""
    why: str

    def __str__(self) -> str:
        size = f"{self.nbytes / 2**20:.3g} MiB" if self.nbytes >= 2**20 else f"{self.nbytes} bytes"
        return f"{self.operand}: {size}, {self.why}"
