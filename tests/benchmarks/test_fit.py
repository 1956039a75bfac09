"""benchmarks/fit: drawn products, resumed runs, and training that recovers the times of a synthetic card."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.fit import __main__ as fit
from benchmarks.fit import sample
from gemmhub.capability import Refusal
from gemmhub.kit import corrections

FACTS = {
    "name": "NVIDIA Card 1", "sms": 132, "clock": 1.98e9, "bandwidth": 3.35e12, "capability": [9, 0],
    "clusters": [132, 132, 66], "shared_per_block": 232448, "shared_per_sm": 233472, "threads_per_sm": 2048,
    "library": "13.1.0", "driver": "13.0", "torch": "2.11", "command": "python -m benchmarks.fit.measure --seed 1",
}  # fmt: skip


@pytest.mark.parametrize("name", sample.SHARES)
def test_a_number_is_one_product(name):
    found = [sample.draw(1, name, number) for number in range(60)]
    assert found == [sample.draw(1, name, number) for number in range(60)]
    assert len(set(found)) > 50
    assert found != [sample.draw(2, name, number) for number in range(60)]
    for product in found:
        assert product.flops <= sample.MOST_OPERATIONS
        problem = sample.problem(product)
        assert (problem.m, problem.n, problem.k) == product.sizes[1:]
        assert problem.batch_count == product.sizes.batch
        assert sample.of(sample.row(product)) == product
        stored = [x.layout.stored("col" if letter == "t" else "row")
                  for x, letter in zip((problem.a, problem.b), product.orders)]  # fmt: skip
        assert all(stored)


def test_classes_are_what_they_are_called():
    def rows(product):
        _, m, n, k = product.sizes
        return (m if product.orders[0] == "t" else k, k if product.orders[1] == "t" else n, n)

    drawn = {name: [sample.draw(3, name, number) for number in range(200)] for name in sample.SHARES}
    assert all(size % 8 == 0 for product in drawn["half"] for size in product.sizes[1:])
    assert all(any(size % 8 for size in product.sizes[1:]) for product in drawn["odd"])
    assert sum(any(row % 8 for row in rows(product)) for product in drawn["odd"]) > 150
    assert {product.dtype for product in drawn["half"]} == {"bfloat16", "float16"}
    assert {product.orders for product in drawn["half"]} == {"nn", "nt", "tn", "tt"}
    large = sum(product.flops >= sample.drawn.LARGE for product in drawn["half"])
    assert 80 < large < 120
    assert min(min(product.sizes[1:3]) for product in drawn["few"]) == 1
    assert {product.dtype for product in drawn["batches"]} == {"bfloat16", "float16", "float32", "tf32", "int8"}
    assert all(any(row % 4 for row in rows(product)[:2]) for product in drawn["tf32_odd"])
    assert {product.orders for product in drawn["tf32_odd"]} == {"nn", "nt", "tn", "tt"}
    assert all(min(product.sizes[1:3]) < 182 for product in drawn["tf32_odd"][2::3])
    assert {product.dtype for product in drawn["complex"]} == {"complex64"}
    assert {product.result for product in drawn["half"]} == {"bfloat16", "float16", "float32"}
    assert {product.scales for product in drawn["float8"]} == {"tensor", "row", "block"}
    assert {(product.scales, product.result) for product in drawn["int8"]} == {("", "int32"), ("row", "bfloat16")}
    assert sum(sample.SHARES.values()) == pytest.approx(1)


def test_products_for_each_network_are_drawn():
    """Training needs 60 products for a network; a run of 500 seconds draws thousands."""
    kinds = pytest.importorskip("gemmhub_hopper.cost.corrections", reason="gemmhub-hopper is not installed")
    from gemmhub_hopper.candidates import gemv
    from gemmhub_hopper.candidates.candidate import Choice
    from gemmhub_hopper.lowering import lower
    from gemmhub_hopper.variants.shapes import shapes

    products = Counter()
    for name, share in sample.SHARES.items():
        for number in range(round(1000 * share)):
            lowerings = lower.lowerings(sample.problem(sample.draw(5, name, number)))
            if not isinstance(lowerings, Refusal):
                choices = [Choice(x, shapes(x.form)[0], 1) for x in lowerings] + gemv.choices(lowerings)[:1]
                products.update({kinds.network_of(choice) for choice in choices})
    assert all(products[kind] >= 25 for kind in kinds.KINDS), products


def test_narrow_products():
    """About 300 rows with epilogues, a side of 150 to 1000, few columns, small K, and a tiny result with a huge K."""
    drawn = [sample.draw(3, "narrow", number) for number in range(300)]
    assert {product.dtype for product in drawn} == {"bfloat16", "float16", "float32", "tf32"}
    assert {product.epilogue for product in drawn} == {"", "bias", "bias+relu", "bias+gelu_tanh"}
    for product in drawn:
        problem = sample.problem(product)
        assert (problem.activation, problem.bias is not None) == (product.activation, bool(product.epilogue))
    fused = [product.sizes for product in drawn if product.epilogue]
    assert any(200 < sizes.m < 400 for sizes in fused)
    sizes = [product.sizes for product in drawn]
    sides = {min(x.m, x.n, x.k) for x in sizes[::5]}
    assert all(144 <= side <= 1024 for side in sides)
    assert all(x.k < 200 for x in sizes[2::5])
    assert sum(x.k < 64 for x in sizes[2::5]) > 10
    assert all(x.n <= 96 and x.k >= 2**12 for x in sizes[3::5])
    assert all(max(x.m, x.n) <= 64 for x in sizes[4::5])
    assert max(x.k for x in sizes[4::5]) > 2e6


def test_one_command_measures_and_trains(monkeypatch):
    """It trains even where some results were wrong, and then fails; both steps know the options."""
    ran = []

    def run(command):
        ran.append(command)
        return SimpleNamespace(returncode=int("benchmarks.fit.measure" in command))

    monkeypatch.setattr(fit.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["fit", "DIR", "--seconds", "60", "--seed", "7"])
    assert fit.main() == 1
    assert [command[1:4] for command in ran] == [["-m", f"benchmarks.fit.{x}", "DIR"] for x in ("measure", "train")]
    assert ran[0][4:] == ["--seconds", "60.0", "--seed", "7"]
    for command in ran:
        source = importlib.util.find_spec(command[2]).loader.get_source(command[2])
        assert all(f'"{option}"' in source for option in command if option.startswith("--"))


def test_a_run_goes_on_behind_what_is_there(tmp_path):
    assert sample.numbers(tmp_path) == dict.fromkeys(sample.SHARES, 0)
    (tmp_path / "half.jsonl").write_text('{"number": 0}\n{"number": 7}\n{"number": 3}\n{"numb')
    assert sample.numbers(tmp_path) == {**dict.fromkeys(sample.SHARES, 0), "half": 8}
    assert len(sample.read(tmp_path / "half.jsonl")) == 3


class Plugin:
    """A plugin's module whose model is blind: one candidate of three is wrong by a factor of its features."""

    def __init__(self, folder, kinds, several):
        self.DATA = folder / "data"
        self.kinds = self.KINDS = kinds
        self.several = several

    def describe(self, problem, card, names):
        if problem.a.dtype.name == "float8_e4m3fn":
            return None
        kind = self.kinds[problem.precision == "tf32"]
        known = [name for name in names if name != "forgotten"]
        work = problem.flops / 5e14 + 3e-6
        rows = [[math.log(problem.m), math.log(problem.n), math.log(problem.k), float(name)] for name in known]
        found = SimpleNamespace(kind=kind, names=known, modelled=[work] * len(known), rows=rows, handled=())
        return [found] if self.several else found


