"""Moved to :mod:`gemmhub._check.compare`."""

from gemmhub._moved import alias

alias("gemmhub.comparison", "gemmhub._check.compare")
