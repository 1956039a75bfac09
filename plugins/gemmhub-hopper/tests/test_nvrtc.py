"""Every tile, and every kind of epilogue, compiles for sm_90a without spills, stack or serialised wgmmas.

With TEST_VARIANTS in the environment (``make test-all``) every shape does, with each of its kinds of epilogues.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import cache

import pytest
from gemmhub_hopper.variants import wgmma
from gemmhub_hopper.variants.config import ACTIVATIONS, EIGHT_BIT, INT8, Form, Shape, Variant
from gemmhub_hopper.variants.shapes import (
    EIGHT_BIT_SHAPES,
    F16_PLANES_SHAPES,
    F16_REGISTER_SHAPES,
    GROUPED_EIGHT_BIT_SHAPES,
    GROUPED_SHAPES,
    GROUPED_SMALL_SHAPES,
    REGISTER_SHAPES,
    SHAPES,
    SHIFTED_SHAPES,
    SMALL_SHAPES,
    SPLIT_SHAPES,
    shapes,
)
from gemmhub_hopper.variants.sources import f16_prepass, prepass, source
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import Compiled, CompilerError

pytestmark = pytest.mark.compiler

PLAIN = Form(False, True, "bfloat16", "bfloat16")
SPLIT = Form(False, True, "split", "float32")
LARGE = Shape(128, 256, 4)


def variants():
    """All shapes with the plainest epilogue, and the largest tiles with every other feature."""
    found = [Variant(shape, PLAIN) for shape in SHAPES]
    full = replace(PLAIN, addend="bfloat16", bias="n", activation="gelu")
    forms = [
        full,
        replace(full, transposed_d=True, bias="m", activation="silu"),
        replace(full, tma_store=False, output="float32", addend="float32"),
        replace(full, tma_store=False, transposed_d=True, activation="relu"),
        Form(True, False, "float16", "float16", transposed_d=True),
        Form(True, True, "float16", "float32", tma_store=False),
        Form(False, False, "tf32", "float32"),
    ]
    found += [Variant(LARGE, form) for form in forms]
    found += [Variant(Shape(256, 128, 4, cluster_n=2), full, split_k=True), Variant(LARGE, full, split_k=True)]
    found += [Variant(Shape(64, 16, 12, consumers=1), replace(PLAIN, transposed_d=True), split_k=True)]
    found += [Variant(Shape(128, 192, 5, cluster_m=2, cluster_k=k), forms[i]) for i, k in ((0, 2), (2, 4))]
    turns = Shape(128, 128, 6, pingpong=True)
    found += [Variant(turns, form, split) for form, split in zip(forms[1:4], (True, False, True))]
    found += [Variant(turns, forms[-1])]
    # Results whose rows warps store, from as many accumulators as there may be.
    by_warps = replace(PLAIN, tma_store=False)
    most = Shape(128, 192, 5, pingpong=True), Shape(256, 192, 3)
    found += [
        Variant(shape, replace(by_warps, transposed_d=transposed)) for shape in most for transposed in (False, True)
    ]
    found += [Variant(LARGE, replace(by_warps, output="float32", transposed_d=x)) for x in (False, True)]
    found += [Variant(Shape(256, 192, 3), replace(forms[-1], transposed_d=transposed)) for transposed in (False, True)]
    wider = replace(full, addend="float32")
    found += [Variant(LARGE, wider), Variant(LARGE, replace(wider, transposed_d=True, bias="m", activation="silu"))]
    gated = replace(PLAIN, mn_major_b=False, bias="n", activation="swiglu")
    found += [Variant(LARGE, gated, split_k) for split_k in (False, True)]
    found += [Variant(LARGE, replace(gated, mn_major_b=True, activation="geglu"))]
    found += [Variant(LARGE, replace(gated, activation="swiglu_interleaved", output="float32"))]
    found += [Variant(Shape(128, 192, 5, cluster_m=2), replace(gated, input="e4m3.e4m3", scales="blocks"))]
    found += [Variant(LARGE, replace(wider, addend="bfloat16", stores_before=True), x) for x in (False, True)]
    floats = replace(full, output="float32", addend="float32")
    found += [Variant(LARGE, floats), Variant(LARGE, replace(floats, transposed_d=True, bias="m", activation="silu"))]
    found += [Variant(turns, floats, split_k=True), Variant(Shape(128, 32, 8), floats)]
    found += [Variant(shape, SPLIT) for shape in SPLIT_SHAPES]
    full = replace(SPLIT, addend="float32", bias="n", activation="gelu")
    for shape, split in ((SPLIT_SHAPES[0], False), (SPLIT_SHAPES[1], True), (SPLIT_SHAPES[2], True)):
        found += [Variant(shape, full, split), Variant(shape, replace(full, transposed_d=True, bias="m"), split)]
    found += [Variant(SPLIT_SHAPES[0], replace(full, mn_major_a=True, mn_major_b=False, output="bfloat16"))]
    found += (
        by_float16_planes()
        + planes_in_registers()
        + through_registers()
        + shifted_rows()
        + bf16x3_variants()
        + eight_bit_variants()
        + grouped_variants()
        + symmetric_variants()
    )
    rng, count = random.Random(0), len(found) + 10
    while len(found) < count:
        variant = drawn(rng)
        if variant.refusal is None and variant not in found:
            found.append(variant)
    return found


def grouped_variants():
    """The largest shapes for groups of rows, of columns and of k, with the plain epilogue and with more."""
    rows = replace(PLAIN, divided="m")
    columns = Form(True, False, "bfloat16", "bfloat16", transposed_d=True, divided="n")
    full = {"activation": "gelu"}
    forms = [
        rows,
        replace(rows, bias="n", **full),
        replace(rows, tma_store=False, output="float32"),
        replace(rows, addend="bfloat16", bias="n"),
        columns,
        replace(columns, addend="bfloat16"),
        replace(columns, bias="m", **full),
        Form(True, True, "bfloat16", "bfloat16", divided="k"),
        Form(True, True, "bfloat16", "float32", divided="k", addend="float32"),
    ]
    largest = [x for x in GROUPED_SHAPES if x.m * x.n >= 128 * 176]
    found = [Variant(shape, form) for shape in largest for form in forms]
    wide = Form(False, False, "e4m3.e4m3", "bfloat16", scales="blocks", divided="m")
    found += [Variant(shape, wide) for shape in GROUPED_EIGHT_BIT_SHAPES]
    found += [Variant(shape, replace(wide, divided="n", transposed_d=True)) for shape in GROUPED_EIGHT_BIT_SHAPES]
    split = Form(False, True, "split", "float32", registers_a=True, split_planes_b=True, divided="m")
    of_split = [
        split,
        replace(split, bias="n", tma_store=False, **full),
        replace(split, mn_major_a=True, mn_major_b=False, transposed_d=True, divided="n"),
        replace(split, mn_major_a=True, divided="k"),
        replace(split, mn_major_a=True, divided="k", transposed_d=True, bias="m", tma_store=False, **full),
    ]
    found += [Variant(shape, form) for shape in GROUPED_SMALL_SHAPES for form in of_split]
    tf32 = Form(True, False, "tf32", "float32", registers_a=True, transposed_d=True, divided="n")
    found += [Variant(shape, form) for shape in GROUPED_SHAPES for form in (tf32, replace(tf32, bias="m", **full))]
    return [variant for variant in found if variant.refusal is None]


def symmetric_variants():
    """The largest shapes for symmetric results: by TMA and by warps, with c, and with split-K where it is allowed."""
    half, tf32 = replace(PLAIN, symmetric=True), Form(False, False, "tf32", "float32", symmetric=True)
    found = []
    for form, shape in (
        (half, LARGE),
        (tf32, LARGE),
        (replace(half, output="float32"), Shape(128, 128, 6, pingpong=True)),
        (replace(SPLIT, input="f16x3", symmetric=True), Shape(128, 128, 5)),
        (replace(SPLIT, symmetric=True), SPLIT_SHAPES[0]),
    ):
        full = replace(form, addend=form.output)
        forms = [form, full, replace(form, tma_store=False), replace(full, tma_store=False)]
        found += [Variant(shape, x, split) for x in forms for split in (False, True)]
    return [variant for variant in found if variant.refusal is None]


def by_float16_planes():
    """All shapes, of every order; each with more in the epilogue, and with split-K where there are registers for it."""
    plain = replace(SPLIT, input="f16x3")
    full = replace(plain, addend="float32", bias="n", activation="gelu")
    forms = [
        plain,
        replace(plain, mn_major_a=True, mn_major_b=False, transposed_d=True),
        full,
        replace(full, transposed_d=True, bias="m", activation="silu", tma_store=False),
        replace(full, mn_major_a=True, mn_major_b=False, output="bfloat16"),
    ]
    found = [Variant(shape, form) for shape in F16_PLANES_SHAPES for form in forms]
    found += [Variant(shape, form, split_k=True) for shape in F16_PLANES_SHAPES for form in (plain, *forms[2:4])]
    return [variant for variant in found if variant.refusal is None]


def planes_in_registers():
    """All shapes of float16 planes of a that consumers make, and of what multiplies the rows that these do not hold."""
    plain = Form(False, False, "f16x3", "float32", registers_a=True)
    full = replace(plain, bias="n", activation="gelu")
    forms = [
        plain,
        replace(plain, mn_major_a=True, transposed_d=True),
        full,
        replace(full, transposed_d=True, bias="m", activation="silu", tma_store=False),
        replace(full, mn_major_a=True, output="bfloat16"),
    ]
    found = [Variant(shape, form, split) for shape in F16_REGISTER_SHAPES for form in forms for split in (False, True)]
    again = [replace(form, input="split", rescaled=True) for form in forms]
    found += [Variant(shape, form) for shape in REGISTER_SHAPES for form in (again[0], again[1], again[3])]
    return [variant for variant in found if variant.refusal is None]


def through_registers():
    """All shapes for a split a, and the largest ones for tf32; the largest of both with more in the epilogue."""
    split = Form(True, True, "split", "float32", transposed_d=True, registers_a=True)
    tf32 = replace(split, input="tf32", mn_major_b=False)
    large = [LARGE, Shape(256, 128, 4), Shape(64, 256, 5, consumers=1), Shape(128, 128, 6, pingpong=True)]
    found = [Variant(shape, split) for shape in REGISTER_SHAPES] + [Variant(shape, tf32) for shape in large]
    large = [(x, tf32) for x in large] + [(x, split) for x in REGISTER_SHAPES if x.n == 96]
    for shape, form in large:
        full = replace(form, addend="float32", activation="gelu", tma_store=False)
        found += [Variant(shape, replace(full, bias="n", transposed_d=False), True)]
        found += [Variant(shape, replace(full, bias="m", output="bfloat16", activation="silu"))]
    found += [
        Variant(shape, replace(split, mn_major_a=False, mn_major_b=False), True) for shape in REGISTER_SHAPES[-2:]
    ]
    clusters = Shape(128, 256, 4, cluster_m=2), Shape(256, 128, 4, cluster_n=2)
    found += [Variant(shape, tf32) for shape in clusters]
    small = replace(split, split_planes_b=True)
    found += [Variant(shape, small) for shape in SMALL_SHAPES]
    found += [Variant(shape, replace(small, mn_major_a=False), split_k=True) for shape in SMALL_SHAPES if shape.n != 48]
    for shape in (x for x in SMALL_SHAPES if x.n == 96 or (x.m, x.n) == (128, 64)):
        full = replace(small, addend="float32", activation="gelu", tma_store=False)
        found += [Variant(shape, replace(full, bias="n", transposed_d=False, mn_major_b=False))]
    return [variant for variant in found if variant.refusal is None]


def shifted_rows():
    """All shapes for shifted rows of either size, and columns; with more in the epilogue, and with split-K."""
    found = []
    for plain in (
        Form(False, False, "tf32", "float32", tma_store=False, registers_a=True),
        Form(True, False, "tf32", "float32", tma_store=False, registers_a=True, shifted_columns=True),
        Form(False, True, "bfloat16", "bfloat16", tma_store=False, registers_a=True),
    ):
        full = replace(plain, addend=plain.output, bias="n", activation="gelu")
        forms = [
            (plain, False),
            (replace(plain, transposed_d=True), True),
            (full, True),
            (replace(full, transposed_d=True, bias="m", activation="silu"), False),
        ]
        found += [Variant(shape, form, split) for shape in SHIFTED_SHAPES for form, split in forms]
    return [variant for variant in found if variant.refusal is None]


def bf16x3_variants():
    """All shapes for two planes of bfloat16; the largest with more in the epilogue, and with split-K."""
    plain = Form(False, False, "bf16x3", "float32")
    full = replace(plain, addend="float32", bias="n", activation="gelu")
    found = [Variant(shape, plain) for shape in SHAPES]
    found += [Variant(shape, form) for shape in SHAPES[:5] for form in (full, replace(plain, mn_major_a=True))]
    found += [Variant(shape, plain, split_k=True) for shape in SHAPES[:16]]
    return [variant for variant in found if variant.refusal is None]


def eight_bit_variants():
    """All shapes for 8-bit floats with scales of blocks, and with more in the epilogue; the largest for every pair of
    formats, and for integers.
    """
    plain = Form(False, False, "e4m3.e4m3", "bfloat16")
    full = replace(plain, addend="bfloat16", bias="n", activation="gelu")
    floats = replace(full, output="float32", addend="float32", transposed_d=True, bias="m", activation="silu")
    forms = [
        plain,
        replace(full, scales="blocks"),
        replace(floats, scales="blocks", tma_store=False),
        replace(full, scales="results"),
        replace(floats, scales="results"),
        replace(full, scales="results", transposed_d=True, bias="m", tma_store=False),
    ]
    found = [Variant(shape, form) for shape in EIGHT_BIT_SHAPES for form in forms]
    found += [Variant(shape, form, split_k=True) for shape in EIGHT_BIT_SHAPES for form in forms[:4]]
    large = [shape for shape in EIGHT_BIT_SHAPES if shape.m * shape.n >= 128 * 128]
    narrow = [replace(form, output="float8_e4m3fn", addend=form.addend and "bfloat16") for form in forms]
    found += [Variant(shape, form) for shape in large for form in narrow]
    found += [Variant(shape, narrow[1], split_k=True) for shape in EIGHT_BIT_SHAPES]
    found += [Variant(shape, replace(PLAIN, output="float8_e5m2", bias="n")) for shape in SHAPES[::4]]
    for input_type in EIGHT_BIT[1:-1]:
        found += [Variant(shape, replace(forms[1], input=input_type)) for shape in large]
    sums = Form(False, False, EIGHT_BIT[-1], "int32")
    for form in (sums, replace(sums, transposed_d=True, tma_store=False), *(replace(x, input=INT8) for x in forms[3:])):
        found += [Variant(shape, form, split) for shape in EIGHT_BIT_SHAPES for split in (False, True)]
    return [variant for variant in found if variant.refusal is None]


def drawn(rng):
    """Any combination; it may be one that cannot be."""
    output = rng.choice(["bfloat16", "float16", "float32"])
    kind = rng.choice(["bfloat16", "float16", "tf32", "split", "f16x3", "bf16x3"])
    form = Form(
        mn_major_a=rng.random() < 0.5,
        mn_major_b=rng.random() < 0.5,
        input=kind,
        output=output,
        transposed_d=rng.random() < 0.5,
        tma_store=rng.random() < 0.8,
        addend=rng.choice([None, output, "float32"]),
        bias=rng.choice([None, "m", "n"]),
        bias_type=rng.choice(["float32", "bfloat16"]),
        activation=rng.choice([None, *ACTIVATIONS]),
        registers_a=rng.random() < 0.3,
        split_planes_b=rng.random() < 0.3,
    )
    return Variant(rng.choice(shapes(form)), form, rng.random() < 0.3)


def compiled(variant):
    """In a process of its own: (bytes of cubin, log) or what the compiler says."""
    try:
        made = nvrtc.load().compile(source(variant), verbose=True)
    except CompilerError as error:
        return str(error)
    return made


def kind(variant):
    """What decides which code multiplies."""
    return variant.form.input, variant.form.registers_a, variant.form.split_planes_b


def features(variant):
    """What a sample has at least one variant of: every tile, and of each kind every value of every property."""
    shape = variant.shape
    clusters = shape.cluster_m > 1, shape.cluster_n > 1, shape.cluster_k > 1
    mine = {**asdict(variant.form), "split_k": variant.split_k, "pingpong": shape.pingpong, "clusters": clusters}
    return {(kind(variant), *item) for item in mine.items()} | {
        (kind(variant), "consumers", shape.consumers),
        (shape.m, shape.n),
    }


def sample():
    """Variants that have all features, drawn anew whenever the kernels change; with TEST_VARIANTS all variants."""
    every = variants()
    if os.environ.get("TEST_VARIANTS"):
        return every
    kernels = repr(sorted(source(every[0]).files.items()))
    found, seen = [], set()
    for variant in random.Random(kernels).sample(every, len(every)):
        if not features(variant) <= seen:
            found.append(variant)
            seen |= features(variant)
    return found


@cache
def results():
    every = sample()
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        return dict(zip(every, pool.map(compiled, every)))


def name(variant):
    form = variant.form
    letters = ("m" if form.mn_major_a else "k") + ("m" if form.mn_major_b else "k") + ("t" if form.transposed_d else "")
    words = [variant.shape.name, letters, form.input, form.output, form.activation or "", form.bias or ""]
    words += [f"c_{form.addend}"] if form.addend else []
    flags = {
        "warps": not form.tma_store,
        "split": variant.split_k,
        "r": form.registers_a,
        "s": form.split_planes_b,
        "symmetric": form.symmetric,
    }
    return "-".join(word for word in (*words, *(word for word, used in flags.items() if used)) if word)


@pytest.mark.parametrize("variant", sample(), ids=name)
def test_compiles(variant):
    assert variant.refusal is None
    made = results()[variant]
    assert isinstance(made, Compiled), made
    assert made.cubin[:4] == b"\x7fELF"
    assert "Used" in made.log, made.log
    assert made.spilled == 0, made.log
    assert made.warnings == [], made.log
    # 384 threads begin with 168 registers each; what setmaxnreg gives the consumers is no part of this number.
    assert made.registers <= (168 if variant.shape.consumers == 2 else 255)


def test_a_sample_has_every_feature(monkeypatch):
    monkeypatch.delenv("TEST_VARIANTS", raising=False)
    drawn_variants, every = sample(), variants()
    assert set().union(*map(features, drawn_variants)) == set().union(*map(features, every))
    assert 50 < len(drawn_variants) < len(every) / 3
    monkeypatch.setenv("TEST_VARIANTS", "1")
    assert sample() == every


@pytest.mark.parametrize("input_kind", ["split", "tf32", "float16", "bf16x3", INT8])
def test_the_prepass_compiles(input_kind):
    made = nvrtc.load().compile(prepass(input_kind), verbose=True)
    assert made.cubin[:4] == b"\x7fELF"
    assert (made.spilled, made.warnings) == (0, [])
    assert made.registers <= 64


def test_the_prepass_of_float16_planes_compiles():
    made = nvrtc.load().compile(f16_prepass(), verbose=True)
    assert made.cubin[:4] == b"\x7fELF"
    assert (made.spilled, made.warnings) == (0, [])
    assert made.registers <= 64


def test_the_log_is_read():
    """These assertions can fail: a tile too large for its registers spills, and the numbers show it."""
    log = (
        "ptxas info : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
        "    8 bytes stack frame, 16 bytes spill stores, 32 bytes spill loads\nptxas info : Used 168 registers\n"
    )
    made = Compiled(b"", log)
    assert (made.spilled, made.warnings, made.registers) == (56, ["C7511"], 168)


def test_what_would_spill_is_refused():
    form = replace(PLAIN, transposed_d=True, addend="bfloat16", bias="m", activation="gelu")
    assert "no registers for this epilogue" in Variant(Shape(256, 128, 4), form).refusal
    assert Variant(Shape(256, 128, 4), replace(form, bias="n")).refusal is None
    assert Variant(LARGE, form).refusal is None


def test_a_failure_is_reported():
    variant = Variant(LARGE, replace(PLAIN))
    broken = replace(variant, form=replace(PLAIN, input="tf32"))  # which has no MN-major operands
    with pytest.raises(CompilerError, match="does not compile"):
        nvrtc.load().compile(source(broken))


def test_cubins_are_kept(monkeypatch):
    compiler, variant = nvrtc.load(), Variant(Shape(64, 16, 12, consumers=1), PLAIN)
    first = nvrtc.cubin(compiler, source(variant))

    def never(*given, **named):
        raise AssertionError("compiled again")

    monkeypatch.setattr(type(compiler), "compile", never)
    assert nvrtc.cubin(compiler, source(variant)) == first


def test_keys_differ():
    compiler = nvrtc.load()
    keys = {nvrtc.key(compiler, source(variant)) for variant in variants()}
    assert len(keys) == len(variants())
    first = source(variants()[0])
    changed = replace(first, files={**first.files, "ptx.cuh": first.files["ptx.cuh"] + " "})
    assert nvrtc.key(compiler, changed) not in keys


@pytest.mark.parametrize(("n", "kind", "count"), [(16, "bfloat16", 8), (256, "float16", 128), (128, "tf32", 64)])
def test_wgmma_names_every_register_once(n, kind, count):
    text = wgmma.header(Variant(Shape(64, n, 2, consumers=1), replace(PLAIN, input=kind, mn_major_b=False)))
    _, descriptors, fragments = text.split("DEVICE void wgmma")
    for function in (descriptors, fragments):
        for i in range(count):
            assert function.count(f'"+f"(d[{i}])') == 1
        assert f'"+f"(d[{count}])' not in function
        assert f"m64n{n}k{8 if kind == 'tf32' else 16}.f32" in function
        assert ('"n"(kWgmmaMnMajorB)' in function) == (kind != "tf32")
    assert ('"n"(kMnMajorA)' in descriptors) == (kind != "tf32")
    assert [fragments.count(f'"r"(a[{i}])') for i in range(5)] == [1, 1, 1, 1, 0]
    assert "kMnMajorA" not in fragments
