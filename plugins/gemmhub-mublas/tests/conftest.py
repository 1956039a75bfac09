"""A simulated MUSA home for the tests of this process; GEMMHUB_TEST_MUSA_SDK chooses its generation ("4.3").

A process can have one home only: tests of other generations start processes of their own. "installed": no home is
made, the machine's own SDK is tested; tests that need the simulator are then skipped.
"""

from __future__ import annotations

import os
from functools import cache

import pytest
from device import simulator

SDK = os.environ.get("GEMMHUB_TEST_MUSA_SDK", "4.3")


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """``homes(sdk, **options)`` makes a simulated home."""
    make_home = pytest.importorskip("gemmhub_musa_sim").make_home

    @cache
    def make(sdk, **options):
        return make_home(tmp_path_factory.mktemp("musa") / "home", sdk, **options)

    return make


@pytest.fixture(scope="session", autouse=True)
def home(request):
    """The home, in MUSA_HOME."""
    if SDK == "installed":
        yield None
        return
    path = request.getfixturevalue("homes")(SDK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSA_HOME", str(path))
        yield path


@pytest.fixture
def sim(home):
    """The simulator's own functions; injected faults and errors are gone afterwards."""
    if home is None:
        pytest.skip("not the simulator")
    runtime = simulator()
    yield runtime
    runtime.musaSimInject(b"")
    runtime.musaSimReset()
