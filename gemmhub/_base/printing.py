"""Texts of plugins, files and records as they are printed: without characters that a terminal acts on.

Escape sequences could hide or forge what stands elsewhere on the screen, and controls of direction reorder a line.
"""

from __future__ import annotations

import re

_ACTING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tabs and newlines, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # of direction
    "\u2028\u2029"  # separators of lines
    "\ud800-\udfff"  # what no encoding takes
)
_IN_LINES = re.compile(f"[{_ACTING}]")
_IN_LINE = re.compile(f"[\n{_ACTING}]")


def lines(text: str) -> str:
    """``text`` with such characters as escapes (``\\x1b``); its newlines stay."""
    return _IN_LINES.sub(_escape, text)


def line(text: str) -> str:
    """As :func:`lines`, newlines too: one line of a table stays one line."""
    return _IN_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\n" if code == 10 else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
