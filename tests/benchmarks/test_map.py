"""The summary of maps: counts below the limits, the worst products, and files of several processes as one."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.pages import map as page


def row(kind, m, torch_us, hub, raced=None):
    us = {"hub": hub} if raced is None else {"hub": hub, "raced": raced}
    chosen = dict.fromkeys(us, f"hopper tile{m}")
    return {"class": kind, "orders": "nt", "batch": 1, "m": m, "n": 8, "k": 16, "torch_us": torch_us, "us": us,
            "chosen": chosen}  # fmt: skip


def file(seed, *rows, device="NVIDIA Card"):
    return {"command": f"map --seed {seed}", "device": device, "seed": seed, "rows": list(rows)}


ONE = file(
    1, row("large", 1, 100.0, 125.0, 100.0), row("small", 2, 100.0, 50.0, 50.0), row("int8", 3, float("nan"), 5.0)
)
TWO = file(2, row("large", 4, 90.0, 100.0, 90.0), row("small", 5, 96.0, 100.0, 96.0))


def test_files_of_a_card_are_one():
    (found,) = page.merged([ONE, TWO])
    assert [x["m"] for x in found["rows"]] == [1, 4, 2, 5, 3]
    assert (found["command"], found["seed"]) == ("map --seed 1; map --seed 2", [1, 2])
    assert page.merged([ONE]) == [ONE]
    assert len(page.merged([ONE, {**TWO, "device": "NVIDIA Other"}])) == 2


def test_what_is_slower_is_counted():
    (found,) = page.merged([ONE, TWO])
    lines = list(page.summary(found["rows"]))
    untuned = {line.split()[0]: line.split()[1:7] for line in lines[1:4]}
    assert untuned["large"] == ["2", "0.849", "2", "2", "1", "0.800"]
    assert untuned["small"] == ["2", "1.386", "1", "0", "0", "0.960"]
    assert untuned["all"] == ["4", "1.084", "3", "2", "1", "0.800"]
    assert "nt 1 x 1 x 8 x 16, hopper tile1" in lines[1]
    assert "(large)" in lines[3]
    assert lines[4] == "untuned: 75.0% below 0.97, 50.0% below 0.95, 25.0% below 0.85"
    assert lines[-1] == "raced: 0.0% below 0.97, 0.0% below 0.95, 0.0% below 0.85"


def test_a_map_without_a_race():
    lines = list(page.summary([row("large", 1, 100.0, 100.0)]))
    assert not any("raced" in line for line in lines)
    assert page.table([file(1, row("large", 1, 100.0, 100.0))])[-1] == "| large | 1 | 1.000 | - |"


def test_the_command(tmp_path, monkeypatch, capsys):
    paths = []
    for name, value in (("a", ONE), ("b", TWO), ("c", {**TWO, "device": "NVIDIA Other"})):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(value))
    out = tmp_path / "merged.json"
    monkeypatch.setattr(sys, "argv", ["map", *map(str, paths[:2]), "--json", str(out)])
    page.main()
    assert "untuned: 75.0% below 0.97" in capsys.readouterr().out
    assert len(json.loads(out.read_text())["rows"]) == 5
    monkeypatch.setattr(sys, "argv", ["map", *map(str, paths), "--json", str(out)])
    with pytest.raises(SystemExit):
        page.main()
