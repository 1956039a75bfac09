"""Moved to :mod:`gemmhub.kit.cuda_clusters`."""

from gemmhub._moved import alias

alias("gemmhub.native.cuda_clusters", "gemmhub.kit.cuda_clusters")
