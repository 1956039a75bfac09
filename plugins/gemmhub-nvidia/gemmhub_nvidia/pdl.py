"""Programmatic dependent launch (PDL): the progress of a kernel at which the next one of the stream may begin.

A slot of :mod:`gemmhub_nvidia.launch` permits it for a kernel; compute capability 9.0 and later.
"""

from __future__ import annotations

from enum import IntEnum


class Next(IntEnum):
    """The progress of every CTA at which the next kernel may begin. The kernels have the same numbers (pdl.cuh)."""

    ENDED = 0
    STARTED = 1
    LOADED = 2
    """All of its loads are issued."""
    SUMMED = 3
    """Only the store of its last results remains."""
