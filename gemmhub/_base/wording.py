"""Parts of messages: the name that was meant, an unknown keyword argument, a counted noun, an article."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], cutoff: float = 0.7) -> str | None:
    """The one of ``names`` that ``name`` resembles, in upper or lower case; None where none does."""
    from difflib import get_close_matches  # here, for a light ``import gemmhub``

    lower = {x.lower(): x for x in sorted(names)}
    return next((lower[x] for x in get_close_matches(name.lower(), lower, 1, cutoff)), None)


def did_you_mean(value: object, names: Iterable[str]) -> str:
    """The question for ``value``, where it is a text that resembles one of ``names``; empty elsewhere."""
    meant = nearest(value, names) if isinstance(value, str) else None
    return f"did you mean {meant!r}?" if meant else ""


def unexpected(name: str, allowed: Iterable[str], hint: str = "") -> TypeError:
    """The error for a keyword argument that a call has not, with a ``hint``, or the one that was meant."""
    names = list(allowed)
    meant = None if hint else nearest(name, names)
    hint = f"did you mean {meant}=?" if meant else hint
    return TypeError(f"unexpected keyword argument {name!r}{hint and f'; {hint}'}; allowed: {', '.join(names)}")


def unlisted(backend: object, names: Iterable[str]) -> str:
    """The message of a KeyError for a backend that is none of ``names``."""
    listed = [*names]
    meant = did_you_mean(backend, listed)
    return f"no backend {backend!r} is listed{meant and f'; {meant}'}; listed: {', '.join(listed) or 'none'}"


def counted(number: int, noun: str) -> str:
    """``number`` and the noun, whose plural ends in s: "1 operand", "2 operands"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def instance(cls: type) -> str:
    """An article and the name of ``cls``: "a list", "an int", "an ndarray"."""
    name = cls.__qualname__
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'nd')) else 'a'} {name}"
