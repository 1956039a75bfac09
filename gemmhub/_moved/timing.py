"""Moved to :mod:`gemmhub._base.timing`."""

from gemmhub._moved import alias

alias("gemmhub.timing", "gemmhub._base.timing")
