"""Check of a backend against the description of its plugin, which gemmhub reads before it loads the backend."""

from __future__ import annotations

import importlib.metadata

import pluggy

from gemmhub import hookspecs
from gemmhub.backend import CONTRACT, Backend, BackendDescription
from gemmhub.capability import Device
from gemmhub.testing.answers import call, require


def check_description(backend: Backend, device: Device) -> bool:
    """Require that the installed plugin with the class of ``backend`` describes it by its name.

    False where no installed plugin has the class, as with a backend that :func:`gemmhub.register` adds: nothing is
    checked there.
    """
    descriptions = _descriptions(backend)
    if descriptions is None:
        return False
    own = [x for x in descriptions if x.name == backend.name]
    names = ", ".join(repr(x.name) for x in descriptions) or "no backend"
    require(bool(own), f"name is {backend.name!r}, but its plugin describes {names}")
    description = own[0]
    require(description.contract == CONTRACT, f"the contract described is {description.contract!r}, not {CONTRACT}")
    types = description.device_types
    require(device.type in types, f"the device types described are {types!r}, without {device.type!r}")
    loaded = call("load()", description.load)
    name = getattr(loaded, "name", None)
    require(name == description.name, f"load() of the description {description.name!r} returned the backend {name!r}")
    return True


def _descriptions(backend: Backend) -> list[BackendDescription] | None:
    """The descriptions of the installed plugin whose package has the class of ``backend``, or else a base of it."""
    points = importlib.metadata.entry_points(group=hookspecs.GROUP)
    for each in type(backend).__mro__:
        package = each.__module__.partition(".")[0]
        own = [point for point in points if point.module.partition(".")[0] == package]
        if own:
            manager = pluggy.PluginManager(hookspecs.GROUP)
            manager.add_hookspecs(hookspecs)
            for point in own:
                manager.register(call(f"import of {point.value}", point.load))
            answers = call("gemmhub_backends()", manager.hook.gemmhub_backends)
            return [description for answer in answers for description in answer]
    return None
