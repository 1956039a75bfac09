"""Moved to :mod:`gemmhub.kit.nvrtc`."""

from gemmhub._moved import alias

alias("gemmhub.native.nvrtc", "gemmhub.kit.nvrtc")
