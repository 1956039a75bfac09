"""The marks of tests on a real Hopper GPU, through torch's memory. They skip where there is none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch, for device memory, is not installed")

ON_CARD = [
    pytest.mark.device,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability(0) != (9, 0),
        reason="torch sees no Hopper GPU",
    ),
]
"""The marks of every test that needs a card."""
WITH_KEPT_KERNELS = [*ON_CARD, pytest.mark.usefixtures("kept_kernels")]
"""The same for tests that need no empty cache: kernels are compiled once for all runs."""
