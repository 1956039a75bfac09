"""PackedB: a prepacked operand that the caller owns.

A packed operand is a copy: it does not change when b is rewritten, moved or freed. There is no cache
behind it, keyed by address or otherwise; to pack once, keep the object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError, InputError

if TYPE_CHECKING:
    from gemmhub.problem import GemmProblem


class PackedB:
    """The result of :func:`gemmhub.pack`: pass it as ``b`` to matmul and plan.

    ``shape`` (k, n), ``dtype`` and ``ndim`` are those of the operand; ``backend`` packed it and is the
    only one that can use it; ``a_dtype`` is the dtype of a; ``device`` holds it; ``payload`` is private to the
    backend.
    """

    __slots__ = ("a_dtype", "backend", "device", "dtype", "payload", "shape")

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: DType,
        a_dtype: DType,
        backend: str,
        payload: object,
        device: Device = CPU,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.a_dtype = a_dtype
        self.backend = backend
        self.payload = payload
        self.device = device

    ndim = 2

    def __repr__(self) -> str:
        k, n = self.shape
        return f"<PackedB {k}x{n} {self.dtype} by {self.backend!r} for a of {self.a_dtype}>"

    def check(self, problem: GemmProblem) -> None:
        """Raise InputError (DeviceError) where ``problem`` is not of the kind that this was packed for."""
        if problem.device != self.device:
            raise DeviceError(
                "a, b", f"b was packed on {self.device}, a is on {problem.device}", "operands on one device",
                "pack b on the device of a",
            )  # fmt: skip
        if problem.a.dtype != self.a_dtype:
            raise InputError(
                "b",
                f"packed for a of {self.a_dtype}, a is {problem.a.dtype}",
                f"a of {self.a_dtype}",
                f"pack again with a_dtype={problem.a.dtype}",
            )
