"""Moved to :mod:`gemmhub._measure.bench`."""

from gemmhub._moved import alias

alias("gemmhub.bench", "gemmhub._measure.bench")
