"""The distributions that a user could install: those of the extras, with what plugins register."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import gemmhub
from gemmhub._choice import suggestions
from gemmhub._choice.suggestions import EXTRAS, Suggestion, known, of_extra

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(gemmhub.__file__).parents[1]


@pytest.fixture
def metadata(monkeypatch):
    """Sets the requirements of gemmhub's metadata, or removes the metadata."""

    def state(*requirements):
        def requires(name):
            if not requirements:
                raise importlib.metadata.PackageNotFoundError(name)
            return [*requirements]

        monkeypatch.setattr(importlib.metadata, "requires", requires)

    forget()
    yield state
    forget()


def forget():
    known.cache_clear()
    suggestions._required.cache_clear()


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_extras_list_every_distribution_with_a_backend():
    """A plugin that no extra has would never be suggested."""
    projects = map(project, (path.parent for path in ROOT.glob("plugins/*/pyproject.toml")))
    distributions = {x["name"] for x in projects if "gemmhub" in x.get("entry-points", {})}
    extras = {
        extra: {match[0] for x in requirements if (match := re.match(r"gemmhub-[\w-]+", x))}
        for extra, requirements in project(ROOT)["optional-dependencies"].items()
    }
    assert {extra for extra, names in extras.items() if names} == set(EXTRAS)
    assert set.union(*extras.values()) == distributions
    assert {x.distribution for x in known()} == distributions


def test_a_distribution_is_of_its_first_extra(metadata):
    metadata(
        "numpy>=1.26", "torch>=2.6; extra == 'torch'",
        "gemmhub-both<0.3,>=0.2; extra == 'hopper'",
        "gemmhub-one-more[cu13]; (python_version > '3') and extra == \"hopper\"",
        "gemmhub-both<0.3,>=0.2; extra == 'nvidia'", "gemmhub[nvidia]; extra == 'hopper'",
    )  # fmt: skip
    assert known() == (
        Suggestion("gemmhub-both", *EXTRAS["nvidia"]), Suggestion("gemmhub-one-more", *EXTRAS["hopper"]),
    )  # fmt: skip
    assert [x.backend for x in known()] == ["both", "one-more"]
    assert of_extra("hopper") == ("gemmhub-both", "gemmhub-one-more")
    assert of_extra("musa") == of_extra("torch") == ()


def test_a_folder_that_was_not_installed_suggests_nothing(metadata):
    metadata()
    assert known() == ()
    assert of_extra("cpu") == ()
