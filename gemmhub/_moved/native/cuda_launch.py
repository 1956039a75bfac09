"""Moved to :mod:`gemmhub.kit.cuda_launch`."""

from gemmhub._moved import alias

alias("gemmhub.native.cuda_launch", "gemmhub.kit.cuda_launch")
