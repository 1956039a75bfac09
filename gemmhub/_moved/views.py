"""Moved to :mod:`gemmhub._base.geometry`."""

from gemmhub._moved import alias

alias("gemmhub.views", "gemmhub._base.geometry")
