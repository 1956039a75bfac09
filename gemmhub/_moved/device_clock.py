"""Moved to :mod:`gemmhub._base.device_clock`."""

from gemmhub._moved import alias

alias("gemmhub.device_clock", "gemmhub._base.device_clock")
