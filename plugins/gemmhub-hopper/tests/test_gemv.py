"""The kernel for a few vectors by a matrix, on the emulator; and what chooses it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.cost import corrections
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import sources
from gemmhub_nvidia import nvrtc
from problems import H200, operand, problem
from runs import Run, detected
from tiers import half
from vectors import VECTORS, Vector, vector

from gemmhub.accuracy import error_model, reference
from gemmhub.layout import MatrixLayout

pytestmark = pytest.mark.emulator

FLOAT32 = error_model(*[np.dtype(np.float32)] * 4)


def choices(asked):
    lowerings = lower.lowerings(asked)
    return gemv.choices(lowerings)


@pytest.mark.parametrize("product", VECTORS, ids=str)
def test_results_are_exact(product):
    Run(product).check()


def test_every_division_of_k_is_tried():
    """Above, and so the test can fail for each."""
    found = [x for b in ("row", "col") for x in choices(problem(1, 64, 64, b=b))]
    names = {x.name for x in found}
    assert names == {x.choice.name for x in VECTORS if x.choice.kernel.load_bytes == 16 and x.dtype == "bfloat16"}


def test_more_vectors_are_for_tensor_cores():
    assert choices(problem(8, 64, 64))
    assert choices(problem(9, 64, 64)) == []
    assert choices(problem(17, 64, 64, "float32")) == []


@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("m", [9, 16])
def test_sixteen_vectors_go_through_shared_memory(b, m):
    """Else there is no kernel for so many."""
    asked = problem(m, 64, 64, "float32", b=b)
    assert all(x.kernel.staged and x.kernel.vectors == 16 for x in choices(asked))
    assert {x.name for x in choices(asked)} == {"gemv16a", "gemv32a", "gemv64a", "gemv32x8a"}
    assert choices(replace(asked, a=replace(asked.a, alignment=8))) == []


@pytest.mark.parametrize(("m", "n"), [(12, 3), (3, 12), (16, 8), (8, 16)])
def test_fewer_vectors_go_first(m, n):
    assert {x.lowering.m for x in choices(problem(m, n, 64, "float32"))} == {min(m, n)}


def test_without_k():
    """Nothing is read."""
    asked = problem(1, 64, 0)
    assert choices(asked)
    Run(vector(1, 64, 0, spread=8, beta=2)).check()


def test_names_are_unique():
    for asked in (
        problem(m, 64, 64, dtype, b=b) for m in (1, 4, 8) for dtype in ("float16", "float32") for b in ("row", "col")
    ):
        found = choices(asked)
        assert len({x.name for x in found}) == len({x.kernel for x in found}) == len(found)


def test_loads_ahead_are_for_wide_loads():
    """Kernels load ahead for one vector, or for several of float32."""
    for asked in (
        problem(1, 64, 64),
        *(problem(m, 64, 64, "float32") for m in (2, 8)),
        problem(5, 64, 64, "float32", b="col"),
    ):
        assert any(x.kernel.cp_async for x in choices(asked))
    refused = problem(1, 60, 64), problem(2, 64, 64), problem(2, 62, 64, "float32")
    for asked in (*refused, problem(1, 64, 64, b="col"), problem(4, 64, 64, "float32", b="col")):
        assert choices(asked)
        assert not any(x.kernel.cp_async for x in choices(asked))


@pytest.mark.parametrize("b", ["row", "col"])
def test_staged_vectors_are_aligned(b):
    """They are copied in units of 16 bytes."""
    asked = problem(8, 64, 64, "float32", b=b)

    def staged(**changes):
        return any(x.kernel.staged for x in choices(replace(asked, a=replace(asked.a, **changes))))

    assert staged()
    assert staged(layout=MatrixLayout(8, 64, 68, 1))
    assert not staged(alignment=8)
    assert not staged(layout=MatrixLayout(8, 64, 66, 1))
    assert not staged(layout=MatrixLayout(8, 64, 1, 8))
    assert not any(x.kernel.staged for x in choices(problem(8, 64, 62, "float32", b=b)))


def test_vectors_of_another_dtype():
    """Of two dtypes a load has as many elements of both, at most 16 bytes of each; none goes through shared memory."""

    def load(types, n=64, k=64, m=1, a="row", b="row", **changes):
        asked = Vector(None, m, n, k, a, b, dtype="float32", types=types).problem
        found = choices(replace(asked, a=replace(asked.a, **changes)))
        assert not any(x.kernel.staged for x in found)
        ((nbytes, of_w, of_x),) = {(x.kernel.load_bytes, x.kernel.input, x.kernel.x_input) for x in found}
        assert (of_x, of_w) == types
        assert {x.moved_bytes for x in found} == {
            m * k * asked.a.dtype.itemsize + k * n * asked.b.dtype.itemsize + 4 * m * n
        }
        return nbytes

    narrow, wide = ("float16", "float32"), ("float32", "bfloat16")
    for b, expected in (("col", (16, 8)), ("row", (16, 16))):
        assert (load(narrow, b=b), load(wide, b=b)) == expected
        assert (load(narrow, m=8, b=b), load(wide, m=8, b=b)) == expected
    assert [load(narrow, k=k, b="col") for k in (66, 65)] == [8, 4]
    assert [load(wide, k=k, b="col") for k in (66, 65)] == [4, 2]
    assert [load(narrow, n=n) for n in (66, 65)] == [8, 4]
    # The address and the rows of the vectors are aligned to bytes of their own.
    assert [load(narrow, b="col", alignment=x) for x in (16, 8, 4, 2)] == [16, 16, 8, 4]
    assert [load(wide, b="col", alignment=x) for x in (16, 8, 4)] == [8, 4, 2]
    assert [load(narrow, b="col", m=2, layout=MatrixLayout(2, 64, x, 1)) for x in (68, 66, 65)] == [16, 8, 4]
    assert load(narrow, alignment=2) == 16
    assert load(narrow, m=8, a="col", b="col") == 16


def float32s(kind, shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "wide":
        return np.ldexp(x, rng.integers(-30, 30, shape))
    if kind == "subnormal":
        return np.ldexp(x, rng.choice([-149, -120, -10, 60], shape))
    if kind == "special":
        some = rng.choice([np.inf, -np.inf, np.nan, 3e38, 0.0], shape).astype(np.float32)
        return np.where(rng.random(shape) < 0.001, some, x)
    return x


@pytest.mark.parametrize(("b", "spread", "m"), [("col", "32a", 16), ("row", "32x8a", 9)])
@pytest.mark.parametrize("kind", ["normal", "wide", "subnormal", "special"])
def test_sixteen_vectors_are_within_the_bound(b, spread, m, kind):
    rng = np.random.default_rng()
    run = Run(vector(m, 132, 1300, b=b, dtype="float32", spread=spread))
    x, y = float32s(kind, (m, 1300), rng), float32s(kind, (1300, 132), rng)
    assert np.max(reference(x, y, model=FLOAT32).ratio(run.of(x, y))) <= 1


MUTATIONS = {
    "X is read before all of it has arrived": ("block_sync();\n            issue_x(chunk + 1);", "issue_x(chunk + 1);"),
    "sums are stored over loads that are under way": ("copy_wait<0>();", ""),
    "sums are stored over elements that others read": ("block_sync();  // sums overwrite", "// sums overwrite"),
    "a block is read before it has arrived": ("copy_wait<kNumAhead - 1>();\n        if (block", "if (block"),
    "X has one buffer": ("+ chunk % 2 * BUFFER_BYTES + 16 * unit", "+ 16 * unit"),
    "X ends with its first chunk": ("issue_x(chunk + 1);", ""),
    "the first block takes no part": ("for (u32 block = 0; block < blocks", "for (u32 block = 1; block < blocks"),
    "the CTAs of a cluster read the same X": ("4 * (first - share + ", "4 * (0 * share + "),
    "the next block takes a slot that is in use": ("issue(block + kNumAhead);", "issue(block + kNumAhead + 1);"),
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices(mutation, monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, "gemv_kernel.cu", MUTATIONS[mutation])
    monkeypatch.setattr(gemv, "_STAGED", ((8, 1), (32, 2)))  # the former's warps do not meet before sums are stored
    for b, n, k, spread in (("col", 70, 1100, "32x2a"), ("row", 136, 2000, "8a")):
        if detected(Run(vector(8, n, k, b=b, dtype="float32", spread=spread), home), 6):
            return
    pytest.fail("not detected by the emulator or by a wrong result")


def test_a_strided_vector():
    x = operand("bfloat16", 1, 64)
    strided = replace(x, layout=replace(x.layout, row_stride=128, col_stride=2))
    for b in ("row", "col"):
        asked = problem(1, 64, 64, b=b)
        assert not any(x.kernel.strided_x for x in choices(asked))
        (told,) = {x.kernel.strided_x for x in choices(replace(asked, a=strided))}
        assert told == (b == "col")  # else elements are taken one by one anyhow


def test_loads_are_as_wide_as_all_rows_allow():
    def width(n=64, k=64, b="row", **changes):
        asked = problem(1, n, k, b=b)
        given = replace(asked.b, **changes)
        (found,) = {x.kernel.load_bytes for x in choices(replace(asked, b=given))}
        return found

    assert width() == 16
    assert width(alignment=8) == 8
    assert width(n=62) == 4
    assert width(n=63) == 2
    assert width(k=62) == 16
    assert width(k=62, b="col") == 4
    assert width(layout=MatrixLayout(64, 64, 68, 1)) == 8
    assert {x.kernel.load_bytes for x in choices(problem(1, 64, 64, "float32"))} == {16}


@pytest.mark.parametrize("asked", [problem(1, 4096, 4096, b="col"), problem(4096, 1, 4096, "float32")])
def test_the_backend_proposes_it(asked):
    backend = Home(attributes={16: 132}).backend()
    offer = backend.offer(asked)
    name = offer.first.name
    assert name.startswith("gemv")
    assert not offer.first.copies
    assert offer.first.order is None
    assert "few vectors by a matrix" in offer.remark(name)
    assert backend.prepare(asked, name, 0).workspace_bytes == 0
    assert 0 < offer.first.seconds < 1e-3


def test_more_threads_for_a_longer_k():
    backend = Home(attributes={16: 132}).backend()
    names = [backend.offer(problem(1, 64, k, b="col")).first.name for k in (1024, 100000)]
    spreads = [int(name.removeprefix("gemv")) for name in names]
    assert spreads[0] < spreads[1]


def test_the_backend_proposes_it_for_two_dtypes():
    backend = Home(attributes={16: 132}).backend()
    for m, n, k, types in (
        (1, 768, 6144, ("bfloat16", "float32")), (768, 1, 6144, ("float32", "float16")),
        (1, 4096, 4096, ("float32", "bfloat16")),
    ):  # fmt: skip
        asked = Vector(None, m, n, k, dtype="float32", types=types).problem
        first = backend.offer(asked).first
        name = first.name
        assert name.startswith("gemv")
        assert not first.copies
        assert backend.prepare(asked, name, 0).workspace_bytes == 0
        (described,) = corrections.describe(asked, H200, [name])
        assert (described.kind, len(described.rows)) == ("vectors", 1)
    many = Vector(None, 9, 768, 6144, dtype="float32", types=("bfloat16", "float32")).problem
    assert not any(name.startswith("gemv") for name in backend.offer(many).names)


KERNELS = sorted({x.choice.kernel for x in VECTORS}, key=repr)


@pytest.mark.parametrize(
    "kernel", half(KERNELS, sources.gemv(KERNELS[0]).files), ids=lambda x: "-".join(map(str, x.macros.values()))
)
def test_it_compiles(kernel):
    made = nvrtc.load().compile(sources.gemv(kernel), verbose=True)
    assert made.spilled == 0, made.log
    # Those of the loads that are under way at a time, among others: they are not waited for one by one.
    loads = 0 if kernel.cp_async else kernel.unroll * max(1, kernel.load_bytes // 4)
    assert 16 + loads <= made.registers <= 256 // kernel.min_ctas_per_sm, made.log
