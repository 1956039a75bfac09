"""PyTorch's users find here: linear layers, whole models, and a block in which torch's products are gemmhub's.

:func:`gemmhub.matmul` itself takes tensors, with their gradients, and in functions that torch compiles or transforms.
"""

from __future__ import annotations

from gemmhub._doors.torch import ops as _ops  # noqa: F401  (it defines torch.ops.gemmhub)
from gemmhub._doors.torch.mode import use
from gemmhub._doors.torch.nn import Accelerated, Linear, accelerate

__all__ = ["Accelerated", "Linear", "accelerate", "use"]
