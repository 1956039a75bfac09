"""Finding plugins, and keeping the broken ones from breaking anything else.

Discovery happens once, at first need. Every step that runs a plugin's code (import, registration, its
hook, loading a backend, probing it) has a try/except of its own; what goes wrong becomes a refusal with
the traceback kept, shown by `gemmhub backends` and :func:`gemmhub.explain`.
"""

from __future__ import annotations

import importlib.metadata
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gemmhub import config
from gemmhub.backend import CONTRACT, Backend, BackendDescription
from gemmhub.capability import Absent, Device, Raised, Ready, Refusal

if TYPE_CHECKING:
    import pluggy

T = TypeVar("T")

BUILTIN = "gemmhub"
"""The name under which the core's own backend is listed."""


@dataclass(frozen=True)
class Suggestion:
    """A distribution of this project that is not installed."""

    backend: str
    distribution: str
    device_kind: str
    summary: str


SUGGESTIONS = (
    Suggestion("cpu", "gemmhub-cpu", "cpu", "fast half, bfloat16 and int8 on CPUs"),
    Suggestion("cublas", "gemmhub-cublas", "cuda", "cuBLAS and cuBLASLt"),
    Suggestion("hopper", "gemmhub-hopper", "cuda", "TMA and WGMMA kernels for H100 and H200"),
    Suggestion("cuda", "gemmhub-cuda", "cuda", "handwritten kernels for every NVIDIA card"),
    Suggestion("mublas", "gemmhub-mublas", "musa", "muBLAS and muBLASLt"),
    Suggestion("mudnn", "gemmhub-mudnn", "musa", "muDNN MatMul"),
    Suggestion("mutlass", "gemmhub-mutlass", "musa", "MUTLASS"),
    Suggestion("musa-kernels", "gemmhub-musa-kernels", "musa", "handwritten MUSA kernels"),
)
"""What a reader could install, by kind of device. The one place where the core names plugins."""


class Entry:
    """One backend (or one plugin that failed before it could name any), and what became of it."""

    def __init__(
        self,
        name: str,
        plugin: str,
        distribution: str,
        description: BackendDescription | None,
        refusal: Refusal | None = None,
    ) -> None:
        self.name = name
        self.plugin = plugin
        self.distribution = distribution
        self.description = description
        self._refusal = refusal
        self._backend: Backend | None = None
        self._ready: Ready | None = None
        self._lock = threading.RLock()
        self._loading = False

    def __repr__(self) -> str:
        return f"<Entry {self.name!r} of {self.distribution}>"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """Kinds of device it is for; empty when the plugin failed too early to say."""
        return self.description.device_kinds if self.description else ()

    def get(self) -> tuple[Backend, Ready] | Refusal:
        """The loaded, probed backend, or why there is none. Loads and probes at most once."""
        if self._refusal is None and self._ready is None:
            with self._lock:
                if self._loading:
                    return Refusal("it is being loaded", "let load() and probe() call nothing of gemmhub")
                if self._refusal is None and self._ready is None:
                    self._loading = True
                    try:
                        self._load()
                    finally:
                        self._loading = False
        if self._refusal is not None:
            return self._refusal
        assert self._backend is not None
        assert self._ready is not None
        return self._backend, self._ready

    def _load(self) -> None:
        assert self.description is not None
        remedy = f"report it to the authors of {self.distribution}"
        backend = guarded(self.description.load, "loading the backend", remedy)
        if not isinstance(backend, Refusal) and not isinstance(backend, Backend):
            backend = Refusal(f"load() returned {type(backend).__name__}, not a Backend", remedy)
        if isinstance(backend, Refusal):
            self._refusal = backend
            return
        answer = guarded(lambda: _checked(backend.probe()), "probing", remedy)
        if isinstance(answer, Ready):
            # The backend must be in place before _ready says so to other threads.
            self._backend = backend
            self._ready = answer
        elif isinstance(answer, Refusal):
            self._refusal = answer
        else:
            self._refusal = Refusal(f"probe() returned {type(answer).__name__}, not Ready or Absent", remedy)


def _checked(answer: Ready | Absent) -> Ready | Absent:
    """TypeError for a Ready that later steps would stumble over."""
    if isinstance(answer, Ready):
        if not all(isinstance(device, Device) for device in answer.devices):
            raise TypeError(f"devices are {answer.devices!r}, not of class Device")
        if not all(isinstance(text, str) for pair in answer.versions.items() for text in pair):
            raise TypeError(f"versions are {answer.versions!r}, not a table of strings")
        if isinstance(answer.features, str) or not all(isinstance(text, str) for text in answer.features):
            raise TypeError(f"features are {answer.features!r}, not a tuple of strings")
    return answer


