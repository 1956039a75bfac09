"""``DeviceFamily`` is now :class:`gemmhub.array_library.DeviceArrays`."""

from gemmhub._moved import warn
from gemmhub.array_library import DeviceArrays as DeviceFamily

warn("gemmhub.device_families", "gemmhub.array_library")
__all__ = ["DeviceFamily"]
