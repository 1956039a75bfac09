"""What torch's compiler traces in place of :func:`gemmhub.matmul`: a call of its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def matmul(a: Any, b: Any, /, *, out: Any = None, **options: Any) -> Any:
    """The operator ``gemmhub::matmul``, which is defined when it is first traced."""
    from gemmhub._doors.torch import ops

    return ops.matmul(a, b, out=out, **options)


def trace(function: Callable[..., Any], *others: Callable[..., Any]) -> None:
    """Have torch's compiler trace :func:`matmul` for ``function``, and leave the graph for ``others``, which decide and
    measure. torch is not imported: it reads these attributes.
    """
    function._torchdynamo_inline = matmul  # type: ignore[attr-defined]
    for other in others:
        other._torchdynamo_disable = True  # type: ignore[attr-defined]
