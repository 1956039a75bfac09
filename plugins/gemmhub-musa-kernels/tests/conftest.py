"""A simulated MUSA home for the tests of this process, with two devices.

"installed" in GEMMHUB_TEST_MUSA_SDK tests the machine's own SDK instead: test_conformance.py then runs on its card, and
what needs the simulator is skipped.
"""

from __future__ import annotations

import os
import shutil

import pytest
from gemmhub_musa_kernels import sources
from simulator import Simulator, sdk_of

import gemmhub
from gemmhub.kit import native

pytestmark = pytest.mark.emulator

SDK = os.environ.get("GEMMHUB_TEST_MUSA_SDK", "4.3")
INSTALLED = SDK == "installed"


@pytest.fixture(scope="session", autouse=True)
def home():
    """The home, in MUSA_HOME."""
    if INSTALLED:
        yield None
        return
    testing = pytest.importorskip("gemmhub_musa_sim.testing")
    with testing.installed(testing.kept_home(SDK), MUSA_SIM_DEVICES="2") as path:
        yield path


@pytest.fixture(scope="session")
def simulator(home):
    if home is None:
        pytest.skip("needs the simulator")
    return Simulator()


@pytest.fixture
def sim(simulator):
    """The simulator's own functions; options, injected faults and findings are as before afterwards."""
    with simulator.restored():
        yield simulator


@pytest.fixture(scope="session")
def plain_sdk(home):
    if home is None:
        pytest.skip("needs the simulator")
    return sdk_of(home)


@pytest.fixture(scope="session")
def checking_sdk(home):
    """An installation of the same libraries, whose kernels are compiled with the checker's hooks."""
    if home is None:
        pytest.skip("needs the simulator")
    from gemmhub_musa_sim.testing import kept_home

    return sdk_of(kept_home(SDK, checks=True))


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """No settings or records of the user's; the build cache stays, as what is in it depends on its contents alone."""
    for name in [name for name in os.environ if name.startswith("GEMMHUB_") and name != native.cache.VARIABLE]:
        if not name.startswith("GEMMHUB_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GEMMHUB_PLUGINS", "musa-kernels")  # others that are installed have memory of their own
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    gemmhub.reload()
    yield
    gemmhub.reload()


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """``planted(file, old, new)``: from then on the kernels are compiled with the change."""

    def plant(file, old, new):
        folder = shutil.copytree(sources.KERNELS, tmp_path / "kernels")
        text = (folder / file).read_text()
        assert text.count(old) == 1
        (folder / file).write_text(text.replace(old, new))
        monkeypatch.setattr(sources, "KERNELS", folder)

    return plant
