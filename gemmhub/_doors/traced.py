"""The function that torch's compiler traces in place of :func:`gemmhub.matmul`: a call of its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def matmul(a: Any, b: Any, /, *, out: Any = None, **options: Any) -> Any:
    """Call the operator ``gemmhub::matmul``, which is defined at the first trace."""
    from gemmhub._doors.torch import ops

    return ops.matmul(a, b, out=out, **options)


def trace(function: Callable[..., Any], *others: Callable[..., Any]) -> None:
    """Make torch's compiler trace :func:`matmul` for ``function``, called or compiled itself, and break the graph at
    ``others``.

    The others decide and measure. torch is not imported: it reads these attributes.
    """
    function._torchdynamo_inline = matmul  # type: ignore[attr-defined]
    function._torchdynamo_orig_callable = matmul  # type: ignore[attr-defined]  # of torch.compile(function)
    function._torchdynamo_wrapper_id = id(function)  # type: ignore[attr-defined]
    for other in others:
        other._torchdynamo_disable = True  # type: ignore[attr-defined]
