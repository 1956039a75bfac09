"""The float32 kernel compiles in every shape, with every kind of epilogue, without spills or stack; and is kept."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from compilations import compiled, one_of, sample
from gemmhub_cuda.variants import limits
from gemmhub_cuda.variants.form import ACTIVATIONS, Form
from gemmhub_cuda.variants.sgemm import SHAPES, Variant
from gemmhub_cuda.variants.sources import source
from gemmhub_nvidia import nvrtc

pytestmark = pytest.mark.compiler

CAPABILITIES = [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)]
LEAST = 49152
"""Largest shared memory of a CTA on every card, in bytes."""
PLAIN = Form(False, True, 16, 16, "float32", "float32")
FULL = replace(PLAIN, scaled=True, addend=True, bias="n", activation="gelu")
LARGE = next(shape for shape in SHAPES if (shape.m, shape.n, shape.threads) == (128, 128, 256))
DRAWN = 16
"""Number of drawn variants, besides those that are listed."""


def variants():
    """(variant, capability)"""
    found = [(Variant(shape, PLAIN), CAPABILITIES[i % 4]) for i, shape in enumerate(SHAPES)]
    found += [(Variant(LARGE, FULL, True), capability) for capability in CAPABILITIES]
    found += [
        (Variant(SHAPES[1], replace(FULL, a_m_major=True, b_n_major=False)), (9, 0)),
        (Variant(LARGE, replace(PLAIN, a_alignment=4, b_alignment=4)), (8, 6)),
        (Variant(LARGE, FULL), (7, 5)),
        (Variant(LARGE, FULL), (10, 0)),
        (Variant(LARGE, FULL), (12, 0)),
    ]
    rng, listed = random.Random(0), len(found)
    while len(found) < listed + DRAWN:
        given = drawn(rng), rng.choice(CAPABILITIES)
        if given[0].refusal(LEAST) is None and given not in found:
            found.append(given)
    return found


def drawn(rng):
    """Draw a variant, which may be a refused one."""
    form = Form(
        a_m_major=rng.random() < 0.5,
        b_n_major=rng.random() < 0.5,
        a_alignment=rng.choice([16, 16, 8, 4]),
        b_alignment=rng.choice([16, 16, 8, 4]),
        input="float32",
        output=rng.choice(["bfloat16", "float16", "float32"]),
        scaled=rng.random() < 0.5,
        addend=rng.random() < 0.5,
        bias=rng.choice([None, "m", "n"]),
        bias_type=rng.choice(["float32", "bfloat16", "float16"]),
        activation=rng.choice([None, *ACTIVATIONS]),
    )
    return Variant(rng.choice(SHAPES), form, rng.random() < 0.4)


def name(given):
    variant, capability = given
    form = variant.form
    letters = ("m" if form.a_m_major else "k") + ("n" if form.b_n_major else "k")
    words = [variant.name, "sm{}{}".format(*capability), letters, f"{form.a_alignment},{form.b_alignment}", form.output]
    words += [form.activation or "", f"bias_{form.bias}" if form.bias else ""]
    flags = {"c": form.addend, "alpha": form.scaled, "split": variant.split_k}
    return "-".join(word for word in (*words, *(word for word, used in flags.items() if used)) if word)


@pytest.mark.parametrize("given", sample(variants()), ids=name)
def test_compiles(given):
    made, (variant, capability) = one_of(sample(variants()), given), given
    # Of older compilers NVRTC 13.0 spills before and after the loop over tiles, though not in it.
    assert made.spilled <= (0 if nvrtc.load().version >= (13, 5) else 512), made.log
    assert made.registers <= min(255, 65536 // (variant.ctas_per_sm(limits.of(capability)) * variant.threads)), made.log


def test_spills_would_show():
    """The registers for four times as many CTAs do not hold the accumulators: the log shows spills."""
    made = compiled((Variant(replace(SHAPES[0], ctas_per_sm=4 * SHAPES[0].ctas_per_sm), PLAIN), (9, 0)))
    assert made.spilled > 0


def test_cubins_are_kept(monkeypatch):
    compiler, given = nvrtc.load(), (Variant(SHAPES[-1], PLAIN), (9, 0))
    first = nvrtc.cubin(compiler, source(*given))

    def never(*given, **named):
        raise AssertionError("compiled again")

    monkeypatch.setattr(type(compiler), "compile", never)
    assert nvrtc.cubin(compiler, source(*given)) == first


def test_keys_differ():
    compiler, every = nvrtc.load(), variants()
    assert len({nvrtc.key(compiler, source(*given)) for given in every}) == len(every)
