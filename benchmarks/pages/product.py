"""The tables of docs/matmul.md that are made from the core: operands and epilogues of a product."""

from __future__ import annotations

from benchmarks.pages.tables import rows
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import OPERANDS


def operands() -> list[str]:
    """Return one row for each operand beside a, b and out."""
    enters = {"term": "added", "factor": "multiplies an operand", "result": "multiplies the result"}
    body = [(f"`{row.name}=`", enters.get(row.role, "written"), row.summary) for row in OPERANDS.values()]
    return rows(("operand", "role", "shape, dtype, effect"), body)


def epilogues() -> list[str]:
    """Return one row for each epilogue."""
    where = {None: "x", "halves": "columns j and j + n / 2", "interleaved": "columns 2 j and 2 j + 1"}
    body = [
        (f"`{x.name}`", x.summary, where[x.gate], "n" if x.arity == 1 else "n / 2", f"{x.slope:g}", f"{x.evaluation:g}")
        for x in EPILOGUES.values()
    ]
    return rows(("`activation=`", "function", "of", "columns", "slope", "evaluation"), body)
