"""Text of plugins, files and records made safe to print: without characters that a terminal interprets.

Escape sequences could hide or forge other text on the screen, and bidirectional controls reorder a line.
"""

from __future__ import annotations

import re

_ACTING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tabs and newlines, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # bidirectional controls
    "\u2028\u2029"  # line separators
    "\ud800-\udfff"  # surrogates, which no encoding accepts
)
_IN_LINES = re.compile(f"[{_ACTING}]")
_IN_LINE = re.compile(f"[\n{_ACTING}]")


def lines(text: str) -> str:
    """``text`` with such characters as escapes (``\\x1b``); newlines are kept."""
    return _IN_LINES.sub(_escape, text)


def line(text: str) -> str:
    """``text`` as :func:`lines` returns it, with newlines escaped too: one line of a table stays one line."""
    return _IN_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\\n" if code == 10 else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
