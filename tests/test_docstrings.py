"""Docstrings of public functions have the sections of numpydoc. (test_docstring_examples.py runs the examples.)"""

from __future__ import annotations

import inspect

import pytest

import gemmhub

NAMES = [name for name in gemmhub.__all__ if inspect.isfunction(getattr(gemmhub, name))] + ["use"]
WITHOUT_ARGUMENTS = {"backends", "reload"}


@pytest.mark.parametrize("name", NAMES)
def test_the_sections_are_there(name):
    text = inspect.getdoc(getattr(gemmhub, name))
    summary = text.partition("\n\n")[0]
    assert summary.endswith((".", "``"))
    assert "\n" not in summary
    assert "\nExamples\n--------\n>>> " in text or name == "reload"
    if name not in WITHOUT_ARGUMENTS:
        assert "\nParameters\n----------\n" in text
        assert "\nRaises\n------\n" in text
        assert "\nReturns\n-------\n" in text or name in ("use", "register", "unregister")
