"""The commands in remedies, by where gemmhub was installed from."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmhub.kit import install

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def installed_from(monkeypatch, tmp_path):
    """Make gemmhub appear installed into a site folder, from the origin that pip recorded."""

    def make(url):
        text = None if url is None else json.dumps({"url": url})
        monkeypatch.setattr(install, "__file__", str(tmp_path / "site" / "gemmhub" / "kit" / "install.py"))
        monkeypatch.setattr(install.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda _: text))
        install.origin.cache_clear()

    yield make
    install.origin.cache_clear()


def test_index(installed_from):
    installed_from(None)
    assert install.command("gemmhub-cpu") == "pip install gemmhub-cpu"
    assert install.command("gemmhub-cpu[test]") == "pip install 'gemmhub-cpu[test]'"


@pytest.mark.parametrize("url", ["https://example.org/gemmhub.whl", "file:///nowhere/at/all", "file:///no/x.whl"])
def test_a_missing_or_remote_origin_is_left_to_pip(installed_from, url):
    installed_from(url)
    assert install.command("gemmhub-cpu") == "pip install gemmhub-cpu"


def test_wheel_house(installed_from, tmp_path):
    house = tmp_path / "wheel house"
    house.mkdir()
    installed_from((house / "gemmhub-0.2.0-py3-none-any.whl").as_uri())
    assert shlex.split(install.command("gemmhub-cpu")) == ["pip", "install", "--find-links", str(house), "gemmhub-cpu"]


def test_clone(installed_from):
    installed_from(ROOT.as_uri())
    folder = ROOT / "plugins" / "gemmhub-cpu"
    assert shlex.split(install.command("gemmhub-cpu[test]")) == ["pip", "install", f"{folder}[test]"]
    assert shlex.split(install.command("gemmhub[jax]")) == ["pip", "install", f"{ROOT}[jax]"]


def test_clone_in_place():
    """As these tests run: from the source, with or without pip's metadata."""
    install.origin.cache_clear()
    assert install.command("gemmhub-cpu") == f"pip install {shlex.quote(str(ROOT / 'plugins' / 'gemmhub-cpu'))}"


def test_plugins_that_a_plugin_needs_come_first(installed_from):
    installed_from(ROOT.as_uri())
    folders = shlex.split(install.command("gemmhub-mublas", "gemmhub-mudnn"))[2:]
    assert [Path(x).name for x in folders] == ["gemmhub-musa", "gemmhub-mublas", "gemmhub-mudnn"]
    assert all((Path(x) / "pyproject.toml").is_file() for x in folders)


def test_a_clone_without_that_plugin(installed_from):
    installed_from(ROOT.as_uri())
    assert install.command("gemmhub-unheard") == "pip install gemmhub-unheard"
