"""Probes the machine for devices that the kernels support, and for a compiler."""

from __future__ import annotations

from gemmhub_musa import runtime as musa
from gemmhub_musa.compile import identity, mcc
from gemmhub_musa.probe import Devices
from gemmhub_musa.runtime import MULTIPROCESSORS, SHARED_PER_BLOCK, MusaError

from gemmhub.capability import Absent, Ready, Refusal
from gemmhub_musa_kernels.library import Libraries
from gemmhub_musa_kernels.sources import WARP

VERSION = "2"
"""The version of the kernels in tuning records; raise it whenever their speed may have changed."""


class Card:
    """One device that the kernels run on."""

    def __init__(self, arch: str, multiprocessors: int, shared_bytes: int) -> None:
        """``arch`` is a name such as "mp_22"; ``shared_bytes`` is the most that a block may use."""
        self.arch, self.multiprocessors, self.shared_bytes = arch, multiprocessors, shared_bytes


class Machine(Devices):
    """The cards, by index, the compiler for them, and the compiled kernels."""

    def __init__(self, found: musa.Machine, compiler: str, cards: dict[int, Card]) -> None:
        super().__init__(found, cards)
        self.sdk = found.sdk
        self.compiler = compiler
        self.cards = cards
        self.libraries = Libraries(found.sdk, found.runtime)

    def on(self, found: musa.Machine) -> Machine:
        """Return the same for the machine as a child process has it."""
        return Machine(found, self.compiler, self.cards)


def look() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    found = musa.machine()
    if isinstance(found, Absent):
        return found
    compiler = mcc(found.sdk)
    if isinstance(compiler, Refusal):
        return Absent(f"the kernels are compiled when first used, and {compiler.reason}", compiler.remedy)
    if found.sdk.include is None:
        return Absent("the MUSA SDK here has no headers, which the kernels include", "install the MUSA toolkit")
    cards: dict[int, Card] = {}
    try:
        for index in range(found.count):
            arch = found.arch_name(index)
            if arch in WARP:
                numbers = (found.runtime.attribute(name, index) for name in (MULTIPROCESSORS, SHARED_PER_BLOCK))
                cards[index] = Card(arch, *numbers)
    except MusaError as error:
        return Absent(f"querying the devices failed: {error}", "check that mthreads-gmi lists them")
    if not cards:
        seen = ", ".join(sorted({found.arch_name(index) for index in range(found.count)}))
        return Absent(f"the devices are {seen}: the kernels support {', '.join(WARP)}", "use another backend")
    return Machine(found, (identity((str(compiler),)) or "mcc").splitlines()[0], cards)


def ready(machine: Machine) -> Ready:
    """Return the devices, versions and features of ``machine``."""
    versions = {"musa-kernels": VERSION, "mcc": machine.compiler, **machine.musa.versions}
    features = [f"musa:{index} is {card.arch}" for index, card in machine.cards.items()]
    return Ready(machine.devices, versions, tuple(features))
