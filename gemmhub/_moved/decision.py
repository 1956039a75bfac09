"""Split into :mod:`gemmhub.verdict` (the data) and a private module."""

from gemmhub._moved import alias

alias("gemmhub.decision", "gemmhub.verdict")
