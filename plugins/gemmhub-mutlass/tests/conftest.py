"""A simulated MUSA home and a fake MUTLASS for the tests of this process.

GEMMHUB_TEST_MUSA_SDK chooses the home's generation ("4.3"). "installed": nothing is simulated, test_conformance.py then
runs on the machine's own SDK with the MUTLASS that MUTLASS_HOME names; tests that need the simulator are skipped. A
process can have one home only: tests of other machines start processes of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

import fake
import pytest
from gemmhub_musa import sdk

from gemmhub.kit import native

pytestmark = pytest.mark.emulator

SDK = os.environ.get("GEMMHUB_TEST_MUSA_SDK", "4.3")


@pytest.fixture(scope="session")
def folder(request, tmp_path_factory):
    """Stays from run to run, where pytest has a cache."""
    cache = getattr(request.config, "cache", None)
    return tmp_path_factory.mktemp("kept") if cache is None else Path(cache.mkdir("gemmhub-mutlass"))


@pytest.fixture(scope="session")
def homes():
    """``homes(sdk)`` gives a simulated home."""
    return pytest.importorskip("gemmhub_musa_sim.testing").kept_home


@pytest.fixture(scope="session")
def checkouts():
    """``checkouts(version, **options)`` gives a fake checkout of MUTLASS, which stays too."""
    kept = pytest.importorskip("gemmhub_musa_sim.testing").kept

    def checkout(version=(0, 1, 1), **options):
        facts = version, sorted(options.items()), fake.OPTIONS, fake.HEADERS, fake.PIPELINES
        witness = "include/mutlass/mutlass.h"
        return kept("mutlass", fake.FAKE, facts, witness, lambda path: fake.make(path, version, **options))

    return checkout


@pytest.fixture(scope="session", autouse=True)
def home(request):
    """The home, in MUSA_HOME; MUTLASS_HOME is a fake 0.1.1."""
    if SDK == "installed":
        yield None
        return
    path, checkout = request.getfixturevalue("homes")(SDK), request.getfixturevalue("checkouts")()
    from gemmhub_musa_sim.testing import installed

    with installed(path), pytest.MonkeyPatch.context() as patch:
        patch.delenv("GEMMHUB_MCC", raising=False)
        patch.setenv("MUTLASS_HOME", str(checkout))
        yield path


@pytest.fixture
def sim(home):
    """The simulator's own functions; injected faults, errors and failed builds are gone afterwards."""
    if home is None:
        pytest.skip("not the simulator")
    runtime = sdk.find().load("musart")
    yield runtime
    runtime.musaSimInject(b"")
    runtime.musaSimReset()
    native.forget()
