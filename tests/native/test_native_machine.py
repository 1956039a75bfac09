"""Backends that cache the machine and the analyses of problems."""

from __future__ import annotations

import threading
import time

import pytest

from gemmhub.capability import CPU, Absent, Ready, Refusal
from gemmhub.kit.machine import MachineBackend


class Looking(MachineBackend[str]):
    name = "looking"

    def __init__(self, found):
        self.looks = 0

        def look():
            self.looks += 1
            time.sleep(0.01)
            if isinstance(found, Exception):
                raise found
            return found

        super().__init__(look)

    def _ready(self, machine):
        return Ready((CPU,), {"machine": machine})

    def offer(self, problem):
        return Refusal(f"{self.machine} runs nothing", "ask another")

    def prepare(self, problem, candidate, workspace_limit):
        raise AssertionError


def test_a_machine_is_probed_at_first_use():
    backend = Looking("a card")
    assert backend.looks == 0
    assert backend.machine == "a card"
    assert backend.probe().versions == {"machine": "a card"}
    assert backend.looks == 1


def test_threads_that_ask_at_once_look_once():
    backend, found = Looking("a card"), []
    threads = [threading.Thread(target=lambda: found.append(backend.machine)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["a card"] * 8
    assert backend.looks == 1


def test_no_machine():
    backend = Looking(Absent("there is no card here", "buy one"))
    for _ in range(2):
        assert backend.probe() == Absent("there is no card here", "buy one")
        with pytest.raises(RuntimeError, match="there is no card here; buy one"):
            _ = backend.machine
    assert backend.looks == 1


def test_who_fails_to_look_may_try_again():
    backend = Looking(OSError("busy"))
    for looks in (1, 2):
        with pytest.raises(OSError, match="busy"):
            backend.probe()
        assert backend.looks == looks
