"""Time candidates of gemmhub's CUDA backends on random products, all candidates of a product in one run.

    python -m benchmarks.fit.measure DIR [--seconds 500] [--seed 1] [--classes NAME...] [--threads 8]

train.py fits corrections of cost models to the times. It needs an NVIDIA card, torch, and the plugins to fit; run
``gemmhub build hopper`` before. A run appends a line for each product to DIR/CLASS.jsonl and continues where the
previous one ended, so that data grow in steps. DIR/card.json names the card: a folder has data of one card.

Several cards of a host are measured at once by one process each, with another seed and another DIR:

    CUDA_VISIBLE_DEVICES=0 python -m benchmarks.fit.measure DIR/0 --seed 10 &
    CUDA_VISIBLE_DEVICES=1 python -m benchmarks.fit.measure DIR/1 --seed 11 &
    wait; python -m benchmarks.fit.train DIR/0 DIR/1

For each product it times torch's call, cuBLASLt's first choice, gemmhub-hopper's best candidates with some drawn from
the remaining ones, so that a network is trained on slow candidates too, and gemmhub-cuda's best where rows are
misaligned, of float32, int8 and batches, and of a fourth of the others. Candidates whose estimates are far from the
least one are left out: they would take the time of many products. Other threads prepare the next products meanwhile;
they load no module while candidates are timed. A result that float64 does not confirm is omitted, and makes the exit
status 1. Times are in microseconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cuda.backend import CudaBackend
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.cost import choose, gemv_model
from gemmhub_hopper.lowering import lower
from gemmhub_nvidia import clusters

from benchmarks.fit import sample
from benchmarks.lib.cuda_graphs import Call, launching
from benchmarks.lib.drawn import Product
from benchmarks.lib.one_backend import prepared
from benchmarks.lib.torch_calls import RATES, Setup, extras, reference, torch_calls
from gemmhub.backend import Offer
from gemmhub.capability import Absent, Refusal
from gemmhub.problem import GemmProblem

_FIRST, _BEHIND, _DRAWN = 6, 40, 4
"""Numbers of candidates of gemmhub-hopper: the best, and the next ones, of which some are drawn."""
_CUDA, _CUDA_SHARE = 2, 0.25
"""Candidates of gemmhub-cuda, and the share of products for which it has few reasons to be the fastest."""
_FAR = 8.0
"""Largest estimate of a candidate to time, as a multiple of the least one."""
_LOOKS, _ROUNDS, _NEAR, _MOST_NEAR = 2, 3, 1.1, 8
"""Rounds for all candidates; rounds, distance from the fastest and greatest number for a second measurement."""
_CARD_TIME, _LEAST = 0.06, 5
"""Seconds of a product on the card, which limit its number of candidates, and the least such number."""
_STRETCH, _BANDWIDTH = 3e-4, 3e12
"""Target seconds of a graph; expected bytes a second."""
_AHEAD, _AHEAD_LEAST = 24, 2
"""Numbers of products prepared in advance for all classes together, and for each class."""
_SLACK, _SLACK_SECONDS = 1.2, 1.0
"""Limit of a class's lead over its share of the time, while no other class is ready."""
_RESERVED = 40 * 2**30
"""Bytes that torch may cache before they are returned to the driver."""
_SAMPLE = 8
"""Number of rows of a result that are compared with float64."""
_TOLERANCES = {"float32": 1e-4, "complex64": 1e-4, "int8": 0.0}


class Tools:
    """The backends of one thread: each thread has its own locks, and so compiles in parallel."""

    def __init__(self, quiet: threading.Lock) -> None:
        """Create the backends; while ``quiet`` is held for timing, no module is loaded."""
        self.cublas, self.hopper, self.cuda = CublasBackend(), HopperBackend(), CudaBackend()
        for backend in (self.cublas, self.hopper, self.cuda):
            found = backend.probe()
            if isinstance(found, Absent):
                raise SystemExit(f"{backend.name}: {found.reason}; {found.remedy}")
        for gpu in (self.hopper.machine.gpus[0], self.cuda.machine.gpus[0]):
            gpu.function = _held(quiet, gpu.function)  # type: ignore[method-assign]


