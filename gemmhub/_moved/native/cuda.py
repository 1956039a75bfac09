"""Moved to :mod:`gemmhub.kit.cuda`."""

from gemmhub._moved import alias

alias("gemmhub.native.cuda", "gemmhub.kit.cuda")
