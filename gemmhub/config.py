"""The settings: their sources, precedence and validation.

call argument > :class:`use` > environment > project file > user file > default.

The project file is the nearest ``gemmhub.toml``, or ``pyproject.toml`` with a ``[tool.gemmhub]`` table, in
the working directory or above; the user file is ``gemmhub.toml`` in the user's configuration directory.
``GEMMHUB_CONFIG`` names a file to read instead of both. Environment and files are read once, at first use;
:func:`gemmhub.reload` reads them again.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

from gemmhub._base import files, promises
from gemmhub._base.evicting import keep
from gemmhub._base.wording import nearest, unexpected
from gemmhub.dtypes import PRECISIONS
from gemmhub.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

F = TypeVar("F", bound=Callable[..., Any])

TUNE = ("off", "first")
"""The values of the setting ``tune``."""


@dataclass(frozen=True, eq=False)
class Settings:
    """Resolved settings. Interned: equal settings are the same object, so identity can be a cache key."""

    backend: tuple[str, ...] = ()
    """Preferred backends, best first; empty for automatic choice."""
    forced: bool = False
    """Whether ``backend`` came from a call or a context: then no other backend may run."""
    precision: str = "ieee"
    reproducible: str | None = None
    """"run", "batch", or the name of an order of sums: :attr:`gemmhub.problem.GemmProblem.reproducible`."""
    allow: tuple[str, ...] | None = None
    """Plugins that may load; None for all."""
    deny: tuple[str, ...] = ()
    """Plugins that may not load."""
    records: str = "default"
    """File of tuning records; "default" is the one in the user's data directory, "off" uses none. Relative
    paths in a configuration file start from that file."""
    record_files: tuple[Any, ...] = ()
    """Tuning records that decide before those of ``records``, the first ones first: what :data:`open_records` returns.
    Only :class:`use` sets them."""
    workspace_mib: float | None = None
    """Upper limit of the scratch memory of one kernel, in MiB; None for each backend's own default."""
    tune: str = "off"
    """Racing of candidates without a call of :func:`gemmhub.tune`: "off", or "first" for a race at the first call of a
    signature (:mod:`gemmhub._measure.race`)."""
    profile: bool = False
    """Whether calls open ranges of profilers (:mod:`gemmhub._call.profiling`)."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """Source of each setting that is not a default."""

    @property
    def workspace_limit(self) -> int | None:
        """The workspace limit in bytes; None where the user has set none."""
        return None if self.workspace_mib is None else int(self.workspace_mib * 2**20)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise ValueError
    return tuple(part for part in value if part)


def _precision(value: object) -> str:
    if value not in PRECISIONS:
        raise ValueError
    return str(value)


def _promise(value: object) -> str | None:
    return promises.promise("off" if value == "" else value)


def _tune(value: object) -> str:
    if value not in TUNE:
        raise ValueError
    return str(value)


def _flag(value: object) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError


def _path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return os.path.expanduser(value)


def _mebibytes(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError
    if isinstance(value, str) and not (value.isascii() and "_" not in value):  # which float() reads
        raise ValueError
    number = float(value)
    if not 1 <= number <= 2**20:  # NaN and infinity too
        raise ValueError
    return number


class _Key(NamedTuple):
    variable: str
    parse: Callable[[object], Any]
    allowed: str


KEYS: Mapping[str, _Key] = {
    "backend": _Key("GEMMHUB_BACKEND", _names, "a backend's name, or a list of names, best first"),
    "precision": _Key("GEMMHUB_PRECISION", _precision, "one of " + ", ".join(PRECISIONS)),
    "reproducible": _Key("GEMMHUB_REPRODUCIBLE", _promise, promises.ALLOWED),
    "allow": _Key("GEMMHUB_PLUGINS", _names, "a list of plugin names; empty for none"),
    "deny": _Key("GEMMHUB_DISABLE", _names, "a list of plugin names"),
    "records": _Key("GEMMHUB_RECORDS", _path, "a file path (relative to the file it stands in), 'default' or 'off'"),
    "workspace_mib": _Key("GEMMHUB_WORKSPACE_MIB", _mebibytes, "a number of MiB from 1 to 1048576"),
    "tune": _Key("GEMMHUB_TUNE", _tune, "one of " + ", ".join(TUNE)),
    "profile": _Key("GEMMHUB_PROFILE", _flag, "true or false"),
}
"""Every setting: its environment variable, its parser, what is allowed."""

CONFIG_VARIABLE = "GEMMHUB_CONFIG"

SEED_VARIABLE = "GEMMHUB_TESTING_SEED"
"""The variable of :mod:`gemmhub.testing`, which messages to users do not list."""

VARIABLES = frozenset({*(key.variable for key in KEYS.values()), CONFIG_VARIABLE, "GEMMHUB_CACHE_DIR", SEED_VARIABLE})
"""Every environment variable of gemmhub's own. A plugin names those that it reads in its descriptions."""
_PREFIX, _TESTS = "GEMMHUB_", "GEMMHUB_TEST_"
"""Beginnings of the names that are looked at, and of those that the project's own tests read."""
_MEANT = {f"{_PREFIX}{name.upper()}": KEYS[name].variable for name in ("allow", "deny")}
"""Variables that are called as settings are whose own variable is called otherwise."""


