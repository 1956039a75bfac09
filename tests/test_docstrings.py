"""Docstrings of public functions: they have the sections of numpydoc, and their examples run."""

from __future__ import annotations

import doctest
import inspect

import numpy as np
import pytest

import gemmhub

FUNCTIONS = [name for name in gemmhub.__all__ if inspect.isfunction(getattr(gemmhub, name))]
WITHOUT_ARGUMENTS = {"backends", "reload"}


@pytest.mark.parametrize("name", [*FUNCTIONS, "use"])
def test_the_examples_run(name):
    examples = doctest.DocTestFinder(recurse=False).find(
        getattr(gemmhub, name), name, globs={"gemmhub": gemmhub, "np": np}
    )
    assert sum(len(x.examples) for x in examples) > 0 or name == "reload"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in examples:
        assert runner.run(example).failed == 0


@pytest.mark.parametrize("name", [*FUNCTIONS, "use"])
def test_the_sections_are_there(name):
    text = inspect.getdoc(getattr(gemmhub, name))
    summary = text.partition("\n\n")[0]
    assert summary.endswith((".", "``"))
    assert "\n" not in summary
    if name not in WITHOUT_ARGUMENTS:
        assert "\nParameters\n----------\n" in text
        assert "\nRaises\n------\n" in text
        assert "\nReturns\n-------\n" in text or name == "use"
