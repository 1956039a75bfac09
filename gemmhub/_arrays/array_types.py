"""Facts that follow from the type of an array alone: its library, and whether it carries more than numbers."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from gemmhub._base.wording import instance
from gemmhub.errors import InputError


@lru_cache(maxsize=64)
def library_name(cls: type) -> str:
    """The package that defines a type of arrays, or the array type that it derives from."""
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__]
    name = next((x for x in packages if hasattr(sys.modules.get(x), "from_dlpack")), packages[0])
    return "jax" if name == "jaxlib" else name


@lru_cache(maxsize=64)
def numbers_alone(cls: type, written: bool) -> bool:
    """Whether numpy.matmul treats arrays of this type as plain numbers.

    Of the subclasses of ndarray only memmap qualifies: results of the others are of the subclass, which may carry
    units, labels or a mask. An array that is only ``written`` keeps its type, unless the subclass computes by itself.
    """
    own: Any = cls
    if issubclass(cls, (np.ma.MaskedArray, np.matrix)):
        return False
    if issubclass(cls, np.ndarray):
        return cls in (np.ndarray, np.memmap) or (written and own.__array_ufunc__ is np.ndarray.__array_ufunc__)
    return not (hasattr(cls, "__array_ufunc__") or hasattr(cls, "__array_function__"))


def multiplies(x: Any) -> bool:
    """Whether numpy.matmul delegates products of ``x`` to its type, or returns that type.

    This holds for subclasses of ndarray and types with ``__array_ufunc__``. It does not hold for masked arrays and
    matrices, whose ``@`` is another product, nor for arrays on devices.
    """
    cls: Any = type(x)
    return cls is not np.ndarray and _multiplies(cls)


@lru_cache(maxsize=64)
def _multiplies(cls: type) -> bool:
    own: Any = cls
    if issubclass(cls, (np.ma.MaskedArray, np.matrix)):
        return False
    if issubclass(cls, np.ndarray):
        return cls not in (np.ndarray, np.memmap)
    return getattr(own, "__array_ufunc__", None) is not None and not hasattr(cls, "__cuda_array_interface__")


def refusal(x: object, argument: str) -> InputError:
    """The error for an operand whose type carries more than numbers."""
    cls: Any = type(x)
    if isinstance(x, np.ndarray):
        description = f"{instance(cls)}, a subclass of numpy.ndarray"
    else:
        description = f"a duck array, {library_name(cls)}.{cls.__qualname__}"
    return InputError(
        argument, description, "plain arrays: numpy.ndarray, numpy.memmap",
        f"pass numpy.asarray({argument}) if its values alone are meant",
    )  # fmt: skip


@lru_cache(maxsize=64)
def is_symbol(cls: type) -> bool:
    """Whether instances are placeholders in a traced function: a Tracer of JAX, a Proxy of torch.fx."""
    names = {(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__}
    return not names.isdisjoint({("jax", "Tracer"), ("torch", "Proxy")})


def traced(x: object, argument: str) -> InputError:
    """The error for an operand that is a placeholder in a traced function."""
    cls: Any = type(x)
    return InputError(
        argument, f"{instance(cls)}, with which {library_name(cls)} traces a function",
        "arrays with numbers", "call gemmhub outside of the traced function (jax.jit, jax.grad, jax.vmap, torch.fx)",
    )  # fmt: skip


def as_numpy(a: Any, b: Any, out: Any, options: Any) -> Any:
    """The result of numpy.matmul for types that define their own product; InputError for options that it lacks."""
    if options:
        names, types = ", ".join(options), f"{type(a).__qualname__} by {type(b).__qualname__}"
        raise InputError(
            names, f"given for {types}, which are multiplied by their own type", "no options for such operands",
            "pass numpy.asarray(x) if the values alone are meant",
        )  # fmt: skip
    return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)
