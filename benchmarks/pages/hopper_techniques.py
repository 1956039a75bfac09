"""The tables of docs/hopper-techniques.md: the same products with a technique and without, in one run on an H200."""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks.lib import results
from benchmarks.lib.drawn import LARGE
from benchmarks.pages import tables

FOLDER = results.FOLDER / "h200"
NAME = re.compile(
    r"(?P<rows>\d+)x(?P<columns>\d+)x\d+(?P<pingpong>p)?(?:c(?P<cluster>\dx\d))?(?:k(?P<shared>\d))?"
    r"h?(?P<registers>r)?(?P<split>s)?(?P<swapped>t)?(?:/(?P<parts>\d+))?"
)
"""The name of a candidate: docs/hopper.md has its parts."""
_USUAL = ("16", "32", "64", "128", "160", "192", "256")
"""Tile widths that shapes had first."""
_SMS = 132

Row = dict[str, Any]
Match = re.Match[str]


class Gain(NamedTuple):
    """Speed with a technique over that without it, of products or pairs of candidates of one file."""

    technique: str
    where: str
    number: int
    mean: float
    least: float
    most: float
    file: str


def gain(technique: str, where: str, ratios: list[float], file: str) -> Gain:
    return Gain(technique, where, len(ratios), geometric_mean(ratios), min(ratios), max(ratios), file)


def named(name: str) -> Match | None:
    return NAME.fullmatch(name)


def load(file: str) -> list[Row]:
    rows: list[Row] = results.load(FOLDER / file)["rows"]
    return rows


def lines(file: str) -> list[str]:
    data = (FOLDER / file).read_bytes()
    return (lzma.decompress(data) if file.endswith(".xz") else data).decode().splitlines()


def flops(row: Row) -> float:
    return 2.0 * row["m"] * row["n"] * row["k"]


def pairs(rows: Iterable[Row], without: Callable[[Match], str | None]) -> Iterator[tuple[Row, Match, float]]:
    """Time of the candidate that ``without`` names over that of the candidate itself, where both were timed."""
    for row in rows:
        for name, us in row["us"].items():
            found = named(name)
            other = without(found) if found else None
            if found and other in row["us"]:
                yield row, found, row["us"][other] / us


def fastest(rows: Iterable[Row], has: Callable[[Match], bool]) -> Iterator[tuple[Row, float]]:
    """Time of the fastest candidate without a technique over that of the fastest with it, where both were timed."""
    for row in rows:
        known = [(found, us) for name, us in row["us"].items() if (found := named(name))]
        with_it, without = ([us for x, us in known if has(x) == wanted] for wanted in (True, False))
        if with_it and without:
            yield row, min(without) / min(with_it)


