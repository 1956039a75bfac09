"""The conformance kit compares a backend with the description of its plugin."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance_backends import RightBackend

from gemmhub import Backend
from gemmhub.capability import CPU, Device
from gemmhub.testing.descriptions import check_description
from plugins import Site

PLUGIN = """
from conformance_backends import RightBackend
from gemmhub import BackendDescription, hookimpl

class Described(RightBackend):
    name = "described"

class Other(RightBackend):
    name = "other"

@hookimpl
def gemmhub_backends():
    return [BackendDescription({arguments})]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Backend]:
    """Function that installs a plugin whose description has these arguments, and returns its backend "described"."""

    def install(arguments: str) -> Backend:
        site = Site(tmp_path / "site", monkeypatch)
        (site.folder / "gemmhub_example_described.py").write_text(textwrap.dedent(PLUGIN).format(arguments=arguments))
        site.install("gemmhub-example-described", {"described": "gemmhub_example_described"})
        return importlib.import_module("gemmhub_example_described").Described()

    return install


def test_a_backend_that_is_described_passes(installed: Callable[[str], Backend]) -> None:
    backend = installed("'described', Described, 'a backend', contract=2")
    check_description(backend, CPU)
    check_description(type("Changed", (type(backend),), {"__module__": "elsewhere"})(), CPU)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'deckribed', Described, '', contract=2", "name is 'described', but its plugin describes 'deckribed'"),
        ("'described', Other, '', contract=2", r"load\(\) of the description 'described' returned the backend 'other'"),
        ("'described', Other, '', contract=1", "the contract described is 1, not 2"),
        ("'described', lambda: 1 / 0, '', contract=2", r"load\(\) raised ZeroDivisionError"),
    ],
)
def test_a_wrong_description_is_caught(installed: Callable[[str], Backend], arguments: str, message: str) -> None:
    backend = installed(arguments)
    with pytest.raises(AssertionError, match=message):
        check_description(backend, CPU)


def test_the_device_type_is_described(installed: Callable[[str], Backend]) -> None:
    backend = installed("'described', Described, '', contract=2")
    with pytest.raises(AssertionError, match="without 'cuda'"):
        check_description(backend, Device("cuda"))


def test_a_backend_without_a_plugin_needs_no_description() -> None:
    check_description(RightBackend(), CPU)
