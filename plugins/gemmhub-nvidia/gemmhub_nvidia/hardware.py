"""The NVIDIA cards of a machine, and the distributions that serve them, for ``gemmhub doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gemmhub.capability import Absent
from gemmhub.cli.doctor_advice import Hardware
from gemmhub_nvidia.driver import Driver, load
from gemmhub_nvidia.probe import look

_HOPPER = (9, 0)


def cards(open_driver: Callable[[], Driver] = load) -> Iterator[Hardware]:
    """The cards, one of each name."""
    probed = look(open_driver, "525", "an NVIDIA GPU")
    if isinstance(probed, Absent):
        return
    for name, capability in dict.fromkeys((gpu.name, gpu.capability) for gpu in probed[1]):
        hopper = ("gemmhub-hopper",) if capability == _HOPPER else ()
        title = "{}, compute capability {}.{}".format(name, *capability)
        yield title, ("gemmhub-cublas", "gemmhub-cuda", *hopper)
