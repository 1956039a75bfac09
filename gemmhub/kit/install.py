"""The command that installs a distribution of this project from where gemmhub itself was installed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from gemmhub.errors import DependencyError

CORE = "gemmhub"


def command(*requirements: str) -> str:
    """``pip install`` for distributions of this project, with or without extras ("gemmhub-cublas[cu13]").

    Where gemmhub was installed from a clone, editable or not, the command names folders of the clone, with the plugins
    that they need; from a folder of wheels, it searches that folder; otherwise pip uses its configured index.

    Examples
    --------
    >>> from gemmhub.kit import install
    >>> "gemmhub-cpu" in install.command("gemmhub-cpu[test]")
    True
    """
    source = origin()
    if source is None:
        return " ".join(["pip install", *map(shlex.quote, requirements)])
    if not (source / "pyproject.toml").is_file():
        return " ".join(["pip install --find-links", shlex.quote(str(source)), *map(shlex.quote, requirements)])
    folders: dict[str, None] = {}
    for requirement in requirements:
        folders.update(dict.fromkeys(_folders(source, requirement)))
    return " ".join(["pip install", *folders])


def missing(error: ModuleNotFoundError, part: str, library: str, extra: str) -> ImportError:
    """The error for ``part`` of gemmhub, whose import raised ``error``: that itself, unless ``library`` is missing."""
    if error.name != library:
        return error
    return DependencyError(f"{part} needs {library}, which is not installed: {command(f'{CORE}[{extra}]')}")


@cache
def origin() -> Path | None:
    """The clone or the folder of wheels that gemmhub was installed from; None for an index or a missing folder."""
    from urllib.parse import unquote, urlparse  # not at the import of gemmhub

    clone = Path(__file__).resolve().parents[2]
    if _is_clone(clone):
        return clone
    try:
        text = metadata.distribution(CORE).read_text("direct_url.json")
        url = urlparse(json.loads(text or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    if url.scheme != "file":
        return None
    path = Path(unquote(url.path))
    if path.suffix == ".whl" and path.parent.is_dir():
        return path.parent
    return path if _is_clone(path) else None


def _is_clone(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() and (folder / "plugins").is_dir()


def _folders(clone: Path, requirement: str) -> Iterator[str]:
    """Yield the folders of the plugins that a distribution needs, then its own."""
    name, bracket, extras = requirement.partition("[")
    folder = clone if name == CORE else clone / "plugins" / name
    if not (folder / "pyproject.toml").is_file():
        yield shlex.quote(requirement)
        return
    for needed in _plugins_needed(folder):
        yield from _folders(clone, needed)
    extras = bracket and shlex.quote(bracket + extras)  # alone, so that a shell expands ~ before it
    yield f"{shlex.quote(str(folder))}{extras}"


def _plugins_needed(folder: Path) -> list[str]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [requirement.partition(">")[0] for requirement in project.get("dependencies", ())]
    return [name for name in names if name.startswith(f"{CORE}-")]
