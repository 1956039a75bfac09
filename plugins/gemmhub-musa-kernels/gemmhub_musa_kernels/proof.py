"""Proves kernels right by small products, first in a child process, before they get a user's product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gemmhub_musa import selftest
from gemmhub_musa.array import Memory
from gemmhub_musa.runtime import TO_DEVICE, TO_HOST

from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels import choose, packed
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.launch import copier_of, prepared
from gemmhub_musa_kernels.lower import lowered, pitch
from gemmhub_musa_kernels.probe import Machine
from gemmhub_musa_kernels.sources import SQMMA, TRANSPOSE

_K, _N = 37, 45
"""Sizes of the matrix that the copier is tried on: they fit no tile."""


def proven(
    machine: Machine, index: int, candidate: Candidate, dtype: str, out_dtype: str, pinned: bool, added: str | None
) -> Refusal | None:
    """Return None where ``candidate`` is right for products of these dtypes on a device, else a refusal.

    ``pinned``: with the copies of products whose bits of rows are promised. ``added``: in the library that is compiled
    with this activation, which the proof does not apply.
    """
    arch = machine.cards[index].arch
    flags = choose.defines(candidate, arch, as_dtype(dtype), as_dtype(out_dtype))
    files = [machine.libraries.build(candidate.kernel, arch, flags, added)]
    if candidate.transposed:
        files.append(machine.libraries.build(TRANSPOSE, arch, ()))
    for file in files:
        if isinstance(file, Refusal):
            return file
    facts = (
        index,
        arch,
        candidate.kernel,
        candidate.tile,
        bool(candidate.transposed),
        pinned,
        dtype,
        out_dtype,
        *files,
    )

    def prove(machine: Machine) -> Refusal | None:
        return _product(machine, index, candidate, dtype, out_dtype, pinned, added)

    return machine.proven(f"the kernel {candidate.name} for {dtype} to {out_dtype} on musa:{index}", facts, prove)


def _product(
    machine: Machine, index: int, candidate: Candidate, dtype: str, out_dtype: str, pinned: bool, added: str | None
) -> Refusal | None:
    def prepare(small: GemmProblem) -> Kernel | Refusal:
        small = replace(small, reproducible="batch") if pinned else small
        gemm = lowered(small)
        if isinstance(gemm, Refusal):
            return gemm
        copied = () if not candidate.transposed else gemm.unfit if pinned else tuple("ab")
        product = prepared(machine, small, gemm, Candidate(candidate.kernel, candidate.tile, copied), added)
        return product if isinstance(product, Refusal) else Kernel(product.run, candidate.name)

    found = None
    if candidate.kernel != SQMMA:  # takes none of these sizes
        found = selftest.check(prepare, machine.runtime, index, dtype, out_dtype)
    if found is None and candidate.tile is not None:
        # Partial tiles and all stages; then whole tiles, for which there are kernels of their own.
        tile, depth = candidate.tile, candidate.tile.stages * candidate.tile.k
        for sizes in ((tile.m + 8, tile.n + 8, depth + 8), (tile.m, 2 * tile.n, depth)):
            found = found or selftest.check(prepare, machine.runtime, index, dtype, out_dtype, sizes)
    return found


def copier_proven(machine: Machine, index: int) -> Refusal | None:
    """Return None where the copies that packing makes are right on a device, else a refusal."""
    file = machine.libraries.build(TRANSPOSE, machine.cards[index].arch, ())
    if isinstance(file, Refusal):
        return file
    return machine.proven(f"the kernel that packs, on musa:{index},", (index, file), lambda there: _copy(there, index))


def _copy(machine: Machine, index: int) -> Refusal | None:
    copier = copier_of(machine, index)
    if isinstance(copier, Refusal):
        return copier
    b = np.arange(_K * _N, dtype=np.uint16).reshape(_K, _N)
    with machine.runtime.device(index):
        there = Memory(machine.runtime, index, b.nbytes)
        for order in ("row", "col"):
            stored = np.ascontiguousarray(b if order == "row" else b.T)
            machine.runtime.memcpy(there.address, stored.ctypes.data, stored.nbytes, TO_DEVICE)
            layout = MatrixLayout.contiguous(_K, _N, (), order)
            made = packed.pack(machine.runtime, index, copier, there.address, layout)
            found = np.empty((_K, pitch(_N)), np.uint16)
            machine.runtime.memcpy(found.ctypes.data, made.address, found.nbytes, TO_HOST)
            if not np.array_equal(found[:, :_N], b):
                return Refusal(f"the kernel that packs copies a {order}-major matrix wrongly", selftest.REMEDY)
    return None
