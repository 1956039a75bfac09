"""The first products of 8-bit operands: they prove the kernels, or refuse them, once for each device and input."""

from __future__ import annotations

import pytest
from fakes import Home, mutated
from gemmhub_hopper.proof import Proofs
from gemmhub_hopper.symmetric_proof import SYMMETRIC
from gemmhub_hopper.variants.config import EIGHT_BIT
from problems import problem

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.errors import AllocationError

pytestmark = pytest.mark.emulator


def proofs(backend, index=0):
    """Return a function that proves an input on a device."""
    return lambda input_type: backend._proofs.of(index, backend.machine.gpus[index], input_type)


@pytest.mark.parametrize("input_type", EIGHT_BIT)
def test_right_kernels_are_proven_once(input_type):
    home = Home()
    prove = proofs(home.backend())
    allocated = len(home.cuda.allocated)
    assert prove(input_type) is None
    launches = len(home.cuda.launches)
    assert launches == 3  # two products, and the pre-pass of one
    assert prove(input_type) is None
    assert len(home.cuda.launches) == launches
    assert len(home.cuda.allocated) <= allocated + 2  # the workspace alone stays
    assert home.cuda.complaints == []
    assert home.cuda.stack == []


MUTATIONS = {
    "sums are never promoted": (
        "e4m3.e4m3",
        "eight_bit.cuh",
        ("    clear(acc);\n", "    clear(acc);\n    Sum parts[kNumFragments][BLOCK_N / 2] = {};\n"),
        ("            Sum part[BLOCK_N / 2] WRITTEN_BY_WGMMA;\n", "            Sum(&part)[BLOCK_N / 2] = parts[i];\n"),
        ("step * kStepBytesB / 16, step > 0);", "step * kStepBytesB / 16, block > 0 || step > 0);"),
        (
            "            scales[0].promote(acc[i], part, at, ctx, i);\n",
            "            if (block + 1 == work.k_blocks) scales[0].promote(acc[i], part, at, ctx, i);\n",
        ),
    ),
    "e4m3 is read as e5m2": ("e4m3.e4m3", "config.cuh", ("kInput = GEMM_INPUT", "kInput = E5M2_E5M2_INPUT")),
    "formats are exchanged": ("e4m3.e5m2", "config.cuh", ("kInput = GEMM_INPUT", "kInput = E5M2_E4M3_INPUT")),
    "columns have rows' scales": ("s8.s8", "epilogue.cuh", ("scale(p, p.column_scales,", "scale(p, p.row_scales,")),
    "the copy exchanges rows": ("s8.s8", "prepass.cu", ("tile[lane][fast], how", "tile[lane ^ 1][fast], how")),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_kernels_are_refused(monkeypatch, tmp_path, name):
    input_type, file, *changes = MUTATIONS[name]
    prove = proofs(mutated(monkeypatch, tmp_path, file, *changes).backend())
    refusal = prove(input_type)
    assert isinstance(refusal, Refusal)
    assert "elements differ, the first at" in refusal.reason
    assert prove(input_type) is refusal


def test_symmetric_products_are_proven_once():
    home = Home()
    prove = proofs(home.backend())
    assert prove(SYMMETRIC) is None
    launches = len(home.cuda.launches)
    assert launches == 2
    assert prove(SYMMETRIC) is None
    assert len(home.cuda.launches) == launches
    assert home.cuda.complaints == []


@pytest.mark.parametrize(
    "change",
    [
        ("mirror.cuh", ("        store_transpose(p, mirror, m, n, at.batch, ctx);\n", "")),
        ("mirror.cuh", ("m + row > n + column && m + row < p.m", "false")),
        ("epilogue.cuh", ("(j + APART), b[i]", "(j + APART), a[i]")),
    ],
    ids=["no mirror", "no mirror across the diagonal", "columns of float32"],
)
def test_wrong_symmetric_kernels_are_refused(monkeypatch, tmp_path, change):
    file, *pairs = change
    refusal = proofs(mutated(monkeypatch, tmp_path, file, *pairs).backend())(SYMMETRIC)
    assert isinstance(refusal, Refusal)
    assert "the first symmetric product" in refusal.reason
    assert "elements differ" in refusal.reason


def test_symmetric_products_that_are_refused(monkeypatch):
    """Those alone, and by every way to them."""
    outcome = Refusal("the first product is wrong", "use another backend")
    monkeypatch.setattr(Proofs, "of", lambda self, index, gpu, name: outcome if name == SYMMETRIC else None)
    backend = Home().backend()
    asked = problem(64, 64, 64, symmetric=True)
    assert backend.offer(asked) == backend.prepare(asked, "64x64x12", 2**26) == outcome
    assert isinstance(backend.offer(problem(64, 64, 64)), Offer)


def test_a_launch_that_fails_is_refused(monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, "eight_bit.cuh", ("ctx.release(pipe.stage);", "{}"))
    refusal = proofs(home.backend())("e4m3.e4m3")
    assert isinstance(refusal, Refusal)
    assert "failed" in refusal.reason


def test_nothing_is_known_without_memory(monkeypatch):
    home = Home()
    prove, memory = proofs(home.backend()), home.cuda.memory
    home.cuda.memory = 1000
    with pytest.raises(AllocationError):
        prove("s8.s8")
    home.cuda.memory = memory
    assert prove("s8.s8") is None


@pytest.mark.parametrize("outcome", [None, Refusal("the first product is wrong", "use another backend")])
def test_what_is_offered(monkeypatch, outcome):
    """Both orientations are proven: of two formats these are two inputs."""
    proven = []
    monkeypatch.setattr(Proofs, "of", lambda self, index, gpu, input_type: proven.append(input_type) or outcome)
    backend = Home().backend()
    asked = problem(64, 64, 64, "float8_e4m3fn", "bfloat16")
    mixed = problem(64, 64, 64, "float8_e4m3fn", "bfloat16")
    mixed = type(mixed)(**{**vars(mixed), "b": problem(64, 64, 64, "float8_e5m2", "bfloat16").b})
    if outcome is None:
        offer = backend.offer(asked)
        assert isinstance(offer, Offer)
        assert proven == ["e4m3.e4m3"]
        assert isinstance(backend.prepare(asked, offer.first.name, offer.workspace), Kernel)
        assert "not measured on this card" in offer.remark(offer.first.name)
        backend.offer(mixed)
        assert proven[2:] == ["e4m3.e5m2", "e5m2.e4m3"]
    else:
        assert backend.offer(asked) == backend.prepare(asked, "64x64x12", 2**26) == outcome
    proven.clear()
    assert isinstance(backend.offer(problem(64, 64, 64)), Offer)
    assert proven == []
