"""A simulated MUSA home for the tests of this process; GEMMHUB_TEST_MUSA_SDK chooses its generation ("4.3").

A process can have one home only: tests of other generations start processes of their own. "installed": no home is
made, the machine's own SDK is tested; tests that need the simulator are then skipped.
"""

from __future__ import annotations

import os

import pytest
from gemmhub_musa import sdk

pytestmark = pytest.mark.compiler

SDK = os.environ.get("GEMMHUB_TEST_MUSA_SDK", "4.3")


@pytest.fixture(scope="session")
def homes():
    """``homes(sdk, **options)`` gives a simulated home."""
    return pytest.importorskip("gemmhub_musa_sim.testing").kept_home


@pytest.fixture(scope="session", autouse=True)
def home(request):
    """The home, in MUSA_HOME."""
    if SDK == "installed":
        yield None
        return
    path = request.getfixturevalue("homes")(SDK)
    from gemmhub_musa_sim.testing import installed

    with installed(path):
        yield path


@pytest.fixture
def sim(home):
    """The simulator's own functions; injected faults and errors are gone afterwards."""
    if home is None:
        pytest.skip("not the simulator")
    runtime = sdk.find().load("musart")
    yield runtime
    runtime.musaSimInject(b"")
    runtime.musaSimReset()