def seconds(product, name):
    """What the card does."""
    _, m, n, k = product.sizes
    work = product.flops / 5e14 + 3e-6
    return work * math.exp(0.3 * math.tanh(math.log(n / m)) * (float(name) - 1) + 0.05 * math.log(k / 1000))


@pytest.fixture(scope="module")
def train():
    pytest.importorskip("torch", reason="torch is not installed")
    from benchmarks.fit import train

    return train


@pytest.fixture
def measured(train, tmp_path):
    """(data, folders of plugins by name)."""
    modules = two_plugins(tmp_path)
    data = train.read(timed(), modules, dict.fromkeys(modules))
    return data, {name: tmp_path / name / "data" for name in modules}


def two_plugins(folder):
    return {name: Plugin(folder / name, ("half", "tf32"), name == "two") for name in ("one", "two")}


def timed():
    """Rows of products as measure.py writes them."""
    rows, rng = [], np.random.default_rng(0)
    for name in sample.SHARES:
        for number in range(250 if name == "half" else 40):
            product = sample.draw(1, name, number)
            noise = math.exp(rng.normal(0, 0.03))
            us = {x: 1e6 * noise * seconds(product, x) for x in ("0", "1", "2")}
            us = {plugin: {x: t for x, t in us.items() if x in own} for plugin, own in (("one", "0"), ("two", "12"))}
            us["two"]["forgotten"] = 2 * us["two"]["2"]
            rows.append({**sample.row(product), "number": number, "us": {**us, "torch": {"matmul": us["one"]["0"]}}})
    return rows


