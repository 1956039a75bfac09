"""What the type of an array tells before anything is read: its library, and whether it means more than numbers."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from gemmhub.errors import InputError


@lru_cache(maxsize=64)
def library_name(kind: type) -> str:
    """The package that a type of arrays, or one that it is a subclass of, comes from."""
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    name = next((x for x in packages if hasattr(sys.modules.get(x), "from_dlpack")), packages[0])
    return "jax" if name == "jaxlib" else name


@lru_cache(maxsize=64)
def numbers_alone(kind: type, written: bool) -> bool:
    """Whether numpy.matmul takes arrays of this type for the numbers in them and no more.

    Of subclasses of ndarray only memmap: results of all others are of the subclass, which may mean units, labels or
    a mask. One that is ``written`` stays what it is, unless the subclass computes by itself.
    """
    own: Any = kind
    if issubclass(kind, (np.ma.MaskedArray, np.matrix)):
        return False
    if issubclass(kind, np.ndarray):
        return kind in (np.ndarray, np.memmap) or (written and own.__array_ufunc__ is np.ndarray.__array_ufunc__)
    return not (hasattr(kind, "__array_ufunc__") or hasattr(kind, "__array_function__"))


def multiplies(x: Any) -> bool:
    """Whether numpy.matmul leaves products of ``x`` to its type, or makes one of that: subclasses of ndarray, any type
    with ``__array_ufunc__``. Not masked arrays and matrices, whose ``@`` is another product, nor arrays on devices.
    """
    kind: Any = type(x)
    return kind is not np.ndarray and _multiplies(kind)


@lru_cache(maxsize=64)
def _multiplies(kind: type) -> bool:
    own: Any = kind
    if issubclass(kind, (np.ma.MaskedArray, np.matrix)):
        return False
    if issubclass(kind, np.ndarray):
        return kind not in (np.ndarray, np.memmap)
    return getattr(own, "__array_ufunc__", None) is not None and not hasattr(kind, "__cuda_array_interface__")


def refusal(x: object, argument: str) -> InputError:
    """The error for an operand whose type means more than numbers."""
    kind: Any = type(x)
    if isinstance(x, np.ndarray):
        given = f"a {kind.__qualname__}, a subclass of numpy.ndarray"
    else:
        given = f"a {kind.__qualname__} of {library_name(kind)}, which NumPy does not multiply itself"
    return InputError(
        argument, given, "plain arrays: numpy.ndarray, numpy.memmap",
        f"pass numpy.asarray({argument}) if its values alone are meant",
    )  # fmt: skip


@lru_cache(maxsize=64)
def is_symbol(kind: type) -> bool:
    """Whether instances stand for the arrays of a traced function: a Tracer of JAX, a Proxy of torch.fx."""
    names = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
    return not names.isdisjoint({("jax", "Tracer"), ("torch", "Proxy")})


def traced(x: object, argument: str) -> InputError:
    """The error for an operand that stands for the array of a traced function."""
    kind: Any = type(x)
    return InputError(
        argument, f"a {kind.__qualname__}, with which {library_name(kind)} traces a function",
        "arrays with numbers", "call gemmhub outside of the traced function (jax.jit, jax.grad, jax.vmap, torch.fx)",
    )  # fmt: skip


def as_numpy(a: Any, b: Any, out: Any, options: Any) -> Any:
    """What numpy.matmul returns of operands whose types multiply themselves; InputError for options that it lacks."""
    if options:
        names, kinds = ", ".join(options), f"{type(a).__qualname__} by {type(b).__qualname__}"
        raise InputError(
            names, f"given for {kinds}, which are multiplied by their own type", "no options for such operands",
            "pass numpy.asarray(x) if the values alone are meant",
        )  # fmt: skip
    return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)