def guarded(call: Callable[[], T], doing: str, remedy: str) -> T | Refusal:
    """``call()``; an exception (or SystemExit) becomes a refusal with its traceback."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        text = str(error).strip() or "no message"
        return Raised(f"{doing} raised {type(error).__name__}: {text}", remedy, traceback.format_exc(), type(error))


def _builtin() -> Entry:
    def load() -> Backend:
        from gemmhub.numpy_backend.backend import NumpyBackend

        return NumpyBackend()

    description = BackendDescription(
        "numpy", load, "NumPy's BLAS, with blocked conversion for half, bfloat16, fp8 and int8", contract=CONTRACT
    )
    return Entry("numpy", BUILTIN, "gemmhub", description)


class Registry:
    """The backends of this process, in order of discovery (the built-in one first)."""

    def __init__(self) -> None:
        self.entries: list[Entry] = [_builtin()]
        self._lock = threading.RLock()
        self._discovered = False
        self._discovering = False

    def __iter__(self) -> Iterator[Entry]:
        if not self._discovered:
            with self._lock:
                # A plugin that multiplies while it is imported sees the backends found so far.
                if not self._discovered and not self._discovering:
                    self._discovering = True
                    try:
                        self._discover()
                        self._discovered = True
                    finally:
                        self._discovering = False
        return iter(list(self.entries))

    def find(self, name: str) -> Entry | None:
        """The entry of that name that can still work, else any entry of that name."""
        named = [entry for entry in self if entry.name == name]
        return next((entry for entry in named if entry.description is not None), named[0] if named else None)

    def add(self, description: object, plugin: str, distribution: str) -> Entry:
        """List a described backend, after checking the description."""
        refusal = self._check(description, distribution)
        name = getattr(description, "name", None)
        usable = description if isinstance(description, BackendDescription) and not refusal else None
        entry = Entry(name if isinstance(name, str) else plugin, plugin, distribution, usable, refusal)
        self.entries.append(entry)
        return entry

    def _check(self, description: object, distribution: str) -> Refusal | None:
        remedy = f"report it to the authors of {distribution}"
        if not isinstance(description, BackendDescription):
            return Refusal(f"its hook gave {type(description).__name__}, not a BackendDescription", remedy)
        if not isinstance(description.contract, int):
            return Refusal(f"its contract is {description.contract!r}, not an int", remedy)
        if description.contract != CONTRACT:
            newer = description.contract > CONTRACT
            return Refusal(
                f"written for contract {description.contract} of gemmhub, this is contract {CONTRACT}",
                f"upgrade {'gemmhub' if newer else distribution}",
            )
        name, kinds = description.name, description.device_kinds
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier() or name != name.lower():
            return Refusal(f"{name!r} is not a lower-case name", remedy)
        if not isinstance(kinds, (tuple, list)) or not kinds or not all(isinstance(kind, str) for kind in kinds):
            return Refusal(f"its device_kinds are {kinds!r}, not a tuple of strings", remedy)
        taken = next((e for e in self.entries if e.name == description.name and e.description), None)
        if taken is not None:
            return Refusal(
                f"the name {description.name!r} is taken by {taken.distribution}",
                f"uninstall {distribution} or {taken.distribution}, or disable one (GEMMHUB_DISABLE)",
            )
        return None

    def _discover(self) -> None:
        settings = config.root()
        remedy = "repair or uninstall the distribution named in the traceback"
        points = guarded(
            lambda: sorted(importlib.metadata.entry_points(group="gemmhub"), key=lambda point: point.name),
            "reading the entry points of installed distributions",
            remedy,
        )
        if isinstance(points, Refusal):
            self.entries.append(Entry("plugins", "plugins", "importlib.metadata", None, points))
            return
        if not points:
            return
        import pluggy

        from gemmhub import hookspecs

        manager = pluggy.PluginManager(hookspecs.GROUP)
        manager.add_hookspecs(hookspecs)
        for point in points:
            self._discover_one(manager, point, settings)

    def _discover_one(
        self, manager: pluggy.PluginManager, point: importlib.metadata.EntryPoint, settings: config.Settings
    ) -> None:
        distribution = _distribution(point)
        plugin = point.name

        def refuse(refusal: Refusal) -> None:
            self.entries.append(Entry(plugin, plugin, distribution, None, refusal))

        switch = _switched_off(plugin, settings)
        if switch is not None:
            refuse(switch)
            return
        remedy = f"upgrade or uninstall {distribution}, or switch it off: GEMMHUB_DISABLE={plugin}"
        if manager.has_plugin(plugin):
            refuse(Refusal(f"a second plugin is called {plugin!r}", f"uninstall {distribution} or the other"))
            return
        module = guarded(point.load, "importing the plugin", remedy)
        if isinstance(module, Refusal):
            refuse(module)
            return
        registered = guarded(lambda: manager.register(module, plugin), "registering the plugin", remedy)
        if isinstance(registered, Refusal):
            refuse(registered)
            return
        described = guarded(lambda: self._ask(manager, module), "asking the plugin for its backends", remedy)
        if isinstance(described, Refusal):
            refuse(described)
        elif not described:
            refuse(Refusal("it describes no backend", f"upgrade {distribution}: it needs a gemmhub_backends hook"))
        else:
            for description in described:
                self.add(description, plugin, distribution)

    @staticmethod
    def _ask(manager: pluggy.PluginManager, module: Any) -> list[Any]:
        """Call the hook of one plugin only, so that the failure of one is not that of all."""
        others = [other for other in manager.get_plugins() if other is not module]
        hook = manager.subset_hook_caller("gemmhub_backends", remove_plugins=others)
        return [description for answer in hook() for description in answer]


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    """The name of the distribution; where its metadata are broken, what the entry point refers to."""
    name = guarded(lambda: point.dist.name if point.dist else None, "reading metadata", "")
    return name if isinstance(name, str) else point.value


def _switched_off(plugin: str, settings: config.Settings) -> Absent | None:
    if settings.allow is not None and plugin not in settings.allow:
        where = settings.origin.get("allow", "the allow list")
        return Absent(f"not in the allow list of {where}", f"add {plugin!r} to it, or remove the list")
    if plugin in settings.deny:
        where = settings.origin.get("deny", "the deny list")
        return Absent(f"switched off by {where}", f"remove {plugin!r} from it")
    return None


_registry: Registry | None = None
_registry_lock = threading.Lock()


def registry() -> Registry:
    """The registry of this process."""
    global _registry
    found = _registry  # looked up once: another thread may forget it at any time
    if found is None:
        with _registry_lock:
            found = _registry
            if found is None:
                found = _registry = Registry()
    return found


def settled() -> bool:
    """Whether no plugin is being imported, loaded or probed: a decision made meanwhile knows some backends only."""
    found = _registry
    return found is None or not (found._discovering or any(entry._loading for entry in found.entries))


def forget() -> None:
    """Discover and probe again at the next need."""
    global _registry
    _registry = None


@dataclass(frozen=True)
class BackendStatus:
    """One line of :func:`gemmhub.backends`. ``state`` is "ready", "absent", "failed" or "not installed"."""

    name: str
    distribution: str
    summary: str
    state: str
    versions: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    reason: str = ""
    remedy: str = ""
    traceback: str | None = None

    def __str__(self) -> str:
        detail = self.reason and f": {self.reason} ({self.remedy})"
        return f"{self.name} ({self.distribution}) {self.state}{detail}"


def statuses() -> list[BackendStatus]:
    """Every backend known here: ready ones, absent and failed ones with reasons, and installable ones."""
    return [_status(entry) for entry in registry()] + [
        BackendStatus(
            missing.backend,
            missing.distribution,
            missing.summary,
            "not installed",
            reason="not installed",
            remedy=f"pip install {missing.distribution}",
        )
        for missing in suggestions()
    ]


def _status(entry: Entry) -> BackendStatus:
    summary = entry.description.summary if entry.description else ""
    answer = entry.get()
    if isinstance(answer, Refusal):
        return BackendStatus(
            entry.name,
            entry.distribution,
            summary,
            "absent" if isinstance(answer, Absent) else "failed",
            reason=answer.reason,
            remedy=answer.remedy,
            traceback=answer.traceback,
        )
    _, ready = answer
    return BackendStatus(entry.name, entry.distribution, summary, "ready", dict(ready.versions), tuple(ready.features))


def suggestions(device_kind: str | None = None) -> list[Suggestion]:
    """Distributions of this project that are not installed (for one kind of device, or all)."""
    installed = {entry.distribution for entry in registry()}
    return [
        s
        for s in SUGGESTIONS
        if s.distribution not in installed and (device_kind is None or s.device_kind == device_kind)
    ]
