"""The source of a function, for a script: what stands alone, and what does not."""

from __future__ import annotations

import functools
import math
import math as mathematics
import re

import numpy as np
import planted
import pytest

from gemmhub._audit.source import ASSIGNED, identifier, source
from gemmhub.testing import Claims, Implementation, audit

H = 3
PRIVATE = "/home/someone"
want = 2


def reads_a_number(a, b):
    return a @ b * H


def reads_modules(a, b):
    return a @ b * np.float32(mathematics.floor(math.pi))


def reads_a_text(a, b):
    return a @ b if PRIVATE else a


def reads_a_name_that_scripts_assign(a, b):
    return a @ b * want


def reads_within_a_lambda(a, b):
    return (lambda x: x * KERNEL(a, b))(2)


def states_a_type(a: Claims, b):
    return a @ b


@functools.wraps(reads_a_number)
def wraps(a, b):
    return reads_a_number(a, b)


class Kernel:
    """A kernel that is wrong by a factor of 2."""

    def multiply(self, a, b):
        return a @ b * 2

    __call__ = multiply


KERNEL = Kernel()


def enclosed(factor):
    def scaled(a, b):
        return a @ b * factor

    return scaled


def of_main(function):
    """The function as one of the main program, which no script can import."""
    function.__module__ = "__main__"
    return function


def alone(text):
    """The globals of a process that has run this text, with NumPy as scripts have it."""
    names = {"np": np}
    exec(text, names)
    return names


@pytest.mark.parametrize(
    "function", [reads_a_number, reads_modules, enclosed(2.5), planted.drops_nan], ids=lambda x: x.__name__
)
def test_a_source_that_stands_alone_computes_the_same(function):
    a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    made = alone(source(of_main(function)))[function.__name__]
    assert np.array_equal(made(a, b), function(a, b))


@pytest.mark.parametrize("function", [
    lambda a, b: a @ b, KERNEL, KERNEL.multiply, of_main(wraps), of_main(reads_a_text), enclosed([1]),
    of_main(reads_a_name_that_scripts_assign), of_main(reads_within_a_lambda), of_main(states_a_type),
    functools.partial(np.matmul), np.frompyfunc(max, 2, 1),
], ids=lambda x: identifier(x))  # fmt: skip
def test_what_does_not_stand_alone_has_no_source(function):
    assert source(function) is None


def test_functions_of_modules_are_imported():
    assert source(np.matmul) == "from numpy import matmul"
    assert source(np.dot) == "from numpy import dot"


def test_names_that_scripts_assign_are_no_identifiers():
    names = {}
    for name in ("b", "got", "class"):
        names[name] = (lambda a, b: a @ b).__class__(planted.correct.__code__, vars(planted), name)
    assert {identifier(x) for x in names.values()} == {"multiply"}
    assert identifier(planted.correct) == "correct"
    assert audit(Implementation.of(names["b"], Claims(planted.F32)), scripts=False).ok


@pytest.mark.parametrize("function", [lambda a, b: a @ b * 2, KERNEL], ids=["lambda", "object"])
def test_a_script_without_the_function_says_so_and_is_not_run(function):
    result = audit(Implementation.of(function, Claims(planted.F32)), seconds=1.0)
    fault = result.faults[0]
    assert (fault.repeated, fault.alone) == (False, "not run alone")
    assert "# Define multiply here: its source does not stand alone." in fault.script
    assert str(result).endswith("# not run alone")


def test_a_script_assigns_no_other_names():
    """Each assignment of a script is to a name of the list."""
    text = ""
    for name in ("drops_nan", "has_another_order_for_one_row", "applies_alpha_to_c", "writes_while_it_reads",
                 "misses_an_odd_leading_dimension"):  # fmt: skip
        made = planted.planted(name)
        for fault in audit(made, scripts=False, seconds=1.0).faults:
            text += "\n" + (fault.script or "").replace(made.setup, "")
    found = re.findall(r"^(?:def (\w+)\(|for (\w+) in |(\w+(?:, \w+)*) = )", text, re.MULTILINE)
    names = {name for groups in found for name in "".join(groups).split(", ")}
    assert {"a", "got", "place", "once", "part", "x", "out"} <= names
    assert names <= ASSIGNED
