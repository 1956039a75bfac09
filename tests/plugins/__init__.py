"""Two example plugins, and how tests install them: as distributions with real entry points on ``sys.path``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import gemmhub
from gemmhub import Backend, BackendDescription
from gemmhub._choice import registry

HERE = Path(__file__).parent
GOOD = {"example": "gemmhub_example_good.plugin"}


class Site:
    """A folder like site-packages that a test may install distributions into."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        for path in (HERE, folder):
            monkeypatch.syspath_prepend(str(path))
        for name in [name for name in sys.modules if name.startswith("gemmhub_example_")]:
            monkeypatch.delitem(sys.modules, name)

    def install(self, distribution: str, points: Mapping[str, str]) -> None:
        """A distribution with these entry points in the group "gemmhub", found at the next need."""
        write_distribution(self.folder, distribution, points)
        importlib.invalidate_caches()
        gemmhub.reload()


def write_distribution(folder: Path, distribution: str, points: Mapping[str, str]) -> None:
    """Write the metadata that pip would write to site-packages."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    lines = ["[gemmhub]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def install_project(folder: Path, site: Path) -> Path:
    """Write the metadata that ``pip install -e`` writes for the pyproject.toml of ``folder``; return ``site``."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return site


def add(backend: Backend) -> None:
    """List ``backend`` as if a plugin had described it; forgotten at the next reload."""
    description = BackendDescription(backend.name, lambda: backend, "a scripted backend", contract=2)
    entry = registry.registry().add(description, backend.name, f"gemmhub-{backend.name}")
    assert entry.description is description, entry.get()
