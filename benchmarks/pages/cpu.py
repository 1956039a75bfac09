"""The tables of docs/cpu.md."""

from __future__ import annotations

from benchmarks.lib import results
from benchmarks.pages import tables

_FOLDER = results.FOLDER / "cpu"
_SPEED = "speed over float32 numpy.matmul"
_TURN = "SGEMM and it in turn, over alone"


def _lines(found: dict[str, dict[str, float]], form: str = ".2f") -> list[str]:
    """A row for each contender, a column for each size."""
    sizes = list(next(iter(found.values())))
    body = [
        (name, *(f"{row[size]:{form}}" if size in row else "-" for size in sizes))
        for name, row in found.items()
        if name != "float32 numpy.matmul"
    ]
    return tables.rows(("", *sizes), body)


def _speeds(name: str) -> list[str]:
    return _lines(results.load(_FOLDER / f"{name}.json")[_SPEED])


def one_core() -> list[str]:
    """Return speeds on one core of the EPYC."""
    return _speeds("native_epyc_1core")


def epyc() -> list[str]:
    """Return speeds on two cores of the EPYC."""
    return _speeds("native_epyc_2cores")


def xeon_2() -> list[str]:
    """Return speeds on two cores of the Xeon."""
    return _speeds("native_xeon_2cores")


def xeon_16() -> list[str]:
    """Return speeds on sixteen cores of the Xeon."""
    return _speeds("native_xeon_16cores")


def vectors() -> list[str]:
    """Return GB/s of the matrix in products by a vector."""
    return _lines(results.load(_FOLDER / "vectors_epyc_2cores.json")["GB/s of the matrix"], ".1f")


def in_turn() -> list[str]:
    """Return what SGEMM and a product in turn take, with and without OPENBLAS_THREAD_TIMEOUT."""
    quiet, spinning = (results.load(_FOLDER / f"{name}.json")[_TURN] for name in ("amx-2cores-timeout4", "amx-2cores"))
    sizes = list(quiet["int8 cpu"])
    body = [
        (name, *(f"{quiet[name][size]:.2f}" for size in sizes), *(f"{spinning[name][size]:.2f}" for size in sizes))
        for name in quiet
        if name in spinning and name.endswith(" cpu")
    ]
    return tables.rows(("", *sizes, *(f"{size}, spinning" for size in sizes)), body)
