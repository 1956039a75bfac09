"""The states of backends, as :func:`gemmhub.backends` returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table, folded
from gemmhub._base.wording import unlisted


@dataclass(frozen=True, repr=False)
class BackendStatus(Report):
    """The state of one backend. ``state`` is "ready", "absent", "failed" or "not installed"."""

    _cut = False
    name: str
    distribution: str
    summary: str
    state: str
    versions: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    reason: str = ""
    remedy: str = ""
    traceback: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def details(self) -> str:
        """Versions of a ready backend; reason and remedy of any other."""
        if self.state == "ready":
            return ", ".join(f"{name} {version}" for name, version in self.versions.items())
        if self.state == "not installed":
            return self.remedy
        return "; ".join(part for part in (self.reason, self.remedy) if part)

    def _parts(self) -> Iterator[Part]:
        rows = [("backend", self.name), ("distribution", self.distribution), ("state", self.state)]
        rows += [("summary", self.summary)] if self.summary else []
        rows += [("details", self.details)] if self.details else []
        rows += [("features", ", ".join(self.features))] if self.features else []
        rows += [("warning", text) for text in self.warnings]
        yield Facts(rows, marked=("state",))


@dataclass(frozen=True, repr=False)
class Statuses(Report, Mapping[str, BackendStatus]):
    """The states of backends: a mapping from their names."""

    rows: tuple[BackendStatus, ...] = ()
    """The states in order. A name that a second distribution claims has two."""

    def __getitem__(self, backend: str) -> BackendStatus:
        for status in self.rows:
            if status.name == backend:
                return status
        raise KeyError(unlisted(backend, self))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(status.name for status in self.rows))

    def __len__(self) -> int:
        return len({status.name for status in self.rows})

    def _parts(self) -> Iterator[Part]:
        rows = folded((s.name, s.state, s.details) for s in self.rows)
        yield Table(("backend", "state", "details"), rows, marked=("state",))
