"""The registry of plugins and backends: discovery, loading, isolation of broken ones.

Discovery happens once, at first use. Every step that runs a plugin's code (import, registration, its hook, loading a
backend, probing it) is guarded separately; an exception becomes a refusal with its traceback, which `gemmhub backends`
and :func:`gemmhub.explain` show. A refusal for lack of memory is not kept: the next call asks again.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from gemmhub import config
from gemmhub._base.guard import guarded
from gemmhub._base.wording import instance
from gemmhub._choice import suggestions, switches
from gemmhub._choice.status import BackendStatus, Statuses
from gemmhub._choice.suggestions import Suggestion
from gemmhub.backend import CONTRACT, Backend, BackendDescription
from gemmhub.capability import Absent, Busy, Device, Ready, Refusal
from gemmhub.errors import InputError
from gemmhub.kit import install, locks
from gemmhub.operands import OPERANDS

_log = logging.getLogger("gemmhub")

ASKING = "plugin %s: %s"
"""Format of the DEBUG message, with the plugin's name and the step, before each step that runs its code."""

BUILTIN = "gemmhub"
"""Distribution name that the built-in backend is listed with."""


class Entry:
    """One backend, or one plugin that failed before it named any, with its state."""

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
        self.loaded = False
        """Whether the backend was registered as an object: its probe names its devices, not its description."""
        self._answer: tuple[Backend, Ready] | Refusal | None = refusal
        self._lock = locks.lock()
        self._loading = locks.Busy()

    def __repr__(self) -> str:
        return f"<Entry {self.name!r} of {self.distribution}>"

    @property
    def device_types(self) -> tuple[str, ...]:
        """Types of device of the backend; empty where the plugin failed before it named them."""
        if self.loaded:
            answer = self.get()
            return () if isinstance(answer, Refusal) else tuple({device.type for device in answer[1].devices})
        return self.description.device_types if self.description else ()

    @property
    def transient(self) -> str:
        """:attr:`Refusal.transient` of a plugin that failed before it named its backends."""
        return self._answer.transient if self.description is None and isinstance(self._answer, Refusal) else ""

    def get(self) -> tuple[Backend, Ready] | Refusal:
        """The loaded, probed backend, or a refusal. Loads and probes once; a lack of memory is not kept."""
        answer = self._answer
        if answer is None:
            with self._lock:
                answer = self._answer
                if answer is None:
                    if self._loading.now:
                        return Busy("it is being loaded", "do not call gemmhub from load() or probe()")
                    with self._loading:
                        answer = self._load()
                    if isinstance(answer, tuple) or not answer.transient:
                        self._answer = answer
        return answer

    def _load(self) -> tuple[Backend, Ready] | Refusal:
        assert self.description is not None
        remedy = f"report it to the authors of {self.distribution}"
        doing = f"loading the backend {self.name!r}"
        _log.debug(ASKING, self.plugin, doing)
        backend = guarded(self.description.load, "loading the backend", remedy)
        if isinstance(backend, Refusal):
            return backend
        if not isinstance(backend, Backend):
            return Refusal(f"load() returned {type(backend).__name__}, not a Backend", remedy)
        misstated = _misstated(backend, remedy)
        if misstated is not None:
            return misstated
        _log.debug(ASKING, self.plugin, f"probing for the backend {self.name!r}")
        answer = guarded(lambda: _checked(backend.probe()), "probing", remedy)
        if isinstance(answer, Ready):
            version = self._version()
            if isinstance(version, Refusal):
                return version
            return backend, replace(answer, versions={**answer.versions, **version})
        if isinstance(answer, Refusal):
            return answer
        return Refusal(f"probe() returned {type(answer).__name__}, not Ready or Absent", remedy)

    def _version(self) -> dict[str, str] | Refusal:
        """The version of the distribution, on which times depend; empty for a backend without one."""
        version = guarded(lambda: importlib.metadata.version(self.distribution), "reading metadata", "free some memory")
        if isinstance(version, Refusal):
            return version if version.transient else {}
        return {self.distribution: version} if isinstance(version, str) else {}


def _misstated(backend: Backend, remedy: str) -> Refusal | None:
    """The refusal of a backend whose ``takes`` names no operand, or no forms."""
    known = {*OPERANDS, "activation", "precision", "reproducible", "groups", "symmetric"}
    for name, forms in backend.takes.items():
        if name not in known:
            return Refusal(f"its takes names {name!r}; allowed: {', '.join(sorted(known))}", remedy)
        if forms is not None and (isinstance(forms, str) or not isinstance(forms, Set)):
            return Refusal(f"its takes[{name!r}] is {forms!r}; allowed: a set of forms, or None for any", remedy)
    return None


