"""Moved to :mod:`gemmhub.kit.locks`."""

from gemmhub._moved import alias

alias("gemmhub.locks", "gemmhub.kit.locks")
