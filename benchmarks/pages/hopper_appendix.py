"""The tables of docs/hopper-appendix.md: experiments on gemmhub-hopper that lost, timed on an H200."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.pages import tables
from benchmarks.pages.hopper_techniques import Gain, blocks, gain, lines, load, named, plain, table


def _loads() -> Iterator[Gain]:
    file = "hopper_ab_slabs.txt"
    found = [re.fullmatch(r"\s+\S+(?:\s+\d+){3} [nt]{2}(?:\s+[\d.]+){3}\s+([\d.]+)", line) for line in lines(file)]
    yield gain("TMA boxes that end at the tile's edge", "b contiguous along n", [float(x[1]) for x in found if x], file)
    file = "hopper_ab_promotion.txt"
    for variant, words in (("promo1", "64 bytes"), ("promo0", "none")):
        ratios = [ratio for *_, ratio in blocks(file, "early1 promo2 at0", f"early1 {variant} at0")]
        yield gain(f"L2 promotion: {words}", "over 128 bytes", ratios, file)
    file = "hopper_ab_prefetch.txt.xz"
    shapes = [us for words, us in plain(file, 6) if not words[4].startswith("gemv")]
    small = [us for us in shapes if us[1] < 6]
    yield gain("L2 prefetch by TMA", "no trigger before, below 6 µs", [us[1] / us[2] for us in small], file)
    yield gain("L2 prefetch by TMA", "with a trigger before", [us[3] / us[4] for us in shapes], file)
    long = [us for words, us in plain(file, 6) if words[4].startswith("gemv") and us[1] >= 16]
    yield gain("L2 prefetch, eight loads a thread", "GEMV from 16 µs on", [us[1] / us[5] for us in long], file)


def _epilogue() -> Iterator[Gain]:
    file = "hopper_ab_chunks.txt.xz"
    wide: dict[str, list[float]] = {"96": [], "160": []}
    direct = []
    for line in lines(file):
        found = re.fullmatch(r"\s*\d+\s+\d+\s+\d+ [nt]{2}\s+(\S+)\s+[\d.]+(.{10})(.{10})(.{10})?", line)
        shape = named(found[1]) if found else None
        if found and shape and shape["columns"] in wide and found[2].strip():
            wide[shape["columns"]].append(float(found[2]) / float(found[3]))
        if found and found[4]:
            direct.append(float(found[3]) / float(found[4]))
    for columns, ratios in wide.items():
        yield gain("overlapping chunks of 64 columns", f"{columns} columns", ratios, file)
    yield gain("results stored from registers", "16 bits, rows that TMA can store", direct, file)
    file = "hopper_ab_pieces.txt.xz"
    stores = [re.fullmatch(r"    \S+((?:\s+\d+\.\d){5})", line) for line in lines(file)]
    times = [[float(x) for x in found[1].split()] for found in stores if found]
    for words, column in (
        ("two staging buffers between two syncs", 2), ("a warp for the stores", 3), ("such a warp, which fences", 4)
    ):  # fmt: skip
        yield gain(words, "16384 x 16384 x 384", [us[1] / us[column] for us in times], file)
    file = "hopper_ab_streamed.txt"
    kept = []
    for line in lines(file):
        found = re.match(r"\s*\d+\s+\d+\s+\d+ [nt]{2}\s+\d+\s+\S+(?:\s+[\d.]+)((?:\s+[\d.]+){3,4})$", line)
        if found:
            us = [float(x) for x in found[1].split()]
            kept.append(us[1] / us[2])
    yield gain("`evict_last` loads of a and b", "beside `evict_first` stores", kept, file)


def _launches() -> Iterator[Gain]:
    file = "hopper_early_bf16.json.xz"
    for name, words in (("LOADED", "when loads are asked for"), ("SUMMED", "when the last sums are there")):
        ratios = [row["us"]["ENDED"] / row["us"][name] for row in load(file) if row["us"]["ENDED"] >= 12]
        yield gain(f"PDL trigger for all: {words}", "from 12 µs on", ratios, file)
    file = "hopper_early_f32.json.xz"
    ratios = [row["us"]["ENDED"] / row["us"]["LOADED"] for row in load(file) if row["taken"] == "ENDED"]
    yield gain("PDL trigger with copies or split-K", "float32", ratios, file)


def _slices() -> Iterator[Gain]:
    file = "hopper_ab_slices.txt.xz"
    ratios = [us[2] / us[3] for _, us in plain(file, 4)]
    yield gain("PDL trigger before slices are added", "split-K from 8 parts on", ratios, file)
    heads = {
        "slices from two parts on, parts of a tile": "slices from two parts on, adjacent parts",
        "slices from two parts on where all run": "slices from two parts on, sixteen loads at once",
    }
    head = ""
    for line in lines(file):
        head = next((words for start, words in heads.items() if line.startswith(start)), head)
        found = re.fullmatch(r"    ((?:2|3|4 to 7) parts) +(\d+)  ([\d.]+)  \(least ([\d.]+), most ([\d.]+)\)", line)
        if found and head:
            where, number, *figures = found.groups()
            yield Gain(head, where, int(number), *map(float, figures), file)


def losses() -> list[str]:
    """Return the speed with each experiment over the speed of what is kept."""
    return table("experiment", "speed", [*_loads(), *_epilogue(), *_launches(), *_slices()])


def short_k() -> list[str]:
    """Return the time of kernels with parts left out, at 16384 x 16384 x 384."""
    found = [re.fullmatch(r"\s+384\s+(\S+)((?:\s+[\d.]+){6})", line) for line in lines("hopper_ab_parts.txt")]
    head = ("kernel", "all, µs", "no stores", "no staging", "neither", "loads only", "loads and stores")
    return tables.rows(head, ((f"`{x[1]}`", *x[2].split()) for x in found if x))
