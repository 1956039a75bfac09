"""Tries what only some versions of mcc accept: flags, headers, built-in functions.

Public sources name things that not every toolkit has. Each is tried on a few lines once for a compiler, and left out
where that compiler refuses it; the outcome is kept on disk with the compiler's and the headers' identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub_musa.compile import compile_mu, headers_digest, identity, mcc
from gemmhub_musa.sdk import Sdk

KERNEL = '__global__ void gemmhub_tried(int* x) { *x += 1; }\nextern "C" int gemmhub_answer() { return 42; }\n'
"""A kernel for trying flags, which every compiler of the toolkit accepts."""
DEVICE_FLAGS = ("-Od3",)
"""Optimization of device code, as the vendor's own builds pass it beside -O2."""
_SECONDS = 120.0
_FORMAT = 1


def device_flags(sdk: Sdk, arch: str) -> tuple[str, ...]:
    """Return those of DEVICE_FLAGS that the installation's compiler accepts."""
    return tuple(flag for flag in DEVICE_FLAGS if accepted(sdk, arch, KERNEL, (flag,)))


def accepted(sdk: Sdk, arch: str, text: str, flags: Sequence[str] = (), include: Sequence[Path] = ()) -> bool:
    """Return whether mcc compiles ``text`` with ``flags`` for ``arch``.

    A refusal is kept where the compiler reports an error and yet compiles KERNEL: it may also have run out of time or
    memory, or be broken. ``text`` must have everything that the outcome depends on but the SDK's headers.
    """
    compiler = mcc(sdk)
    if isinstance(compiler, Refusal):
        return False
    known = str(compiler.resolve()), identity((str(compiler),)), headers_digest(sdk)
    facts = json.dumps([_FORMAT, text, list(flags), arch, *known])
    file_name = f"accepted-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.json"
    kept = native.read(file_name)
    if kept in (b"true", b"false"):
        return kept == b"true"
    built = compile_mu(text, sdk, arch, name="attempt", flags=flags, include=include, timeout=_SECONDS)
    answer = not isinstance(built, Refusal)
    if answer or (_complained(built) and _works(sdk, arch)):
        with suppress(OSError):  # the next process tries it again
            native.store(file_name, json.dumps(answer).encode())
    return answer


def _complained(built: Path | Refusal) -> bool:
    return isinstance(built, Refusal) and "error" in (built.traceback or "").lower()


def _works(sdk: Sdk, arch: str) -> bool:
    return not isinstance(compile_mu(KERNEL, sdk, arch, name="attempt", timeout=_SECONDS), Refusal)
