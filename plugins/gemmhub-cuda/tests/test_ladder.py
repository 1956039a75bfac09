"""benchmarks/ladder, what docs/cuda-ladder.md teaches: each step compiles, computes right, and needs its barriers."""

from __future__ import annotations

import ctypes
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import emulated
import numpy as np
import pytest
from gemmhub_nvidia import nvrtc

import gemmhub
from benchmarks.ladder import counts
from benchmarks.ladder.steps import FAMILIES, Params, read, steps
from benchmarks.pages import ladder as page
from benchmarks.pages import tables
from benchmarks.run import cuda_ladder

pytestmark = pytest.mark.emulator

STEPS = {step.name: step for family in FAMILIES for step in steps(family)}

# fmt: off
PLACES = ("block_sync();", "copy_wait<1>();", "copy_wait<STAGES - 2>();")
"""Each of them is taken out, one at a time, of every step..."""
SAME_LOOP = ("sgemm_3_", "sgemm_5_", "sgemm_8_", "sgemm_9_", "mma_3_", "mma_4_", "mma_8_", "mma_10_")
"""...but for these, whose loop another step has."""
MISTAKES = {
    # Those of the notes that the page names, and others that are easily made: (step, old, new), the first place.
    "columns of a not four apart": ("sgemm_4_vectors", "threadIdx.x % 2 * 4", "threadIdx.x % 2"),
    "a stored as it was loaded": ("sgemm_4_vectors", "a_at(a_column, a_row)", "a_at(a_row % 8, a_column)"),
    "the stage that is read is written": ("sgemm_6_stages", "2 * shared + STAGE - tiles", "tiles"),
    "the next tile not stored": ("sgemm_7_fragments", "        next.store(tiles);\n", ""),
    "the last k of a tile left out": ("sgemm_7_fragments", "        multiply(sums, fragment[1]);", ""),
    "fragments of the tile before": (
        "sgemm_7_fragments", "        fragment[0].load(tiles, 0, ty, tx);\n        multiply", "        multiply"),
    "too few copies waited for": ("mma_6_async", "copy_wait<1>", "copy_wait<2>"),
    "no group where nothing is copied": (
        "mma_6_async", "        copy_commit();", "        if (next < steps) copy_commit();"),
    "no group where nothing is copied to the ring": (
        "mma_7_ring", "        copy_commit();", "        if (step < steps) copy_commit();"),
    "too few copies to the ring waited for": ("mma_7_ring", "copy_wait<STAGES - 2>", "copy_wait<STAGES - 1>"),
    "copies beyond k": ("mma_7_ring", "if (step < steps) load", "load"),
    "one barrier, in the notes' order": (
        "mma_7_ring",
        "        copy_wait<STAGES - 2>();  // this step's copies have landed: this thread's,\n"
        "        block_sync();             // everybody's; and everybody is done with the step before,\n"
        "        fetch(step + STAGES - 1);  // so that its stage may be written\n",
        "        block_sync();\n        fetch(step + STAGES - 1);\n        copy_wait<STAGES - 1>();\n"),
    "a step too far ahead": ("mma_7_ring", "fetch(step + STAGES - 1);", "fetch(step + STAGES);"),
    "b's matrices in a's order": (
        "mma_3_ldmatrix", "lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2",
        "lane % 16, 2 * step + lane / 16"),
    "a swizzle that leaves the row": ("mma_5_swizzle", "chunk ^ row % 8", "chunk ^ row % 16"),
}
# fmt: on
FAULTS = {
    f"{name}: {place} {i}": (name, place, i, "")
    for name, step in STEPS.items()
    if not name.startswith(SAME_LOOP)
    for place in PLACES
    for i in range(step.path.read_text().count(place))
}
FAULTS |= {title: (name, old, 0, new) for title, (name, old, new) in MISTAKES.items()}