def _held(quiet: threading.Lock, load: Callable[..., int]) -> Callable[..., int]:
    def function(*arguments: Any) -> int:
        with quiet:
            return load(*arguments)

    return function


class Prepared(NamedTuple):
    number: int
    product: Product
    kernels: dict[tuple[str, str], Callable[..., object]]
    """The ``run`` of kernels by (backend, candidate), the most promising first."""
    seconds: float
    """The least estimate."""
    failed: list[str]


class Proposed(NamedTuple):
    """A candidate to time."""

    backend: Any
    candidate: str
    workspace: int
    known_as: str
    """The recorded name."""
    seconds: float
    """The estimate."""


def proposals(tools: Tools, product: Product, asked: GemmProblem, rng: random.Random) -> list[Proposed]:
    """Return the candidates to time, the most promising first."""
    found: list[Proposed] = []
    offer = tools.cublas.offer(asked)
    if isinstance(offer, Offer):
        first = offer.first
        found.append(Proposed(tools.cublas, first.name, offer.workspace, "first", first.seconds or 0.0))
    behind: list[Proposed] = []
    offer = tools.hopper.offer(asked)
    if isinstance(offer, Offer):
        found += _best(tools.hopper, offer, _FIRST)
        behind = drawn_behind(tools.hopper, asked, offer, rng)
    if rng.random() < _CUDA_SHARE or product.dtype in ("float32", "int8") or asked.batch or misaligned(product, asked):
        offer = tools.cuda.offer(asked)
        if isinstance(offer, Offer):
            found[3:3] = _best(tools.cuda, offer, _CUDA)
    found[4:4] = behind[:1]  # a slow candidate even where time is short
    found += behind[1:]
    least = min((x.seconds for x in found if x.seconds), default=0.0)
    return [x for x in found if x.seconds <= _FAR * least]


def _best(backend: Any, offer: Offer, most: int) -> list[Proposed]:
    """Return the first candidates of an offer."""
    some = offer.candidates[:most]
    return [Proposed(backend, x.name, offer.workspace, x.name, x.seconds or 0.0) for x in some]


