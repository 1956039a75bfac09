"""Simulated homes that stay where they are: what is compiled in one is found in gemmhub's cache the next time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gemmhub_musa_sim
from filelock import FileLock
from gemmhub_musa.sdk import Sdk

from gemmhub.native import cache


def kept_home(sdk="4.3", **options):
    """The home with these options of make_home, in gemmhub's cache; made by the first who asks."""
    digest = hashlib.sha256(repr(sorted(options.items())).encode())
    package = Path(gemmhub_musa_sim.__file__).parent
    for file in sorted(x for x in package.rglob("*") if x.is_file() and x.suffix != ".pyc"):
        digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    path = cache.folder().path / f"test-home-{sdk}-{digest.hexdigest()[:16]}"
    with FileLock(f"{path}.lock"):
        if not (path / "gemmhub-musa-sim.json").exists():  # written last
            gemmhub_musa_sim.make_home(path, sdk, **options)
    return path


def sdk_of(home):
    """A home as an installation, whatever MUSA_HOME says."""
    return Sdk(home, "MUSA_HOME", (home / "lib",), home / "include", home / "bin" / "mcc")
