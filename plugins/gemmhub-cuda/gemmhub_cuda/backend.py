"""The backend for NVIDIA GPUs by handwritten kernels. Its candidates are tile shapes (:attr:`Choice.name`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.driver import Driver
from gemmhub_nvidia.nvrtc import Compiler

from gemmhub.backend import BASIC, WORKSPACE, Candidate, Kernel, Offer, Quantization, Run
from gemmhub.capability import Device, Ready, Refusal
from gemmhub.kit.corrections import NOTE
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend, nothing_to_do
from gemmhub.problem import GemmProblem
from gemmhub_cuda import probe
from gemmhub_cuda.candidate import BATCH_ORDERS, Choice, named
from gemmhub_cuda.compiled import uniform
from gemmhub_cuda.cost import corrections, wave_model
from gemmhub_cuda.launch import Launch
from gemmhub_cuda.lower import Lowering, check_types, lowered
from gemmhub_cuda.proof import Proofs
from gemmhub_cuda.quantize import Quantizer
from gemmhub_cuda.variants.form import ACTIVATIONS
from gemmhub_cuda.variants.variant import Shape

_PROPOSED = 8
"""Number of candidates that tuning times."""
SHIPPED = 3.0
"""Largest estimate of a candidate that goes first because its kernel is in the wheel, as a multiple of that of the
fastest one, whose kernel is not compiled.
"""
MARGIN = 1.1
"""Factor on the smallest of many estimates, which is too low on average (selection bias).