def drawn_behind(hopper: HopperBackend, asked: GemmProblem, offer: Offer, rng: random.Random) -> list[Proposed]:
    """Draw some candidates ranked after the best ones, of each scheme, and some of the kernels for vectors."""
    lowerings = lower.lowerings(asked)
    if isinstance(lowerings, Refusal):
        return []
    card, workspace = hopper._card_of(0), hopper.machine.gpus[0].default_workspace
    best = offer.names[:_FIRST]
    lists = [
        {x.choice.name: x.seconds for x in choose.ranked(some, card, workspace, _FIRST + _BEHIND)}
        for some in choose.by_scheme(lowerings)
    ]
    lists.append({choice.name: gemv_model.seconds(choice, card) for choice in gemv.choices(lowerings)})
    found = []
    for some in lists:
        rest = [name for name in some if name not in best]
        drawn = rng.sample(rest, min(-(-_DRAWN // max(1, len(lists) - 1)), len(rest)))
        found += [Proposed(hopper, name, offer.workspace, name, some[name]) for name in drawn]
    return found


def misaligned(product: Product, asked: GemmProblem) -> bool:
    """Return whether the rows of some matrix are not multiples of 16 bytes."""
    _, m, n, k = product.sizes
    rows = (m if product.orders[0] == "t" else k, k if product.orders[1] == "t" else n, n)
    return any(row * asked.a.dtype.itemsize % 16 for row in rows)


class Workshop:
    """Threads that prepare products, each class in the order of its numbers."""

    def __init__(self, seed: int, next_numbers: dict[str, int], shares: dict[str, float], threads: int) -> None:
        """Begin to prepare products with the ``next_numbers`` of each class; ``shares`` of the time for each."""
        self.quiet = threading.Lock()
        self._seed, self._next, self._shares = seed, next_numbers, shares
        self._own = threading.local()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(max(2, min(threads, (os.cpu_count() or 4) - 2)))
        self._waiting: dict[str, deque[Future[Prepared | None]]] = {name: deque() for name in next_numbers}
        for i in range(_AHEAD):
            for name in next_numbers:
                if i < max(_AHEAD_LEAST, shares[name] * _AHEAD):
                    self._submit(name)

    def _submit(self, name: str) -> None:
        number = self._next[name]
        self._next[name] += 1
        self._waiting[name].append(self._pool.submit(self._prepared, name, number))

    def _prepared(self, name: str, number: int) -> Prepared | None:
        """Return a prepared product; None after a stop."""
        if not hasattr(self._own, "tools"):
            self._own.tools = Tools(self.quiet)
        product = sample.draw(self._seed, name, number)
        asked, rng = sample.problem(product), random.Random(number)
        try:
            proposed = proposals(self._own.tools, product, asked, rng)
        except Exception as error:  # a failure of one product must not stop the others
            words = f"{sample.words(sample.row(product))}: {type(error).__name__}: {error}"[:300]
            return Prepared(number, product, {}, 0.0, [words])
        found = Prepared(number, product, {}, min((x.seconds for x in proposed), default=0.0), [])
        for backend, candidate, workspace, known_as, _ in proposed:
            if self._stopped.is_set():
                return None
            try:
                kernel = prepared(backend, asked, candidate, workspace)
                found.kernels[backend.name, known_as] = kernel.run
            except Exception as error:
                found.failed.append(f"{backend.name} {candidate}: {type(error).__name__}: {error}"[:200])
        return found

    def take(self, spent: dict[str, float], seconds: float) -> tuple[str, Prepared | None]:
        """Return a prepared product of the class furthest behind its share; None after ``seconds``."""
        allowed = sum(spent.values()) * _SLACK + _SLACK_SECONDS
        heads = {name: x[0] for name, x in self._waiting.items() if spent[name] <= self._shares[name] * allowed}
        wait(heads.values(), seconds, FIRST_COMPLETED)
        ready = [name for name, head in heads.items() if head.done()]
        if not ready:
            return "", None
        name = min(ready, key=lambda name: spent[name] / self._shares[name])
        found = self._waiting[name].popleft().result()
        self._submit(name)
        return name, found

    def stop(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


class FitRig(Setup):
    """A Rig with fewer waits for the card in capture and timing, for many products a second."""

    def __init__(self, product: Product, seconds: float) -> None:
        """Allocate operands; ``seconds``: an estimate of the fastest candidate."""
        super().__init__(product)
        batch, m, n, k = product.sizes
        nbytes = self.sets[0][0].element_size() * batch * (m * k + k * n + m * n)
        self.seconds = max(3e-6, product.flops / RATES[product.dtype], nbytes / _BANDWIDTH, seconds)
        self.calls = max(1, min(40, int(_STRETCH / self.seconds) + 1))

    def add(self, call: Call) -> int:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")  # other threads load modules
        try:
            for i in range(self.calls):
                call(*self.sets[i % len(self.sets)])
        finally:
            graph.capture_end()
        self._graphs.append(graph)
        return len(self._graphs) - 1

    def medians(self, contenders: list[int], rounds: int) -> list[float]:
        """Return medians as Rig does, after one untimed round, because the card is never idle for long."""
        events = []
        for turn in range(rounds + 1):
            for i in random.Random(turn).sample(range(len(contenders)), len(contenders)):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                self._graphs[contenders[i]].replay()
                end.record()
                events.append((turn, i, start, end))
        torch.cuda.current_stream().synchronize()
        logs = torch.empty(rounds + 1, len(contenders))
        for turn, i, start, end in events:
            logs[turn, i] = math.log(max(start.elapsed_time(end), 1e-6) * 1e-3 / self.calls)
        logs = logs[1:]
        common = logs.mean(dim=1, keepdim=True)
        found: list[float] = (common.quantile(0.5) + (logs - common).quantile(0.5, dim=0)).exp().tolist()
        return found


def measure(found: Prepared, quiet: threading.Lock) -> dict[str, Any]:
    """Measure a product; return its row. The current stream must be one that the driver does not synchronise."""
    product = found.product
    torch.backends.cuda.matmul.allow_tf32 = product.dtype == "tf32"
    rig, more = FitRig(product, found.seconds), extras(product)
    theirs = {("torch", name): call for name, call in torch_calls(product, more).items()}
    added = {name: x for name, x in more.items() if isinstance(x, torch.Tensor)}
    ours = {key: launching(run, **added) for key, run in found.kernels.items()}
    most = max(_LEAST, int(_CARD_TIME / (rig.seconds * rig.calls * (1 + _LOOKS + 0.4 * _ROUNDS))))
    calls = {**theirs, **dict(list(ours.items())[: most - len(theirs)])}
    failed = list(found.failed)
    ran = checked(product, rig, calls, more, failed)
    wrong = [key for key in ran if key in ours and not ran[key]]
    numbers = {}
    for key in [key for key in ran if key not in wrong]:
        try:
            numbers[key] = rig.add(calls[key])
        except Exception as error:  # as in its preparation
            failed.append(f"{' '.join(key)}: {type(error).__name__}: {error}"[:200])
    us: dict[str, dict[str, float]] = {}
    if numbers:
        torch.cuda.current_stream().synchronize()
        with quiet:
            times = timed(rig, numbers)
        for (backend, name), seconds in times.items():
            us.setdefault(backend, {})[name] = float(f"{seconds * 1e6:.4g}")
    return {
        **sample.row(product), "number": found.number, "us": us,
        "wrong": [" ".join(key) for key in wrong], "failed": failed,
    }  # fmt: skip


def timed(rig: FitRig, numbers: dict[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    """Return the seconds of each call; those near the fastest are timed again, together with torch's."""
    times = dict(zip(numbers, rig.medians(list(numbers.values()), _LOOKS)))
    best = min(times.values())
    near = sorted((x for x in times if times[x] < _NEAR * best), key=lambda x: times[x])[:_MOST_NEAR]
    near = list(dict.fromkeys([*near, *(x for x in times if x[0] == "torch")]))
    again = dict(zip(near, rig.medians([numbers[x] for x in near], _ROUNDS)))
    slower = math.exp(sum(math.log(again[x] / times[x]) for x in near) / len(near))  # the card is hotter by then
    return {x: again.get(x, seconds * slower) for x, seconds in times.items()}


def checked(
    product: Product, rig: FitRig, calls: dict[tuple[str, str], Any], more: dict[str, Any], failed: list[str]
) -> dict[tuple[str, str], bool]:
    """Compare some rows of each result with float64's."""
    a, b, out = rig.sets[0]
    batch, m, _, _ = product.sizes
    last = (lambda x: x[-1]) if batch > 1 else (lambda x: x)
    rows = torch.linspace(0, m - 1, min(_SAMPLE, m), device="cuda").long()
    exact = reference(last(a), last(b), more, rows)
    allowed = _TOLERANCES.get("" if product.scales else product.dtype, 0.05) * (
        exact.abs().square().mean().sqrt() + 0.4 * exact.abs()
    )
    verdicts = {}
    for key, call in calls.items():
        out.fill_(77 if out.dtype == torch.int32 else float("nan"))
        try:
            call(a, b, out)
        except Exception as error:
            failed.append(f"{' '.join(key)}: {type(error).__name__}: {error}"[:200])
            continue
        verdicts[key] = ((last(out)[rows].to(exact.dtype) - exact).abs() <= allowed).all()
    return dict(zip(verdicts, torch.stack(list(verdicts.values())).tolist())) if verdicts else {}


def card_facts(tools: Tools) -> dict[str, Any]:
    """Return the facts of the card that features use, and the versions."""
    gpu, cuda = tools.hopper.machine.gpus[0], tools.cuda.machine.cards[0]
    return {
        "name": gpu.name, "sms": gpu.sms, "clock": gpu.clock, "bandwidth": gpu.bandwidth,
        "capability": list(gpu.capability), "clusters": list(clusters.asked(gpu)),
        "shared_per_block": cuda.shared_per_block, "shared_per_sm": cuda.shared_per_sm,
        "threads_per_sm": cuda.threads_per_sm, "library": tools.cublas.machine.library.version,
        "driver": "{}.{}".format(*gpu.driver.cuda_version), "torch": torch.__version__,
    }  # fmt: skip


def begun(folder: Path, facts: dict[str, Any], command: str) -> None:
    """Write card.json; raise SystemExit where the folder has data of another card."""
    file = folder / "card.json"
    folder.mkdir(parents=True, exist_ok=True)
    if file.is_file():
        before = json.loads(file.read_text())
        other = [key for key in ("name", "sms", "bandwidth", "library") if before[key] != facts[key]]
        if other:
            words = ", ".join(f"{key} {before[key]} there, {facts[key]} here" for key in other)
            raise SystemExit(f"{folder} has data of another card or library ({words}); name another folder")
    else:
        file.write_text(json.dumps({**facts, "command": command}, indent=1) + "\n")


def table(rows: list[dict[str, Any]], seconds: float) -> list[str]:
    lines = [f"{'class':10}{'products':>9}{'candidates':>12}{'wrong':>7}{'failed':>8}{'no time':>9}"]
    for name in sample.SHARES:
        mine = [row for row in rows if row["class"] == name]
        candidates = sum(len(us) for row in mine for us in row["us"].values())
        counts = Counter({key: sum(len(row[key]) for row in mine) for key in ("wrong", "failed")})
        empty = sum(not row["us"] for row in mine)
        lines.append(f"{name:10}{len(mine):9}{candidates:12}{counts['wrong']:7}{counts['failed']:8}{empty:9}")
    return [*lines, f"{len(rows)} products in {seconds:.0f} s, {len(rows) / seconds:.1f} a second"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=500.0, help="length of this run, imports included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--classes", nargs="+", choices=sample.SHARES, default=list(sample.SHARES), metavar="NAME")
    parser.add_argument("--threads", type=int, default=8, help="that prepare products, and compile")
    options = parser.parse_args()
    start = time.monotonic() - time.process_time()  # before imports
    sys.setswitchinterval(5e-4)  # the timing thread must not wait long for preparing ones
    begun(
        options.folder, card_facts(Tools(threading.Lock())), f"python -m benchmarks.fit.measure --seed {options.seed}"
    )
    numbers, whole = sample.numbers(options.folder), sum(sample.SHARES[name] for name in options.classes)
    shares = {name: sample.SHARES[name] / whole for name in options.classes}
    workshop = Workshop(options.seed, {name: numbers[name] for name in shares}, shares, options.threads)
    rows, began = [], time.monotonic()
    spent = dict.fromkeys(shares, 0.0)
    end = start + options.seconds - 3.0
    files = {name: (options.folder / f"{name}.jsonl").open("a", buffering=1) for name in shares}
    with torch.cuda.stream(torch.cuda.Stream()):
        while time.monotonic() < end:
            name, found = workshop.take(spent, end - time.monotonic())
            if found is None:
                continue
            now = time.monotonic()
            rows.append(measure(found, workshop.quiet))
            spent[name] += time.monotonic() - now
            files[name].write(json.dumps(rows[-1], separators=(",", ":")) + "\n")
            if torch.cuda.memory_reserved() > _RESERVED:
                torch.cuda.empty_cache()
    workshop.stop()
    for file in files.values():
        file.close()
    alarms = [(row, word) for row in rows for word in row["wrong"]]
    for row, word in alarms:
        print(f"WRONG: {word}: {sample.words(row)}")
    for word in Counter(word for row in rows for word in row["failed"]).most_common(10):
        print(f"failed {word[1]} times: {word[0]}")
    print("\n".join(table(rows, time.monotonic() - began)), flush=True)
    return int(bool(alarms))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # without a wait for compilations that still run
