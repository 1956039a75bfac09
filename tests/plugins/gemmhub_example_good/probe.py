"""The probe of the machine."""

from __future__ import annotations

import numpy as np

from gemmhub import Absent, Device, Ready

NEEDED = (1, 26)


def probe() -> Ready | Absent:
    """Ready on the CPU with NumPy 1.26 or later."""
    found = tuple(int(part) for part in np.__version__.split(".")[:2])
    if found < NEEDED:
        return Absent(f"NumPy {np.__version__} is too old", "pip install 'numpy>=1.26'")
    return Ready((Device("cpu"),), {"numpy": np.__version__}, ("float32",))
