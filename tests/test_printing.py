"""Text of plugins and files is shown on a terminal without effect on it."""

from __future__ import annotations

import logging
import pickle
import traceback
import unicodedata

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Absent, Ready, Refusal, errors
from gemmhub._base import printing
from gemmhub._choice.status import BackendStatus
from gemmhub._measure.compare import Compared, Comparison
from gemmhub._measure.tune import Tuned, TuneResult
from gemmhub._measure.tune_function import FunctionTuneResult, TunedProduct
from gemmhub.capability import CPU
from plugins import add

ONE = np.ones((2, 2), np.float32)
EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\rforged\nnumpy  chosen\u202etxt.\u2066[red]bold[/red]"
SHOWN = "\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\x0dforged\\nnumpy  chosen\\u202etxt.\\u2066[red]bold[/red]"


def test_every_control_becomes_an_escape():
    for code in (*range(0x3000), *range(0xD7F0, 0xE010), 0xFEFF, 0x1F600):
        character = chr(code)
        acts = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in (
            "LRE",
            "RLE",
            "PDF",
            "LRO",
            "RLO",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )
        acts = (character != "\t" and acts) or code in (0x061C, 0x200E, 0x200F) or 0x206A <= code <= 0x206F
        assert (printing.line(f"a{character}b") != f"a{character}b") is acts, hex(code)
        assert (printing.lines(f"a{character}b") != f"a{character}b") is (acts and character != "\n"), hex(code)
    assert printing.line(EVIL) == SHOWN
    assert printing.lines(EVIL) == SHOWN.replace("\\n", "\n")


def printed():
    """Everything that prints as a table, with texts of plugins in it."""
    row = Compared(EVIL, "failed", 1.0, 1.0, EVIL)
    yield str(Comparison(EVIL, (row,)))
    tuned = (Tuned(EVIL, EVIL, None, EVIL),)
    yield str(TuneResult(EVIL, tuned, None))
    yield str(FunctionTuneResult((TunedProduct(EVIL, 1, tuned[0], "estimated", tuned, EVIL),), None))
    yield str(BackendStatus(EVIL, EVIL, EVIL, "absent", reason=EVIL, remedy=EVIL))
    yield str(gemmhub.explain(ONE, ONE))


def test_tables_are_safe(monkeypatch):
    add(Scripted("evil", refusal=Refusal(EVIL, EVIL)))
    for text in printed():
        assert "forged" in text
        assert not set(EVIL) & set(text) & {chr(code) for code in (*range(10), *range(11, 32), 0x9B, 0x202E, 0x2066)}
        assert "\nnumpy  chosen" not in text


def raising(*_):
    raise ValueError(EVIL)


STEPS = {
    "prepare": {"prepare": raising}, "run": {"run": raising}, "offer": {"offer": raising},
    "remark": {"remark": raising}, "probe": {"probe": raising}, "memory": {"prepare": MemoryError(EVIL)},
    "refusal of prepare": {"prepare": lambda *_: Refusal(EVIL, EVIL)},
    "refusal of offer": {"offer": lambda *_: Refusal(EVIL, EVIL)},
    "absence": {"probe": lambda: Absent(EVIL, EVIL)}, "name": {"candidates": (EVIL,)}, "words": {"remark": EVIL},
    "versions": {"probe": lambda: Ready((CPU,), {EVIL: EVIL}, (EVIL,))},
}  # fmt: skip
"""Where a plugin may have text that becomes a message."""


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_messages_and_the_log_are_safe(step, forced, caplog):
    """What is logged at any level, raised, or part of an answer."""
    caplog.set_level(logging.DEBUG, "gemmhub")
    add(Scripted("evil", **STEPS[step]))
    options = {"backend": "evil"} if forced else {}
    told = []
    for call in (gemmhub.matmul, gemmhub.plan, gemmhub.tune, gemmhub.compare, gemmhub.explain):
        try:
            told.append(str(call(ONE, ONE, **options)))
        except gemmhub.GemmhubError as error:
            told += [str(error), *traceback.format_exception_only(error)]
    for status in gemmhub.backends().rows:
        told += [str(status), status.reason, status.remedy, status.traceback or ""]
    told += [v.reason + v.remedy + (v.traceback or "") for v in gemmhub.explain(ONE, ONE).verdicts]
    told += [caplog.text, *(record.getMessage() for record in caplog.records)]
    assert not set("".join(told)) & {chr(code) for code in (*range(10), *range(11, 32), 0x9B, 0x202E, 0x2066)}


def test_every_error_and_refusal_is_safe():
    kinds = [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, gemmhub.GemmhubError)]
    for kind in kinds:
        given = {"InputError": 4, "KernelError": 2}.get(
            next(x.__name__ for x in kind.__mro__ if "__init__" in vars(x)), 1
        )
        error = kind(*[EVIL] * given)
        assert printing.lines(str(error)) == str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    for made in (Refusal(EVIL, EVIL, EVIL), Absent(EVIL, EVIL, EVIL)):
        assert {made.reason, made.remedy, made.traceback} == {printing.lines(EVIL)}


@pytest.mark.parametrize("text", ["", "plain", "Größe 中文 é", "a\tb"])
def test_other_texts_stay(text):
    assert printing.line(text) == printing.lines(text) == text
