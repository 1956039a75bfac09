"""Moved to :mod:`gemmhub._check.spot_check`."""

from gemmhub._moved import alias

alias("gemmhub.verify", "gemmhub._check.spot_check")
