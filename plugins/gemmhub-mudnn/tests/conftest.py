"""The simulated home that a test process runs on, and settings that must not decide what tests see.

A process can use one MUSA installation, so the environment variable GEMMHUB_TEST_MUSA_SDK chooses it: an SDK
generation, "5.1-c" being 5.1 without the C++ API. test_generations.py runs the others, each in a process of its own.
With "installed" nothing is simulated: test_conformance.py then runs on the machine's own SDK.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemmhub
from gemmhub.kit import native

pytestmark = pytest.mark.compiler

GENERATION = os.environ.get("GEMMHUB_TEST_MUSA_SDK", "4.3")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if GENERATION == "installed":
        pytest.skip("needs the simulator")
    from gemmhub_musa_sim.testing import kept_home

    sdk, _, only_c = GENERATION.partition("-")
    made = kept_home(sdk)
    if only_c:
        made = shutil.copytree(made, tmp_path_factory.mktemp("musa") / "home", symlinks=True)
        shutil.rmtree(made / "include" / "mudnncxx")
        for path in made.glob("lib/libmudnncxx*"):
            path.unlink()
    return made


@pytest.fixture(scope="session", autouse=True)
def _installation(request: pytest.FixtureRequest) -> Iterator[None]:
    """From the first test on, MUSA_HOME is the simulated home, with two devices."""
    if GENERATION == "installed":
        yield
        return
    from gemmhub_musa_sim.testing import installed

    with installed(request.getfixturevalue("home"), MUSA_SIM_DEVICES="2"):
        yield


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The build cache stays the user's, as what is in it depends on its contents alone."""
    cache = os.environ.get("GEMMHUB_CACHE_DIR")
    for name in [name for name in os.environ if name.startswith("GEMMHUB_")]:
        monkeypatch.delenv(name)
    if cache:
        monkeypatch.setenv("GEMMHUB_CACHE_DIR", cache)
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    gemmhub.reload()
    native.forget()
    yield
    gemmhub.reload()
