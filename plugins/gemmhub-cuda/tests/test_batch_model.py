"""The kernel for batches among the candidates: where it is proposed, its estimate, its launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_cuda.candidate import Choice, named
from gemmhub_cuda.cost import model
from gemmhub_cuda.lower import lowered
from gemmhub_cuda.variants import batch
from problems import operand, problem

from benchmarks.fit import cuda_model
from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout

LIMIT = 64 * 2**20
CARD = cuda_model.H200


def integers(m, n, k, *more, **changes):
    return problem(m, n, k, "int8", *more, **{"out": "int32", **changes})


def choices(asked):
    return model.choices(lowered(asked, CARD.capability), CARD, LIMIT)


def first(asked):
    return choices(asked)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [(16, 16, 16), (32, 32, 32), (17, 23, 29), (8, 48, 64)])
def test_batches_of_small_matrices(dtype, size):
    """The tile is the smallest that holds the matrix."""
    seconds, choice = first(problem(*size, dtype, batch=(20000,)))
    assert isinstance(choice.shape, batch.Shape)
    m, n = size[:2]
    assert (choice.shape.m, choice.shape.n) == tuple(next(x for x in (16, 32, 64) if x >= side) for side in (m, n))
    assert seconds >= choice.moved_bytes / CARD.bandwidth


@pytest.mark.parametrize("size", [(65, 16, 16), (16, 128, 16), (4096, 4096, 4096)])
def test_larger_matrices_of_16_bits(size):
    found = choices(problem(*size, "bfloat16"))
    assert not any(isinstance(choice.shape, batch.Shape) for _, choice in found)


def test_a_single_long_product():
    """One warp for a long K is slow, and its estimate high."""
    assert not isinstance(first(problem(64, 64, 8192, "bfloat16"))[1].shape, batch.Shape)


@pytest.mark.parametrize("size", [(1, 1, 1), (33, 5, 7), (200, 300, 400), (4096, 4096, 4096)])
@pytest.mark.parametrize("count", [(), (7,), (2, 70000)])
def test_int8_of_every_size(size, count):
    found = choices(integers(*size, batch=count))
    assert found
    for seconds, choice in found:
        assert choice.name.startswith("bytes")
        assert seconds > 0
        assert choice.splits == 1
        assert choice.refusal(CARD, 0) is None


def test_misaligned_operands_cost_more():
    """Copies of fewer bytes are more instructions, and never fewer bytes of memory."""
    asked = problem(32, 32, 32, "bfloat16", batch=(4096,))
    aligned = Choice(lowered(asked, (9, 0)), batch.fitting(32, 32, 32, 2)[0], 1)
    for alignment in (8, 4, 2):
        form = replace(aligned.lowering.form, a_alignment=alignment)
        other = replace(aligned, lowering=replace(aligned.lowering, form=form))
        assert model.seconds(other, CARD) >= model.seconds(aligned, CARD)


@pytest.mark.parametrize(
    ("asked", "name", "bandwidth", "us"),
    [
        (integers(8000, 976, 736, b="col"), "bytes64x64x128x2w2", 3.352e12, 46.3),
        (integers(1200, 3376, 448, b="col"), "bytes64x64x64x2w2", 3.352e12, 13.7),
        (problem(24, 24, 24, "bfloat16", batch=(4355,)), "batch32x32x16x4w4", 3.352e12, 9.7),
        (problem(24, 24, 24, "bfloat16", batch=(58156,)), "batch32x32x16x4w4", 3.352e12, 86.9),
        (problem(48, 48, 48, "bfloat16", batch=(3257,)), "batch64x64x16x3w2", 3.352e12, 22.2),
        (problem(48, 48, 48, "bfloat16", batch=(21546,)), "batch64x64x16x3w2", 4.8e12, 88.2),
        (problem(32, 32, 32, "bfloat16", batch=(51195,)), "batch32x32x16x4w4", 4.8e12, 81.8),
        (problem(24, 24, 24, batch=(72615,)), "32x32x16t64", 4.8e12, 207.3),
        (problem(32, 32, 32, batch=(88795,)), "32x32x16t64", 3.352e12, 364.5),
    ],
    ids=str,
)
def test_estimates_are_near_measured_times(asked, name, bandwidth, us):
    """Times of benchmarks/run/map.py on an H100 and an H200, also where a batch takes several launches."""
    choice = named(lowered(asked, CARD.capability), name)
    card = replace(CARD, sms=132, clock=1.98e9, bandwidth=bandwidth)
    assert 1 / 1.4 < model.seconds(choice, card) * 1e6 / us < 1.4


def test_a_long_batch_is_one_launch():
    choice = first(problem(16, 16, 16, "bfloat16", batch=(200000,)))[1]
    assert [count for *_, count in choice.offsets()] == [200000]
    assert choice.grid(200000, 660) == (660, 1, 1)
    assert choice.grid(3, 660) == (1, 1, 1)


def test_no_split_k():
    lowering = lowered(problem(16, 16, 4096, "bfloat16", batch=(64,)), CARD.capability)
    assert "no split-K" in Choice(lowering, batch.SHAPES[0], 2).refusal(CARD, LIMIT)


def test_numbers_of_tiles_have_31_bits(monkeypatch):
    monkeypatch.setattr(batch, "_MAX_TILES", 8)
    choice = first(integers(70, 130, 5, batch=(3,)))[1]
    assert choice.tiles == (2, 3)
    assert [count for *_, count in choice.offsets()] == [1, 1, 1]
    other = Choice(lowered(integers(200, 200, 5), (9, 0)), choice.shape, 1)
    assert "at most 8" in other.refusal(CARD, 0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (integers(8, 8, 8, alpha_is_one=False), "no alpha, c, bias or activation"),
        (integers(8, 8, 8, c=operand("int32", 8, 8)), "no alpha, c, bias or activation"),
        (integers(8, 8, 8, out="float32"), "result of float32"),
        (replace(integers(8, 8, 8), a=replace(operand("int8", 8, 8), layout=MatrixLayout(8, 8, 16, 2))), "dimension"),
    ],
)
def test_refused_int8(asked, words):
    found = lowered(asked, (9, 0))
    assert isinstance(found, Refusal)
    assert words in found.reason
    assert found.remedy


def test_int8_before_ampere():
    assert "8.0" in lowered(integers(8, 8, 8), (7, 5)).reason
