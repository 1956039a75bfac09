"""Whole numbers in text from outside: the command line and the environment."""

from __future__ import annotations

import re


def whole(text: str) -> int | None:
    """Return the number that ``text`` is in at most 64 ASCII digits; None for any other text.

    str.isdigit() and str.isdecimal() accept digits of other scripts and superscripts, which int() refuses in part, and
    int() raises for thousands of digits.
    """
    return int(text) if re.fullmatch("[0-9]{1,64}", text) else None
