"""Objects that fail at registration, in their hook, or by what they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gemmhub_example_bad.backend import Scripted

from gemmhub import BackendDescription, hookimpl


class Answering:
    """A plugin whose hook returns the result of ``answer()``."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    @hookimpl
    def gemmhub_backends(self) -> Any:
        return self._answer()


class WrongSignature:
    @hookimpl
    def gemmhub_backends(self, device: str) -> list[BackendDescription]:
        return []


class NoHook:
    pass


class Unmarked:
    """Its hook lacks the decorator."""

    def gemmhub_backends(self) -> list[BackendDescription]:
        return []


def _raise(error: BaseException) -> Any:
    raise error


def _describe(**changes: Any) -> BackendDescription:
    right = BackendDescription("bad-description", lambda: Scripted("bad-description"), "an example", contract=2)
    return replace(right, **changes)


def _breaks_off() -> Iterator[BackendDescription]:
    yield _describe()
    raise KeyError("the second backend")


wrong_signature = WrongSignature()
no_hook = NoHook()
unmarked = Unmarked()
hook_raises = Answering(lambda: _raise(OSError("no such driver")))
hook_exits = Answering(lambda: _raise(SystemExit(3)))
breaks_off = Answering(_breaks_off)
one_description = Answering(_describe)
nothing = Answering(lambda: None)
empty = Answering(lambda: [])
strings = Answering(lambda: ["example"])
newer = Answering(lambda: [_describe(contract=99)])
older = Answering(lambda: [_describe(contract=0)])
contract_text = Answering(lambda: [_describe(contract="1")])
bad_name = Answering(lambda: [_describe(name="Bad Name")])
name_number = Answering(lambda: [_describe(name=7)])
name_empty = Answering(lambda: [_describe(name="")])
takes_numpy = Answering(lambda: [_describe(name="numpy")])
no_devices = Answering(lambda: [_describe(device_types=None)])
variables_text = Answering(lambda: [_describe(variables="GEMMHUB_BAD")])
one_good_one_bad = Answering(lambda: [_describe(name="Bad"), _describe()])
