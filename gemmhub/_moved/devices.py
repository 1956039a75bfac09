"""Moved to :mod:`gemmhub._arrays.by_name`."""

from gemmhub._moved import alias

alias("gemmhub.devices", "gemmhub._arrays.by_name")