def _checked(answer: Ready | Absent) -> Ready | Absent:
    """Validate a plugin's answer; TypeError for a Ready with fields of wrong types."""
    if isinstance(answer, Ready):
        if not all(isinstance(device, Device) for device in answer.devices):
            raise TypeError(f"devices are {answer.devices!r}, not of class Device")
        if not all(isinstance(text, str) for pair in answer.versions.items() for text in pair):
            raise TypeError(f"versions are {answer.versions!r}, not a table of strings")
        for name in ("features", "warnings"):
            texts = getattr(answer, name)
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{name} are {texts!r}, not a tuple of strings")
        if not callable(answer.threads):
            raise TypeError(f"threads is {answer.threads!r}, not a function")
    return answer


def _builtin() -> Entry:
    def load() -> Backend:
        from gemmhub.numpy_backend.backend import NumpyBackend

        return NumpyBackend()

    description = BackendDescription(
        "numpy", load, "NumPy's BLAS, with blocked conversion for half, bfloat16, fp8 and int8", contract=CONTRACT
    )
    return Entry("numpy", BUILTIN, "gemmhub", description)


@dataclass(frozen=True)
class _Object:
    """A backend that the process registered as an object, which survives :func:`forget`."""

    backend: Backend
    name: str
    contract: int

    @property
    def package(self) -> str:
        return str(type(self.backend).__module__).partition(".")[0]

    @property
    def description(self) -> BackendDescription:
        text = type(self.backend).__doc__
        summary = (text if isinstance(text, str) else "").partition("\n")[0] or type(self.backend).__qualname__
        return BackendDescription(self.name, lambda: self.backend, summary, contract=self.contract)

    def entry(self) -> Entry:
        entry = Entry(self.name, self.name, self.package, self.description)
        entry.loaded = True
        return entry


_objects: dict[str, _Object] = {}
"""The backends that this process registered, by name."""


