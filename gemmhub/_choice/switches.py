"""The switches of plugins: the settings ``allow`` and ``deny``, and names in settings that nothing has."""

from __future__ import annotations

from collections.abc import Collection

from gemmhub._base.wording import nearest
from gemmhub.capability import Absent
from gemmhub.config import Settings
from gemmhub.kit.install import CORE


def switched_off(plugin: str, settings: Settings) -> Absent | None:
    """Return why a plugin may not load; None where it may."""
    if settings.allow is not None and plugin not in settings.allow:
        where = settings.origin.get("allow", "the allow list")
        return Absent(f"not in the allow list of {where}", f"add {plugin!r} to it, or remove the list")
    if plugin in settings.deny:
        where = settings.origin.get("deny", "the deny list")
        return Absent(f"switched off by {where}", f"remove {plugin!r} from it")
    return None


def unknown(named: Collection[str], noun: str, known: Collection[str]) -> str:
    """Return a sentence on the names in ``named`` that no "backend" or "plugin", the ``noun``, has.

    It is empty where all of them are ``known``.
    """
    parts = []
    for name in named:
        if name not in known:
            short = name.replace("_", "-").removeprefix(f"{CORE}-")  # of a distribution's name, or a package's
            likely = short if short in known else nearest(name, known, 0.6)
            parts.append(f"{name!r}" + (f" (did you mean {likely!r}?)" if likely else ""))
    return f"no {noun} is called {', '.join(parts)}" if parts else ""


def built_in(named: Collection[str], names: Collection[str]) -> str:
    """Return a sentence on the names in ``named`` that are those of the built-in backend; empty without any."""
    parts = [repr(name) for name in named if name in names]
    return f"{', '.join(parts)} is built in and cannot be disabled" if parts else ""
