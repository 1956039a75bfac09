"""Every test compiles for a simulated home, and most run kernels on it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.emulator
