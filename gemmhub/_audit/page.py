"""The HTML report of an audit: one file, without scripts, network or anything that names the machine or its user."""

from __future__ import annotations

from collections.abc import Iterator

from gemmhub._audit import judge, picture, trials
from gemmhub._audit.result import Audit, Audited, Fault, bits_text
from gemmhub._base import markup
from gemmhub._base.tables import Facts, Table
from gemmhub._base.wording import counted

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
thead th { border-bottom: 1px solid }
pre { border: 1px solid #8886; overflow-x: auto; padding: 0.5rem }
.wide { overflow-x: auto }
"""


def html(audit: Audit) -> str:
    """The report as a page of HTML."""
    title = f"gemmhub audit: {counted(len(audit.faults), 'fault')}"
    facts = [*audit.system.items(), ("date", audit.date), ("effort", audit.effort), ("seed", str(audit.seed))]
    body = [f"<h1>{markup.text(title)}</h1>", markup.facts(Facts(facts)), "<h2>Implementations</h2>"]
    (table, *_) = audit._parts()
    assert isinstance(table, Table)
    body.append(f'<div class="wide">{markup.table(table)}</div>')
    body.append("<p>Bits: trials with equal bits of all; a star marks a promise that the implementation claims.</p>")
    for each in audit.implementations:
        body += _section(each)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{markup.text(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        "<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _section(audited: Audited) -> Iterator[str]:
    yield f"<h2>{markup.text(audited.name)}</h2>"
    versions = ", ".join(f"{name} {version}" for name, version in audited.versions.items()) or "-"
    facts = [
        ("versions", versions),
        ("claimed products", ", ".join(audited.products)),
        ("bits", bits_text(audited.bits)),
    ]
    yield markup.facts(Facts(facts))
    if audited.notes:
        yield markup.table(Table(("claim", "source"), audited.notes))
    if audited.refused:
        yield markup.table(
            Table(("refused", "trials"), [(text, str(count)) for text, count in audited.refused.items()])
        )
    for number, fault in enumerate(audited.faults, 1):
        yield from _fault(number, fault)


def _fault(number: int, fault: Fault) -> Iterator[str]:
    yield f"<h3>Fault {number}: {markup.text(fault.trial)}, {markup.text(fault.kind)}</h3>"
    facts = [
        ("trial", trials.KINDS[fault.trial]),
        ("fault", judge.KINDS[fault.kind]),
        ("trials", str(fault.count)),
        ("found by", fault.found),
        ("smallest", fault.smallest),
        ("failure", fault.text),
    ]
    if fault.bound is not None and fault.worst is not None:
        facts.append(("bound", f"{fault.bound:.3g}; the error is {fault.worst:.3g} times that"))
    wrong = [f"{low} to {high - 1}" for low, high, bad in fault.blocks if bad]
    if fault.blocks:
        facts.append(("wrong blocks of k", ", ".join(wrong) or "none by itself"))
    yield markup.facts(Facts(facts))
    drawn = picture.svg(fault)
    if drawn:
        legend = "Grey: within the bound. Yellow to red: beyond it. Violet: NaN, or infinite."
        yield f"<figure>{drawn}<figcaption>{legend}</figcaption></figure>"
    if fault.script is not None:
        yield f"<p>Script; {markup.text(fault.alone)}:</p>"
        yield f"<pre>{markup.text(fault.script).replace('<br>', chr(10))}</pre>"
