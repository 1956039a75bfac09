"""``gemmhub doctor musa``: reports the facts about MUSA on this machine that a bug report needs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from gemmhub._choice.registry import registry
from gemmhub.backend import Backend, Kernel
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.cli.doctor_report import Finding
from gemmhub.errors import GemmhubError
from gemmhub.kit import native
from gemmhub.problem import GemmProblem
from gemmhub_musa import array, attested, compile, first_run, runtime, sdk, selftest
from gemmhub_musa.runtime import Machine, MusaError
from gemmhub_musa.sdk import Library, NotConfigured, Sdk

_VARIABLES = (
    *sdk.VARIABLES, "MUSA_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES", "MUSA_LAUNCH_BLOCKING", "MUSA_ENABLE_TF32",
    "MUBLAS_WORKSPACE_CONFIG", "GEMMHUB_MCC", "CXX",
)  # fmt: skip
"""The variables that select or configure the MUSA installation. No other variable is reported."""
_WITHOUT_A_CARD = ("mp_22", "mp_31")
"""The architectures to compile for without a device."""
_DTYPES = (
    ("float32", None),
    ("float64", None),
    ("float16", None),
    ("bfloat16", None),
    ("float16", "float32"),
    ("int8", None),
)
_TOOL_SECONDS = 30.0

KERNEL = """\
#include <musa_runtime.h>

__global__ void gemmhub_add(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}

extern "C" int gemmhub_launch_add(const float* x, float* y, int n, musaStream_t stream) {
  gemmhub_add<<<(n + 127) / 128, 128, 0, stream>>>(x, y, n);
  return (int)musaGetLastError();
}
"""
"""A kernel that shows whether compiling and launching work."""


def findings(trial: bool = False) -> Iterator[Finding]:
    """See :mod:`gemmhub.cli.doctor_report`."""
    found = sdk.find()
    yield from _environment(found)
    if isinstance(found, Absent):
        return
    machine = runtime.machine()
    yield from _libraries(found)
    yield from _devices(found, machine)
    yield from _headers(found)
    yield from _compilers(found, machine)
    if isinstance(machine, Machine):
        yield from _arrays(machine)
    yield from _backends()
    if isinstance(machine, Machine):
        yield from _products(machine)
        if trial:
            from gemmhub_musa import trial as trials

            yield from trials.findings()


def _environment(found: Sdk | Absent) -> Iterator[Finding]:
    section = "installation"
    for name in _VARIABLES:
        if name in os.environ:
            yield Finding(section, name, os.environ[name])
    if isinstance(found, Absent):
        yield Finding(section, "SDK", f"{found.reason}; {found.remedy}", False)
        return
    yield Finding(section, "home", f"{found.home or 'none'} (by {found.found_by})")
    yield Finding(section, "version", found.version or "unknown")
    yield Finding(section, "libraries", ", ".join(map(str, found.libraries)) or "those that the loader finds")
    yield Finding(section, "headers", str(found.include or "none"))
    for note in found.notes:
        yield Finding(section, "note", note, False)
    query = found.home / "bin" / "musa_version_query" if found.home else None
    if query is not None and query.is_file():
        outcome = native.run([str(query)], timeout=_TOOL_SECONDS)
        yield Finding(section, "musa_version_query", outcome.failure or "its output follows", detail=outcome.last(60))
    try:
        place = native.folder()
        yield Finding(section, "build cache", f"{place.path}" + (f" ({place.note})" if place.note else ""))
    except OSError as error:
        yield Finding(section, "build cache", f"no folder can be written to: {error}", False)


def _libraries(found: Sdk) -> Iterator[Finding]:
    for stem in sdk.NAMES:
        refusal = first_run.passed(found, f"lib{stem}.so, when it was loaded,", (), partial(_opens, stem=stem))
        library = refusal or found.library(stem)
        if isinstance(library, Refusal):
            # Which of the others exist depends on the SDK; a backend that needs one reports that itself.
            yield Finding("libraries", stem, library.reason, False if stem == "musart" else None)
            continue
        outside = "" if stem == "musa" or _inside(found, library) else f", which is not in {found.home}"
        yield Finding("libraries", stem, f"{library.where} (by {library.by}){outside}", None if not outside else False)


def _opens(found: Sdk, stem: str) -> Refusal | None:
    library = found.library(stem)
    return library if isinstance(library, Refusal) else None


def _inside(found: Sdk, library: Library) -> bool:
    """Return whether a library is the installation's own; always true without a home."""
    files = [path for folder in found.libraries for path in folder.glob("lib*.so*")]
    own = {str(folder) for folder in found.libraries}
    return found.home is None or library.by in own or library.where in {os.path.realpath(path) for path in files}


