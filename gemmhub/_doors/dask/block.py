"""The tasks that workers run: the product of one block, added to the sum of the previous ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

from gemmhub import api, dtypes
from gemmhub._base.guard import words
from gemmhub._doors.dask import cluster
from gemmhub.dtypes import DType
from gemmhub.errors import (
    AllocationError,
    BackendError,
    DeviceError,
    DTypeError,
    GemmhubError,
    InputError,
    NoBackendError,
    ShapeError,
)

F = TypeVar("F", bound=Callable[..., Any])
Block = Any


@dataclass(frozen=True)
class Step:
    """The parameters of a task: the options of its call, and the treatment of the sum that it receives."""

    version: str
    """Version of the gemmhub that built the graph."""
    options: Mapping[str, Any] = field(default_factory=dict)
    addend: DType | None = None
    """Dtype that ``c`` is widened to: an addend of the result's dtype is added in the accumulator's."""
    epilogue: Mapping[str, Any] | None = None
    """Options of a further call that converts the finished sum to the result; None where the product itself does."""


def located(function: F) -> F:
    """Decorate a task so that its errors name the worker and the cause."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            raise _with_worker(error) from error

    return cast(F, run)


def _with_worker(error: Exception) -> Exception:
    """``error`` with the worker's name, of the same class where that is one of gemmhub's."""
    where = cluster.here()
    if isinstance(error, InputError):
        cls = next(x for x in (ShapeError, DTypeError, DeviceError, InputError) if isinstance(error, x))
        return cls(error.argument, f"{error.given} (a block on {where})", error.allowed, error.remedy)
    text = f"on {where}: {words(error)}"
    if isinstance(error, (AllocationError, MemoryError)):
        return AllocationError(text)
    if isinstance(error, NoBackendError):
        return NoBackendError(text)
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, text)
    return BackendError(text) if isinstance(error, (GemmhubError, RuntimeError)) else RuntimeError(text)


def check_version(version: str) -> None:
    """Raise BackendError where this worker has another gemmhub than the process that built the graph."""
    if (own := cluster.version()) != version:
        raise BackendError(
            f"gemmhub {own} is installed here, and gemmhub {version} made this product; "
            "install one version on the client and on all workers"
        )


@located
def multiply(step: Step, a: Block, b: Block, c: Block = None, bias: Block = None, *sums: Block) -> Block:
    """The product of two blocks.

    ``c`` is the addend of the call or the sum of the previous products, ``sums`` are the sums of the other chains.
    """
    check_version(step.version)
    for other in sums:
        c = c + other
    if c is not None and step.addend is not None:
        c = _cast(c, step.addend)
    options = dict(step.options)
    if c is None:
        options.pop("beta", None)
    else:
        options["c"] = c
    if step.epilogue is None:
        if bias is not None:
            options["bias"] = bias
        return api.matmul(a, b, **options)
    total = api.matmul(a, b, **options)
    # A product without an inner dimension is an epilogue alone: it scales and rounds the sum once.
    nothing = b[:0] if b.ndim == 1 else b[..., :0, :]
    return api.matmul(a[..., :0], nothing, c=total, bias=bias, **step.epilogue)


@located
def pack(version: str, b: Block, options: Mapping[str, Any]) -> Block:
    """One block of b, packed by the best backend of this worker that has a packed form."""
    check_version(version)
    return api.pack(b, **options)


def _cast(x: Block, dtype: DType) -> Block:
    """``x`` in a wider dtype, as an array of its own library."""
    if dtypes.as_dtype(x.dtype) == dtype:
        return x
    if hasattr(x, "astype"):
        return x.astype(dtype)
    import torch

    return x.to(getattr(torch, dtype.name))
