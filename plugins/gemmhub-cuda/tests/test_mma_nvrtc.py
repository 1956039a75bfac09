"""Every shape, and a sample of all forms that covers every value of every macro, compiles without spills or stack."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from compilations import LIMITS, check_resources, one_of, sample
from gemmhub_cuda.variants.form import ACTIVATIONS, Form
from gemmhub_cuda.variants.mma import SHAPES, Shape, Variant

pytestmark = pytest.mark.compiler

PLAIN = Form(False, False, 16, 16, "bfloat16", "bfloat16")


def cases():
    """(variant, capability): every shape plain and with all there is in an epilogue, on every card that it fits."""
    found = []
    for i, shape in enumerate(SHAPES):
        cards = [card for card, limit in LIMITS.items() if shape.shared_bytes <= limit]
        orders = replace(PLAIN, a_m_major=i % 2 > 0, b_n_major=i // 2 % 2 > 0)
        full = replace(
            orders, b_n_major=not orders.b_n_major, scaled=True, addend=True, bias="nm"[i % 2], activation="gelu"
        )
        found += [(Variant(shape, orders), cards[i % len(cards)])]
        found += [(Variant(shape, full, split_k=True), cards[(i + 1) % len(cards)])]
    rng = random.Random(0)
    while len(found) < len(SHAPES) * 2 + 20:
        form = replace(drawn(rng), activation=[None, *ACTIVATIONS][len(found) % (1 + len(ACTIVATIONS))])
        case = Variant(rng.choice(SHAPES), form, rng.random() < 0.5), rng.choice(list(LIMITS))
        if case[0].refusal(LIMITS[case[1]]) is None and case not in found:
            found.append(case)
    return found


def drawn(rng):
    """Draw a form."""
    return Form(
        rng.random() < 0.5, rng.random() < 0.5, rng.choice([16, 8, 4, 2]), rng.choice([16, 8, 4, 2]),
        rng.choice(["bfloat16", "float16"]), rng.choice(["bfloat16", "float16", "float32"]), rng.random() < 0.5,
        rng.random() < 0.5, rng.choice([None, "m", "n"]), rng.choice(["float32", "bfloat16", "float16"]),
    )  # fmt: skip


def name(case):
    (variant, card), macros = case, case[0].macros
    tile = ("TILE_M", "TILE_N", "TILE_K", "WARP_M", "WARP_N", "STAGES", "THREADS", "BLOCKS", "SHARED_BYTES")
    values = "".join(str(value) if value < 10 else "x" for key, value in macros.items() if key not in tile)
    return f"{variant.name}-{values}-sm{card[0]}{card[1]}"


@pytest.mark.parametrize("case", sample(cases()), ids=name)
def test_compiles(case):
    variant, card = case
    assert variant.refusal(LIMITS[card]) is None
    check_resources(one_of(sample(cases()), case), case)


def test_the_sample_has_every_value():
    seen = {(key, value) for variant, _ in cases() for key, value in variant.macros.items()}
    wanted = {"A_M_MAJOR": 2, "B_N_MAJOR": 2, "INPUT": 2, "OUTPUT": 3, "SCALED": 2, "ADDEND": 2, "BIAS": 3,
              "BIAS_TYPE": 3, "ACTIVATION": 1 + len(ACTIVATIONS), "SPLIT": 2}  # fmt: skip
    assert {key: sum(1 for k, _ in seen if k == key) for key in wanted} == wanted
    for key in ("A_BYTES_ALIGNED", "B_BYTES_ALIGNED"):
        assert {value for k, value in seen if k == key} == {2, 4, 8, 16}
    assert {card for _, card in cases()} == set(LIMITS)


def test_shapes_have_names_of_their_own():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert Shape(128, 64, 32, 4, 32, 32).name == "mma128x64x32x4w8"


def test_every_card_has_large_and_small_shapes():
    for limit in LIMITS.values():
        tiles = {(x.m, x.n) for x in SHAPES if Variant(x, PLAIN).refusal(limit) is None}
        assert tiles >= {(256, 128), (128, 256), (128, 128), (64, 64), (16, 64)}


def test_every_alignment_has_a_shape():
    """Only the largest shapes need rows of 16 bytes."""
    for aligned in (2, 4, 8):
        form = replace(PLAIN, b_alignment=aligned)
        assert any(Variant(x, form).refusal(LIMITS[8, 6]) is None for x in SHAPES if x.m == x.n == 128)


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (Variant(SHAPES[1], PLAIN), "147568 bytes of shared memory: a CTA has at most 101376"),
        (Variant(SHAPES[4], replace(PLAIN, input="float32")), "do not multiply float32"),
        (Variant(SHAPES[0], replace(PLAIN, a_alignment=4)), "no registers for rows that are aligned to 4 bytes"),
    ],
    ids=["shared", "float32", "aligned"],
)
def test_refusals_have_reasons(variant, reason):
    assert reason in variant.refusal(LIMITS[8, 6])