def _devices(found: Sdk, machine: Machine | Absent) -> Iterator[Finding]:
    section = "devices"
    if isinstance(machine, Absent):
        yield Finding(section, "runtime", f"{machine.reason}; {machine.remedy}", False)
        return
    rt = machine.runtime
    yield Finding(section, "runtime, driver", f"{rt.version}, {rt.driver_version}")
    if found.version and found.version.split(".")[:2] != rt.version.split(".")[:2]:
        yield Finding(section, "versions", f"the headers are of {found.version}, the runtime of {rt.version}", False)
    numbers = {
        "multiprocessors": runtime.MULTIPROCESSORS, "threads per block": runtime.THREADS_PER_BLOCK,
        "warp": runtime.WARP_SIZE, "shared memory per block": runtime.SHARED_PER_BLOCK,
        "per multiprocessor": runtime.SHARED_PER_MULTIPROCESSOR, "L2 cache": runtime.L2_CACHE,
        "capability": runtime.MAJOR, "minor": runtime.MINOR,
    }  # fmt: skip
    for index in range(machine.count):
        try:
            with rt.device(index):
                free, total = rt.memory_info()
            facts = [f"{name} {_attribute(machine, number, index)}" for name, number in numbers.items()]
        except MusaError as error:
            yield Finding(section, f"musa:{index}", str(error), False)
            continue
        name = f"{machine.names[index] or 'no name'}, {machine.arch_name(index)}"
        memory = f"{free / 2**30:.3g} of {total / 2**30:.3g} GiB free"
        yield Finding(section, f"musa:{index}", f"{name}, {memory}; {', '.join(facts)}")


def _attribute(machine: Machine, number: int, index: int) -> str:
    try:
        return str(machine.runtime.attribute(number, index))
    except MusaError as error:
        return error.name


def _headers(found: Sdk) -> Iterator[Finding]:
    for header, names in attested.HEADERS:
        if not found.has_header(header):
            continue
        section = header
        values = compile.enumerators(found, header, tuple(names))
        if isinstance(values, Refusal):
            yield Finding(section, "all", values.reason, False, values.traceback or "")
            continue
        absent = [name for name in names if name not in values]
        for name, public in names.items():
            if name in values and public is not None:
                same = values[name] == public
                text = (
                    f"{values[name]}, as in public sources" if same else f"{values[name]}, {public} in public sources"
                )
                yield Finding(section, name, text, same)
        news = [f"{name} {values[name]}" for name, public in names.items() if name in values and public is None]
        if news:
            yield Finding(section, "not public before", ", ".join(news))
        if absent:
            yield Finding(section, "not in this header", ", ".join(absent))


def _compilers(found: Sdk, machine: Machine | Absent) -> Iterator[Finding]:
    section = "compilers"
    command = compile.host_compiler()
    if isinstance(command, Refusal):
        yield Finding(section, "C++", f"{command.reason}; {command.remedy}", False)
    else:
        yield Finding(section, "C++", f"{command[0]}: {_first_line(compile.identity(command))}")
    mcc = compile.mcc(found)
    if isinstance(mcc, Refusal):
        yield Finding(section, "mcc", f"{mcc.reason}; {mcc.remedy}", False)
        return
    yield Finding(section, "mcc", f"{mcc}: {_first_line(compile.identity((str(mcc),)))}")
    names: set[str] = set()
    if isinstance(machine, Machine):
        names = {machine.arch_name(index) for index in range(machine.count)} - {"unknown"}
    for arch in sorted(names) or _WITHOUT_A_CARD:
        built = compile.compile_mu(KERNEL, found, arch, name="doctor")
        if isinstance(built, Refusal):
            yield Finding(section, f"a kernel for {arch}", built.reason, False, built.traceback or "")
            continue
        yield Finding(section, f"a kernel for {arch}", "compiles", True)
        if isinstance(machine, Machine):
            for index in range(machine.count):
                if machine.arch_name(index) in (arch, "unknown"):
                    yield _launched(machine, built, index)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "reports no version")


def _tried(section: str, item: str, test: Callable[[], str]) -> Finding:
    """Return a finding of a test that returns what it did, and raises AssertionError or what the runtime reports."""
    try:
        return Finding(section, item, test(), True)
    except (GemmhubError, AssertionError, OSError, AttributeError) as error:
        return Finding(section, item, f"{type(error).__name__}: {error}", False)


def _launched(machine: Machine, built: Path, index: int) -> Finding:
    """Return a finding of the kernel's run, in a child process first."""
    item = f"a kernel on musa:{index}"

    def prove(found: Machine) -> Refusal | None:
        tried = _tried("compilers", item, _launch(found, built, index))
        return None if tried.ok else Refusal(tried.text, "see the compilers above")

    refusal = machine.first(f"{item}, which `gemmhub doctor` compiled,", (built.name,), prove)
    if refusal is not None:
        return Finding("compilers", item, refusal.reason, False, refusal.traceback or "")
    return _tried("compilers", item, _launch(machine, built, index))


