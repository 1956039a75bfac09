"""Check of a backend's answers against the contract, before anything is prepared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from gemmhub.backend import Backend, Kernel, Offer, answer
from gemmhub.capability import Refusal
from gemmhub.operands import OPERANDS
from gemmhub.problem import GemmProblem
from gemmhub.testing.operands import dense

T = TypeVar("T")


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless ``condition`` (assert statements vanish under ``python -O``)."""
    if not condition:
        raise AssertionError(message)


def call(what: str, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """``function(*arguments, **named)``; an exception is a failure of the backend."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error


def honest(refusal: Refusal, label: str) -> None:
    """Require that a refusal has a reason and a remedy."""
    for name in ("reason", "remedy"):
        text = getattr(refusal, name)
        require(isinstance(text, str) and bool(text.strip()), f"{label} refused without a {name}: {refusal!r}")


def offered(backend: Backend, problem: GemmProblem) -> Offer | Refusal:
    """The answer of ``offer``, which is called twice with equal problems."""
    answers = [call("offer()", answer, backend, x) for x in (problem, replace(problem))]
    first, second = answers
    same = (
        first == second
        if isinstance(first, Refusal) or isinstance(second, Refusal)
        else _facts(first) == _facts(second)
    )
    require(same, f"offer() answered {first!r}, then {second!r} to an equal problem")
    if isinstance(first, Refusal):
        honest(first, "offer()")
    else:
        _check_candidates(first, problem)
    if not backend.layout_sensitive:
        other = call("offer()", answer, backend, dense(problem))
        require(
            isinstance(other, Refusal) == isinstance(first, Refusal),
            f"layout_sensitive is False, but offer() answers {first!r} here and {other!r} to dense operands",
        )
    return first


def first_kernel(backend: Backend, problem: GemmProblem) -> Kernel:
    """The kernel of the first candidate of a problem that the backend runs."""
    offer = offered(backend, problem)
    if isinstance(offer, Refusal):
        raise AssertionError(f"offer() refuses what it accepted: {offer!r}")
    return prepared(backend, problem, offer.first.name, offer.workspace)


def prepared(backend: Backend, problem: GemmProblem, candidate: str, limit: int) -> Kernel:
    """The kernel of a candidate that the backend offered for ``problem``."""
    kernel = call(f"offer() accepted, but prepare(..., {candidate!r})", backend.prepare, problem, candidate, limit)
    if not isinstance(kernel, Kernel):
        raise AssertionError(f"prepare(..., {candidate!r}) returned {kernel!r}, not a Kernel")
    held = kernel.workspace_bytes
    require(0 <= held <= limit, f"candidate {candidate!r} uses {held} bytes of workspace, {limit} are allowed")
    return kernel


def _facts(offer: Offer) -> object:
    """The facts that are equal in the offers for equal problems."""
    return [(x.name, x.order) for x in offer.candidates], offer.workspace, offer.any_size


def _check_candidates(offer: Offer, problem: GemmProblem) -> None:
    """Check the facts of an offer's candidates that gemmhub itself lives without."""
    for candidate in offer.candidates:
        seconds, label = candidate.seconds, f"candidate {candidate.name!r}"
        if seconds is not None:
            right = isinstance(seconds, (int, float)) and math.isfinite(seconds) and (seconds > 0 or problem.empty)
            require(right and seconds >= 0, f"{label} takes {seconds!r}, not None or finite positive seconds")
        for copy in candidate.copies:
            right = copy.operand in ("a", "b", "out", *OPERANDS) and copy.nbytes >= 0
            require(right, f"{label} has the copy {copy!r}")
        require(candidate.order != "", f"{label} has an order without a name")
        remark = call(f"remark({candidate.name!r})", offer.remark, candidate.name)
        require(isinstance(remark, str), f"remark({candidate.name!r}) returned {remark!r}, not text")
