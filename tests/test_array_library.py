"""The contract of array libraries: registered types are found, and a deferring library gets the whole call."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub import array_library
from gemmhub.errors import InputError

CALLS = {
    "matmul": lambda x, y: gemmhub.matmul(x, y, alpha=2),
    "plan": lambda x, y: gemmhub.plan(x, y, alpha=2),
    "explain": lambda x, y: gemmhub.explain(x, y, alpha=2),
    "pack": lambda x, y: gemmhub.pack(x),
    "spot_check": lambda x, y: gemmhub.spot_check(x, y, x, seed=1),
}


class Wrapped:
    """An array that only its own library can read."""

    def __init__(self, x):
        self.x = x


class Derived(Wrapped):
    pass


class Unspeakable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no words")


@pytest.fixture(autouse=True)
def forgotten():
    yield
    array_library.unregister(Wrapped)


@pytest.mark.parametrize("kind", [Wrapped, Derived])
@pytest.mark.parametrize("name", CALLS)
def test_a_deferring_library_gets_the_call(name, kind):
    seen = []

    def take(call, operands, options):
        seen.append((call, operands, dict(options)))
        return "its own"

    array_library.register_deferring(Wrapped, take)
    x, y = np.ones((2, 2)), kind(np.ones((2, 2)))
    assert CALLS[name](*((y, x) if name == "pack" else (x, y))) == "its own"
    ((call, operands, options),) = seen
    assert call == name
    assert operands[0 if name == "pack" else 1] is y
    assert options.get("alpha", 2) == 2
    assert "out" not in options


@pytest.mark.parametrize("name", ["out", "c", "bias"])
def test_any_array_of_a_call_counts(name):
    array_library.register_deferring(Wrapped, lambda call, operands, options: options[name])
    x, y = np.ones((2, 2)), Wrapped(1)
    assert gemmhub.matmul(x, x, **{name: y}) is y


def test_a_library_that_leaves_the_call():
    array_library.register_deferring(Wrapped, lambda *_: NotImplemented)
    with pytest.raises(InputError, match="a Wrapped is not an array"):
        gemmhub.matmul(np.ones((2, 2)), Wrapped(np.ones((2, 2))))
    assert gemmhub.matmul(np.ones((2, 2)), np.ones((2, 2)))[0, 0] == 2


def test_a_library_is_asked_once_for_a_call():
    asked = []
    array_library.register_deferring(Wrapped, lambda call, *_: asked.append(call) or NotImplemented)
    with pytest.raises(InputError, match="a Wrapped is not an array"):
        gemmhub.matmul(Wrapped(1), Wrapped(1), out=Derived(1))
    assert asked == ["matmul"]


def test_an_exception_of_a_deferring_library_is_the_callers():
    def take(*_):
        raise ZeroDivisionError

    array_library.register_deferring(Wrapped, take)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            gemmhub.matmul(Wrapped(1), np.ones((2, 2)))


@pytest.mark.parametrize("error", [NotImplementedError(), RuntimeError("on the moon"), KeyError("k"), Unspeakable()])
@pytest.mark.parametrize(
    ("protocol", "argument"),
    [(x, y) for x in ("__array__", "__array_interface__", "__dlpack_device__") for y in ("a", "b", "c", "bias")]
    + [("__dlpack__", "a")],  # beside arrays of NumPy it is refused unread
)
def test_an_exception_of_an_array_reaches_the_caller(protocol, argument, error):
    """With its class, its text and itself as the cause."""

    def fail(self, *_, **__):
        raise error

    own = {protocol: property(fail) if "interface" in protocol else fail}
    x = type("Faulty", (), {"__dlpack_device__": lambda self: (1, 0), **own} if "dlpack" in protocol else own)()
    one = np.ones((2, 2))
    operands = {"a": one, "b": one, "c": None, "bias": None, argument: x}
    if protocol == "__dlpack__":
        operands["b"] = x
    a, b, c, bias = operands.values()
    with pytest.raises(InputError) as caught:
        gemmhub.matmul(a, b, c=c, bias=bias, beta=int(c is not None))
    told = str(caught.value)
    assert told.startswith(f"{argument}: ")
    assert type(error).__name__ in told
    assert not error.args or error.args[0] in told
    assert caught.value.__cause__ is error


def test_a_direct_library_is_found_for_subclasses():
    class Library(array_library.HostArrays):
        name = "wrapped"

        def view(self, x, argument):
            if not isinstance(x, Wrapped):
                raise InputError(argument, f"a {type(x).__name__}", "a Wrapped")
            return x.x

        def holds(self, out):
            return isinstance(out, Wrapped)

        def wrap(self, result, operands):
            return Wrapped(result)

    library = Library()
    array_library.register(Wrapped, lambda x: library)
    x = np.arange(4.0).reshape(2, 2)
    for kind in (Wrapped, Derived):
        for _ in range(3):
            result = gemmhub.matmul(kind(x), kind(x), alpha=2)
            assert type(result) is Wrapped
            assert np.array_equal(result.x, 2 * x @ x)
    out = Wrapped(np.zeros((2, 2)))
    assert gemmhub.matmul(Wrapped(x), Wrapped(x), out=out) is out
    assert np.array_equal(out.x, x @ x)
    with pytest.raises(InputError):
        gemmhub.matmul(Wrapped(x), x)
    array_library.unregister(Wrapped)
    with pytest.raises(InputError, match="is not an array"):
        gemmhub.matmul(Wrapped(x), Wrapped(x))
