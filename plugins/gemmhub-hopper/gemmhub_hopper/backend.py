"""The backend for Hopper GPUs. Its candidates are tile shapes of handwritten kernels (:attr:`Choice.name`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gemmhub_nvidia import clusters, nvrtc
from gemmhub_nvidia.driver import Driver, DriverError
from gemmhub_nvidia.nvrtc import Compiler

from gemmhub.backend import BASIC, Array, Candidate, Kernel, Offer, Run
from gemmhub.capability import Absent, Copy, Ready, Refusal
from gemmhub.errors import KernelError
from gemmhub.kit.corrections import NOTE
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend, nothing_to_do
from gemmhub.problem import GemmProblem
from gemmhub_hopper import probe
from gemmhub_hopper.candidates import gemv, grouped, words
from gemmhub_hopper.candidates.candidate import Choice, named, parsed, runnable
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost import choose, model
from gemmhub_hopper.cost.grouped import of_unequal_groups
from gemmhub_hopper.cost.model import Card
from gemmhub_hopper.cost.shortlist import Shortlists
from gemmhub_hopper.grouped_proof import FLOAT32_GROUPS, GROUPS
from gemmhub_hopper.launches import packed, pdl
from gemmhub_hopper.launches.f16_staged import F16Staged, by_tiles
from gemmhub_hopper.launches.gemv_launch import GemvLaunch
from gemmhub_hopper.launches.launch import Launch
from gemmhub_hopper.launches.staged import Staged
from gemmhub_hopper.lowering import complex_operands, f16_planes, groups, k_passes, lower, orders
from gemmhub_hopper.lowering.f16_planes import BY_TILES, ONLY_REJECTED
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.proof import Proofs
from gemmhub_hopper.symmetric_proof import SYMMETRIC
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.compiled import F16_PREPASS, Code
from gemmhub_hopper.variants.config import ACTIVATIONS, F16X3, GATED
from gemmhub_hopper.variants.gemv_kernel import PREFIX
from gemmhub_hopper.variants.shapes import shapes
from gemmhub_hopper.variants.sources import PREPASSES

MARGIN = 1.02
"""Factor on every estimate that is compared with other backends. The smallest of many estimates is too low on average
(selection bias), and where another backend is nearly as fast, a wrong choice costs more than a right one gains.
"""
_UNLIMITED = 2**62


class HopperBackend(MachineBackend[probe.Machine]):
    """Handwritten TMA and wgmma kernels for Hopper GPUs."""

    name = "hopper"
    by_bucket = True
    takes: ClassVar = {
        **BASIC, "activation": frozenset((*ACTIVATIONS, *GATED)), "reproducible": frozenset({"run", "batch"}),
        "scale_a": None, "scale_b": None, "scale_out": frozenset({"tensor"}), "amax": frozenset({"tensor"}),
        "pre_activation": None, "groups": groups.DIVIDED, "symmetric": None, "bias": frozenset({"n", "m", "batch n"}),
    }  # fmt: skip
    compiles_expressions = True

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """Tests pass other functions that open the driver and the compiler."""
        super().__init__(lambda: _look(open_driver, open_compiler))
        self._cards: dict[int, Card] = {}
        self._shortlists = Shortlists()
        self._proofs = Proofs(lambda index, choice: self.launch(index, choice, _UNLIMITED).run)

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        """Return the fastest candidates, or first a compiled one that is nearly as fast; or why no kernel runs it.

        One of the candidates runs in a workspace of 1 MiB if any does. Each has its own estimate, copies and order. Of
        a pinned problem only candidates of its order are ranked; their workspace has room for copies in one K pass.
        """
        refusal = self._refusal(problem)
        if refusal is not None:
            return refusal
        if problem.empty:
            return nothing_to_do(model.LAUNCH)
        lowerings = lower.lowerings(problem) if problem.groups is None else groups.even_lowerings(problem)
        if isinstance(lowerings, Refusal):
            return lowerings
        index, promise = problem.device.index, problem.reproducible or ""
        refusal = self._unproven(index, lowerings)
        if refusal is not None:
            return refusal
        card, workspace = self._card_of(index), self.machine.gpus[index].default_workspace
        parts = None if problem.groups is None else 1
        if problem.pinned:
            lowerings, wanted = orders.pinned(lowerings, problem), orders.parts(lowerings[0], promise)
            lowerings, parts = lowerings if parts in (None, wanted) else (), wanted
            if not lowerings:
                return _no_order(problem)
            workspace = max(workspace, min(_in_one_pass(x) for x in lowerings))
        timed = choose.timed(lowerings, card, workspace, parts)
        if problem.groups is not None:
            timed = of_unequal_groups(timed, card)
        if not timed:
            why = runnable(Choice(lowerings[0], shapes(lowerings[0].form)[-1], 1), workspace)
            return Refusal(f"no tile shape of the kernel runs it: {why}", _smaller(lowerings[0]))
        kernels = self.machine.kernels
        shortlist = self._shortlists.of(kernels, index, lowerings, timed, card, workspace, promise == "run", parts)
        choices = {choice.name: choice for _, choice in shortlist.timed}
        first = shortlist.timed[0][1].name

        def remark(candidate: str) -> str:
            choice = choices[candidate]
            text = ", ".join([words.of(choice)] + [NOTE] * (not choose.measured(choice, card)))
            of_first = (shortlist.remark, kernels.images.loads.remark) if candidate == first else ()
            return "; ".join(filter(None, (text, *of_first)))

        return Offer(
            tuple(
                Candidate(x.name, MARGIN * seconds, _copies(x), _order(x, workspace)) for seconds, x in shortlist.timed
            ),
            remark,
            workspace,
        )

    def _card_of(self, index: int) -> Card:
        """Return the facts of a device that the model uses; they are read once."""
        card = self._cards.get(index)
        if card is None:
            gpu = self.machine.gpus[index]
            card = self._cards[index] = Card(gpu.sms, gpu.clock, gpu.bandwidth, clusters.asked(gpu), gpu.name)
        return card

    def _refusal(self, problem: GemmProblem) -> Refusal | None:
        """Return a refusal of operands on no Hopper GPU, and of dtypes or an epilogue without a kernel."""
        indices = [gpu.index for gpu in self.machine.hoppers]
        if problem.device.type == "cuda" and problem.device.index in indices:
            return lower.check_types(problem) if problem.groups is None else None  # groups.lowerings() checks them
        return Refusal(
            f"the operands are on {problem.device}, which is no Hopper GPU",
            f"copy them to {' or '.join(f'cuda:{i}' for i in indices)}",
        )

    def _unproven(self, index: int, lowerings: tuple[Lowering, ...]) -> Refusal | None:
        """Return a refusal of 8-bit, grouped or symmetric lowerings that first products on the device show wrong."""
        proofs = dict.fromkeys(x.form.input for x in lowerings if x.form.input_bytes == 1)
        if any(x.form.divided for x in lowerings):
            proofs[GROUPS] = None
        if any(x.form.symmetric for x in lowerings):
            proofs[SYMMETRIC] = None
        proofs |= dict.fromkeys(FLOAT32_GROUPS for x in lowerings if x.form.divided and x.form.input == "split")
        for input_type in proofs:
            refusal = self._proofs.of(index, self.machine.gpus[index], input_type)
            if refusal is not None:
                return refusal
        return None

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        """Return ``candidate`` ready to run: that one, in more K passes where its copies do not fit in one.

        Refuses an unknown candidate, and one that does not run in this workspace. Raises CompilerError, DriverError or
        AllocationError.
        """
        refusal = self._refusal(problem)
        if refusal is not None:
            return refusal
        if problem.empty:
            return NOTHING_TO_DO
        choice = _named(problem, candidate)
        if isinstance(choice, Refusal):
            return choice
        index = problem.device.index
        refusal = self._unproven(index, (choice.lowering,))
        if refusal is not None:
            return refusal
        if problem.pinned and not _keeps(choice, problem.reproducible or ""):
            return Refusal(
                f"{candidate} does not add in the order of {problem.reproducible!r}", "name another candidate"
            )
        if isinstance(choice, GemvChoice):
            return Kernel(_unpacked(self.gemv(index, choice).run, choice.lowering, "tf32"), words.of_vectors(choice))
        passes = runnable(choice, workspace_limit)
        if isinstance(passes, str):
            fits = not isinstance(runnable(choice, _UNLIMITED), str)
            return Refusal(
                f"{candidate} does not run in {workspace_limit} bytes of workspace: {passes}",
                "raise the setting workspace_mib, or name another candidate" if fits else "name another candidate",
            )
        count = passes.count
        if problem.pinned and count > 1:
            return Refusal(
                f"copies for {candidate} take {count} K passes in {workspace_limit} bytes of workspace, each with sums "
                "of its own",
                "raise the setting workspace_mib, or pass operands that need no copies",
            )

        def with_rows(rows: int) -> Run | None:
            other = choice.with_rows(rows)
            passes = "" if other is None else runnable(other, workspace_limit)
            if other is None or isinstance(passes, str) or passes.count != count:
                return None
            return self._run(index, other, workspace_limit, passes)

        run = self._run(index, choice, workspace_limit, passes)
        return Kernel(run, words.of_matrices(choice, passes), passes.nbytes, with_rows=with_rows)

    def _run(self, index: int, choice: Choice, limit: int, passes: KPasses) -> Run:
        if passes.nbytes:
            self.machine.workspaces[index].reserve(passes.nbytes, limit)
        launch = self.launch(index, choice, limit, passes)
        if isinstance(launch, Launch):
            form = choice.lowering.form
            return _unpacked(launch.run, choice.lowering, "tf32" if form.split_planes_b else form.input)
        return launch.run

    def launch(self, index: int, choice: Choice, limit: int, passes: KPasses | None = None) -> Launch | Staged:
        """Return ``choice`` ready to run on a device, in a workspace of at most ``limit`` bytes, into which it fits.

        ``passes``: the K passes in that workspace, where the caller knows them.
        """
        if passes is None:
            fitting = choice.k_passes(limit)
            assert not isinstance(fitting, str), fitting
            passes = fitting
        gpu, workspace = self.machine.gpus[index], self.machine.workspaces[index]
        form, card = choice.lowering.form, self._card_of(index)
        with gpu:  # encoding tensor maps needs a context, and this thread may have none
            if form.input == F16X3:
                return self._by_float16_planes(index, choice, limit, passes)
            if choice.lowering.copied or (form.input == "split" and not (form.split_planes_b and choice.splits == 1)):
                copier = self._function(index, sources.copier(form)) if choice.lowering.copied else 0
                return Staged(
                    gpu, card, choice, lambda variant: self._function(index, variant), copier, workspace, limit, passes
                )
            alone = len(self.machine.gpus) == 1
            return Launch(gpu, card, choice, self._function(index, choice.variant), workspace, limit, passes, alone)

    def _by_float16_planes(self, index: int, choice: Choice, limit: int, passes: KPasses) -> F16Staged:
        """Return a product by float16 planes, with one by bfloat16 planes for operands that these do not hold."""
        gpu, workspace, card = self.machine.gpus[index], self.machine.workspaces[index], self._card_of(index)

        def kernel(what: Code) -> int:
            return self._function(index, what)

        other = choose.by_bfloat16_planes(choice, passes, card)
        redo = BY_TILES if by_tiles(choice, other, passes) else 0
        fallback = Staged(
            gpu, card, other, kernel, kernel(PREPASSES["split"]), workspace, limit, passes, ONLY_REJECTED | redo
        )
        return F16Staged(gpu, card, choice, kernel, kernel(F16_PREPASS), workspace, limit, passes, fallback, redo)

    def gemv(self, index: int, choice: GemvChoice) -> GemvLaunch:
        """Return ``choice`` ready to run on a device."""
        return GemvLaunch(
            self.machine.gpus[index], choice, self._function(index, choice.kernel), len(self.machine.gpus) == 1
        )

    def _function(self, index: int, what: Code) -> int:
        """Return the handle of a kernel on a device; it is compiled and loaded once."""
        return self.machine.kernels.function(index, what)

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Return ``b`` packed, or the reason why it cannot be."""
        offer = self.offer(problem)
        if isinstance(offer, Refusal):
            return offer
        if problem.b.dtype.name == complex_operands.DTYPE:
            return Refusal("b is complex", "pass it as it is")
        if problem.a.dtype != problem.b.dtype and problem.b.dtype.itemsize > 1:
            return Refusal(f"b is packed for operands of one dtype, and a is {problem.a.dtype}", "pass b as it is")
        if any(problem.b.layout.batch_strides):
            return Refusal("b is a stack of matrices", "pack them one by one")
        if problem.b.alignment < problem.b.dtype.itemsize:
            return Refusal(
                f"the address of b is aligned to {problem.b.alignment} bytes, less than an element",
                "pass a contiguous copy of b",
            )
        index, dtype = problem.device.index, problem.b.dtype.name
        inputs = ("tf32", "split") if dtype == "float32" else (lower.input_type_of(problem),)
        try:
            copiers = {input_type: self._function(index, PREPASSES[input_type]) for input_type in inputs}
            if dtype == "float32" and problem.k >= f16_planes.FEWEST_K:
                copiers[F16X3] = self._function(index, F16_PREPASS)
            return packed.pack(self.machine.gpus[index], copiers, b, problem)
        except (KernelError, DriverError, nvrtc.CompilerError) as error:
            return Refusal(f"packing failed: {error}", "check whether earlier work on the device failed")


