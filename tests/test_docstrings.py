"""Docstrings of public functions have the sections of numpydoc. (test_docstring_examples.py runs the examples.)"""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import gemmhub

NAMES = [name for name in gemmhub.__all__ if inspect.isfunction(getattr(gemmhub, name))] + ["use"]
WITHOUT_ARGUMENTS = {"backends", "reload"}
ORDER = ["Parameters", "Returns", "Raises", "See Also", "Notes", "References", "Examples"]


@pytest.mark.parametrize("name", NAMES)
def test_see_also_names_what_exists(name):
    section = re.search(
        r"^See Also\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", inspect.getdoc(getattr(gemmhub, name)), re.M | re.S
    )
    for other in re.findall(r"^([\w.]+) : \S", section[1], re.MULTILINE):
        assert hasattr(np if other.startswith("numpy.") else gemmhub, other.removeprefix("numpy."))
        assert other != name


@pytest.mark.parametrize("name", NAMES)
def test_the_sections_are_there(name):
    text = inspect.getdoc(getattr(gemmhub, name))
    summary = text.partition("\n\n")[0]
    assert summary.endswith((".", "``"))
    assert "\n" not in summary
    assert "\nExamples\n--------\n>>> " in text or name == "reload"
    assert "\nSee Also\n--------\n" in text
    headings = re.findall(r"^(\w[\w ]*)\n-+$", text, re.MULTILINE)
    assert headings == [title for title in ORDER if title in headings]
    if name not in WITHOUT_ARGUMENTS:
        assert "\nParameters\n----------\n" in text
        assert "\nRaises\n------\n" in text
        assert "\nReturns\n-------\n" in text or name in ("use", "register", "unregister", "unregister_epilogue")
