"""The public functions for PyTorch: linear layers, models, and torch's own products, of a block or of the process.

:func:`gemmhub.matmul` itself takes tensors, with their gradients, and in functions that torch compiles or transforms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmhub.kit import install

try:
    from gemmhub._doors.torch import ops as _ops  # noqa: F401  (it defines torch.ops.gemmhub)
    from gemmhub._doors.torch.acceleration import Accelerated, accelerate
    from gemmhub._doors.torch.mode import use
    from gemmhub._doors.torch.nn import Linear
    from gemmhub._doors.torch.override import Override, override
    from gemmhub._doors.torch.quantized_linear import QuantizedLinear
    from gemmhub._doors.torch.quantized_model import Quantized, quantize_
except ModuleNotFoundError as error:
    raise install.missing(error, __name__, "torch", "torch") from None

if TYPE_CHECKING:
    from gemmhub._doors.torch.parallel import ColumnParallel, RowParallel

__all__ = [
    "Accelerated", "ColumnParallel", "Linear", "Override", "Quantized", "QuantizedLinear", "RowParallel", "accelerate",
    "override", "quantize_", "use",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import names that need torch.distributed at first use."""
    if name not in ("ColumnParallel", "RowParallel"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gemmhub._doors.torch import parallel

    return getattr(parallel, name)


def __dir__() -> list[str]:
    return sorted(__all__)
