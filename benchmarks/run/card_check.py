"""The CUDA plugins' tests of threads, contexts, nested calls, streams and graphs on a card, and the cost of fences.

    python -m benchmarks.run.card_check [--seconds 420] [--logs DIR]

It runs from a working tree, installed or not. It needs torch, pytest with pytest-xdist, hypothesis, ml_dtypes, sybil,
platformdirs, cuda-pathfinder and NVRTC. At the end it prints a table: the products of ``hopper_torch.py --quick`` with
the present kernels and with kernels in which one thread fences for all; and for each set of tests the numbers of
passed, failed and skipped ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT, *(ROOT / "plugins" / f"gemmhub-{name}" for name in ("nvidia", "cublas", "cuda", "hopper")))
THREADS = "fresh or context or nested or streams or graph or clusters or addresses or determin"
PRODUCTS = "test_product or follow or special"
SETS = {
    "cublas, the whole file": ("cublas", "test_device.py", []),
    "cublas, users' calls": ("cublas", "test_device_calls.py", []),
    "cublas, scales": ("cublas", "test_device_scales.py", []),
    "cuda": ("cuda", "test_device.py", ["-k", THREADS]),
    "hopper": ("hopper", "test_device.py", ["-k", THREADS]),
    "hopper, products": (
        "hopper",
        "test_device.py",
        ["-k", "test_product or follow or special", "-n", "12", "-p", "no:benchmark"],
    ),
}
"""Name: (plugin, file, options of pytest)."""
FENCED = ("            async_fence();  // by every", "            if (stores) async_fence();  // by every")
"""Lines of epilogue.cuh: a fence by every thread, and a fence by one thread."""


def install(site: Path) -> None:
    """Write metadata and entry points as pip does for pure-Python projects."""
    for folder in PROJECTS:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        name, version = project["name"], project.get("version", "0")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = []
        for group, points in project.get("entry-points", {}).items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def environment(*folders: Path) -> dict[str, str]:
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(command: list[str], seconds: float, log: Path, env: dict[str, str]) -> str:
    """Return the output of ``command``, which also goes to ``log``; where it takes longer, the output so far."""
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            process.wait(max(1, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            file.write(f"\nstopped after {seconds:.0f} s\n")
    return log.read_text()


def counted(text: str) -> str:
    """Return pytest's last line, and the names of failed tests."""
    found = re.findall(r"^(?:=+ )?(\d+ [a-z]+.* in [\d.]+s.*?)(?: =+)?$", text, re.MULTILINE)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    end = found[-1] if found else (text.strip().splitlines() or ["nothing"])[-1][:100]
    return "\n".join([end, *(f"    {name}" for name in failed[:12])])


def ratios(path: Path) -> dict[str, float]:
    """Return torch's time over the kernel's, by product."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {f"{row['m']}x{row['n']}x{row['k']} {row['order']}": row["ratio"] for row in rows}


def fences(logs: Path, work: Path, end: float) -> dict[str, dict[str, float]]:
    """Return ratios to torch with the present kernels, with one thread that fences for all, and the former again."""
    old = work / "old"
    shutil.copytree(PROJECTS[-1], old)
    epilogue = old / "gemmhub_hopper" / "kernels" / "epilogue.cuh"
    text = epilogue.read_text()
    assert FENCED[0] in text
    epilogue.write_text(text.replace(*FENCED))
    found: dict[str, dict[str, float]] = {}
    for name, plugin in (("every writer", PROJECTS[-1]), ("one thread", old), ("every writer again", PROJECTS[-1])):
        made = logs / f"fences_{name.replace(' ', '_')}.json"
        left = (end - time.monotonic()) / (3 - len(found))
        command = [sys.executable, "-m", "benchmarks.run.hopper_torch", "--quick", "--rounds", "5", "--json", str(made)]
        command += ["--seconds", str(max(1.0, left - 15))]
        run(command, left, made.with_suffix(".txt"), environment(work / "site", plugin, *PROJECTS))
        found[name] = ratios(made)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=420.0, help="for everything")
    parser.add_argument("--tests-only", action="store_true", help="omit the cost of fences")
    parser.add_argument("--logs", type=Path, default=Path(os.environ.get("OUT", "card_check")))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    options.logs.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="gemmhub-card-"))
    install(work / "site")
    env, table = environment(work / "site", *PROJECTS), dict[str, str]()
    for name, (plugin, file, chosen) in SETS.items():  # one process each: earlier tests are part of the test
        path = ROOT / "plugins" / f"gemmhub-{plugin}" / "tests" / file
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--tb=short", str(path)]
        log = options.logs / f"{re.sub('[^a-z]+', '_', name)}.txt"
        left = end - time.monotonic() - 60 * (not options.tests_only)
        table[name] = counted(run([*command, *chosen], min(150, left), log, env))
    found = {} if options.tests_only else fences(options.logs, work, end)
    shutil.rmtree(work)
    if found:
        print("\nbfloat16, torch's time over the kernel's, where these fence:", ", ".join(found))
    for product in dict.fromkeys(product for each in found.values() for product in each):
        print(f"{product:20}", *(f"{each.get(product, 0):.3f}" for each in found.values()))
    print("\ntests")
    for name, counts in table.items():
        print(f"{name:26} {counts}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
