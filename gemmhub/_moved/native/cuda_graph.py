"""Moved to :mod:`gemmhub.kit.cuda_graph`."""

from gemmhub._moved import alias

alias("gemmhub.native.cuda_graph", "gemmhub.kit.cuda_graph")
