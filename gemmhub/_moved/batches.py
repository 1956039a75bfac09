"""Moved to :mod:`gemmhub.lowering`."""

from gemmhub._moved import alias

alias("gemmhub.batches", "gemmhub.lowering")
