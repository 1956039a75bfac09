"""The contract a backend implements; nothing else.

A plugin's hook returns :class:`BackendDescription` objects. Once a process, when first needed, gemmhub
calls ``description.load()``, then :meth:`Backend.probe`. For each new problem it calls :meth:`Backend.offer`; from the
chosen backend it gets a :class:`Kernel` by :meth:`Backend.prepare`, and then calls the kernel alone.

Rules: a "no" is returned, not raised. An exception from any of these methods is treated as a refusal with
its traceback kept; after a MemoryError the next call tries again. Methods may be called from several threads.
``offer`` must be fast (tens of microseconds where it has few candidates) and depend on nothing but the problem, the
probe, and what is compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from gemmhub._base.geometry import DeviceView
from gemmhub._base.promises import is_order
from gemmhub.capability import Absent, Copy, Device, Ready, Refusal
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import OPERANDS
from gemmhub.problem import GemmProblem

CONTRACT = 2
"""Version of this contract. A plugin states the one that it implements."""

WORKSPACE = 64 * 2**20
"""Bytes of workspace that a kernel may use where neither the user nor its backend sets another limit."""

Array = Any
"""On the CPU a numpy.ndarray. On devices the address (an int) of the operand's first element: shape, strides and dtype
are in the problem, so that a kernel depends on no array library."""


Run = Callable[..., None]
"""``run(a, b, out, alpha, beta, stream, **operands)``: it writes the result into ``out`` and returns nothing.

On the CPU ``a``, ``b`` and ``out`` have at least two dimensions and the shapes, strides and dtypes of the problem,
except that batch dimensions which are broadcast may be missing or 1. On devices they are addresses, and shapes and
strides are those of the problem exactly. Where ``problem.packed_by`` is set, ``b`` is the object that
:meth:`Backend.pack` returned. ``out`` overlaps no other operand, unless it *is* ``c`` (same memory, same layout). With
alpha 0 the product does not enter the result, NaN or not (as in BLAS). ``stream`` is a native stream handle (int) on
devices, None on the CPU: work is put there, and run neither synchronises nor allocates beyond the workspace that
prepare allocated.

The problem's other operands (:attr:`GemmProblem.operands`) follow by their names, as arrays on the CPU and addresses on
devices; what the problem does not have is not passed. On the CPU ``c`` and ``pre_activation`` are like ``out``, with
all n columns; ``bias``, ``scale_out`` and ``amax`` have one dimension; ``scale_a`` and ``scale_b`` have two or more,
which broadcast to the operand where each scale of a block is repeated.

Where the problem has groups, ``offsets`` is the address of their ends: :class:`gemmhub.problem.Groups` defines them.
"""

DirectEpilogue = Callable[[Array, Array, "Array | None", Mapping[str, Any]], Array]
"""``(a, b, out, options) -> result``: the product with its epilogue, in a new array where ``out`` is None.

