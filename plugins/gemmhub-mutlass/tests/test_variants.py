"""Configurations: tiles, vectors, the source that is made of them."""

from __future__ import annotations

import re

import pytest
from gemmhub_mutlass import sources
from gemmhub_mutlass.sources import LONG, SHORT
from gemmhub_mutlass.variants import SIMT, TENSOR, TF32, configurations, tiles


def configuration(math=TENSOR, dtype="float16", result="float32", arch="mp_22", tile=0, **changes):
    options = {"column_a": False, "column_b": True, "vectors": True, "result_vectors": True, **changes}
    return list(configurations(arch, (math,), dtype, result, **options))[tile]


def definitions(configuration, arguments=LONG):
    text = sources.text(configuration, arguments)
    return dict(re.findall(r"^#define GEMMHUB_(\w+) (.+)$", text, re.MULTILINE))


def test_the_usual_tile_is_the_public_example_s():
    for dtype, k in (("float16", 32), ("bfloat16", 32), ("int8", 64)):
        first = configuration(dtype=dtype, result="int32" if dtype == "int8" else "float32")
        assert first.name == f"tensor_256x128x{k}"
        assert first.tile.atoms == (2, 1)
    assert configuration(TF32, "float32").name == "tf32_256x128x16"
    assert configuration(arch="mp_31").name == "tensor_256x128x32"


def test_names_differ():
    for arch in ("mp_22", "mp_31"):
        names = [x.name for x in configurations(arch, (TF32, SIMT), "float32", "float32", False, False, True, True)]
        assert len(set(names)) == len(names) >= 3


def test_no_kernels_without_tensor_cores_for_mp_31():
    assert tiles("mp_31", SIMT, 4) == ()
    assert len(tiles("mp_22", SIMT, 4)) == 5


@pytest.mark.parametrize("arch", ["mp_22"])
@pytest.mark.parametrize(("math", "itemsize"), [(TENSOR, 1), (TENSOR, 2), (TF32, 4), (SIMT, 4)])
def test_atoms_fit_tiles(arch, math, itemsize):
    """MUTLASS's conditions: a tile is made of whole instructions; its steps along k hold whole ones, too."""
    side, depth = (1, 1) if math == SIMT else (32, 32 // itemsize)
    for tile in tiles(arch, math, itemsize):
        assert tile.m % (side * tile.atoms[0]) == 0
        assert tile.n % (side * tile.atoms[1]) == 0
        assert tile.k % depth == 0


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("columns", [(False, False), (True, True), (False, True), (True, False)])
def test_threads_fit_the_loads_of_a_tile(columns, vectors):
    """MUTLASS's condition on alignments: a block's threads cover the contiguous dimension, and the rest the other."""
    kinds = ((TENSOR, "float16"), (TENSOR, "int8"), (TF32, "float32"), (SIMT, "float32"))
    for math, dtype in kinds:
        for each in configurations("mp_22", (math,), dtype, "float32", *columns, vectors, vectors):
            threads = each.tile.atoms[0] * each.tile.atoms[1] * (1 if math == SIMT else 128)
            for size, dense_k, alignment in zip(
                (each.tile.m, each.tile.n), (not columns[0], columns[1]), each.alignments
            ):
                dense, other = (each.tile.k, size) if dense_k else (size, each.tile.k)
                along, rest = divmod(dense, alignment)
                assert rest == 0, each
                assert along > 0, each
                assert threads % along == 0, each
                assert threads < along or other % (threads // along) == 0, each


def test_alignments():
    assert configuration().alignments == (8, 8, 4)
    assert configuration(dtype="int8", result="int32").alignments == (16, 16, 4)
    assert configuration(result="float16").alignments == (8, 8, 8)
    assert configuration(vectors=False).alignments == (1, 1, 4)
    assert configuration(vectors=False, result_vectors=False).alignments == (1, 1, 1)
    # Of 512 elements of a and 256 threads each loads two.
    assert configuration(SIMT, "float32").alignments == (2, 2, 4)
    assert configuration(SIMT, "float32", tile=4).alignments == (4, 1, 4)


def test_source():
    found = definitions(configuration())
    assert found == {
        "BUILDER_ARGUMENTS": "15", "ARCH": "mutlass::arch::Mp22", "OP_CLASS": "mutlass::arch::OpClassTensorOp",
        "SCHEDULE": "mutlass::gemm::collective::KernelScheduleAuto",
        "ELEMENT": "mutlass::half_t", "RESULT": "float", "ACCUMULATOR": "float", "TILE_M": "256", "TILE_N": "128",
        "TILE_K": "32", "ATOMS_M": "2", "ATOMS_N": "1", "COLUMN_A": "0", "COLUMN_B": "1", "ALIGNMENT_A": "8",
        "ALIGNMENT_B": "8", "ALIGNMENT_D": "4",
    }  # fmt: skip
    newer = definitions(configuration(arch="mp_31"), SHORT)
    assert (newer["ARCH"], newer["SCHEDULE"]) == ("mutlass::arch::Mp31", "mutlass::gemm::KernelTme")
    whole = definitions(configuration(dtype="int8", result="int32"))
    assert (whole["ELEMENT"], whole["RESULT"], whole["ACCUMULATOR"]) == ("int8_t", "int32_t", "int32_t")


def test_float32_is_tf32_only_where_allowed():
    reduced, full = definitions(configuration(TF32, "float32")), definitions(configuration(SIMT, "float32"))
    assert (reduced["ELEMENT"], reduced["OP_CLASS"]) == ("mutlass::tfloat32_t", "mutlass::arch::OpClassTensorOp")
    assert (full["ELEMENT"], full["OP_CLASS"]) == ("float", "mutlass::arch::OpClassSimt")
    assert full["RESULT"] == reduced["RESULT"] == "float"


def test_the_template_uses_every_definition():
    template = sources.TEMPLATE.read_text()
    for name in definitions(configuration()):
        assert template.count(f"GEMMHUB_{name}") + template.count(f"GEMMHUB_{name[:-1]}{{") >= 2, name


@pytest.mark.parametrize("arguments", [LONG, SHORT])
def test_the_trial_names_a_builder(arguments):
    (inside,) = re.findall(r"CollectiveBuilder<(.*)>;", sources.trial(arguments))
    given = inside.split(", ")
    assert len(given) == arguments
    assert [place for place, x in enumerate(given) if x == "1"] == [4, 7]
