"""Writes the headers of muBLAS, muBLASLt and muDNN for a profile from the templates ``*.h.in``.

In a template, ``@enum NAME@`` stands for a C enumeration, ``@members NAME@`` for its members, ``@NAME@`` for a value,
and a line ``@if NAME@`` or ``@if not NAME@`` begins a part, up to ``@end@``, that only some generations have.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from pathlib import Path

from gemmhub.kit import native
from gemmhub_musa_sim.enums import Enum, enums, lt_algorithm_words
from gemmhub_musa_sim.profiles import Profile, Symbols

_HERE = Path(__file__).parent
_TEMPLATES = {
    "library_types.h": _HERE / "blas/include/library_types.h.in",
    "muComplex.h": _HERE / "blas/include/muComplex.h.in",
    "mublas.h": _HERE / "blas/include/mublas.h.in",
    "mublasLt.h": _HERE / "blas/include/mublasLt.h.in",
    "mudnn_base.h": _HERE / "mudnn/include/mudnn_base.h.in",
    "mudnn_cxx.h": _HERE / "mudnn/include/mudnn_cxx.h.in",
    "mudnn_c.h": _HERE / "mudnn/include/mudnn_c.h.in",
}


def headers(profile: Profile, symbols: Symbols) -> dict[str, str]:
    """Return the text of each header by its path in ``include``."""
    places = {name: name for name in ("library_types.h", "muComplex.h", "mublas.h")}
    if profile.mublas_lt:
        places["mublasLt.h"] = "mublasLt.h"
    if profile.mudnn_cxx:
        places |= {"mudnn.h": "mudnn_c.h", "mudnncxx/mudnn.h": "mudnn_cxx.h", "mudnncxx/mudnn_base.h": "mudnn_base.h"}
    else:
        places |= {"mudnn.h": "mudnn_cxx.h", "mudnn_base.h": "mudnn_base.h"}
    return {place: _render(_TEMPLATES[template], profile, symbols) for place, template in places.items()}


def folder(profile: Profile, symbols: Symbols) -> Path:
    """Return a folder in the cache that holds these headers, and is not changed once it is there."""
    texts = headers(profile, symbols)
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    place = native.folder().path / f"musa-sim-include-{digest}"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".headers-") as own:
            draft = Path(own) / "include"
            for name, text in texts.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                (draft / name).write_text(text)
            with contextlib.suppress(OSError):  # another process was faster
                draft.rename(place)
    return place


def _render(template: Path, profile: Profile, symbols: Symbols) -> str:
    tables = enums(profile)
    values = {
        "sdk": profile.toolkit,
        "number": str(profile.number),
        "handle_tag": "mublasContext" if symbols == "scanned" else "_mublasHandle_t",
        "status_text": profile.status_text,
        "algorithm_words": str(lt_algorithm_words(profile)),
    }
    conditions = {
        "plain_symbols": symbols == "plain",
        "old_overload": profile.sdk == "3.1" or symbols == "scanned",
        "fp8": profile.sdk != "3.1",
        "full_lt": profile.sdk == "5.1",
    }
    text = _parts(template.read_text(), conditions)
    text = re.sub(r"@enum (\w+)@", lambda m: f"typedef enum {m[1]} {{\n{_members(tables[m[1]])}\n}} {m[1]};", text)
    text = re.sub(r"@members (\w+)@", lambda m: _members(tables[m[1]]).lstrip(), text)
    return re.sub(r"@(\w+)@", lambda m: values[m[1]], text)


def _parts(text: str, conditions: dict[str, bool]) -> str:
    """Return ``text`` less the parts whose condition does not hold; parts do not nest."""
    kept, keeping = [], True
    for line in text.splitlines(keepends=True):
        begin = re.fullmatch(r"@if (not )?(\w+)@\s*", line)
        if begin:
            keeping = conditions[begin[2]] != bool(begin[1])
        elif line.strip() == "@end@":
            keeping = True
        elif keeping:
            kept.append(line)
    return "".join(kept)


def _members(members: Enum) -> str:
    return ",\n".join(f"    {name} = {number}" for name, number in members.items())
