"""What cuLaunchKernelEx is given, for plugins that keep it in memory from call to call."""

from __future__ import annotations

import ctypes
from ctypes import c_uint, c_void_p

WORD = 8
"""Bytes of the words in which launches in the making are filled in."""
STREAM_WORD = 4
"""Which of them in a LaunchConfig is the stream."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )
