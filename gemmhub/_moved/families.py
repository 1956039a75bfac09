"""``Family`` is now :class:`gemmhub.array_library.ArrayLibrary`."""

from gemmhub._moved import warn
from gemmhub.array_library import ArrayLibrary as Family

warn("gemmhub.families", "gemmhub.array_library")
__all__ = ["Family"]