class Registry:
    """The backends of this process: the built-in one, those of plugins in the order of their names, those added."""

    def __init__(self) -> None:
        self._builtin = _builtin()
        self._added = [known.entry() for known in tuple(_objects.values())]
        self._points: Sequence[importlib.metadata.EntryPoint] | None = None
        self._answers: dict[int, _Answer] = {}
        """Answers of plugins by position in ``_points``; each is stored when it is complete."""
        self._lock = locks.lock()
        self._discovering = locks.Busy()
        self.complete = False
        """Whether every plugin has answered finally. A decision made before holds for one call only."""

    def __iter__(self) -> Iterator[Entry]:
        if not self.complete:
            with self._lock:
                # A plugin that calls matmul while it is imported gets the backends discovered so far.
                if not self.complete and not self._discovering.now:
                    with self._discovering:
                        self._discover()
        return iter(self.entries)

    @property
    def entries(self) -> list[Entry]:
        """The entries discovered so far."""
        answers = self._answers
        return [self._builtin, *(e for i in sorted(answers) for e in answers[i].entries), *self._added]

    def find(self, name: str) -> Entry | None:
        """The entry of that name whose description is valid, else any entry of that name."""
        named = [entry for entry in self if entry.name == name]
        return next((entry for entry in named if entry.description is not None), named[0] if named else None)

    def add(self, description: object, plugin: str, distribution: str) -> Entry:
        """List a described backend, after checking the description."""
        entry = self._entry(description, plugin, distribution, self.entries)
        self.put(entry)
        return entry

    def put(self, entry: Entry) -> None:
        """List a checked entry."""
        self._added = [*self._added, entry]

    def remove(self, name: str) -> None:
        """Drop the entry of a backend that was registered as an object."""
        self._added = [entry for entry in self._added if entry.name != name or not entry.loaded]

    def _entry(self, description: object, plugin: str, distribution: str, others: Sequence[Entry]) -> Entry:
        refusal = self.refusal(description, distribution, others)
        name = getattr(description, "name", None)
        usable = description if isinstance(description, BackendDescription) and not refusal else None
        return Entry(name if isinstance(name, str) else plugin, plugin, distribution, usable, refusal)

    @staticmethod
    def refusal(description: object, distribution: str, others: Sequence[Entry]) -> Refusal | None:
        """Return why a description cannot be listed beside ``others``; None where it can."""
        remedy = f"report it to the authors of {distribution}"
        if not isinstance(description, BackendDescription):
            return Refusal(f"its hook returned {type(description).__name__}, not a BackendDescription", remedy)
        if not isinstance(description.contract, int):
            return Refusal(f"its contract is {description.contract!r}, not an int", remedy)
        if description.contract != CONTRACT:
            newer = description.contract > CONTRACT
            return Refusal(
                f"written for contract {description.contract} of gemmhub, this is contract {CONTRACT}",
                f"upgrade {'gemmhub' if newer else distribution}",
            )
        name, types = description.name, description.device_types
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier() or name != name.lower():
            return Refusal(f"{name!r} is not a lower-case name", remedy)
        if not isinstance(types, (tuple, list)) or not types or not all(isinstance(x, str) for x in types):
            return Refusal(f"its device_types are {types!r}, not a tuple of strings", remedy)
        variables = description.variables
        if not isinstance(variables, (tuple, list)) or not all(isinstance(x, str) for x in variables):
            return Refusal(f"its variables are {variables!r}, not a tuple of strings", remedy)
        taken = next((e for e in others if e.name == description.name and e.description), None)
        if taken is not None:
            return Refusal(
                f"the name {description.name!r} is taken by {taken.distribution}",
                f"uninstall {distribution} or {taken.distribution}, or disable one (GEMMHUB_DISABLE)",
            )
        return None

    def _discover(self) -> None:
        """Load the plugins that are not loaded yet, or lacked memory at the last attempt."""
        settings = config.root()
        if self._points is None:
            points = guarded(
                lambda: sorted(importlib.metadata.entry_points(group="gemmhub"), key=lambda point: point.name),
                "reading the entry points of installed distributions",
                "repair or uninstall the distribution named in the traceback",
            )
            if isinstance(points, Refusal):
                self._answers[0] = _Answer((Entry("plugins", "plugins", "importlib.metadata", None, points),))
                self.complete = not points.transient
                return
            self._answers.pop(0, None)  # memory was short at the last attempt
            self._points = points
        for index in range(len(self._points)):
            if index not in self._answers or self._answers[index].transient:
                self._answers[index] = self._discover_one(index, self._points, settings)
        self.complete = not any(answer.transient for answer in self._answers.values())
        if self.complete:
            descriptions = [entry.description for entry in self.entries if entry.description is not None]
            for warning in config.unknown_variables(x for description in descriptions for x in description.variables):
                _log.warning("%s", warning)

    def _discover_one(
        self, index: int, points: Sequence[importlib.metadata.EntryPoint], settings: config.Settings
    ) -> _Answer:
        point = points[index]
        distribution, plugin = _distribution(point), point.name
        others = [(points[i].name, answer.module) for i, answer in self._answers.items() if answer.module is not None]

        def refused(refusal: Refusal) -> _Answer:
            return _Answer((Entry(plugin, plugin, distribution, None, refusal),))

        switch = switches.switched_off(plugin, settings)
        if switch is not None:
            return refused(switch)
        remedy = f"upgrade or uninstall {distribution}, or switch it off: GEMMHUB_DISABLE={plugin}"
        if any(name == plugin for name, _ in others):
            return refused(Refusal(f"a second plugin is called {plugin!r}", f"uninstall {distribution} or the other"))
        _log.debug(ASKING, plugin, "importing the plugin")
        module = guarded(point.load, "importing the plugin", remedy)
        if isinstance(module, Refusal):
            return refused(module)
        same = next((name for name, other in others if other is module), None)
        if same is not None:
            return refused(Refusal(f"it is the plugin {same!r} under a second name", remedy))
        _log.debug(ASKING, plugin, "asking the plugin for its backends")
        manager = guarded(lambda: _registered(module, plugin), "registering the plugin", remedy)
        if isinstance(manager, Refusal):
            return refused(manager)
        described = guarded(
            lambda: [description for answer in manager.hook.gemmhub_backends() for description in answer],
            "asking the plugin for its backends",
            remedy,
        )
        if isinstance(described, Refusal):
            return refused(described)
        if not described:
            upgrade = f"upgrade {distribution}: it needs a gemmhub_backends hook"
            return refused(Refusal("it describes no backend", upgrade))
        entries: list[Entry] = []
        for description in described:
            entries.append(self._entry(description, plugin, distribution, [*self.entries, *entries]))
        return _Answer(tuple(entries), module)


@dataclass(frozen=True)
class _Answer:
    """A plugin's answer to the request for its backends."""

    entries: tuple[Entry, ...]
    module: Any = None
    """The module that its entry point refers to; None where the plugin failed."""

    @property
    def transient(self) -> bool:
        return any(entry.transient for entry in self.entries)


def _registered(module: Any, plugin: str) -> Any:
    """A plugin manager for one plugin, so that a failure affects no other plugin."""
    import pluggy

    from gemmhub import hookspecs

    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(module, plugin)
    return manager


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    """The name of the distribution; where its metadata are broken, the entry point's module."""
    name = guarded(lambda: point.dist.name if point.dist else None, "reading metadata", "")
    return name if isinstance(name, str) else point.value


_registry: dict[str, Registry] = {}
"""The registry of this process under one key, or empty."""
_changes = locks.lock()
"""Held while backends are registered or removed, and while a registry begins or is dropped, so that none is lost."""


