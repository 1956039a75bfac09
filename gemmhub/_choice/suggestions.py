"""Distributions of this project that a user could install, as gemmhub's own metadata list them.

The extras in pyproject.toml name the distributions; nothing else in the core does.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from functools import cache

from gemmhub.kit.install import CORE

EXTRAS = {
    "cpu": ("cpu", "fast half, bfloat16 and int8 on CPUs"),
    "nvidia": ("cuda", "products on NVIDIA GPUs"),
    "hopper": ("cuda", "products on H100 and H200"),
    "musa": ("musa", "products on Moore Threads GPUs"),
}
"""Device type and summary of each extra that has distributions. A distribution of two extras is the first one's."""

_REQUIREMENT = re.compile(rf"({CORE}-[\w-]+)[^;]*;.*\bextra == ['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class Suggestion:
    """A distribution with a backend, installed or not."""

    distribution: str
    device_type: str
    summary: str

    @property
    def backend(self) -> str:
        """The name of its backend: the distribution's own part."""
        return self.distribution.removeprefix(f"{CORE}-")


@cache
def known() -> tuple[Suggestion, ...]:
    """Every distribution of the extras; none where gemmhub runs from a folder that was not installed."""
    suggestions: dict[str, Suggestion] = {}
    for extra, (device_type, summary) in EXTRAS.items():
        for distribution in of_extra(extra):
            suggestions.setdefault(distribution, Suggestion(distribution, device_type, summary))
    return tuple(suggestions.values())


def of_extra(extra: str) -> tuple[str, ...]:
    """The distributions of this project that an extra requires."""
    return tuple(distribution for distribution, its in _required() if its == extra)


@cache
def _required() -> tuple[tuple[str, str], ...]:
    """Distributions of this project that gemmhub's metadata name, each with its extra."""
    try:
        requirements = importlib.metadata.requires(CORE) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple((match[1], match[2]) for match in map(_REQUIREMENT.match, requirements) if match)