def _look(open_driver: Callable[[], Driver], open_compiler: Callable[[], Compiler]) -> probe.Machine | Absent:
    """Return the machine, or what it lacks: with a value of the environment variable that is not allowed, all of it."""
    try:
        pdl.allowed()
    except ValueError as error:
        return Absent(str(error), "set it to one of these, or unset it")
    return probe.look(open_driver, open_compiler)


def _copies(choice: Choice | GemvChoice) -> tuple[Copy, ...]:
    form, k = choice.lowering.form, choice.lowering.k
    return tuple([Copy(x.name, x.copy_bytes(form, k), x.why) for x in choice.copied])


def _order(choice: Choice | GemvChoice, workspace: int) -> str | None:
    """Return the order of a candidate; None where K passes over copies begin sums anew, where ``workspace`` is full."""
    passes = choice.k_passes(workspace) if isinstance(choice, Choice) and choice.copied else None
    return None if isinstance(passes, KPasses) and passes.count > 1 else choice.order


def _keeps(choice: Choice | GemvChoice, promise: str) -> bool:
    """Return whether a candidate of a pinned problem, in one K pass, has the order of its promise."""
    return choice.order is not None and (choice.order == promise or (promise == "batch" and "/" not in choice.order))


def _in_one_pass(lowering: Lowering) -> int:
    """Return the bytes of workspace for copies of the operands in one K pass."""
    passes = k_passes.fewest(lowering, 0, _UNLIMITED)
    return 0 if isinstance(passes, str) else passes.nbytes


