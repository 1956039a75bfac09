"""The cost model against what was measured on an H200."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from gemmhub_hopper import fitted

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("not in a clone of gemmhub", allow_module_level=True)
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS))
    import hopper_fit

RECORDS = ("hopper_drawn_bf16.json.xz", "hopper_drawn_tf32.json", "hopper_quick_tf32.json", "hopper_drawn_f32.json",
           "hopper_quick_f32.json")  # fmt: skip


def data(name):
    """The constants that the record tells of, and its candidates."""
    path = BENCHMARKS / "results" / "h200" / name
    text = path.read_bytes()
    record = json.loads(lzma.decompress(text) if path.suffix == ".xz" else text)
    timed = [x for i, row in enumerate(record["rows"]) for x in hopper_fit.candidates(row, record["dtype"], i)]
    return hopper_fit.INPUTS[record["dtype"]], hopper_fit.Data(timed)


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_chosen_is_nearly_the_fastest(name):
    kind, measured = data(name)
    constants = fitted.CONSTANTS[kind]
    assert min(np.bincount(measured.product)) > 8
    lost = measured.chosen(constants)
    assert np.mean(lost) < 0.05
    assert np.quantile(lost, 0.9) < 0.15
    assert measured.error(constants) < 0.15


def test_the_file_is_what_the_fit_writes():
    assert hopper_fit.text(fitted.CONSTANTS) == Path(fitted.__file__).read_text()


def test_a_fit_finds_its_way_back():
    pytest.importorskip("scipy", reason="scipy, which fits, is not installed")
    _, measured = data("hopper_quick_f32.json")
    before = fitted.CONSTANTS["split"]
    distorted = before._replace(tensor=1.4 * before.tensor, reading=0.5 * before.reading)
    found = hopper_fit.fit(measured, distorted)
    assert measured.error(found) < 0.5 * measured.error(distorted)
