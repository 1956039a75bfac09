"""Targets of stored results: arrays, npy files and arrays of zarr; created in one step, and never reached by a link.

A path names a file that others may have damaged or replaced. It is used only as what it should be; a truncated npy file
is extended, because the journal finds the blocks that it lacks. Anything else is an OutputError.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy

from gemmhub._base import files
from gemmhub._base.guard import message, neutral, words
from gemmhub._base.wording import instance
from gemmhub.errors import InputError, OutputError

Array = Any
_HEADER = 2**17
"""Bytes that are read for the header of an npy file. One of a plain array has 128."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_METADATA = ("zarr.json", ".zarray")
"""The files that state an array of zarr, of either format."""
_REMEDY = {
    "target": "remove it, and it is created anew, or pass another path",
    "journal": "remove it, or name another: journal=...",
}


@dataclass(frozen=True)
class NpyFile:
    """An npy file that holds the whole result: where its elements begin, and how they are stored."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int


@dataclass(frozen=True)
class Target:
    """The destination of tasks: an array, or an npy file, which each task maps."""

    array: Any
    file: NpyFile | None = None

    def open(self, mode: Literal["r", "r+"]) -> Any:
        """The array to read, or to write too."""
        if self.file is None:
            return self.array
        with files.opened(self.file.path, "rb" if mode == "r" else "r+b", links=False) as stream:
            return np.memmap(stream, self.file.dtype, mode, self.file.offset, self.file.shape, self.file.order)


def open_target(result: Array, target: Any) -> tuple[Target, Path | None]:
    """The target for ``result``, created where missing, and the default path of its journal."""
    path: Path | None = None
    opened = Target(target)
    if isinstance(target, (str, os.PathLike)):
        path = Path(os.path.abspath(os.fsdecode(target)))
        opened = Target(None, _npy(path, result)) if path.suffix == ".npy" else Target(_zarr(path, result))
    elif isinstance(target, np.memmap) and target.filename is not None:
        path = Path(os.path.realpath(target.filename))
        opened = Target(None, _npy_of(path, target))
        _check_form(result, target.dtype, target.shape)
    elif (root := _root(getattr(target, "store", None))) is not None:
        path = Path(root) / getattr(target, "path", "")
    if opened.file is None:
        _check_array(result, opened.array)
    return opened, None if path is None else path.with_name(path.name + ".gemmhub.jsonl")


def _root(store: Any) -> Any:
    """The folder of a store of zarr on a local disk (zarr 3: LocalStore, zarr 2: DirectoryStore); None of others."""
    if any(each.__name__ == "DirectoryStore" for each in type(store).__mro__):
        return store.path
    return getattr(store, "root", None)


@contextmanager
def disk(argument: str, path: Path) -> Iterator[None]:
    """Convert the system's errors about the file of an argument to OutputError, but that the disk is full or broken."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path that no system has
        if isinstance(error, InputError) or getattr(error, "errno", None) in _FULL:
            raise
        why = getattr(error, "strerror", None) or message(error)
        raise OutputError(
            argument, f"{str(path)!r}: {why}", "a path in an existing folder, of a regular file or of none",
            _REMEDY[argument],
        ) from error  # fmt: skip


# npy files


def _npy(path: Path, result: Array) -> NpyFile:
    """The npy file at ``path``, created where there is none, and extended to its full length where it is truncated."""
    shape, dtype = tuple(map(int, result.shape)), np.dtype(result.dtype)
    if npy.descr_to_dtype(npy.dtype_to_descr(dtype)) != dtype:
        raise OutputError(
            "target", f"an npy file for {dtype}", "an npy file for a dtype of NumPy's own",
            "convert the result: out_dtype='float32'",
        )  # fmt: skip
    with disk("target", path):
        if not os.path.lexists(path):
            with files.replacing(path, links=False) as stream:
                npy.write_array_header_1_0(
                    stream, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                )
                _reserve(stream, stream.tell() + prod(shape) * dtype.itemsize)
        with files.opened(path, "r+b", links=False) as stream:
            file = _header(path, stream)
            _check_form(result, file.dtype, file.shape)
            length = file.offset + prod(shape) * dtype.itemsize
            if os.fstat(stream.fileno()).st_size < length:
                _reserve(stream, length)
    return file


def _npy_of(path: Path, target: Array) -> NpyFile:
    """The npy file that a memmap covers entirely."""
    if path.suffix == ".npy":
        with disk("target", path), files.opened(path) as stream:
            file = _header(path, stream)
        mapped = Target(None, file).open("r")
        if all(getattr(mapped, name) == getattr(target, name) for name in ("shape", "strides", "dtype", "offset")):
            return file
    raise OutputError("target", "a memmap of a part of a file", "a whole npy file", "pass the path of one")


