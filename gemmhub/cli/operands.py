"""Operands of commands: validated .npy files, random numbers, or arrays of these sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import click
import numpy as np

from gemmhub._base import files
from gemmhub._base.digits import whole
from gemmhub._base.draw import random_operand as random_operand
from gemmhub.cli.errors import Failure, unwritable
from gemmhub.dtypes import ML_DTYPES, DType, as_dtype, compute_dtype, info, result_dtype, saturates
from gemmhub.errors import DTypeError
from gemmhub.operands import OPERANDS, Product

Array = Any

_MAGIC = b"\x93NUMPY"


def load(path: str, *dtypes: str | None) -> Array:
    """Read the array in a .npy file, in this machine's byte order; nothing in it is executed.

    Elements that NumPy saved as raw bytes, because their dtype is not its own, become the first of ``dtypes`` that has
    their size. Raises Failure for a file that is missing, not .npy, truncated, or of an unsupported dtype.
    """
    name = click.format_filename(path)
    try:
        with open(path, "rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        hint = "; sizes go with explain, compare, tune and bench" if whole(name) is not None else ""
        raise Failure(f"{name}: {error.strerror or error}{hint}") from None
    if start != _MAGIC:
        what = "an archive (.npz): save the array in it alone" if start[:2] == b"PK" else "not a .npy file"
        raise Failure(f"{name}: {what}; numpy.save() writes .npy files")
    try:
        # Mapping checks the file's length against its header before anything of that size is allocated.
        mapped = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        if "Python objects" in str(error):
            raise Failure(f"{name}: an array of Python objects; convert it to numbers and save it again") from None
        if "mmap length" in str(error):
            raise Failure(f"{name}: truncated: shorter than its header states") from None
        raise Failure(f"{name}: not a readable .npy file: {error!s:.120}") from None
    except (OSError, OverflowError, SyntaxError, TypeError, TokenError) as error:
        raise Failure(f"{name}: not a readable .npy file: {error!s:.120}") from None
    array: Array = np.array(mapped)
    if array.dtype.kind == "V" and array.dtype.names is None:
        return _reinterpret(array, name, [as_dtype(x) for x in dtypes if x is not None])
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        info(array.dtype)
    except DTypeError as error:
        raise Failure(f"{name}: {error.given}; {error.remedy}") from None
    return array


def load_options(chosen: dict[str, Any], dtype: str | None) -> dict[str, Array]:
    """Take the files of further operands out of ``chosen`` options, and read them.

    Raw elements are those of ``--out-dtype``, else of ``dtype``; beside a result of float8 those of two bytes are
    bfloat16.
    """
    files = {name: chosen.pop(name) for name in OPERANDS if chosen.get(name) is not None}
    wanted = chosen.get("out_dtype")
    known = (wanted, "bfloat16") if wanted is not None and saturates(as_dtype(wanted)) else (wanted or dtype,)
    return {name: load(file, *known) for name, file in files.items()}


def further(
    chosen: dict[str, Any], dtype: str | None, a: Array, b: Array, new: Callable[[tuple[int, ...], DType], Array]
) -> dict[str, Array]:
    """Take further operands out of ``chosen`` options, as :func:`load_options` does; ``new(shape, dtype)`` makes one of
    a form, which is named instead of a file ("n" for a bias of n elements).
    """
    if all(chosen.get(name) is None for name in OPERANDS):
        return {}
    from gemmhub.testing.forms import forms, shape  # slow to import

    named = {name: chosen.pop(name) for name in OPERANDS if chosen.get(name) in forms(name)}
    for name in OPERANDS:
        file = chosen.get(name)
        if file is not None and not os.path.exists(file):
            option, allowed = f"--{name.replace('_', '-')}", ", ".join(forms(name))
            raise Failure(f"{option} {click.format_filename(file)}: No such file, and no form; forms: {allowed}")
    arrays = load_options(chosen, dtype)
    (*batch, m, k), n = a.shape, b.shape[-1]
    out = as_dtype(chosen["out_dtype"]) if chosen.get("out_dtype") else result_dtype(a.dtype, b.dtype)
    computed = compute_dtype(a.dtype, b.dtype, out)
    product = Product(m, n, k, (*batch,), len(a.shape), len(b.shape), (*batch, m, n), out, computed)
    for name, form in named.items():
        arrays[name] = new(shape(name, form, m, n, k, (*batch,)), OPERANDS[name].dtypes(product)[0])
    return arrays


def _reinterpret(array: Array, name: str, known: list[DType]) -> Array:
    size = array.dtype.itemsize
    if not known:
        fitting = {1: "float8_e4m3fn or float8_e5m2", 2: "bfloat16"}.get(size)
        remedy = f"name their dtype with --dtype, such as {fitting}" if fitting else "no supported dtype has that size"
        raise Failure(f"{name}: NumPy saved its elements as raw bytes, {size} each; {remedy}")
    fitting_dtype = next((x for x in known if x.itemsize == size), None)
    if fitting_dtype is None:
        raise Failure(f"{name}: raw elements of {size} bytes, but {known[0]} has {known[0].itemsize}")
    return array.view(fitting_dtype)


def store(path: Path, array: Array) -> str:
    """Save ``array`` as .npy atomically; return a remark where NumPy loses its dtype. Raises Failure."""
    name = array.dtype.name
    raw = name in ML_DTYPES
    if raw:  # NumPy would name float8_e5m2 by a code that it cannot read
        array = np.ascontiguousarray(array).view(f"V{array.dtype.itemsize}").reshape(array.shape)
    try:
        with files.replacing(path) as file:
            np.lib.format.write_array(_Writer(file), np.asarray(array), allow_pickle=False)
    except OSError as error:
        raise unwritable(click.format_filename(path), error) from None
    return f"raw {name}: load with .view(ml_dtypes.{name})" if raw else ""


class _Writer:
    """A stream without a file descriptor: NumPy then writes in parts, to pipes too, and reports a full disk."""

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write


def check_writable(path: Path) -> None:
    """Raise Failure for a file that cannot be created, before the work whose result it takes."""
    if path.is_dir():
        raise Failure(f"{click.format_filename(path)}: is a directory")
    if not path.parent.is_dir():
        raise Failure(f"{click.format_filename(path)}: there is no directory {click.format_filename(path.parent)}")


def check_folder(path: Path) -> None:
    """Raise Failure for a folder that cannot be made or written, before the work whose results it takes."""
    present = path
    while not os.path.lexists(present) and present != present.parent:
        present = present.parent
    folder, within = click.format_filename(path), click.format_filename(present)
    if not present.is_dir():
        raise Failure(f"{folder}: {within} is not a directory")
    if not os.access(present, os.W_OK | os.X_OK):
        raise Failure(f"{folder}: the directory {within} cannot be written")


Size = tuple[int, int, int]

_MEANING = "A is M x K, B is K x N"


def sizes_or_files(arguments: tuple[str, ...]) -> Size | tuple[str, str]:
    """Parse the positional arguments: M N K or MxNxK, or two files. Raises UsageError."""
    numbers = all(whole(x) is not None for x in arguments)
    if len(arguments) == 2 and not (numbers and not any(map(os.path.exists, arguments))):
        return arguments[0], arguments[1]
    if len(arguments) == 1 and not _like_sizes(arguments[0]):
        raise click.UsageError(f"One file, {arguments[0]}; B is missing: give A.npy B.npy, or three sizes M N K.")
    return sizes(arguments, " (or two files A.npy B.npy)")


def sizes(arguments: tuple[str, ...], otherwise: str = "") -> Size:
    """Parse the sizes M N K, or MxNxK. The UsageError names missing sizes, and the alternative ``otherwise``."""
    parts = arguments[0].split("x") if len(arguments) == 1 else list(arguments)
    wrong = next((x for x in parts if whole(x) is None), None)
    if wrong is None and len(parts) == 3:
        m, n, k = map(int, parts)
        return m, n, k
    text = " ".join(arguments)
    if wrong is None and len(parts) < 3:
        missing = ("M, N and K are", "N and K are", "K is")[len(parts)]
        counted = (f"{text} is one size", f"{text} are two sizes")[len(parts) - 1] + "; " if parts else ""
        raise click.UsageError(f"{counted}{missing} missing. Give three sizes M N K{otherwise}: {_MEANING}.")
    problem = f"{text!r}: {len(parts)} sizes" if wrong is None else f"{wrong!r} is not a size"
    raise click.UsageError(f"{problem}. Give three sizes M N K{otherwise}: {_MEANING}.")


def _like_sizes(text: str) -> bool:
    return all(whole(part) is not None for part in text.split("x"))


def no_layout(a_order: str, b_order: str, batch: tuple[int, ...]) -> None:
    """Raise UsageError for options of operands that sizes stand for, beside files."""
    if "col" in (a_order, b_order) or batch:
        raise click.UsageError("--a-order, --b-order and --batch go with sizes, not with files.")
