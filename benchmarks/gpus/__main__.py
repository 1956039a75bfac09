"""Products on several GPUs of one host against torch's DTensor and asynchronous tensor parallelism, in one bounded run.

    python -m benchmarks.gpus [--seconds 275] [--ranks N] [--backend nccl|gloo] [--json FILE]

Runs from a working tree, installed or not; by default a rank for each GPU, or two ranks of CPUs over gloo with small
sizes, which tries the program and measures nothing. Parts: speeds of products and links; every pair of placements; the
linear layers of a Llama 70B block; a square product beyond the memory of one GPU; a killed rank; symmetric memory.
Three groups of processes run one after the other, each within its time; what was measured before a group's end is kept.
NVLink multicast stays off. Prints the tables of benchmarks/pages/gpus.py last.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.lib import results
from benchmarks.pages import gpus as page
from benchmarks.run.card_check import PROJECTS, install

QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off."""
AFTER = {"killed": 45.0, "symmetric": 35.0}
"""Seconds kept for the groups after the main one."""


class Group:
    """The processes of one part, a rank each."""

    def __init__(self, parts: list[str], asked: Any, until: float, folder: Path, env: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder, self.until = folder, until
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.gpus.worker", *parts]
        command += ["--backend", asked.backend, "--until", str(until), "--folder", str(folder)]
        self.ranks = []
        for rank in range(asked.ranks):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": asked.ranks, "MASTER_PORT": port}
            with (folder / f"log.{rank}").open("w") as log:
                self.ranks.append(
                    subprocess.Popen(
                        command, cwd=results.ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                        env={**env, "MASTER_ADDR": "127.0.0.1", **{name: str(x) for name, x in own.items()}},
                    )
                )  # fmt: skip

    def wait(self, grace: float = 8.0) -> None:
        """Wait until all ranks have ended, or end them; where one fails, the others have a moment to say why."""
        while any(rank.poll() is None for rank in self.ranks):
            time.sleep(0.1)
            if any(rank.poll() not in (None, 0) for rank in self.ranks):
                self.until = min(self.until, time.time() + grace)
            if time.time() > self.until + grace / 2:
                self.end()

    def end(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "rows"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def log(self, longest: int = 20_000) -> str:
        parts = []
        for rank in range(len(self.ranks)):
            text = (self.folder / f"log.{rank}").read_text(errors="replace")
            parts.append(f"{self.folder.name}, rank {rank}: exit {self.ranks[rank].poll()}\n{text[-longest:]}\n")
        return "\n".join(parts)


def killed(group: Group, mode: str) -> list[dict[str, Any]]:
    """Kill the last rank once all multiply; a row for each other rank."""
    last = len(group.ranks) - 1
    while not all((group.folder / f"running.{rank}").exists() for rank in range(last + 1)):
        if time.time() > group.until - 15 or any(rank.poll() is not None for rank in group.ranks):
            group.end()
            return [{"part": "killed", "what": mode, "failed": "not all ranks began in time"}]
        time.sleep(0.05)
    time.sleep(0.5)
    start = time.time()
    group.ranks[last].kill()
    ends: dict[int, float] = {}
    while len(ends) < last and time.time() < group.until:
        time.sleep(0.05)
        ends |= {i: time.time() for i in range(last) if i not in ends and group.ranks[i].poll() is not None}
    group.end()
    found = []
    for rank in range(last):
        path, row = group.folder / f"error.{rank}.json", {"part": "killed", "what": f"{mode}, rank {rank}"}
        if path.exists():
            told = json.loads(path.read_text())
            found.append({**row, "seconds": told["at"] - start, "error": told["error"]})
        elif rank in ends:
            code = group.ranks[rank].poll()
            found.append({**row, "seconds": ends[rank] - start, "error": f"the process ended with status {code}"})
        else:
            found.append({**row, "failed": "neither an exception nor an end within the time"})
    return found


def environment(site: Path) -> dict[str, str]:
    """The environment of ranks, with gemmhub and the CUDA plugins of this tree where they are not installed."""
    paths = [str(results.ROOT), *(str(folder) for folder in PROJECTS)]
    if not list(importlib.metadata.entry_points(group="gemmhub")):
        install(site)
        paths.append(str(site))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def gpus() -> int:
    """GPUs of this machine, without torch in this process."""
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        return len(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split())
    except (OSError, subprocess.SubprocessError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=275.0, help="for everything")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4, 8), help="by default as many as there are GPUs for")
    parser.add_argument("--backend", choices=("nccl", "gloo"))
    parser.add_argument("--json", type=Path, help="the result file; the ranks' output goes beside it, as .log")
    asked = parser.parse_args()
    end, count = time.time() + asked.seconds - 5, gpus()
    asked.backend = asked.backend or ("nccl" if count else "gloo")
    asked.ranks = asked.ranks or max(x for x in (2, 4, 8) if x == 2 or (x <= count and asked.backend == "nccl"))
    rows: list[dict[str, Any]] = []
    logs = []

    def keep(found: list[dict[str, Any]], *groups: Group) -> None:
        rows.extend(found)
        logs.extend(group.log() for group in groups)
        if asked.json:
            asked.json.with_suffix(".log").write_text("\n".join(logs))
            results.save(asked.json, **facts(rows))

    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        env = environment(top / "site")
        main_group = Group(
            ["links", "pairs", "layers", "large", "variants"], asked, end - sum(AFTER.values()), top / "main", env
        )
        main_group.wait()
        keep(main_group.rows(), main_group)
        until = min(end - AFTER["symmetric"], time.time() + AFTER["killed"])
        modes: dict[str, dict[str, str]] = {"blocking wait": {"TORCH_NCCL_BLOCKING_WAIT": "1"}, "default": {}}
        if asked.backend == "gloo":
            modes = {"gloo": {}}
        groups = {
            mode: Group(["killed"], asked, until, top / f"killed-{mode.split()[0]}", {**env, **extra})
            for mode, extra in modes.items()
        }
        with ThreadPoolExecutor() as watch:
            for found in watch.map(killed, groups.values(), groups):
                rows.extend(found)
        keep([], *groups.values())
        last = Group(["links", "symmetric"], asked, end, top / "symmetric", env)
        last.wait(4.0)
        keep([row for row in last.rows() if row["part"] == "symmetric"], last)
    print("\n".join(logs)[-4000:] if not any(row["part"] == "links" for row in rows) else "")
    print("\n".join(page.tables(facts(rows))))


def facts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the result file holds: versions, then rows by part."""
    found: dict[str, Any] = {}
    for row in rows:
        rest = {key: x for key, x in row.items() if key != "part"}
        if row["part"] == "versions":
            found |= {key: x for key, x in rest.items() if key not in ("what", "parts")}
        else:
            found.setdefault(row["part"], []).append(rest)
    return found


if __name__ == "__main__":
    main()