def _smaller(lowering: Lowering) -> str:
    """Return the remedy where copies of the operands do not fit into the workspace."""
    if lowering.copied and lowering.form.arity > 1:  # whose K passes are one, whatever the result's dtype
        return "pass operands that need no copy, or apply the activation afterwards"
    narrow = lowering.copied and lowering.form.output != "float32"
    return "ask for a float32 result, or multiply in parts" if narrow else "multiply in parts"


def _no_order(problem: GemmProblem) -> Refusal:
    """Return the refusal of a pinned problem that no kernel runs in one order for all rows."""
    remedy = 'ask for reproducible="batch" with real, contiguous operands that are not packed, or for "run"'
    if problem.activation in GATED and lower.input_type_of(problem) == "split":  # only swapped operands have it
        remedy = 'apply the activation afterwards, or ask for "run"'
    return Refusal(
        f"no kernel for {problem.a.dtype} by {problem.b.dtype} in these layouts adds in the order of "
        f"reproducible={problem.reproducible!r} whatever the other rows are",
        remedy,
    )


def _named(problem: GemmProblem, name: str) -> Choice | GemvChoice | Refusal:
    """Return the choice called ``name`` from the one lowering that it has, or a refusal where there is none."""
    if problem.groups is not None:
        return grouped.of_name(problem, name)
    vectors = name.startswith(PREFIX)
    parts = None if vectors else parsed(name)
    lowerings = lower.one_by_one(problem, None if parts is None else (parts.letters, parts.swapped))
    if isinstance(lowerings, Refusal):
        return lowerings
    choice = gemv.named(lowerings, name) if vectors else named(lowerings, name)
    return choice or Refusal(f"there is no kernel called {name} for this problem", "name another candidate")


def _unpacked(run: Run, lowering: Lowering, input_type: str) -> Run:
    """Return ``run``, which reads an input of ``input_type``, for a b that may be packed."""
    if not lowering.packed:
        return run

    def packed(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, **operands: Any) -> None:
        run(a, b.of(input_type), out, alpha, beta, stream, **operands)

    return packed
