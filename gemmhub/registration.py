"""The backends of a process: listed, registered, probed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmhub import api, config
from gemmhub._base.guard import memory_errors
from gemmhub.kit import locks

if TYPE_CHECKING:
    from gemmhub._choice.status import Statuses
    from gemmhub.backend import Backend


@memory_errors
def backends() -> Statuses:
    """List every installed or installable backend, with its state and, where not ready, the reason and the remedy.

    Returns
    -------
    A mapping from names to states, which prints as a table.

    See Also
    --------
    explain : the answer of each backend to one product.
    reload : probe the backends anew.

    Examples
    --------
    >>> gemmhub.backends()["numpy"].state
    'ready'
    """
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import registry

        return registry.statuses()


@memory_errors
def backend_names() -> list[str] | None:
    """The names that ``backend=`` may have, installed or not; None while not every plugin has answered."""
    with locks.deciding:
        api.import_deciding()
    from gemmhub._choice import registry

    names = registry.names()
    return names if registry.registry().complete else None


config.backend_names = backend_names


@memory_errors
def _open_records(paths: tuple[str, ...]) -> tuple[Any, ...]:
    """The records of files that :class:`gemmhub.use` names."""
    with locks.deciding:
        api.import_deciding()
    from gemmhub._choice import records

    return records.opened(paths)


config.open_records = _open_records


@memory_errors
def register(backend: Backend, *, contract: int | None = None) -> None:
    """Add a backend to this process: the object that a plugin's entry point would load.

    It is probed at the next call. Where that fails, or the backend is absent, :func:`backends` and
    :func:`gemmhub.explain` list
    it with the reason. Decisions are made anew. :func:`reload` probes it again; :func:`unregister` removes it.

    Parameters
    ----------
    backend : a :class:`gemmhub.Backend`, whose name no other backend has.
    contract : the version of the contract that it was written for, as a literal number in code that others install;
        None for that of this gemmhub.

    Raises
    ------
    InputError : no Backend, a name that is taken or cannot be used, or another contract; nothing was changed.

    See Also
    --------
    unregister : remove it.
    backends : list it.

    Examples
    --------
    >>> class Doubtful(gemmhub.Backend):
    ...     name = "doubtful"
    ...     def probe(self):
    ...         return gemmhub.Absent("it is an example", "write another")
    ...     def offer(self, problem):
    ...         return gemmhub.Refusal("it is an example", "write another")
    ...     def prepare(self, problem, candidate, workspace_limit):
    ...         return gemmhub.Refusal("it is an example", "write another")
    >>> gemmhub.register(Doubtful(), contract=2)
    >>> gemmhub.backends()["doubtful"].state
    'absent'
    >>> gemmhub.unregister("doubtful")
    """
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide, registry
        from gemmhub.backend import CONTRACT

        registry.register(backend, CONTRACT if contract is None else contract)
    decide.forget()
    api.forget_decisions()


@memory_errors
def unregister(name: str) -> None:
    """Remove a backend that :func:`register` added. Decisions are made anew; plans that it runs keep it.

    Parameters
    ----------
    name : the backend's name.

    Raises
    ------
    InputError : no backend of this name was registered; one of a plugin is switched off by ``GEMMHUB_DISABLE``.

    See Also
    --------
    register : add a backend.

    Examples
    --------
    >>> gemmhub.unregister("numpy")
    Traceback (most recent call last):
    gemmhub.errors.InputError: name: 'numpy'; allowed: none, as no backend is registered. GEMMHUB_DISABLE switches
    off a plugin's backend
    """
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide, registry

        registry.unregister(name)
    decide.forget()
    api.forget_decisions()


@memory_errors
def reload() -> None:
    """Drop all decisions: read settings and records, discover and probe backends anew at the next call.

    Kernels that failed to compile are compiled again, too.

    See Also
    --------
    use : settings for a block of code.
    register : add a backend to this process.
    """
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide, records, registry
        from gemmhub.kit import native

    for module in (config, registry, records, decide, native):
        module.forget()
    api.forget_decisions()  # last: until here a call in another thread may still decide by old settings


__all__ = ["backends", "register", "reload", "unregister"]