a and b are NumPy arrays of two dimensions or more, as the caller passed them; b is the object that :meth:`Backend.pack`
returned where ``problem.packed_by`` is set. ``out`` has the result's shape. It may
overlap any operand, and is written last, when nothing can fail. ``options`` has the operands of the problem by name, as
the caller passed them, in the shapes that :data:`gemmhub.operands.OPERANDS` allows; alpha where the problem's is not 1;
beta where it has c. Its other entries are ignored.
"""

RunGroups = Callable[["tuple[int, int, int]", Array, Array, Array, Array], bool]
"""See :attr:`Kernel.groups`."""

WithRows = Callable[[int], "Run | None"]
"""See :attr:`Kernel.with_rows`."""


@dataclass(frozen=True)
class Kernel:
    """A prepared implementation of one problem."""

    run: Run
    description: str
    """Text for users: the algorithm, its tile, what it copies or converts."""
    workspace_bytes: int = 0
    """Bytes of workspace that ``run`` uses or holds."""
    direct: Callable[[Array, Array, Array | None], Array] | None = None
    """``(a, b, out) -> result`` for plain problems, if that is a complete, self-checking matmul.

    It takes the caller's operands untouched (vectors, broadcast batches, any strides, overlap; of a packed b the
    object that :meth:`Backend.pack` returned) and makes a new array when ``out`` is None; where matrices do not fit, or
    ``out`` is read-only, it raises before it writes. Its first result for a call signature is checked for type, shape
    and dtype; later ones are not. Of a reproducible problem it gives the same bits as ``run``, whatever ``out`` is. It
    saves gemmhub's own preparation: numpy.matmul is such a function.
    """
    direct_epilogue: Callable[[int], DirectEpilogue | None] | None = None
    """The same for problems with an epilogue: a function of the number of elements of a times b that returns the
    :data:`DirectEpilogue` of such products, or None where ``run`` is faster. Not called where the problem has an
    operand that is written.
    """
    any_size: bool = False
    """True promises that ``run``, ``direct`` and what ``direct_epilogue`` returns take the sizes from their operands:
    they serve any problem on the CPU that differs from the prepared one in sizes alone."""
    groups: RunGroups | None = None
    """On the CPU, of plain problems of two matrices: ``(axes, ends, a, b, out)``, which runs all products of a grouped
    call whose groups have any sizes, small ones at the same time. ``axes`` are the dimensions of a, b and out that
    ``ends``, cumulative ends as a contiguous array of int64, divides: 0 for rows, 1 for columns, -1 for an array with a
    matrix for each group. False where it does not run them all: the caller then writes every result anew. Each result
    has the bits of its own product by this kernel. Kernels of a backend with one description run each other's."""
    with_rows: WithRows | None = None
    """On devices, function of a number of rows that returns ``run`` for the problem that differs from the prepared one,
    which has no batch, in m alone: the strides from row to row of a and of the result, and alignments, are the same.
    None where this candidate does not run it, or not in the workspace that the kernel was prepared with. Its results
    have the bits of a kernel that is prepared for those rows. It must be fast and compile nothing, as each new number
    of rows costs a call of it; several threads may call it at once, also while a stream is captured."""


def _no_remark(candidate: str) -> str:
    return ""


@dataclass(frozen=True)
class Candidate:
    """A kernel or an algorithm that runs a problem."""

    name: str = "default"
    """Name that is its own among the candidates of the problem; tuning records keep it."""
    seconds: float | None = None
    """Expected seconds a call, host time included; None where there is no estimate."""
    copies: Sequence[Copy] = ()
    """Copies of entire operands that each call makes: all of them."""
    order: str | None = None
    """Name of the order in which the products of one element of the result are added, "exact" or words with dots such
    as "fma.f32": candidates of equal order have equal accumulators, bit for bit, whatever m, n and the batch are; of
    one backend they have equal results, with the epilogue. None where it is unknown or depends on data."""


