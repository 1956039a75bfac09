"""The cost model against what was measured on an H200; some of it is what the model was fitted to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gemmhub_hopper import corrections, fitted, gemv_model

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("not in a clone of gemmhub", allow_module_level=True)
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS))
    import gemv_fit
    import hopper_fit

RECORDS = ("hopper_drawn_bf16.json.xz", "hopper_drawn_tf32.json", "hopper_quick_tf32.json", "hopper_drawn_f32.json",
           "hopper_quick_f32.json")  # fmt: skip


def data(name):
    """The constants that the record tells of, and its candidates."""
    record = json.loads(hopper_fit.contents(BENCHMARKS / "results" / "h200" / name))
    timed = [x for i, row in enumerate(record["rows"]) for x in hopper_fit.candidates(record, row, i)]
    return hopper_fit.INPUTS[record["dtype"]], hopper_fit.Data(timed)


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_chosen_is_nearly_the_fastest(name):
    kind, measured = data(name)
    assert min(np.bincount(measured.product)) > 8
    estimates = measured.analytic(fitted.CONSTANTS[kind])
    learned = corrections.learned(kind, hopper_fit.H200.sms)
    if learned is not None:
        corrected = measured.corrected(estimates, learned)
        assert measured.error(corrected) < measured.error(estimates) < 0.15
        estimates = corrected
    lost = measured.chosen(estimates)
    assert len(lost) == measured.product.max() + 1
    assert np.mean(lost) < 0.03
    assert np.quantile(lost, 0.9) < 0.1
    assert measured.error(estimates) < 0.1


@pytest.mark.parametrize("name", ["few_bf16_3.json.xz", "few_f32_2.json.xz", "few_f16_2.json.xz"])
def test_vectors(name):
    timed = gemv_fit.read([BENCHMARKS / "results" / "h200" / "fit" / name])
    constants, trees = gemv_model.fitted()
    alone = np.array([gemv_model.seconds(x.choice, gemv_fit.H200, constants) for x in timed])
    rows = [gemv_model.features(x.choice, seconds) for x, seconds in zip(timed, alone)]
    corrected = alone * np.exp(trees.predict(np.array(rows, np.float64)))
    assert gemv_fit.error(timed, corrected) < 0.08
    assert gemv_fit.error(timed, alone) < 0.3
    lost = gemv_fit.lost(timed, corrected)
    assert len(lost) > 50
    assert np.mean(lost) < 0.02
    assert np.mean(lost) < np.mean(gemv_fit.lost(timed, alone)) < 0.1


def test_the_model_alone_is_good():
    """Little is corrected: what was not seen is left to the model."""
    kind, measured = data("hopper_drawn_bf16.json.xz")
    lost = measured.chosen(measured.analytic(fitted.CONSTANTS[kind]))
    assert np.mean(lost) < 0.05
    assert np.quantile(lost, 0.9) < 0.15


def test_candidates_far_behind_are_not_chosen():
    """Of the dozens that were measured the trees re-order only the first."""
    kind, measured = data("hopper_quick_tf32.json")
    estimates = measured.analytic(fitted.CONSTANTS[kind])
    reversing = hopper_fit.Trees.of({
        "roots": np.array([0]), "feature": np.array([0]), "threshold": np.array([np.inf]), "left": np.array([0]),
        "right": np.array([0]), "value": np.array([0.4]), "base": 0.0, "depth": 1,
    })  # fmt: skip
    corrected = measured.corrected(estimates, reversing)
    for product in range(measured.product.max() + 1):
        own = np.flatnonzero(measured.product == product)
        order = own[np.argsort(estimates[own], kind="stable")]
        first = order[: corrections.CORRECTED]
        np.testing.assert_allclose(corrected[first], np.exp(0.4) * estimates[first])
        assert (corrected[order[corrections.CORRECTED :]] >= corrected[first].max()).all()


def test_the_file_is_what_the_fit_writes():
    assert hopper_fit.text(fitted.CONSTANTS) == Path(fitted.__file__).read_text()


def test_a_fit_finds_its_way_back():
    pytest.importorskip("scipy", reason="scipy, which fits, is not installed")
    _, measured = data("hopper_quick_f32.json")
    before = fitted.CONSTANTS["split"]
    distorted = before._replace(tensor=1.4 * before.tensor, reading=0.5 * before.reading)
    found = hopper_fit.fit(measured, distorted)
    assert measured.error(measured.analytic(found)) < 0.5 * measured.error(measured.analytic(distorted))


def test_trees_learn_what_the_model_misses():
    """A model that is off by a tenth for wide tiles."""
    pytest.importorskip("sklearn", reason="scikit-learn, which grows trees, is not installed")
    _, measured = data("hopper_quick_tf32.json")
    wrong = np.array([0.9 if x.choice.shape.n > 128 else 1.0 for x in measured.timed]) * measured.seconds
    arrays = hopper_fit.grown(measured, wrong, np.arange(len(wrong)))
    corrected = measured.corrected(wrong, hopper_fit.Trees.of(arrays))
    near = measured.lost < 0.2  # others are not corrected, or weigh little
    before, after = (np.abs(np.log(x / measured.seconds))[near].mean() for x in (wrong, corrected))
    assert after < 0.3 * before