def _launch(machine: Machine, built: Path, index: int) -> Callable[[], str]:
    def test() -> str:
        rt, library = machine.runtime, machine.sdk.loader.load(built)
        if isinstance(library, Refusal):
            raise AssertionError(library.reason)
        x, y = np.arange(300, dtype=np.float32), np.full(300, 0.5, np.float32)
        expected = x + y
        launch = library["gemmhub_launch_add"]
        launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        with rt.device(index):
            there = [array.Memory(rt, index, each.nbytes) for each in (x, y)]
            for memory, each in zip(there, (x, y)):
                rt.memcpy(memory.address, each.ctypes.data, each.nbytes, runtime.TO_DEVICE)
            stream = rt.stream_create()
            try:
                code = launch(there[0].address, there[1].address, x.size, stream)
                if code:
                    raise AssertionError("launching: {} ({})".format(*rt.words(code)))
                rt.stream_synchronize(stream)
            finally:
                rt.stream_destroy(stream)
            rt.memcpy(y.ctypes.data, there[1].address, y.nbytes, runtime.TO_HOST)
        wrong = np.flatnonzero(y != expected)
        if wrong.size:
            raise AssertionError(f"{wrong.size} of {x.size} results are wrong, the first at {wrong[0]}")
        return "runs, and is right"

    return test


def _arrays(machine: Machine) -> Iterator[Finding]:
    for index in range(machine.count):
        yield _tried("arrays", f"copies on musa:{index}", _copies(index))


def _copies(index: int) -> Callable[[], str]:
    def test() -> str:
        arrays = array.arrays(index)
        x = np.arange(7 * 5 * 3, dtype=np.float32).reshape(7, 5, 3)
        there = arrays.from_host(x)
        pairs = [("to the device and back", there, x), ("a view", there[::-2, :, 1], x[::-2, :, 1])]
        pairs.append(("a clone", arrays.clone(there[1:, ::2]), x[1:, ::2]))
        target = arrays.from_host(np.zeros_like(x))
        arrays.copy(target[:, 1:3], there[:, 1:3])
        expected = np.zeros_like(x)
        expected[:, 1:3] = x[:, 1:3]
        pairs.append(("rows into rows", target, expected))
        for what, got, right in pairs:
            if not np.array_equal(got.numpy(), right):
                raise AssertionError(f"{what}: the contents differ")
        start, end = array.Event(arrays), array.Event(arrays)
        start.record()
        end.record()
        end.synchronize()
        return (
            f"right; {len(pairs)} kinds, events {arrays.runtime.event_elapsed(start.handle, end.handle):.3g} ms apart"
        )

    return test


def _backends() -> Iterator[Finding]:
    for entry in registry():
        if "musa" not in entry.device_types:
            continue
        answer = entry.get()
        if isinstance(answer, Refusal):
            text = f"{answer.reason}; {answer.remedy}"
            if isinstance(answer, NotConfigured):
                yield Finding("backends", entry.name, f"absent: {text}")
            else:
                yield Finding("backends", entry.name, text, False, answer.traceback or "")
            continue
        _, ready = answer
        facts = [f"{name} {version}" for name, version in ready.versions.items()] + list(ready.features)
        yield Finding("backends", entry.name, ", ".join(facts), True)


def _products(machine: Machine) -> Iterator[Finding]:
    for entry in registry():
        answer = entry.get()
        if "musa" in entry.device_types and not isinstance(answer, Refusal):
            yield from _products_of(machine, *answer)


def _products_of(machine: Machine, backend: Backend, ready: Ready) -> Iterator[Finding]:
    for device in ready.devices:
        for dtype, out_dtype in _DTYPES:
            item = f"{backend.name} {dtype}" + (f" -> {out_dtype}" if out_dtype else "") + f" on {device}"
            yield _product(machine, backend, device.index, dtype, out_dtype, item)


def _product(machine: Machine, backend: Backend, index: int, dtype: str, out_dtype: str | None, item: str) -> Finding:
    refused: list[Refusal] = []
    failed: list[Refusal] = []

    def prepare(problem: GemmProblem) -> Kernel | Refusal:
        offer = backend.offer(problem)
        if isinstance(offer, Refusal):
            refused.append(offer)
            return offer
        kernel = backend.prepare(problem, offer.first.name, offer.workspace)
        if isinstance(kernel, Refusal):  # what is offered should run
            failed.append(kernel)
        return kernel

    wrong = selftest.check(prepare, machine.runtime, index, dtype, out_dtype)
    wrong = failed[0] if failed else wrong
    if wrong is None:
        rest = f"; the others are refused: {refused[0].reason}" if refused else ""
        return Finding("products", item, f"right in {8 - len(refused)} of 8 storage orders{rest}", True)
    if wrong in refused:
        return Finding("products", item, f"refused: {wrong.reason}")
    return Finding("products", item, wrong.reason, False, wrong.traceback or "")