def unknown_variables(plugins: Iterable[str]) -> list[str]:
    """A sentence for each environment variable that is called as gemmhub's are, and that nothing reads.

    ``plugins`` are the variables that the loaded plugins read.
    """
    known = {*VARIABLES, *plugins}
    unknown = [x for x in os.environ if x.startswith(_PREFIX) and not x.startswith(_TESTS) and x not in known]
    return [
        f"environment variable {x}: neither gemmhub nor a loaded plugin reads it; {_meant(x, known)}" for x in unknown
    ]


def _meant(name: str, known: set[str]) -> str:
    likely = nearest(name.removeprefix(_PREFIX), [x.removeprefix(_PREFIX) for x in known])
    meant = _MEANT.get(name) or (f"{_PREFIX}{likely}" if likely else "")
    return f"did you mean {meant}?" if meant else f"known: {', '.join(sorted(known - {SEED_VARIABLE}))}"


def parse(key: str, value: object, where: str) -> Any:
    """``value`` for ``key``, checked; ConfigError names its source ``where`` and the allowed values."""
    if key not in KEYS:
        raise ConfigError(f"{where}: unknown key {key!r}; allowed: {', '.join(KEYS)}")
    try:
        return KEYS[key].parse(value)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{where}: {key} = {value!r} is not valid; allowed: {KEYS[key].allowed}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(files.read(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None


def _table(path: Path, data: Any) -> dict[str, Any] | None:
    """The settings table in the ``data`` of one file; None when a pyproject.toml has none."""
    if path.name == "pyproject.toml":
        data = data.get("tool")
        if not isinstance(data, dict) or "gemmhub" not in data:
            return None
        data = data["gemmhub"]
    elif isinstance(data.get("tool"), dict) and "gemmhub" in data["tool"]:
        raise ConfigError(
            f"{path}: the table [tool.gemmhub] is for pyproject.toml; allowed: keys at the top of this file, without a "
            f"table: {', '.join(KEYS)}"
        )
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: gemmhub must be a table; allowed keys: {', '.join(KEYS)}")
    return data


def _project_table() -> tuple[Path, dict[str, Any]] | None:
    from pathlib import Path

    try:
        here = Path.cwd()
    except OSError:  # the working directory was removed
        return None
    for folder in (here, *here.parents):
        for name in ("gemmhub.toml", "pyproject.toml"):
            path = folder / name
            if os.path.isfile(path):  # unlike Path.is_file, never raises for a folder without permission
                try:
                    data = _read_toml(path)
                except ConfigError as error:
                    if name != "pyproject.toml":
                        raise
                    # Most of them do not concern gemmhub, and users of such a folder may be unable to correct them.
                    import logging

                    logging.getLogger("gemmhub").warning("%s; passed over", error)
                    continue
                table = _table(path, data)
                if table is not None:
                    _check_inside(path, table)
                    return path, table
    return None


def _check_inside(path: Path, table: dict[str, Any]) -> None:
    """Raise ConfigError where a project's file, which others may have written, names records outside the project."""
    value = table.get("records", "default")
    if value in ("default", "off"):
        return
    root = os.path.realpath(path.parent)
    records = os.path.realpath(os.path.join(root, parse("records", value, str(path))))
    if not records.startswith(os.path.join(root, "")):
        raise ConfigError(
            f"{path}: records = {value!r} is outside of the project; allowed: a file below {path.parent}, 'default' "
            f"or 'off'. {KEYS['records'].variable}, the user file and {CONFIG_VARIABLE} may name any file"
        )


def _files() -> list[tuple[Path, dict[str, Any]]]:
    """The settings tables of the files, of lowest precedence first."""
    from pathlib import Path

    chosen = os.environ.get(CONFIG_VARIABLE)
    if chosen:
        path = Path(os.path.expanduser(chosen))
        if not os.path.exists(path):
            raise ConfigError(f"environment variable {CONFIG_VARIABLE}: no file {chosen!r}; allowed: a TOML file")
        return [(path, _table(path, _read_toml(path)) or {})]
    from platformdirs import user_config_dir

    tables = []
    user = Path(user_config_dir("gemmhub", appauthor=False)) / "gemmhub.toml"
    if os.path.isfile(user):
        tables.append((user, _table(user, _read_toml(user)) or {}))
    project = _project_table()
    return [*tables, project] if project else tables


def read() -> Settings:
    """Read the settings of the files and the environment."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for path, table in _files():
        for key, value in table.items():
            values[key] = parse(key, value, str(path))
            origin[key] = str(path)
            if key == "records" and value not in ("default", "off"):
                values[key] = str(path.parent / values[key])
    for key, entry in KEYS.items():
        text = os.environ.get(entry.variable)
        if text is not None:
            value = parse(key, text, f"environment variable {entry.variable}")
            # An empty variable that leaves the default in force is not recorded as the source of a setting.
            if text or key in values or value != getattr(Settings, key):
                values[key], origin[key] = value, entry.variable
    return Settings(**values, origin=origin)


context: ContextVar[Settings | None] = ContextVar("gemmhub_settings", default=None)
"""Settings of the innermost ``use``; None outside of any. Part of the key of every cached decision."""

backend_names: Callable[[], list[str] | None] | None = None
"""A function that returns the names ``backend=`` may have; its result is None where they are not known.
:mod:`gemmhub.registration` sets it: backends are discovered in a layer above."""

open_records: Callable[[tuple[str, ...]], tuple[Any, ...]] | None = None
"""A function that reads record files. :mod:`gemmhub.registration` sets it: records are read in a layer above."""

_outer: ContextVar[tuple[Settings | None, ...]] = ContextVar("gemmhub_outer_settings", default=())
"""Settings that each ``use`` entered in this context restores, innermost last. Not stored in the ``use`` object, which
several threads and tasks may share."""

_root: list[Settings] = []
"""The settings of files and environment, once read."""
_MAX_ENTRIES = 256
_interned: OrderedDict[tuple[Any, ...], Settings] = OrderedDict()
"""Results of :func:`override`, at most _MAX_ENTRIES. Calls by settings that were evicted are decided anew."""


def root() -> Settings:
    """Return the settings of files and environment, which are read once."""
    known = _root  # forget() makes a new list: settings that another thread reads meanwhile stay in the old one
    if not known:
        known.append(read())
    return known[0]


def current() -> Settings:
    """Return the settings in force here: those of the innermost ``use``, else of files and environment."""
    return context.get() or root()


def forget() -> None:
    """Drop the settings of files and environment; the next use reads them again."""
    global _root
    _root = []
    _interned.clear()


def override(base: Settings, where: str, **changes: Any) -> Settings:
    """Return ``base`` with those ``changes`` that are not None; validated, interned, with the source ``where``.

    ``record_files`` are put before those of ``base``.
    """
    files = changes.pop("record_files", ())
    values = {key: parse(key, value, where) for key, value in changes.items() if value is not None}
    if files != base.record_files[: len(files)]:
        values["record_files"] = (*files, *(x for x in base.record_files if x not in files))
    if not values:
        return base
    if "backend" in values and len(values["backend"]) != 1:
        raise ConfigError(f"{where}: backend = {changes['backend']!r} is not valid; allowed: one backend's name")
    key = (base, where, *sorted(values.items()))
    known = _interned.get(key)
    if known is None:
        forced = base.forced or "backend" in values
        origin = {**base.origin, **{"records" if key == "record_files" else key: where for key in values}}
        known = replace(base, **values, forced=forced, origin=origin)
        keep(_interned, key, known, _MAX_ENTRIES)
    return known


def _unnamed(values: tuple[object, ...]) -> TypeError:
    """The error for settings without names, with the name of the one that was meant."""
    value = values[0]
    name = "precision" if value in PRECISIONS else "tune" if value in TUNE else "backend"
    hint = f"{name}={value!r}" if isinstance(value, str) else f"{name}=..."
    return TypeError(f"use(): {value!r:.80} without a name; allowed: named settings. Write use({hint})")


def _files_of(value: object) -> tuple[Any, ...]:
    """The records of the files that ``use(records=...)`` names. ConfigError for what is no path, RecordError for a file
    that has no records.
    """
    paths: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    if not paths:
        raise ConfigError(
            f"use(): records = {value!r} is not valid; allowed: a path, or a list of paths. Leave records= out "
            "for those in force"
        )
    if "off" in paths or "default" in paths:
        raise ConfigError(
            f"use(): records = {value!r} is not valid; allowed: files of tuning records. Which other records are used "
            f"holds for the process: set {KEYS['records'].variable}, or records in a file (docs/configuration.md)"
        )
    try:
        names = tuple(_path(os.fspath(x)) for x in paths)
    except (TypeError, ValueError):
        raise ConfigError(f"use(): records = {value!r:.80} is not valid; allowed: a path, or a list of paths") from None
    return () if open_records is None else open_records(names)


def _unexpected(name: str, allowed: Iterable[str]) -> TypeError:
    """The error for a keyword argument that :class:`use` has not, which may be a setting of the process."""
    hint = ""
    if name in KEYS:
        hint = f"it holds for the process: set {KEYS[name].variable}, or {name} in a file (docs/configuration.md)"
    return unexpected(name, allowed, hint)


class use:  # noqa: N801  (read as a sentence: with gemmhub.use(...))
    """Set options for a block of code (and its asyncio task): ``with gemmhub.use(backend="numpy"): ...``

    It is a decorator as well: ``@gemmhub.use(backend="numpy")`` on a function, also an async one, applies to each of
    its calls. It may be nested and reused.

    Parameters
    ----------
    backend : name of the one backend that calls within may use.
    precision, reproducible : defaults of these options of :func:`gemmhub.matmul` for calls within.
    tune : "first" to race candidates at the first call of a signature, or "off".
    records : path of a file of tuning records, or a list of them, which :func:`gemmhub.tune` has measured. They are
        read here, are not written, and decide before the records in force; the first file that has a backend's time
        counts. Those of a block around this one come next.
    profile : True for a range of torch's profiler, and of NVTX, around each kernel.

    Raises
    ------
    ConfigError : a value that is not allowed, such as a name that no backend has. A backend that is not installed, or
        that is for another device, is an error of the calls within.
    RecordError : a file that is missing, cannot be read, or has no record that the installed versions of gemmhub and
        its plugins may use. Records of other devices and libraries are no error: they do not count here.

    See Also
    --------
    reload : read the settings of environment and files again.

    Notes
    -----
    Settings of the call are stronger than those of ``use``, and these than the environment, files and defaults.

    Examples
    --------
    >>> a = np.ones((2, 2))
    >>> with gemmhub.use(backend="numpy"):
    ...     gemmhub.explain(a, a).why
    'asked for by use()'
    """

    def __init__(
        self,
        *values: NoReturn,
        backend: str | None = None,
        precision: str | None = None,
        reproducible: str | None = None,
        tune: str | None = None,
        records: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        profile: bool | None = None,
        **others: NoReturn,
    ) -> None:
        if values:
            raise _unnamed(values)
        self._changes = {
            "backend": backend, "precision": precision, "reproducible": reproducible, "tune": tune,
            "profile": profile,
        }  # fmt: skip
        for name in others:
            raise _unexpected(name, (*self._changes, "records"))
        for key, value in self._changes.items():
            if value is not None:
                parse(key, value, "use()")
        self._files = () if records is None else _files_of(records)

    def __call__(self, function: F) -> F:
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise ConfigError(
                f"use(): a decorator of the generator {function.__qualname__}, whose caller would get the settings "
                "between values; allowed: functions and async functions. Write a with block inside"
            )
        called: Any = function
        if iscoroutinefunction(function):

            @wraps(function)
            async def later(*arguments: Any, **options: Any) -> Any:
                with self:
                    return await called(*arguments, **options)

            return cast("F", later)

        @wraps(function)
        def within(*arguments: Any, **options: Any) -> Any:
            with self:
                return called(*arguments, **options)

        return cast("F", within)

    def __enter__(self) -> Settings:
        settings = override(current(), "use()", record_files=self._files, **self._changes)
        backend = self._changes["backend"]
        names = None if backend is None or backend_names is None else backend_names()
        if names is not None and settings.backend[0] not in names:
            raise ConfigError(f"use(): backend = {backend!r} is not valid; allowed: {', '.join(names)}")
        _outer.set((*_outer.get(), context.get()))
        context.set(settings)
        return settings

    def __exit__(self, *_: object) -> None:
        *outer, previous = _outer.get()
        _outer.set(tuple(outer))
        context.set(previous)