def _shapes() -> Iterator[Gain]:
    for words, file in (("of a list", "hopper_widths_bf16.json.xz"), ("random", "hopper_rows_bf16.json.xz")):
        for large in (True, False):
            ratios = []
            for row in load(file):
                known = {found: us for name, us in row["us"].items() if (found := named(name))}
                old = [us for found, us in known.items() if found["columns"] in _USUAL]
                if old and (flops(row) >= LARGE) == large:
                    ratios.append(min(old) / min(known.values()))
            yield gain("more widths", f"{'large' if large else 'small'}, {words}", ratios, file)
    limits = (("k up to 512", 512), ("k to 2048", 2048), ("k to 8191", 8191), ("k from 8192 on", 1 << 60))
    groups: dict[str, list[float]] = {words: [] for words, _ in limits}
    for file in ("hopper_widths_bf16.json.xz", "hopper_drawn_bf16.json.xz"):
        found = pairs(load(file), lambda x: x[0].replace("p", "", 1) if x["pingpong"] else None)
        for row, shape, ratio in found:
            tiles = -(-row["m"] // int(shape["rows"])) * -(-row["n"] // int(shape["columns"]))
            if flops(row) >= LARGE and tiles >= 2 * _SMS and int(shape["columns"]) >= 128:
                groups[next(words for words, most in limits if row["k"] <= most)].append(ratio)
    for words, ratios in groups.items():
        yield gain("ping-pong", words, ratios, "hopper_widths_bf16.json.xz, hopper_drawn_bf16.json.xz")


def _clusters() -> Iterator[Gain]:
    file = "hopper_rows_bf16.json.xz"
    words = ("rows at odd multiples of 16 bytes", "other large products", "small products")
    groups: dict[str, list[float]] = {name: [] for name in words}
    for row, shape, ratio in pairs(load(file), lambda x: re.sub(r"c\dx\d", "", x[0]) if x["cluster"] else None):
        if shape["cluster"] in ("2x1", "1x2"):
            dense = (row["k"] if row["order"][0] == "n" else row["m"], row["n"] if row["order"][1] == "n" else row["k"])
            odd = any(2 * size % 32 == 16 for size in dense)
            groups[words[2] if flops(row) < LARGE else words[0 if odd else 1]].append(ratio)
    for name in words:
        yield gain("clusters of two", name, groups[name], file)
    file = "hopper_ab_clusters.txt.xz"
    times = [list(map(float, re.findall(r"(\d+\.\d+)\b(?! )?", line))) for line in lines(file)[7:]]
    four = [min(x[2:5]) / x[5] for x in times if len(x) == 7]
    yield gain("clusters of four", "those of 440 products where it is fastest", [x for x in four if x > 1], file)
    eight = [min(x[2:6]) / x[6] for x in times if len(x) == 7]
    yield gain("clusters of eight", "those of 440 products where it is fastest", [x for x in eight if x > 1], file)


def plain(file: str, columns: int) -> Iterator[tuple[list[str], list[float]]]:
    """The words before the times, and the times, of each line of a text file that ends with so many times."""
    pattern = re.compile(rf"(\s*\d+\s+\d+\s+\d+ [nt]{{2}}\s.*?\S)((?:\s+\d+\.\d+){{{columns}}})")
    for line in lines(file):
        if found := pattern.fullmatch(line):
            yield found[1].split(), list(map(float, found[2].split()))


def _epilogue() -> Iterator[Gain]:
    file = "hopper_ab_pieces.txt.xz"
    found = [(after, before / after) for _, (_, before, after) in plain(file, 3)]
    for words, low, high in (("below 6 µs", 0.0, 6.0), ("6 to 12 µs", 6.0, 12.0), ("above", 12.0, 1e9)):
        yield gain("tile index without division", words, [x for us, x in found if low <= us < high], file)
    file = "hopper_ab_chunks.txt.xz"
    ratios = []
    for line in lines(file):
        match = re.fullmatch(
            r"\s*\d+\s+\d+\s+\d+ [nt]{2}\s+(\S+)\s+[\d.]+ {3,7}([\d.]+) {3,7}([\d.]+)(?:\s+[\d.]+)?", line
        )
        shape = named(match[1]) if match else None
        if match and shape and shape["columns"] in ("112", "176", "208"):
            ratios.append(float(match[2]) / float(match[3]))
    yield gain("overlapping epilogue chunks", "112, 176, 208 columns", ratios, file)
    file = "hopper_ab_streamed.txt"
    rows = []
    for line in lines(file):
        match = re.match(r"\s*\d+\s+\d+\s+(\d+) [nt]{2}\s+(\d+)\s+\S+\s+[\d.]+\s+([\d.]+)\s+([\d.]+)", line)
        if match:
            rows.append((int(match[1]), int(match[2]), float(match[3]) / float(match[4])))
    short = [ratio for k, size, ratio in rows if k <= 256 and size >= 200]
    yield gain("`evict_first` stores", "results of 200 MB, k up to 256", short, file)
    yield gain("`evict_first` stores", "others", [x for k, size, x in rows if k > 256 or size < 200], file)


def blocks(file: str, old: str, new: str) -> Iterator[tuple[str, float, float]]:
    """Of a text file of variants under each product: the product, the old time, and old over new, of each candidate."""
    product, times = "", {}
    for line in lines(file):
        if match := re.fullmatch(r"(\d+ \d+ \d+ [nt]{2}) torch .*", line):
            product = match[1]
        elif match := re.fullmatch(r"\s+(\S+) (.*?)\s+([\d.]+)\s+[\d.]+", line):
            times[product, match[1], match[2]] = float(match[3])
    for (product, name, variant), us in times.items():
        if variant == old and (product, name, new) in times:
            yield product, us, us / times[product, name, new]


def _launches() -> Iterator[Gain]:
    file = "hopper_ab_promotion.txt"
    aligned: dict[bool, list[float]] = {True: [], False: []}
    for product, _, ratio in blocks(file, "early1 promo3 at0", "early1 promo2 at0"):
        m, n, k, order = product.split()
        dense = (k if order[0] == "n" else m, n if order[1] == "n" else k)
        aligned[all(2 * int(size) % 128 == 0 for size in dense)].append(ratio)
    yield gain("L2 promotion of 128 bytes", "rows not aligned to 128 bytes", aligned[False], file)
    yield gain("L2 promotion of 128 bytes", "aligned rows", aligned[True], file)
    file = "hopper_ab_launch.txt"
    found = [(us, ratio) for _, us, ratio in blocks(file, "early0 trig0", "early1 trig0")]
    for words, low, high in (("below 8 µs", 0.0, 8.0), ("8 to 25 µs", 8.0, 25.0), ("above", 25.0, 1e9)):
        yield gain("PDL, without a trigger", words, [x for us, x in found if low <= us < high], file)
    for what, file in (("matrices", "hopper_early_bf16.json.xz"), ("vectors", "hopper_early_vectors.json.xz")):
        rows = load(file)
        for words, low, high in (("below 4.5 µs", 0.0, 4.5), ("4.5 to 8 µs", 4.5, 8.0), ("above", 8.0, 1e9)):
            ratios = [row["us"]["ENDED"] / row["us"][row["taken"]] for row in rows if low <= row["us"]["ENDED"] < high]
            yield gain("PDL, with the chosen trigger", f"{what}, {words}", ratios, file)
    file = "hopper_ab_prefetch.txt.xz"
    vectors = [(us[1], us[1] / us[2]) for words, us in plain(file, 6) if words[4].startswith("gemv")]
    for words, low, high in (("below 6 µs", 0.0, 6.0), ("6 to 16 µs", 6.0, 16.0), ("above", 16.0, 1e9)):
        yield gain(
            "L2 prefetch before the wait", f"vectors, {words}", [x for us, x in vectors if low <= us < high], file
        )
    file = "hopper_ab_prepass.txt"
    found = [(us[0], us[4]) for _, us in plain(file, 5)]
    yield gain("trigger in the pre-pass", "float32, below 10 µs", [x for us, x in found if us < 10], file)
    yield gain("trigger in the pre-pass", "float32, above", [x for us, x in found if us >= 10], file)


def _few_tiles() -> Iterator[Gain]:
    file = "hopper_drawn_bf16.json.xz"
    found = [(row, x) for row, x in fastest(load(file), lambda x: bool(x["parts"]))]
    few = [row["m"] * row["n"] <= _SMS * 64 * 64 and row["k"] >= 8192 for row, _ in found]
    where = "fewer than 132 tiles of 64 x 64, k from 8192 on"
    yield gain("split-K", where, [x for (_, x), wanted in zip(found, few) if wanted], file)
    yield gain("split-K", "others", [x for (_, x), wanted in zip(found, few) if not wanted], file)
    file = "hopper_ab_slices.txt.xz"
    pattern = r"    all in slices +(\d+)  ([\d.]+)  \(least ([\d.]+), most ([\d.]+)\)"
    reported = [match for line in lines(file) if (match := re.fullmatch(pattern, line))]
    for dtype, match in zip(("16 bits", "tf32", "float32"), reported):
        number, *figures = match.groups()
        yield Gain("sliced reduction of split-K", f"{dtype}, from 6 parts on", int(number), *map(float, figures), file)
    file = "hopper_drawn_bf16.json.xz"
    for words, low, high in (("m up to 16", 1, 16), ("m of 17 to 63", 17, 63), ("m of 64 to 128", 64, 128)):
        swapped = [x for row, x in fastest(load(file), lambda x: bool(x["swapped"])) if low <= row["m"] <= high]
        yield gain("swap-AB", words, swapped, file)


def _dtypes() -> Iterator[Gain]:
    for file, words in (
        ("hopper_quick_f32.json.xz", "chosen products"),
        ("hopper_drawn_f32.json.xz", "random products"),
    ):
        ratios = [row["torch_us"] / min(row["us"].values()) for row in load(file)]
        yield gain("float32 by bfloat16 planes, over cuBLAS", words, ratios, file)
    file = "hopper_packed_f32.json"
    ratios = []
    for row in load(file):
        if "packed" in row["us"]:
            ratios.append(min(us for name, us in row["us"].items() if name != "packed") / row["us"]["packed"])
    yield gain("packed b, float32", "chosen products", ratios, file)
    file = "hopper_quick_tf32.json.xz"
    found = list(fastest(load(file), lambda x: bool(x["registers"])))
    for words, low, high in (("up to 512 rows", 0, 512), ("more rows", 513, 1 << 30)):
        some = [x for row, x in found if low <= row["m"] <= high and row["order"] == "nn"]
        yield gain("a through registers, tf32", words, some, file)
    file = "hopper_drawn_f32.json.xz"
    found = list(fastest(load(file), lambda x: bool(x["registers"])))
    yield gain("a through registers, float32", "random products", [x for _, x in found], file)
    file = "hopper_small_f32.json.xz"
    found = list(fastest(load(file), lambda x: bool(x["split"])))
    for words, low, high in (("below 10 µs", 0.0, 10.0), ("10 to 20 µs", 10.0, 20.0), ("above", 20.0, 1e9)):
        some = [x for row, x in found if low <= min(row["us"].values()) < high]
        yield gain("b split in shared memory, float32", words, some, file)


def gains() -> list[str]:
    """Return one row for each technique and range."""
    found = [*_shapes(), *_clusters(), *_epilogue(), *_launches(), *_few_tiles(), *_dtypes()]
    return table("technique", "gain", found)


def table(what: str, speed: str, found: list[Gain]) -> list[str]:
    """Return a row for each of them; a file is named without "hopper_" and suffixes."""
    body = []
    for x in found:
        files = ", ".join(file.removeprefix("hopper_").partition(".")[0] for file in x.file.split(", "))
        body.append((x.technique, x.where, x.number, f"{x.mean:.3f}", f"{x.least:.2f} to {x.most:.2f}", files))
    return tables.rows((what, "where", "number", speed, "range", "file"), body)


def tiles() -> list[str]:
    """Return the speed of each tile at 4096 cubed, without cluster and ping-pong."""
    (row,) = (
        row for row in load("hopper_clusters_bf16.json.xz")
        if (row["m"], row["n"], row["k"], row["order"]) == (4096, 4096, 4096, "nt")
    )  # fmt: skip
    wanted = [(us, name) for name, us in row["us"].items() if re.fullmatch(r"\d+x\d+x\d+", name)]
    speeds = [(flops(row) / us * 1e-6, name) for us, name in sorted(wanted, reverse=True)]
    kept = [(f"`{name}`", f"{x:.0f}") for x, name in speeds]
    return tables.rows(("tile x stages", "TFLOPS"), [*kept, ("cuBLAS", f"{flops(row) / row['torch_us'] * 1e-6:.0f}")])


def fences() -> list[str]:
    """Return the speed of shapes in a cluster over the same without: with cluster-wide fences, and without fences."""
    body = []
    for shape in ("128x128x6", "128x128x6p", "128x192x5", "128x256x4", "256x192x3"):
        cells: list[object] = [f"`{shape}c2x1`"]
        for file in ("hopper_fences_bf16.json.xz", "hopper_clusters_bf16.json.xz"):
            ratios = [
                row["us"][shape] / row["us"][f"{shape}c2x1"] for row in load(file)
                if row["m"] >= 512 and {shape, f"{shape}c2x1"} <= set(row["us"])
            ]  # fmt: skip
            cells += [len(ratios), f"{geometric_mean(ratios):.2f}"]
        body.append(cells)
    return tables.rows(("shape", "products", "with release and acquire", "products", "without"), body)