@dataclass(frozen=True)
class Offer:
    """The answer of a backend that will run a problem within its error bound."""

    candidates: Sequence[Candidate] = (Candidate(),)
    """Alternatives that tuning should time, one or more; the first is what an untuned call gets."""
    remark: Callable[[str], str] = field(default=_no_remark, repr=False, compare=False)
    """Function of a candidate's name that returns one clause for decision tables: its algorithm, and why a faster one
    is not possible. It is called only where the clause is shown."""
    workspace: int = WORKSPACE
    """Bytes of workspace that a kernel may use where the user has set no limit. The number must be the same at each
    question: decisions and tuning records depend on it, and estimates and copies should assume it."""
    any_size: bool = False
    """True promises the same candidates, in the same order, for operands of the same dtypes, orders and numbers of
    dimensions and of any sizes."""

    @property
    def first(self) -> Candidate:
        """The candidate that an untuned call gets."""
        return self.candidates[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the candidates."""
        return tuple([candidate.name for candidate in self.candidates])


BASIC: Mapping[str, frozenset[str] | None] = {
    "c": frozenset({"matrix"}),
    "bias": frozenset({"n", "m"}),
    "activation": frozenset({"relu", "gelu", "gelu_tanh", "silu"}),
    "precision": frozenset({"ieee", "bf16x3", "tf32", "bf16"}),
    "reproducible": frozenset({"run"}),
}
"""The addend, the bias, the commonest activations, all precisions, and equal bits from run to run: a value of
:attr:`Backend.takes`."""


@dataclass(frozen=True)
class Imported:
    """The times that :meth:`Backend.import_times` read from a file."""

    times: Sequence[tuple[GemmProblem, str, float]]
    """Problem, candidate, seconds."""
    skipped: Mapping[str, int]
    """Number of unusable rows, by reason."""


@dataclass(frozen=True)
class Quantization:
    """An array on a device to quantize as :func:`gemmhub.quantize` does, and the memory for the results."""

    device: Device
    x: DeviceView
    """The array: float8, float16, bfloat16, float32 or float64, with any strides."""
    q: DeviceView
    """Memory for the narrow elements, dense, of x's shape: float8_e4m3fn, float8_e5m2 or int8."""
    scale: DeviceView
    """float32 scales, one for each group: read where ``given`` is true, else written."""
    granularity: str
    """The elements that share a scale: "tensor", "row", "column", "1x128", "128x1" or "128x128"."""
    given: bool
    """Whether the scales are the caller's."""
    stream: int
    """A native stream handle."""
    scratch: Callable[[int], int]
    """Function of a number of bytes that returns the address of as much memory, aligned to 256 bytes: it can be used by
    work that is put on the stream before :meth:`Backend.quantize` returns."""


class Backend(ABC):
    """Subclass this. Only ``name``, ``probe``, ``offer`` and ``prepare`` are required."""

    name: str
    """Lower case, unique: what ``backend=`` takes."""
    layout_sensitive: bool = True
    """False promises that offers, but for their copies, and kernels do not depend on strides or alignment."""
    by_bucket: bool = False
    """True promises that within a bucket of sizes (:mod:`gemmhub.buckets`) only times differ: a candidate for the end
    of the bucket is one for each problem in it, or ``prepare`` refuses it. A new size then comes to ``prepare`` alone.
    """
    takes: ClassVar[Mapping[str, frozenset[str] | None]] = {}
    """The features it was written for beside ``a @ b``, by name and by value: of each operand its forms
    (:attr:`gemmhub.operands.Operand.form`), of "activation" and "precision" the names, of "reproducible" the promises
    "run" and "batch", None for any. "symmetric", of which the value is None, promises that the result of a
    :attr:`~gemmhub.problem.GemmProblem.symmetric` problem is symmetric bit for bit. "groups" has the dimensions "m",
    "n" and "k" that the :class:`~gemmhub.problem.Groups` of a problem may divide. :func:`answer` refuses a problem
    with anything else, so that a backend which was written before a function or an operand existed never computes
    without it. Whether it runs a problem with what it takes, :meth:`offer` answers. :data:`BASIC` is such a mapping.

    "batch" promises of a :attr:`~gemmhub.problem.GemmProblem.pinned` problem that the bits of a row of the result do
    not depend on m, its position, the batch, the layout of a, threads or out; that the order of the first candidate
    depends on dtypes, precision and device alone where no order is named; and that cost is no reason to refuse one."""

    compiles_expressions: ClassVar[bool] = False
    """True promises that its kernels compile the expression of every epilogue that has one and is not gated, also of
    those that are registered while the process runs: "activation" of :attr:`takes` then need not name them."""

    @abstractmethod
    def probe(self) -> Ready | Absent:
        """Look at the machine. Cheap, called once a process."""

    @abstractmethod
    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        """Offer candidates that run ``problem`` within its error bound, or return the reason why there is none."""

    @abstractmethod
    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        """Do what must not happen in a call: compile, choose, allocate.

        ``candidate`` is the name of one that was offered for this problem, or for another of its bucket; that one is
        prepared, and no other instead. ``workspace_limit`` bounds the workspace in bytes: the user's limit, else
        :attr:`Offer.workspace`. The kernel must be usable from several threads at once.
        """

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """An owned, prepacked form of ``b`` (k, n) for problems like ``problem`` with any m.

        ``problem`` has the natural result and no epilogue; ``offer`` refuses those products of another result or
        epilogue, with ``packed_by`` set, that the packed form does not serve. It must not change when ``b`` is
        rewritten. gemmhub reads its ``nbytes`` alone, the bytes of memory that it holds.
        """
        return Refusal(f"{self.name} has no packed form", "multiply without pack()")

    def quantize(self, task: Quantization) -> Refusal | None:
        """Put the work on the stream that quantizes an array; return None, or the reason why it does not.

        Codes and scales have the bits that :func:`gemmhub.quantize` has for NumPy, but for those of NaN. It neither
        synchronizes nor reads device memory: the call may be captured in a graph. What is refused is computed by the
        operations of the array's library.
        """
        return Refusal(f"{self.name} quantizes no arrays", "use the operations of the array's library")

    def import_times(self, path: Path, device: Device) -> Imported | Refusal:
        """Read times of this backend's candidates on ``device`` from a file of its library's own profiler."""
        return Refusal(f"{self.name} reads no profiler's file", "measure with gemmhub tune")


def answer(backend: Backend, problem: GemmProblem) -> Offer | Refusal:
    """The answer of ``backend``: a refusal of what it does not take, else what :meth:`Backend.offer` returns.

    Raises TypeError where that is neither a refusal nor a complete offer.
    """
    refusal = untaken(backend, problem)
    if refusal is not None:
        return refusal
    offer = _whole(backend.offer(problem))
    return _in_order(offer, problem.reproducible or "") if problem.pinned and isinstance(offer, Offer) else offer


_STATING = 'use a backend that states one (docs/bits.md), or ask for reproducible="run"'


def _in_order(offer: Offer, promise: str) -> Offer | Refusal:
    """``offer`` with those of its candidates alone that keep a promise on the bits of rows."""
    candidates = [x for x in offer.candidates if x.order is not None and promise in ("batch", x.order)]
    if candidates:
        return replace(offer, candidates=candidates)
    if promise == "batch":
        return Refusal("none of its candidates adds in an order that it states", _STATING)
    stated = sorted({x.order for x in offer.candidates if x.order is not None})
    remedy = f"{' or '.join(map(repr, stated))} is what it states" if stated else _STATING
    return Refusal(f"none of its candidates adds in the order {promise!r}", remedy)


def takes_of(backend: Backend | type[Backend]) -> Mapping[str, frozenset[str] | None]:
    """:attr:`Backend.takes`, with the epilogues whose expressions the backend compiles."""
    takes = backend.takes
    named = takes.get("activation", frozenset())
    if named is None or not backend.compiles_expressions:
        return takes
    return {**takes, "activation": named | {name for name, x in EPILOGUES.items() if x.compiled}}


def untaken(backend: Backend, problem: GemmProblem) -> Refusal | None:
    """The refusal of what ``backend`` was not written for; None where it takes everything that the problem has."""
    takes = takes_of(backend)
    for name, described in problem.operands.items():
        forms = takes.get(name, frozenset())
        if forms is None or described.form in forms:
            continue
        noun = OPERANDS[name].noun
        if name not in takes:
            remedy = f"leave {name}= out" + ", or pass one factor as alpha=" * (OPERANDS[name].role == "factor")
            return _refusal(f"it does not take {noun} ({name}=)", f"{remedy}, or choose a backend that takes it")
        allowed = " or ".join(sorted(forms))
        reason = f"it does not take {noun} of the form {described.form!r} ({name}=)"
        return _refusal(reason, f"pass {name}= as {allowed}")
    for name, value in (("activation", problem.activation), ("precision", problem.precision)):
        values = takes.get(name, frozenset())
        if value not in (None, "ieee") and values is not None and value not in values:
            if name == "activation" and backend.compiles_expressions and not EPILOGUES[value].gate:
                remedy = "register it with expression=, or apply it to the product"
                return _refusal(f"it compiles the expressions of activations, and {value} has none", remedy)
            remedy = {"activation": "apply it to the product", "precision": "ask for another precision"}[name]
            return _refusal(f"it has no {name} {value}", remedy)
    if problem.reproducible is not None:
        promises, asked = takes.get("reproducible", frozenset()), "batch" if problem.pinned else "run"
        if promises is not None and asked not in promises:
            what = "rows" if problem.pinned else "equal calls"
            return _refusal(
                f"it does not promise the bits of {what}", "leave reproducible= out, or choose another backend"
            )
    if problem.symmetric and "symmetric" not in takes:
        return _refusal("it does not compute one triangle of a symmetric product", "leave symmetric= out")
    if problem.groups is not None:
        return _no_groups(takes.get("groups", frozenset()), problem.groups.divides)
    return None


def _no_groups(divided: frozenset[str] | None, dimension: str) -> Refusal | None:
    """The refusal of groups that divide ``dimension``; None where that is one of ``divided``."""
    if divided is None or dimension in divided:
        return None
    allowed = f"; it takes those that divide {' or '.join(sorted(divided))}" if divided else ""
    reason = f"it has no grouped products whose offsets divide {dimension}{allowed}"
    return _refusal(reason, "pass offsets on the host: the groups are multiplied one by one")


def _refusal(reason: str, remedy: str) -> Refusal:
    return Refusal(reason, remedy, any_layout=True, any_size=True)


def _whole(answer: object) -> Offer | Refusal:
    """``answer`` of :meth:`Backend.offer`. Raises TypeError for what is no answer."""
    if isinstance(answer, Refusal):
        return answer
    if not isinstance(answer, Offer):
        raise TypeError(f"it returned {answer!r:.60}, not an Offer or a Refusal")
    candidates: object = answer.candidates
    if not isinstance(candidates, Sequence) or not candidates:
        raise TypeError(f"a sequence of candidates is needed, one or more, not {candidates!r:.60}")
    for candidate in candidates:
        if not (isinstance(candidate, Candidate) and isinstance(candidate.name, str) and candidate.name):
            raise TypeError(f"{candidate!r:.60} is no Candidate with a name")
        name, copies, order = candidate.name, candidate.copies, candidate.order
        if not isinstance(copies, Sequence) or not all(isinstance(x, Copy) for x in copies):
            raise TypeError(f"candidate {name!r:.60} has the copies {copies!r:.60}")
        if not (order is None or is_order(order)):
            raise TypeError(
                f"candidate {name!r:.60} has the order {order!r:.60}, not 'exact', a name such as 'fma.f32', or None"
            )
    if len(set(answer.names)) < len(candidates):
        raise TypeError(f"two candidates have one name: {', '.join(answer.names):.60}")
    if not isinstance(answer.workspace, int) or answer.workspace < 0:
        raise TypeError(f"the workspace is {answer.workspace!r:.60}, not a number of bytes")
    return answer


@dataclass(frozen=True)
class BackendDescription:
    """The facts that a plugin declares of a backend before any of its heavy code is imported."""

    name: str
    load: Callable[[], Backend]
    """Imports the implementation and returns an instance."""
    summary: str
    """One line for `gemmhub backends`."""
    device_types: tuple[str, ...] = ("cpu",)
    """Kinds of device that it runs on. For problems on others it is not loaded."""
    contract: int = field(kw_only=True)
    """The :data:`CONTRACT` that it implements, as a literal number: a later gemmhub compares it with its own."""
    variables: tuple[str, ...] = field(default=(), kw_only=True)
    """Environment variables GEMMHUB_... that the plugin reads. gemmhub warns of any other: it may be misspelt."""
