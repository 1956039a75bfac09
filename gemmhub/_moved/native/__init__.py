"""Moved to :mod:`gemmhub.kit.native`, and its CUDA modules to :mod:`gemmhub.kit`."""

from gemmhub._moved import warn
from gemmhub.kit.native import *  # noqa: F403

warn("gemmhub.native", "gemmhub.kit.native")
