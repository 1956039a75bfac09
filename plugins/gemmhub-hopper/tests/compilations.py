"""Compilation of kernels into the cache on disk, in many processes."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from gemmhub_hopper.variants import compiled
from gemmhub_hopper.variants.compiled import Code
from gemmhub_nvidia import nvrtc


def compile_one(what: Code) -> None:
    """Compile a kernel, unless the cache has it."""
    nvrtc.cubin(nvrtc.load(), compiled.source_of(what)[0])


def compile_all(needed: Collection[Code]) -> None:
    """Compile kernels in as many processes as there are cores."""
    workers = max(1, min(len(needed), len(os.sched_getaffinity(0))))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, needed))
