"""Compilation of gemmhub-hopper's kernels for many products at once, in as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import named, runnable
from gemmhub_hopper.cost import shortlist
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import compiled
from gemmhub_hopper.variants.compiled import Code
from gemmhub_nvidia import nvrtc

from gemmhub.backend import Offer, answer
from gemmhub.problem import GemmProblem


def compile_ahead(products: Iterable[tuple[GemmProblem, str]]) -> int:
    """Compile the kernels of these problems and candidates of gemmhub-hopper into the cache; return their number."""
    backend = HopperBackend()
    backend.probe()
    needed = {code for problem, name in products for code in _codes(backend, problem, name)}
    if needed:
        workers = min(len(needed), len(os.sched_getaffinity(0)))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(_compile, needed))
    return len(needed)


def _codes(backend: HopperBackend, problem: GemmProblem, name: str) -> Iterator[Code]:
    offer, lowerings = answer(backend, problem), lower.lowerings(problem)
    if not isinstance(offer, Offer) or not isinstance(lowerings, tuple):
        return
    choice = named(lowerings, name)
    if choice is None:
        yield from (x.kernel for x in [gemv.named(lowerings, name)] if x is not None)
        return
    passes = runnable(choice, offer.workspace)
    if not isinstance(passes, str):
        yield from shortlist.code(choice, passes, backend._card_of(problem.device.index))


def _compile(what: Code) -> None:
    nvrtc.cubin(nvrtc.load(), compiled.source_of(what)[0])
