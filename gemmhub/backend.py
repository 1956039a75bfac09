"""The contract a backend implements; nothing else.

A plugin's hook returns :class:`BackendDescription` objects. Once a process, when first needed, gemmhub
calls ``description.load()``, then :meth:`Backend.probe`. For each new kind of problem it asks one question,
:meth:`Backend.offer`; from the chosen backend it gets a :class:`Kernel` by :meth:`Backend.prepare`, and then calls the
kernel alone.

Rules: a "no" is returned, not raised. An exception from any of these methods is treated as a refusal with
its traceback kept; after a MemoryError the next call asks again. Methods may be called from several threads.
``offer`` must be fast (tens of microseconds where it has few candidates) and depend on nothing but the problem, the
probe, and what is compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gemmhub.capability import Absent, Copy, Device, Ready, Refusal
from gemmhub.problem import GemmProblem, Scale

CONTRACT = 2
"""Version of this contract. A plugin states the one that it implements."""

WORKSPACE = 64 * 2**20
"""Bytes of workspace that a kernel may use where neither the user nor its backend sets another limit."""

Array = Any
"""On the CPU a numpy.ndarray. On devices the address (an int) of the operand's first element: shape, strides and dtype
are in the problem, so that a kernel depends on no array library."""


class Run(Protocol):
    """The signature of a kernel's ``run``. It writes the result into ``out`` and returns nothing.

    On the CPU ``a``, ``b``, ``out``, ``c`` have at least two dimensions and the shapes, strides and dtypes of
    the problem, except that batch dimensions which are broadcast may be missing or 1; ``bias`` has one. On
    devices they are addresses, and shapes and strides are those of the problem exactly. ``b`` is the object
    that :meth:`Backend.pack` made where ``problem.packed_by`` is set. ``out`` overlaps no other operand, unless
    it *is* ``c`` (same memory, same layout). ``c`` is None when beta is 0, ``bias`` None when there is none.
    With alpha 0 the product counts for nothing, NaN or not. ``stream`` is a native stream handle (int) on
    devices, None on the CPU: work is put there, and run neither synchronises nor allocates beyond the workspace
    made by prepare.

    Operands that a field of :attr:`GemmProblem.demands` describes follow as keyword arguments of that name, vectors on
    the CPU and addresses on devices. A kernel of another problem is called without them.
    """

    def __call__(
        self, a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any, stream: Any
    ) -> None: ...


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

    It takes the caller's operands untouched (vectors, broadcast batches, any strides, overlap) and makes a
    new array when ``out`` is None; where matrices do not fit, or ``out`` is read-only, it raises before it
    writes. Its first result for a kind of call is checked for type, shape and dtype; later ones are not. Of a
    deterministic problem it gives the same bits as ``run``, whatever ``out`` is. It saves gemmhub's own preparation:
    numpy.matmul is such a function.
    """
    direct_epilogue: Callable[..., Array] | None = None
    """``(a, b, out, c, bias, alpha, beta, stream) -> result``: the same for problems with an epilogue, not for those
    with demands.

    Called with NumPy arrays of two dimensions or more, as the caller passed them; ``c`` broadcasts to the result,
    ``bias`` has one or two dimensions; ``out`` has the result's shape. It may overlap any operand, and is written last,
    when nothing can fail. It may return NotImplemented for sizes at which ``run`` is faster.
    """
    any_size: bool = False
    """True promises that ``run``, ``direct`` and ``direct_epilogue`` take the sizes from their operands: they serve any
    problem on the CPU that differs from the prepared one in sizes alone."""
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
    """Copies of whole operands that each call makes: all of them."""
    order: str | None = None
    """Name of the order in which the products of one element of the result are added: candidates of equal order have
    equal accumulators, bit for bit, whatever m, n and the batch are. None where it is unknown or depends on data."""


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


@dataclass(frozen=True)
class Imported:
    """What :meth:`Backend.import_times` found in a file."""

    times: Sequence[tuple[GemmProblem, str, float]]
    """Problem, candidate, seconds."""
    skipped: Mapping[str, int]
    """How many rows are of no use, by reason."""


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
    takes: frozenset[str] = frozenset()
    """The fields of :attr:`GemmProblem.demands` that ``offer`` and kernels read. :func:`answer` refuses a problem
    with any other: a backend that was written before a field existed cannot compute without it.
    """

    activations: frozenset[str] = frozenset({"relu", "gelu", "silu"})
    """The activation functions that ``offer`` knows, whether it refuses them or not. :func:`answer` refuses a
    problem with any other: a backend that was written before a function existed cannot compute it.
    """

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
        prepared, and no other in its place. ``workspace_limit`` bounds the workspace in bytes: the user's limit, else
        :attr:`Offer.workspace`. The kernel must be usable from several threads at once.
        """

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """An owned, prepacked form of ``b`` (k, n) for problems like ``problem`` with any m.

        ``problem`` has the natural result and no epilogue; ``offer`` refuses those products of another result or
        epilogue, with ``packed_by`` set, that the packed form does not serve. It must not change when ``b`` is
        rewritten. gemmhub never reads it.
        """
        return Refusal(f"{self.name} has no packed form", "multiply without pack()")

    def import_times(self, path: Path, device: Device) -> Imported | Refusal:
        """Read times of this backend's candidates on ``device`` from a file of its library's own profiler."""
        return Refusal(f"{self.name} reads no profiler's file", "measure with gemmhub tune")


def answer(backend: Backend, problem: GemmProblem) -> Offer | Refusal:
    """The answer of ``backend``: a refusal of what it does not take, else what :meth:`Backend.offer` returns.

    Raises TypeError where that is neither a refusal nor a whole offer.
    """
    unread = [name for name in problem.demands if name not in backend.takes]
    if unread:
        what = " and ".join(dict.fromkeys(problem.demands[name] for name in unread))
        names = " and ".join(f"{name}=" for name in unread)
        scales = all(isinstance(getattr(problem, name), Scale) for name in unread)
        out = f"leave {names} out" + (" (pass one factor per operand as alpha=)" if scales else "")
        return Refusal(
            f"it has no {what}", f"{out}, or choose a backend that has {what}", any_layout=True, any_size=True
        )
    if problem.activation is not None and problem.activation not in backend.activations:
        return Refusal(
            f"it has no activation {problem.activation}", "apply it to the product", any_layout=True, any_size=True
        )
    return _whole(backend.offer(problem))


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
        if not (order is None or isinstance(order, str)):
            raise TypeError(f"candidate {name!r:.60} has the order {order!r:.60}, not a name or None")
    if len(set(answer.names)) < len(candidates):
        raise TypeError(f"two candidates have one name: {', '.join(answer.names):.60}")
    if not isinstance(answer.workspace, int) or answer.workspace < 0:
        raise TypeError(f"the workspace is {answer.workspace!r:.60}, not a number of bytes")
    return answer


@dataclass(frozen=True)
class BackendDescription:
    """What a plugin declares of a backend before any of its heavy code is imported."""

    name: str
    load: Callable[[], Backend]
    """Imports the implementation and returns an instance."""
    summary: str
    """One line for `gemmhub backends`."""
    device_kinds: tuple[str, ...] = ("cpu",)
    """Kinds of device that it runs on. For problems on others it is not loaded."""
    contract: int = field(kw_only=True)
    """The :data:`CONTRACT` that it implements, as a literal number: a later gemmhub compares it with its own."""
    variables: tuple[str, ...] = field(default=(), kw_only=True)
    """Environment variables GEMMHUB_... that the plugin reads. gemmhub warns of any other: it may be misspelt."""