def _header(path: Path, stream: BinaryIO) -> NpyFile:
    start = BytesIO(stream.read(_HEADER))
    try:
        with neutral():  # NumPy warns of some headers
            read = npy.read_array_header_1_0 if npy.read_magic(start) == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(start)
    except MemoryError:
        raise
    except Exception as error:
        raise OutputError(
            "target", f"{str(path)!r}, which is no npy file or a damaged one ({message(error)})",
            "an npy file of the result's shape and dtype, or none", _REMEDY["target"],
        ) from error  # fmt: skip
    return NpyFile(str(path), dtype, tuple(shape), "F" if fortran else "C", start.tell())


def _reserve(stream: BinaryIO, size: int) -> None:
    """Make a file ``size`` bytes long, with zeros; OSError where the disk has no room for them.

    Where a mapped file has no room, the system kills the process that writes.
    """
    stream.flush()
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # a file system without it
                raise
    stream.truncate(size)


# Arrays of zarr


def _zarr(path: Path, result: Array) -> Any:
    """The array of zarr in the folder ``path``, created where there is none."""
    try:
        import zarr
    except ImportError:
        raise InputError("target", f"{str(path)!r}", "the path of an npy file, or zarr", "pip install zarr") from None
    with disk("target", path):
        if not os.path.lexists(path):
            _create(zarr, path, result)
        _check_tree(path)
    try:
        with neutral():
            return zarr.open_array(str(path), mode="r+")
    except MemoryError:
        raise
    except Exception as error:
        raise OutputError(
            "target", f"{str(path)!r}, which zarr cannot open as an array ({words(error)})",
            "an array of zarr of the result's shape and dtype, or none", _REMEDY["target"],
        ) from error  # fmt: skip


def _create(zarr: Any, path: Path, result: Array) -> None:
    """Make an array of zarr in a folder beside, and rename it when it is complete."""
    draft = path.with_name(f".{path.name[:200]}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    draft.mkdir()
    sizes = tuple(max(chunks[0], 1) for chunks in result.chunks)
    try:
        zarr.open_array(str(draft), mode="w", shape=result.shape, dtype=result.dtype, chunks=sizes)
        os.rename(draft, path)
    except OSError:
        raise
    except Exception as error:
        raise OutputError(
            "target", f"zarr cannot create an array for it ({words(error)})", "a dtype and shape that zarr has",
            "convert the result: out_dtype='float32'",
        ) from error  # fmt: skip
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # nothing where it was renamed


def _check_tree(path: Path) -> None:
    """Raise OutputError where anything below a folder is not a folder or a regular file: writing would follow a link,
    and wait for a pipe.
    """
    odd = None if stat.S_ISDIR(os.lstat(path).st_mode) else path
    folders = [] if odd else [path]
    if odd is None and not any(os.path.lexists(path / name) for name in _METADATA):
        raise OutputError(
            "target", f"{str(path)!r}, a folder without {' or '.join(_METADATA)}", "an array of zarr, or nothing",
            "pass another path; what is missing is created",
        )  # fmt: skip
    while folders and odd is None:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    odd = Path(entry.path)
                    break
    if odd is not None:
        what = "a symbolic link" if odd.is_symlink() else "no folder" if odd == path else "no regular file"
        raise OutputError(
            "target", f"{str(odd)!r}, which is {what}", "a folder of regular files, or none", _REMEDY["target"]
        )


# Any target


def _check_array(result: Array, array: Array) -> None:
    """Raise OutputError where an array cannot take the result block by block."""
    try:
        dtype, shape = np.dtype(array.dtype), tuple(map(int, array.shape))
    except (AttributeError, TypeError, ValueError):
        raise OutputError(
            "target", instance(type(array)), "a path, or an array of the result's shape and dtype",
            "pass the path of an npy file or of an array of zarr",
        ) from None  # fmt: skip
    _check_form(result, dtype, shape)
    _check_chunks(result, getattr(array, "shards", None) or getattr(array, "chunks", None))


def _check_form(result: Array, dtype: Any, shape: tuple[int, ...]) -> None:
    wanted = np.dtype(result.dtype), tuple(map(int, result.shape))
    if (dtype, shape) != wanted:
        raise OutputError(
            "target", f"{dtype} of shape {shape}", f"{wanted[0]} of shape {wanted[1]}",
            "give it the shape and dtype of the result",
        )  # fmt: skip


def _check_chunks(result: Array, chunks: Sequence[int] | None) -> None:
    """Raise OutputError where two blocks of the result would write one chunk of the target and could lose data."""
    if chunks is None:
        return
    for axis, (size, blocks) in enumerate(zip(chunks, result.chunks)):
        if any(int(end) % size for end in np.cumsum(blocks)[:-1]):
            raise OutputError(
                "target", f"chunks of {size} along axis {axis}, and blocks of {blocks}", "blocks of whole chunks",
                f"rechunk the result: result.rechunk({{{axis}: {size * max(1, max(blocks) // size)}}})",
            )  # fmt: skip
