"""Moved to :mod:`gemmhub.kit.cuda_scratch`."""

from gemmhub._moved import alias

alias("gemmhub.native.cuda_scratch", "gemmhub.kit.cuda_scratch")
