"""``grouped_matmul``, with the function that torch's compiler traces in its place: a call of its operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub._grouped.explain import explain_grouped
from gemmhub._grouped.matmul import each_product, grouped_matmul


def _traced(a: Any, b: Any, /, offsets: Any = None, *, out: Any = None, **options: Any) -> Any:
    """Call the operator ``gemmhub::grouped_matmul``, or that of a product for each matrix of lists."""
    if isinstance(offsets, np.ndarray):
        offsets = offsets.copy()  # the graph keeps them for the backward pass, and the caller may write into them
    if isinstance(a, (list, tuple)):
        return each_product(a, b, offsets, out, options)
    from gemmhub._doors.torch import grouped_ops

    return grouped_ops.matmul(a, b, offsets, out, options)


grouped_matmul._torchdynamo_inline = _traced  # type: ignore[attr-defined]
explain_grouped._torchdynamo_disable = True  # type: ignore[attr-defined]

__all__ = ["grouped_matmul"]