def test_training_recovers_the_card(train, measured, capsys):
    data, folders = measured
    assert 5 <= data.held.sum() <= 50
    assert {part.key for part in data.parts} == {(x, y) for x in ("one", "two") for y in ("half", "tf32")}
    assert all("forgotten" not in part.names for part in data.parts)
    nets = train.fit(data, epochs=60, fewest=100)
    assert set(nets) == {("one", "half"), ("two", "half")}  # products of tf32 are too few
    judged = train.Judged(data, train.together(nets, {}))
    model, learned = (judged.chosen(x) for x in (False, True))
    held = data.held & ~np.isnan(model)
    lost = [float(np.mean(np.log(x / data.fastest)[held])) for x in (model, learned)]
    assert lost[0] > 0.05
    assert lost[1] < 0.25 * lost[0]
    for index, part in enumerate(data.parts):
        if part.key in nets:
            assert judged.error(index, True, data.held) < 0.06 < judged.error(index, False, data.held)
    lines = "\n".join(train.report(judged, nets, data.held))
    assert "no network: too few products" in lines
    assert "all" in lines
    train.write_report(lines.splitlines(), data, FACTS, folders["one"].parents[1])
    written = (folders["one"].parents[1] / "card" / "held_out.txt").read_text()
    assert written.endswith(f"\n\n{lines}\n")
    assert f"products: {len(data.rows)} of `{FACTS['command']}` on an NVIDIA Card 1\n" in written
    assert "\nnot learned from: none; torch's call" in written
    train.write(nets, FACTS, folders)
    for name in folders:
        found = corrections.find(folders[name], "half", FACTS["name"], 132, 3.35e12)
        assert found is not None
        assert found.origin.command == FACTS["command"]
        part = next(part for part in data.parts if part.key == (name, "half"))
        assert found.factors(part.rows[:5]) == pytest.approx(
            np.exp(np.clip(train.Net.of(nets[name, "half"]).predict(np.array(part.rows[:5])), -0.7, 0.7))
        )
        assert corrections.find(folders[name], "tf32", FACTS["name"], 132, 3.35e12) is None
    assert sum(file.stat().st_size for file in folders["two"].rglob("*")) < 100_000


def test_training_is_repeatable(train, measured):
    data, _ = measured
    first, second = (train.fit(data, epochs=2, fewest=100) for _ in range(2))
    assert all((first[key][name] == second[key][name]).all() for key in first for name in first[key])


