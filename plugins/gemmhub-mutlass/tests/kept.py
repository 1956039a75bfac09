"""Folders that stay from one run of the tests to the next: compiled kernels are found again only by the same paths."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import fake
import pytest


def _digest(folder, *facts):
    digest = hashlib.sha256(repr(facts).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _kept(path, witness, make):
    """``path``, made by ``make`` unless ``witness`` is there; whole or not at all, if several do it at once."""
    if not (path / witness).exists():
        draft = path.with_name(f"draft-{os.getpid()}-{path.name}")
        make(draft)
        shutil.rmtree(path, ignore_errors=True)
        draft.rename(path)
    return path


def home(folder, sdk):
    """A simulated home of that generation; without the simulator, the test is skipped."""
    gemmhub_musa_sim = pytest.importorskip("gemmhub_musa_sim")
    simulator = Path(gemmhub_musa_sim.__file__).parent
    name = f"home-{sdk}-{_digest(simulator)}"
    return _kept(folder / name, "lib/libmusart.so", lambda path: gemmhub_musa_sim.make_home(path, sdk))


def checkout(folder, version, **options):
    """A fake checkout of MUTLASS."""
    digest = _digest(fake.FAKE, version, sorted(options.items()), fake.OPTIONS, fake.HEADERS)
    return _kept(
        folder / f"mutlass-{digest}", "include/mutlass/mutlass.h", lambda path: fake.make(path, version, **options)
    )
