"""``gemmhub new-plugin NAME``: the distribution of a backend that runs and passes its tests, to put a kernel into."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from string import Template

import click

from gemmhub._choice import registry
from gemmhub.backend import CONTRACT
from gemmhub.cli.errors import unwritable
from gemmhub.cli.plugin_template import FILES
from gemmhub.errors import InputError
from gemmhub.kit.install import CORE


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--directory",
    "-d",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder to write into; by default this one.",
)
def command(name: str, directory: Path) -> None:
    """Write the folder gemmhub-NAME: a plugin with a backend of that name, for float32 on the CPU, and its tests.

    NAME consists of lower-case letters, digits and single hyphens.
    """
    try:
        folder = write(name, directory)
    except OSError as error:
        raise unwritable(str(error.filename or directory), error) from error
    click.echo(f"wrote {folder}; next:\n  pip install -e {folder}\n  python -m pytest -q {folder / 'tests'}")
    click.echo(f"Your kernel goes into {folder / _package(name) / 'backend.py'}.")


def write(name: str, directory: Path) -> Path:
    """Write the distribution of the backend ``name`` into ``directory``; return its folder. InputError otherwise."""
    _check(name)
    folder = directory / f"{CORE}-{name}"
    fields = {
        "name": name,
        "distribution": folder.name,
        "package": _package(name),
        "class_name": f"{name.title().replace('-', '')}Backend",
        "contract": str(CONTRACT),
    }
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        remedy = "Choose another name, or another folder by --directory"
        raise InputError("directory", f"{folder} exists", "a folder without it", remedy) from error
    for path, text in FILES.items():
        target = folder / Template(path).substitute(fields)
        target.parent.mkdir(exist_ok=True)
        target.write_text(Template(text).substitute(fields), encoding="utf-8")
    return folder


def _package(name: str) -> str:
    return f"{CORE}_{name.replace('-', '_')}"


def _check(name: str) -> None:
    """Raise InputError for a name that no new backend can have."""
    normal = re.sub(r"[-_.]+", "-", name).lower().removeprefix(f"{CORE}-")  # as PEP 503
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or name != normal:
        usable = re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", normal)
        remedy = f"Write {normal!r}" if usable else "Choose a name such as 'mine' or 'my-gpu'"
        allowed = f"a letter, then lower-case letters, digits and single hyphens, without {CORE}- in front"
        raise InputError("name", repr(name), allowed, remedy)
    remedy = "Choose another name"
    if name in registry.names():
        raise InputError("name", f"{name!r} is the name of a backend", "a name that no backend has", remedy)
    try:
        importlib.metadata.distribution(f"{CORE}-{name}")
    except importlib.metadata.PackageNotFoundError:
        return
    raise InputError("name", f"{CORE}-{name} is installed", "a name that no distribution has", remedy)
