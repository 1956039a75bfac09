"""Simulated homes for tests, kept from one run to the next, and an environment in which one is installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from gemmhub.kit.native import cache
from gemmhub_musa_sim.home import make_home


def kept_home(sdk: str = "4.3", **options: Any) -> Path:
    """Return the home that ``make_home(path, sdk, **options)`` makes, in gemmhub's cache; made at the first call.

    Code compiled in it is found in the cache the next time. Do not change the home: copy it.
    """
    facts = (sys.executable, sorted(options.items()))  # its mcc calls this Python
    package = Path(__file__).parent
    return kept(f"home-{sdk}", package, facts, "lib/libmusart.so", lambda path: make_home(path, sdk, **options))


def kept(name: str, source: Path, facts: object, witness: str, make: Callable[[Path], object]) -> Path:
    """Return a folder in gemmhub's cache whose path is ``name`` and a hash of what it was made from.

    The hash covers the files of the folder ``source`` and the repr of ``facts``. ``make(path)`` makes the folder, whole
    or not at all, unless its file ``witness`` is there.
    """
    digest = hashlib.sha256(repr(facts).encode())
    for file in sorted(source.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(str(file.relative_to(source)).encode() + file.read_bytes())
    path = cache.folder().path / f"test-{name}-{digest.hexdigest()[:16]}"
    with FileLock(f"{path}.lock"):
        if not (path / witness).exists():
            with tempfile.TemporaryDirectory(prefix=".draft-", dir=path.parent) as folder:
                draft = Path(folder) / path.name
                make(draft)
                shutil.rmtree(path, ignore_errors=True)
                draft.rename(path)
    return path


@contextmanager
def installed(home: Path, **variables: str) -> Iterator[Path]:
    """Set MUSA_HOME to ``home`` for a block; of MUSA's other variables only ``variables`` are set."""
    before = {name: value for name, value in os.environ.items() if name.startswith("MUSA_")}
    during = {"MUSA_HOME": str(home), **variables}
    for name in before:
        del os.environ[name]
    os.environ.update(during)
    try:
        yield home
    finally:
        for name in during:
            os.environ.pop(name, None)
        os.environ.update(before)
