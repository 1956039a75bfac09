"""PackedB: a prepacked operand that the caller owns.

A packed operand is a copy: it does not change when b is rewritten, moved or freed. There is no cache
behind it, keyed by address or otherwise; to pack once, keep the object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError, InputError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gemmhub.capability import Device
    from gemmhub.problem import GemmProblem, Operand


class PackedB:
    """The result of :func:`gemmhub.pack`: pass it as ``b`` to matmul and plan.

    ``shape`` (k, n), ``dtype`` and ``ndim`` are those of the operand; ``backend`` packed it and is the only one that
    can use it; ``a_dtype`` is the dtype of a; ``device`` holds it; ``payload`` is private to the backend.

    ``backend`` is None where no packed form is expected to be faster than the operand itself. ``payload`` is then a
    copy of the operand (a native array), which every backend takes as it takes an array. ``operand`` describes what was
    packed.
    """

    __slots__ = ("a_dtype", "backend", "device", "dtype", "kind", "operand", "payload", "shape")

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: DType,
        a_dtype: DType,
        backend: str | None,
        payload: object,
        device: Device,
        operand: Operand | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.a_dtype = a_dtype
        self.backend = backend
        self.payload = payload
        self.device = device
        self.operand = operand
        self.kind: tuple[Hashable, ...] = (backend, a_dtype, device, operand if backend is None else None)
        """The facts that the decision of a product depends on, besides shape and dtype."""

    ndim = 2

    @property
    def nbytes(self) -> int | None:
        """Bytes of memory that the packed form holds; None where its backend does not report them."""
        return getattr(self.payload, "nbytes", None)

    def __repr__(self) -> str:
        k, n = self.shape
        how = "kept as it is" if self.backend is None else f"by {self.backend!r}"
        return f"<PackedB {k}x{n} {self.dtype} {how} for a of {self.a_dtype}>"

    def check(self, problem: GemmProblem) -> None:
        """Raise DeviceError or InputError where the device of ``problem``, or the dtype of its a, is another."""
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