def registry() -> Registry:
    """The registry of this process."""
    known = _registry.get("gemmhub")
    if known is None:
        with _changes:
            known = _registry.setdefault("gemmhub", Registry())
    return known


def register(backend: Backend, contract: int) -> None:
    """List a backend, until :func:`unregister`. Raises InputError where that cannot be."""
    if not isinstance(backend, Backend):
        passed = f"the class {backend.__qualname__}" if isinstance(backend, type) else instance(type(backend))
        raise InputError("backend", passed, "an instance of a subclass of gemmhub.Backend")
    name = guarded(lambda: getattr(backend, "name", None), "reading its name", "give it a name")
    if not isinstance(name, str):
        raise InputError("backend", f"{instance(type(backend))} whose name is {name!r}", "a lower-case name")
    if isinstance(contract, bool) or contract != CONTRACT:
        remedy = f"write it for contract {CONTRACT}: see gemmhub.backend"
        raise InputError("contract", f"{contract!r}", f"{CONTRACT}, the contract of this gemmhub", remedy)
    new, known = _Object(backend, name, contract), registry()
    taken = next((entry.distribution for entry in known if entry.name == name and entry.description), None)
    if taken is not None:
        remedy = f"call gemmhub.unregister({name!r}) first" if name in _objects else "give it another name"
        raise InputError("backend", f"the name {name!r}, which a backend of {taken} has", "a name of its own", remedy)
    refusal = known.refusal(new.description, new.package, ())
    if refusal is not None:
        raise InputError("backend", refusal.reason, "a lower-case name", "give it another name")
    misstated = _misstated(backend, "change its takes")
    if misstated is not None:
        raise InputError("backend", misstated.reason, "names of operands with sets of forms", misstated.remedy)
    with _changes:
        _objects[name] = new
        registry().put(new.entry())


def unregister(name: str) -> None:
    """Remove a backend that :func:`register` listed. Raises InputError for any other name."""
    if not isinstance(name, str) or name not in _objects:
        known = ", ".join(_objects) or "none, as no backend is registered"
        raise InputError("name", f"{name!r}", known, "GEMMHUB_DISABLE switches off a plugin's backend")
    with _changes:
        _objects.pop(name, None)
        registry().remove(name)


def forget() -> None:
    """Drop the registry; the next use discovers and probes again."""
    with _changes:
        _registry.clear()


def statuses() -> Statuses:
    """The states of all backends: ready ones, absent and failed ones with reasons, and installable ones."""
    absent = [
        BackendStatus(
            suggestion.backend,
            suggestion.distribution,
            suggestion.summary,
            "not installed",
            reason="not installed",
            remedy=install.command(suggestion.distribution),
        )
        for suggestion in missing()
    ]
    return Statuses((*map(_status, registry()), *absent))


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
    return BackendStatus(
        entry.name, entry.distribution, summary, "ready", dict(ready.versions), tuple(ready.features),
        warnings=tuple(ready.warnings),
    )  # fmt: skip


def names() -> list[str]:
    """The names of the backends that are discovered or could be installed, which ``backend=`` accepts."""
    return sorted({entry.name for entry in registry()} | {x.backend for x in suggestions.known()})


def misnamed(settings: config.Settings) -> dict[str, str]:
    """Sentences on names in the settings ``backend``, ``allow`` and ``deny`` that have no effect, by setting: those
    that no backend or plugin has, installed or not, and the built-in backend, which ``deny`` leaves.
    """
    own = {entry.name for entry in registry() if entry.plugin == BUILTIN} | {BUILTIN}
    plugins = {entry.plugin for entry in registry()} | {x.backend for x in suggestions.known()} | own
    sentences = {
        "backend": [switches.unknown(settings.backend, "backend", names())],
        "allow": [switches.unknown(settings.allow or (), "plugin", plugins)],
        "deny": [switches.unknown(settings.deny, "plugin", plugins), switches.built_in(settings.deny, own)],
    }
    return {key: "; ".join(filter(None, of_key)) for key, of_key in sentences.items() if any(of_key)}


def unknown_variables() -> list[str]:
    """Sentences on environment variables that are called as gemmhub's are, and that nothing reads."""
    described = (entry.description for entry in registry() if entry.description is not None)
    return config.unknown_variables(name for description in described for name in description.variables)


def device_types() -> list[str]:
    """The types of devices, beside the CPU, of all backends that are discovered or could be installed."""
    declared = {device_type for entry in registry() for device_type in entry.device_types}
    return sorted((declared | {x.device_type for x in suggestions.known()}) - {"cpu"})


def missing() -> list[Suggestion]:
    """Distributions of this project that are not installed."""
    installed = {entry.distribution for entry in registry()}
    return [x for x in suggestions.known() if x.distribution not in installed and x.backend not in _objects]
