"""Moved to :mod:`gemmhub.kit.net`."""

from gemmhub._moved import alias

alias("gemmhub.net", "gemmhub.kit.net")
