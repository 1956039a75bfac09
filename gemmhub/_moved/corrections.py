"""Moved to :mod:`gemmhub.kit.corrections`."""

from gemmhub._moved import alias

alias("gemmhub.corrections", "gemmhub.kit.corrections")