def changed(step, folder, old, which, new):
    """The step with one place of its source changed; a file in ``folder``."""
    parts = step.path.read_text().split(old)
    assert len(parts) > which + 1, f"{step.name} has no {old!r} number {which}"
    folder.mkdir()
    path = folder / step.path.name
    path.write_text(old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :]))
    (folder / "common.cuh").write_text((step.path.parent / "common.cuh").read_text())
    return replace(step, path=path)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The steps with each of their faults."""
    folder = tmp_path_factory.mktemp("faulty")
    return {
        fault: changed(STEPS[name], folder / str(i), *place) for i, (fault, (name, *place)) in enumerate(FAULTS.items())
    }


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """The last steps with groups that a small product has several of; and such that are all equally high."""
    folder = tmp_path_factory.mktemp("grouped")
    last = [step for name, step in STEPS.items() if name.endswith("_groups")]
    low = [changed(step, folder / f"{step.family}-low", "GROUP = 16", 0, "GROUP = 2") for step in last]
    equal = [
        changed(step, folder / f"{step.family}-equal", "below < GROUP ? below : GROUP", 0, "GROUP") for step in low
    ]
    return {**{(step.family, True): step for step in low}, **{(step.family, False): step for step in equal}}


@pytest.fixture(scope="module", autouse=True)
def built(faulty, grouped):
    """All of them for the host, compiled two at a time; they do compile."""
    every = [*STEPS.values(), *faulty.values(), *grouped.values()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda step: emulated.built(str(step.path), {}), every))


def check(step, tiles, depth, seed=0):
    """Run a product of ``tiles`` (below and beside each other) and ``depth`` steps along k."""
    (m, n), k = (size * count for size, count in zip(step.tile, tiles)), step.tile[2] * depth
    a, b, c, _ = counts.launch(emulated, step, m, n, k, seed)
    found = gemmhub.spot_check(a, b, c)
    assert found, str(found)


def test_all_steps_are_there():
    assert {family: [step.number for step in steps(family)] for family in FAMILIES} == {
        "sgemm": list(range(1, 10)),
        "mma": list(range(1, 11)),
    }


@pytest.mark.parametrize("name", STEPS)
def test_step_compiles(name):
    try:
        compiler = nvrtc.load()
    except nvrtc.CompilerError as error:
        pytest.skip(str(error))
    step = STEPS[name]
    for capability in ((8, 0), (9, 0)):
        made = compiler.compile(step.source(capability), verbose=True)
        assert made.spilled == 0, capability
        assert 16 <= made.registers <= min(255, 65536 // step.threads)


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("name", STEPS)
def test_step_computes(name, depth):
    step = STEPS[name]
    check(step, (2, 3), depth if step.shared_bytes else 7 * depth, seed=depth)


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_that_are_not_all_equally_high(family, grouped):
    check(grouped[family, True], (5, 3), 1)
    with pytest.raises(AssertionError):  # the notes stop before the place where that is looked at
        check(grouped[family, False], (5, 3), 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault, faulty):
    """By the emulator, or by a wrong result."""
    for seed in range(12):
        try:
            check(faulty[fault], (1, 2), 5, seed)
        except AssertionError:
            return
    pytest.fail("not detected by the emulator or by a wrong result")


def test_other_sizes_are_refused():
    step = STEPS["mma_7_ring"]
    assert step.refusal(256, 384, 64) is None
    assert step.refusal(256, 384, 96) == "mma_7_ring takes multiples of 64 for k, not 96"
    assert "for n, not 0" in step.refusal(128, 0, 64)


def test_files_that_are_no_step(tmp_path):
    (tmp_path / "sgemm_1_x.cu").write_text("// No constants.\n")
    with pytest.raises(ValueError, match="no step of the ladder"):
        read(tmp_path / "sgemm_1_x.cu")


class Driver:
    """One whose kernels run on the emulator."""

    def __init__(self, step, buffers, written):
        self.step, self.buffers, self.written = step, buffers, written

    def call(self, name, function, x, y, z, threads, one, also_one, shared, stream, arguments, extra):
        assert (name, function, one, also_one, stream, extra) == ("cuLaunchKernel", 17, 1, 1, 23, None)
        params = Params.from_address(arguments[0])
        emulated.run(str(self.step.path), {}, params, (x, y, z), threads, shared, self.buffers, self.written)


@pytest.mark.parametrize("name", ["sgemm_4_vectors", "sgemm_9_groups"])
def test_the_launch(name):
    step, rng = STEPS[name], np.random.default_rng(1)
    a, b, c = (counts._aligned(rng.standard_normal(x).astype(np.float32)) for x in ((256, 24), (24, 384), (256, 384)))
    params = Params(a.ctypes.data, b.ctypes.data, c.ctypes.data, 256, 384, 24)
    cuda_ladder.launch(Driver(step, [a, b], [c]), 17, step, params, 23)
    assert gemmhub.spot_check(a, b, c)
    with pytest.raises(ValueError, match="multiples of 128 for m, not 250"):
        cuda_ladder.launch(SimpleNamespace(), 17, step, Params(0, 0, 0, 250, 384, 24), 23)
    assert ctypes.sizeof(Params) == 40


def test_the_plugin_is_called_with_products_of_both_sizes(monkeypatch):
    """Each has a plan of its own, which takes no other size."""
    rng = np.random.default_rng(2)
    rigs = []
    for m, n, k in ((64, 48, 32), (16, 24, 8)):
        a, b = (rng.integers(-3, 4, size).astype(np.float32) for size in ((m, k), (k, n)))
        rigs.append(SimpleNamespace(sets=[(a, b, np.full((m, n), np.nan, np.float32))]))
    monkeypatch.setattr(cuda_ladder, "PLUGIN", "numpy")
    call, candidate = cuda_ladder.plugin(*rigs)
    assert candidate
    for rig in rigs:
        a, b, out = rig.sets[0]
        call(a, b, out)
        assert (out == a @ b).all()


def test_without_the_plugin(monkeypatch):
    monkeypatch.setattr(cuda_ladder, "PLUGIN", "no-such-backend")
    a = np.zeros((4, 4), np.float32)
    assert "no-such-backend" in cuda_ladder.plugin(*[SimpleNamespace(sets=[(a, a, a.copy())])] * 2)


# The page


@pytest.fixture(scope="module")
def record():
    return json.loads(page.COUNTS.read_text())


def test_the_page_has_the_tables_of_the_records():
    text = page.PAGE.read_text()
    assert {"ladder.counts", "ladder.times"} <= {found["name"] for found in tables.BLOCK.finditer(text)}
    assert tables.filled(text) == text
    assert (page.NOT_YET in text) == (not page.TIMES.exists())


@pytest.mark.parametrize("name", STEPS)
def test_the_record_is_of_these_steps(name, record):
    """All but what compilers decide; that, too, where it is the same compiler."""
    step, row = STEPS[name], dict(next(row for row in record["families"][STEPS[name].family] if row["step"] == name))
    made = {key: row.pop(key) for key in ("registers", "spilled")}
    expected = {
        "step": name, "idea": step.idea, "tile": list(step.tile), "threads": step.threads,
        "shared_bytes": step.shared_bytes, "flop_per_byte": counts.intensity(step), **counts.shared(emulated, step),
    }  # fmt: skip
    assert row == expected
    with suppress(nvrtc.CompilerError):
        compiler = nvrtc.load()
        if "{}.{}".format(*compiler.version) == record["nvrtc"]:
            now = compiler.compile(step.source(counts.CAPABILITY), verbose=True)
            assert made == {"registers": now.registers, "spilled": now.spilled}


def test_the_page_names_every_step_and_no_other():
    named = set(re.findall(r"\b(?:sgemm|mma)_\d+_\w+", page.PAGE.read_text()))
    assert named == set(STEPS)


def test_the_page_quotes_the_steps():
    lines = {line for step in STEPS.values() for line in step.path.read_text().splitlines()}
    quoted = "".join(re.findall(r"^```cpp\n(.*?)^```", page.PAGE.read_text(), re.MULTILINE | re.DOTALL)).splitlines()
    assert len(quoted) > 20
    assert [line for line in quoted if line not in lines] == []


def test_a_measured_table():
    rows = [
        {"step": "sgemm_1_naive", "idea": "x", "tflops": 4.0, "gain": None, "ratio": 0.08},
        {"step": "sgemm_2_tiles", "idea": "y", "tflops": 6.0, "gain": 1.5, "ratio": 0.12},
    ]
    given = {"device": "a card", "size": 4096, "rounds": 7, "versions": {"nvrtc": "13.0"}, "command": "x"}
    given["families"] = {"sgemm": rows}
    assert "| `sgemm_2_tiles` | y | 6.0 | 1.50x | 12.0% |" in page.measured(given)
    assert "On one a card, m = n = k = 4096" in page.measured(given)