def test_products_whose_kernels_may_differ_are_judged_alone(train, tmp_path):
    """Where torch's call took another time than cuBLASLt's first choice, nothing is learned, and nothing is hidden."""
    modules, rows = two_plugins(tmp_path), timed()
    for row in rows:
        slower = 1.2 if row["number"] % 3 == 0 and row["class"] in ("half", "odd") else 1.05
        row["us"]["cublas"] = {"first": slower * row["us"]["torch"]["matmul"]}
    data = train.read(rows, modules, dict.fromkeys(modules))
    assert data.unequal.tolist() == [x["number"] % 3 == 0 and x["class"] in ("half", "odd") for x in data.rows]
    assert data.left_out == "84 of 250 half, 14 of 40 odd"
    nets = train.fit(data, epochs=2, fewest=100)
    for part in data.parts:
        part.measured = [t * (100 if data.unequal[i] else 1) for i, t in zip(part.product, part.measured)]
    again = train.fit(data, epochs=2, fewest=100)
    assert all((nets[key][name] == again[key][name]).all() for key in nets for name in nets[key])
    judged = train.Judged(data, train.together(nets, {}))
    assert (judged.chosen(True)[data.unequal] > 50 * data.fastest[data.unequal]).all()
    tables = [train.report(judged, {}, some)[-1].split() for some in (data.held, data.held & ~data.unequal)]
    counts = [int(table[1]) for table in tables]
    assert counts[0] - counts[1] == (data.held & data.unequal & ~np.isnan(judged.chosen(True))).sum() > 0


def test_other_networks_are_constants(train, measured):
    """A network fits the estimates of the others: where those are too high, so are its own."""
    data, _ = measured
    nets = train.fit(data, epochs=30, fewest=100)
    other = train.together(nets, {})["one", "half"]
    shifted = train.Net.of({**nets["one", "half"], "biases2": nets["one", "half"]["biases2"] + 0.3})
    found = []
    for net in (other, shifted):
        fixed = {part.key: None for part in data.parts if part.key != ("two", "half")} | {("one", "half"): net}
        trained = train.fit(data, epochs=30, fewest=100, fixed=fixed)
        assert set(trained) == {("two", "half")}
        part = next(part for part in data.parts if part.key == ("two", "half"))
        found.append(train.Net.of(trained["two", "half"]).predict(np.array(part.rows)))
    assert 0.1 < np.median(found[1] - found[0]) < 0.3


def test_each_fold_is_judged_by_networks_of_the_others(train, measured):
    data, _ = measured
    judged = train.by_folds(data, 3, 2, {}, {})
    assert sum(data.fold(i, 3).sum() for i in range(3)) == len(data.rows)
    for i in range(3):
        held = data.fold(i, 3)
        nets = train.fit(data, 2, seen=~held)
        alone = train.Judged(data, train.together(nets, {}))
        assert 0.2 < held.mean() < 0.5
        assert judged.chosen(True)[held] == pytest.approx(alone.chosen(True)[held], nan_ok=True)