Without it, next to gemmhub-cublas and gemmhub-hopper, this backend was chosen for 14 of 2038 random 16-bit products:
for 13 of them another was faster, and it lost 9 % on average.
"""


_HOPPER = 9, 0
"""The compute capability where float8 kernels are proven in ``prepare`` alone: gemmhub-hopper and cuBLASLt are faster
there, and proving kernels that are not chosen would cost the first call of a process two compilations.
"""


class CudaBackend(MachineBackend[probe.Machine]):
    """Handwritten CUDA kernels for every NVIDIA GPU."""

    name = "cuda"
    by_bucket = True
    takes: ClassVar = {
        **BASIC, "activation": frozenset(ACTIVATIONS), "reproducible": frozenset({"run", "batch"}), "scale_a": None,
        "scale_b": None,
    }  # fmt: skip
    compiles_expressions = True

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """Tests pass other functions that open the driver and the compiler."""
        super().__init__(lambda: probe.look(open_driver, open_compiler))
        self._quantizer = Quantizer()
        self._proofs = Proofs(self._launch_of_proof)

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def _refusal(self, problem: GemmProblem) -> Refusal | None:
        """Return a refusal of operands on another device, and of dtypes or an epilogue without a kernel."""
        refusal = self._elsewhere(problem.device)
        return refusal or check_types(problem, self.machine.cards[problem.device.index].capability)

    def _unproven(self, index: int, lowering: Lowering) -> Refusal | None:
        """Return a refusal of 8-bit floats where a first product on the device shows their kernels to be wrong."""
        if not lowering.form.float8:
            return None
        return self._proofs.of(index, self.machine.gpus[index], lowering.form.input)

    def _launch_of_proof(self, problem: GemmProblem, shape: Shape) -> Run:
        """Return a product of a proof ready to run by a shape."""
        lowering = lowered(problem, self.machine.cards[problem.device.index].capability)
        assert isinstance(lowering, Lowering), lowering
        return self._launch(problem.device.index, Choice(lowering, shape, 1), 0).run

    def _launch(self, index: int, choice: Choice, workspace_limit: int) -> Launch:
        """Return a choice ready to run. Raises CompilerError, DriverError."""
        machine = self.machine
        return Launch(
            machine.gpus[index], choice, machine.kernels.function(index, choice.variant),
            choice.ctas_per_sm(machine.cards[index]) * machine.cards[index].sms, machine.workspaces[index],
            workspace_limit, alone=len(machine.gpus) == 1,
        )  # fmt: skip

    def _elsewhere(self, device: Device) -> Refusal | None:
        """Return a refusal of a device without kernels."""
        indices = [gpu.index for gpu in self.machine.usable]
        if device.type == "cuda" and device.index in indices:
            return None
        return Refusal(
            f"the operands are on {device}, for which there are no kernels",
            f"copy them to {' or '.join(f'cuda:{i}' for i in indices)}",
        )

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        """Return the fastest candidates, the fastest first, or the reason why no kernel runs ``problem``.

        One of the candidates needs no workspace if any does not. Of a pinned problem only candidates of its order are
        ranked: tiles, storage orders and the swap of operands change nothing of the order in which a shape adds.
        """
        refusal = self._refusal(problem)
        if refusal is not None:
            return refusal
        if problem.empty:
            return nothing_to_do(wave_model.LAUNCH)
        card = self.machine.cards[problem.device.index]
        lowering = lowered(problem, card.capability)
        if isinstance(lowering, Refusal):
            return lowering
        if card.capability != _HOPPER:
            refusal = self._unproven(problem.device.index, lowering)
            if refusal is not None:
                return refusal
        order = _pinned_order(problem)
        every = corrections.ranked(lowering, card, WORKSPACE, order)
        if not every and order is not None:
            return Refusal(f"no kernel adds in the order {order!r} in {WORKSPACE} bytes of workspace", _ASK_FOR_BATCH)
        if not every:
            return Refusal("the result has too many tiles for one launch", "multiply in parts")
        every, of_first = self._ready_first(problem.device.index, every, problem.reproducible == "run")
        timed = every[:_PROPOSED]
        if all(choice.workspace_bytes for _, choice in timed):
            unsplit = corrections.ranked(lowering, card, 0, order)
            timed[_PROPOSED - 1 :] = unsplit[:1] or timed[_PROPOSED - 1 :]
        choices = {choice.name: choice for _, choice in timed}

        first, loads = timed[0][1].name, self.machine.images.loads

        def remark(candidate: str) -> str:
            text = _words(choices[candidate])
            text += "" if corrections.measured(choices[candidate], card) else f", {NOTE}"
            return "; ".join(filter(None, (text, *((of_first, loads.remark) if candidate == first else ()))))

        return Offer([Candidate(x.name, seconds * MARGIN, order=x.order) for seconds, x in timed], remark)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        """Return ``candidate`` ready to run.

        Refuses an unknown candidate, and one that does not run in this workspace. Raises CompilerError, DriverError or
        AllocationError.
        """
        refusal = self._refusal(problem)
        if refusal is not None:
            return refusal
        if problem.empty:
            return NOTHING_TO_DO
        machine, index = self.machine, problem.device.index
        card = machine.cards[index]
        lowering = lowered(problem, card.capability)
        if isinstance(lowering, Refusal):
            return lowering
        refusal = self._unproven(index, lowering)
        if refusal is not None:
            return refusal
        choice = named(lowering, candidate)
        if choice is None:
            return Refusal(f"there is no kernel called {candidate}", "name another candidate")
        order = _pinned_order(problem)
        if order not in (None, choice.order):
            return Refusal(f"{candidate} does not add in the order {order!r}", "name another candidate")
        why = choice.refusal(card, workspace_limit)
        if why is not None:
            fits = choice.refusal(card, choice.workspace_bytes) is None
            return Refusal(
                f"{candidate} does not run {problem}: {why}",
                "raise the setting workspace_mib, or name another candidate" if fits else "name another candidate",
            )
        if choice.workspace_bytes:
            machine.workspaces[index].reserve(choice.workspace_bytes, workspace_limit)
        return Kernel(self._launch(index, choice, workspace_limit).run, _words(choice), choice.workspace_bytes)

    def quantize(self, task: Quantization) -> Refusal | None:
        """Quantize in one pass over x where a CTA holds its groups, in two where they are larger.

        Refuses other dtypes than float16, bfloat16 and float32, and strides that the kernel does not read.
        """
        refusal = self._elsewhere(task.device)
        return refusal or self._quantizer.run(task, self.machine.gpus[task.device.index], self.machine.images)

    def _ready_first(
        self, index: int, timed: list[tuple[float, Choice]], only_sizes: bool
    ) -> tuple[list[tuple[float, Choice]], str]:  # fmt: skip
        """Return the candidates, the fastest of the wheel first where the fastest one's kernel is not compiled.

        Also return a remark on it. ``only_sizes``: sizes alone decide, as bits must not depend on what is compiled.
        """
        kernels = self.machine.kernels
        seconds, best = timed[0]
        if only_sizes or kernels.ready(index, best.variant):
            return timed, ""
        for pair in timed:
            if pair[0] <= SHIPPED * seconds and kernels.shipped(index, uniform(pair[1].variant)):
                percent = math.ceil(100 * (pair[0] / seconds - 1))
                remark = f"{best.name} would be {percent} % faster and is not compiled: tune"
                return [pair, *(x for x in timed if x is not pair)], remark
        return timed, ""


_ASK_FOR_BATCH = 'ask for reproducible="batch"'


def _pinned_order(problem: GemmProblem) -> str | None:
    """Return the order of the candidates of a pinned problem; None of others."""
    if not problem.pinned:
        return None
    return BATCH_ORDERS[problem.a.dtype.name] if problem.reproducible == "batch" else problem.reproducible


def _words(choice: Choice) -> str:
    """Return the description of ``choice`` for remarks."""
    shape, lowering = choice.shape, choice.lowering
    words = [f"tile {shape.m}x{shape.n}x{shape.k}, {shape.threads} threads"]
    if shape.description:
        words.append(shape.description)
    if choice.splits > 1:
        words.append(f"split-K of {choice.splits}")
    if lowering.form.alignment < 16:
        words.append(f"operands loaded {lowering.form.alignment} bytes at a time, the alignment of their rows")
    if choice.launches > 1:
        words.append(f"{choice.launches} launches, as the batch is not evenly spaced")
    return ", ".join(words)
