"""Moved to :mod:`gemmhub._measure.tune`."""

from gemmhub._moved import alias

alias("gemmhub.tuning", "gemmhub._measure.tune")