def test_some_networks_are_replaced(train, tmp_path, monkeypatch):
    """The others stay as they are, card.json names both commands, and tables of other products stay too."""
    modules = two_plugins(tmp_path)
    for module in modules.values():
        monkeypatch.setattr(module, "kinds", ("half", "half"))  # of tf32 products, too few were measured
    measured = tmp_path / "measured"
    measured.mkdir()
    rows = timed()
    for name in sample.SHARES:
        lines = [json.dumps(row) for row in rows if row["class"] == name]
        (measured / f"{name}.jsonl").write_text("\n".join(lines))
    (measured / "card.json").write_text(json.dumps(FACTS))
    (tmp_path / "card").mkdir()
    monkeypatch.setattr(train, "plugins", lambda: modules)
    monkeypatch.setattr(train, "cards", lambda facts: dict.fromkeys(modules))
    monkeypatch.setattr(train, "margins", lambda names: {})
    monkeypatch.setattr(train, "FOLDER", tmp_path)

    def ran(*options, facts=FACTS):
        (measured / "card.json").write_text(json.dumps(facts))
        monkeypatch.setattr(sys, "argv", ["train", str(measured), "--epochs", "1", "--write", *options])
        train.main()
        return {path.relative_to(tmp_path): path.read_bytes() for name in ("one", "two", "card")
                for path in (tmp_path / name).rglob("*.*")}  # fmt: skip

    before = ran()
    again = {**FACTS, "command": "again"}
    after = ran("--kinds", "two/half", "--folds", "2", facts=again)
    assert after.keys() - before.keys() == {Path("card/held_out_half.txt")}
    assert b"on each of 2 folds" in after[Path("card/held_out_half.txt")]
    folder = Path("two/data/nvidia-card-1")
    assert {name for name in before if after[name] != before[name]} == {folder / "card.json", folder / "half.npz"}
    expected = {**json.loads(before[folder / "card.json"]), "command": f"{FACTS['command']}; half: again, CUDA 13.0"}
    assert json.loads(after[folder / "card.json"]) == expected
    once_more = ran("--kinds", "two/half", facts=again)
    assert json.loads(once_more[folder / "card.json"]) == expected
    kept = ran("--keep", "one/half", "two/tf32", facts={**FACTS, "command": "third"})
    changed = {name for name in kept if kept[name] != once_more[name]}
    assert changed == {folder / "card.json", Path("card/held_out.txt")}  # trained to the same products again
    assert json.loads(kept[folder / "card.json"])["command"] == f"{FACTS['command']}; half: third, CUDA 13.0"
    judged = ran("--judge")
    assert {name for name in judged if judged[name] != kept[name]} == {Path("card/held_out.txt")}
    assert b"with the networks that the plugins have" in judged[Path("card/held_out.txt")]
    for wrong in (["--kinds", "two/quarter"], ["--judge", "--folds", "2"]):
        with pytest.raises(SystemExit):
            ran(*wrong)
    with pytest.raises(SystemExit, match="another card"):
        train.write({("two", "half"): {}}, {**FACTS, "sms": 114}, {"two": tmp_path / "two" / "data"}, add=True)


def test_what_was_written_before_goes(train, tmp_path):
    folder = tmp_path / "nvidia-card-1"
    folder.mkdir()
    (folder / "old.npz").write_bytes(b"")
    train.write({}, FACTS, {"one": tmp_path})
    assert not folder.exists()


def test_a_vendor_library_has_its_version(train, tmp_path):
    arrays = {"least": [0.0], "most": [1.0], "mean": [0.0], "scale": [1.0], "weights0": [[1.0]], "biases0": [0.0]}
    train.write({("cublas", "half"): arrays}, FACTS, {"cublas": tmp_path})
    assert corrections.find(tmp_path, "half", FACTS["name"], 132, 3.35e12, "13.1.2") is not None
    assert corrections.find(tmp_path, "half", FACTS["name"], 132, 3.35e12, "13.2.0") is None


def test_cards_are_not_mixed(train, tmp_path):
    for name, facts in (("one", FACTS), ("two", {**FACTS, "bandwidth": 4.8e12})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps(facts))
    assert train.card_of([tmp_path / "one"]) == FACTS
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "card.json").write_text(json.dumps({**FACTS, "command": "measure --seed 3"}))
    commands = [train.card_of([tmp_path / x for x in ("one", *more)])["command"] for more in (("one",), ("three",))]
    assert commands == [FACTS["command"], f"{FACTS['command']}, measure --seed 3"]
    with pytest.raises(SystemExit, match="bandwidth"):
        train.card_of([tmp_path / "one", tmp_path / "two"])
