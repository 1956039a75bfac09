"""Moved to :mod:`gemmhub.kit.machine`."""

from gemmhub._moved import alias

alias("gemmhub.native.machine", "gemmhub.kit.machine")
