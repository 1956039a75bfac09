"""The states of backends, as :func:`gemmhub.backends` returns them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmhub._base import printing


@dataclass(frozen=True)
class BackendStatus:
    """The state of one backend. ``state`` is "ready", "absent", "failed" or "not installed"."""

    name: str
    distribution: str
    summary: str
    state: str
    versions: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    reason: str = ""
    remedy: str = ""
    traceback: str | None = None

    @property
    def details(self) -> str:
        """Versions of a ready backend; reason and remedy of any other."""
        if self.state == "ready":
            return ", ".join(f"{name} {version}" for name, version in self.versions.items())
        if self.state == "not installed":
            return self.remedy
        return "; ".join(part for part in (self.reason, self.remedy) if part)

    def __str__(self) -> str:
        reason = "" if self.reason == self.state else f": {self.reason}"
        detail = self.reason and f"{reason} ({self.remedy})"
        return printing.line(f"{self.name} ({self.distribution}) {self.state}{detail}")


class Statuses(list[BackendStatus]):
    """A list of states, which notebooks display as a table."""

    def _repr_html_(self) -> str:
        from gemmhub._base import markup

        rows = [(s.name, s.distribution, s.state, s.details) for s in self]
        return markup.table(("backend", "distribution", "state", "details"), rows, marked=("state",))
