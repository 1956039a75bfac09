"""Text of plugins and files is shown on a terminal without effect on it."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Refusal
from gemmhub._base import printing
from gemmhub._check.compare import Compared, Comparison
from gemmhub._choice.status import BackendStatus
from gemmhub._measure.tune import Tuned, TuneResult
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
    row = Compared(EVIL, False, "wrong", 1.0, 1.0, EVIL)
    yield str(Comparison(EVIL, (row,)))
    yield str(TuneResult(EVIL, (Tuned(EVIL, EVIL, None, EVIL),), None))
    yield str(BackendStatus(EVIL, EVIL, EVIL, "absent", reason=EVIL, remedy=EVIL))
    yield str(gemmhub.explain(ONE, ONE))


def test_tables_are_safe(monkeypatch):
    add(Scripted("evil", supports=Refusal(EVIL, EVIL)))
    for text in printed():
        assert "forged" in text
        assert not set(EVIL) & set(text) & {chr(code) for code in (*range(10), *range(11, 32), 0x9B, 0x202E, 0x2066)}
        assert "\nnumpy  chosen" not in text


@pytest.mark.parametrize("text", ["", "plain", "Größe 中文 é", "a\tb"])
def test_other_texts_stay(text):
    assert printing.line(text) == printing.lines(text) == text
