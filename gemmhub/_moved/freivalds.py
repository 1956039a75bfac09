"""Moved to :mod:`gemmhub._check.freivalds`."""

from gemmhub._moved import alias

alias("gemmhub.freivalds", "gemmhub._check.freivalds")
