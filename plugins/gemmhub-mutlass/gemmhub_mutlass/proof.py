"""Proves each compiled configuration right on the device before it gets a user's product.

First by the small products of :mod:`gemmhub_musa.selftest` whose storage orders the configuration takes, then by one
with everything at once (:mod:`gemmhub_musa.proof`) whose sizes fill one tile and part of the next, with several k
steps; and by the same with alpha 0.
"""

from __future__ import annotations

from dataclasses import replace

from gemmhub_musa import proof, selftest

from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.problem import GemmProblem
from gemmhub_mutlass import lower
from gemmhub_mutlass.launch import Gemm, NotImplementableError
from gemmhub_mutlass.probe import Machine
from gemmhub_mutlass.variants import SIMT, TF32, Configuration

ROOM = 2**23
"""Bytes that a proof may need on the device."""
_SMALL = {True: (32, 16, 48), False: (5, 3, 7)}
"""Sizes of the first products, by whether the configuration reads vectors."""
_BEYOND = {True: (48, 16, 16), False: (37, 11, 5)}
"""m, n, k of the product with everything beyond whole tiles, by the same."""


def prove(machine: Machine, index: int, configuration: Configuration) -> Refusal | None:
    """Return None where all products are right, else a refusal. Raises AllocationError without device memory."""
    runtime, library = machine.runtime, machine.kernels.get(configuration)
    if isinstance(library, Refusal):
        return library
    with runtime.device(index):
        runtime.free(runtime.malloc(ROOM))

    def prepare(problem: GemmProblem) -> Kernel | Refusal:
        asked = replace(problem, precision=_precision(configuration))
        found = lower.lowered(asked)
        if isinstance(found, Refusal):
            return found
        if (found.form.a.column, found.form.b.column) != (configuration.column_a, configuration.column_b):
            return Refusal("stored for another configuration", "compile that")
        return Kernel(Gemm(machine, asked, found, configuration, library, ROOM).run, f"MUTLASS {configuration}")

    small = _SMALL[configuration.vectors]
    refusal = selftest.check(prepare, runtime, index, configuration.dtype, configuration.result, small)
    if refusal is not None:
        return refusal
    problem = everything(index, configuration)
    try:
        kernel = prepare(problem)
        if isinstance(kernel, Refusal):
            return kernel
        exact = configuration.math != SIMT
        for alpha in (_alpha(configuration), 0):
            refusal = refusal or proof.compare(runtime, problem, kernel, alpha=alpha, exact=exact)
        return refusal
    except NotImplementableError as error:
        return Refusal(str(error), selftest.REMEDY)
    except Exception as error:  # any failure of the kernel's first call
        return Refusal(
            f"MUTLASS's first product with everything ({problem.key}) failed: {type(error).__name__}: {error}",
            selftest.REMEDY, repr(error),
        )  # fmt: skip


def _precision(configuration: Configuration) -> str:
    return "tf32" if configuration.math == TF32 else "ieee"


def _alpha(configuration: Configuration) -> float:
    return -3 if configuration.dtype == "int8" else -0.5


def everything(index: int, configuration: Configuration) -> GemmProblem:
    """Return a padded batch of 2 with an addend in place, for ``configuration``."""
    tile, beyond = configuration.tile, _BEYOND[configuration.vectors]
    m, n, k = tile.m + beyond[0], tile.n + beyond[1], 2 * tile.k + beyond[2]
    plain = selftest.problems(configuration.dtype, index, configuration.result)[0]
    plain = replace(plain, alpha_is_one=False, precision=_precision(configuration))
    orders = " ".join("col" if column else "row" for column in (configuration.column_a, configuration.column_b))
    return proof.everything(plain, m, n, k, orders=orders)
