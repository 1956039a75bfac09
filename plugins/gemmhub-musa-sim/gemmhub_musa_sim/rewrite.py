"""Rewrites preprocessed MUSA source as C++: launches, shared memory, and the language's keywords.

It works on the preprocessor's output, so that launches in macros and headers are seen, comments are gone, and line
markers keep every place in the source. No line is added or removed.
"""

from __future__ import annotations

import re

_STRING = r'R"(?P<mark>[^()\\\s"]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])+'"
_ARGUMENTS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_ALIGNMENT = rf"(?:alignas\s*{_ARGUMENTS}|__align__\s*{_ARGUMENTS}|__attribute__\s*{_ARGUMENTS})"
_TOKEN = re.compile(
    rf"(?P<string>{_STRING})"
    r"|(?P<launch><<<)"
    rf"|(?P<dynamic>extern\s+__shared__\s+(?P<type>(?:{_ALIGNMENT}|[^;=(){{}}\[\]])*?)(?P<name>[A-Za-z_]\w*)\s*\[\s*\]\s*;)"
    rf"|(?P<shared>(?:\bstatic\s+)?\b__shared__\b(?P<align>(?:\s+{_ALIGNMENT})*))"
    rf"|(?P<align_word>\b__align__\s*(?P<bytes>{_ARGUMENTS}))"
    rf"|(?P<bounds>\b__launch_bounds__\s*{_ARGUMENTS})"
    r"|(?P<word>\b(?:__global__|__device__|__host__|__constant__|__forceinline__|__noinline__)\b)",
    re.DOTALL,
)
_BRACKET = re.compile(rf"(?:{_STRING})|(?P<bracket>[()\[\]{{}}])|(?P<close>>>>)", re.DOTALL)
_KERNEL = re.compile(rf"(?:\s*(?:{_ALIGNMENT}|__launch_bounds__\s*{_ARGUMENTS}|\w+))*?\s*\bvoid\s+([A-Za-z_]\w*)\s*\(")
_DECLARATION = re.compile(
    r"(?P<type>[^;={}()]*?[\s*>])(?P<names>[A-Za-z_]\w*\s*(?:\[[^;={}\[\]]*\]\s*|,\s*[A-Za-z_]\w*\s*)*);"
)
_SHARED = "static thread_local __attribute__((aligned(16)))"
"""The engine finds shared variables as the thread-local segment of the module: unlike a section of its own, that works
in templates, too. Aligned as vector accesses and copies need it, which devices do without being asked."""


class LaunchError(ValueError):
    """A launch whose end is missing; the message names the line."""


def rewrite(text: str) -> str:
    """Return ``text`` (the output of the preprocessor) as C++; LaunchError for a ``<<<`` without ``>>>``."""
    edits: list[tuple[int, int, str]] = []
    kernels: list[tuple[str, int]] = []
    for found in _TOKEN.finditer(text):
        start, end = found.span()
        if found["launch"]:
            if text[max(0, start - 8) : start].endswith("operator"):
                continue
            edits += _launch(text, start, end)
        elif found["dynamic"]:
            edits.append((start, end, _dynamic(found["type"], found["name"]) + "\n" * found[0].count("\n")))
        elif found["shared"]:
            edits.append(_shared(text, start, end, _aligned(found["align"])))
        elif found["align_word"]:
            edits.append((start, end, _aligned(found["align_word"])))
        elif found["bounds"]:
            edits.append((start, end, "\n" * found[0].count("\n")))
        elif found["word"]:
            edits.append((start, end, _word(text, found["word"], start, end)))
            kernel = _kernel(text, start, end) if found["word"] == "__global__" else None
            if kernel:
                kernels.append(kernel)
    names = [name for name, _ in kernels]
    for name, end in kernels:
        if names.count(name) == 1:  # an overloaded name has no address of its own
            new = f' static const ::musa_sim::Registered musa_sim_registered_{name}{{{name}, "{name}"}};'
            edits.append((end, end, new))
    return _apply(text, edits)


def _apply(text: str, edits: list[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    position = 0
    for start, end, new in sorted(edits):
        if start < position:  # inside of what an earlier edit has replaced
            continue
        parts += [text[position:start], new]
        position = end
    return "".join(parts) + text[position:]


def _aligned(text: str) -> str:
    return re.sub(rf"\b__align__\s*({_ARGUMENTS})", r"__attribute__((aligned\1))", text)


def _dynamic(kind: str, name: str) -> str:
    kind = " ".join(re.sub(_ALIGNMENT, " ", kind).split())
    return f"[[maybe_unused]] {kind}* const {name} = reinterpret_cast<{kind}*>(musaSimDynamicShared);"


def _shared(text: str, start: int, end: int, align: str) -> tuple[int, int, str]:
    """Return the edit that makes the declaration with ``__shared__`` at ``start:end`` thread-local."""
    lines = "\n" * text.count("\n", start, end)
    found = _DECLARATION.match(text, end)
    if found is None:
        return start, end, f"{align} {_SHARED} {lines}"
    # As members of a structure: g++ would set up a thread-local array of a class with constructors at its first use,
    # with a guard variable beside it, even where there is nothing to do.
    holder = f"musa_sim_shared_{start}"
    names = re.findall(r"([A-Za-z_]\w*)\s*(?=[\[,;])", re.sub(r"\[[^\]]*\]", "[]", found["names"]) + ";")
    references = "".join(f" [[maybe_unused]] auto& {name} = {holder}.{name};" for name in names)
    members = text[end : found.end()]
    return start, found.end(), f"{align} {_SHARED} struct {{{lines} {members} }} {holder};{references}"


def _launch(text: str, start: int, end: int) -> list[tuple[int, int, str]]:
    """Return the edits for a launch whose ``<<<`` is at ``start:end``; musa_launch.h describes the output."""
    close = _end_of_launch(text, end)
    first = _callee(text, start)
    kernel = " ".join(text[first:start].split())
    quoted = kernel.replace("\\", "\\\\").replace('"', '\\"')
    pointer = f"[=](auto musa_sim_x) -> decltype(::musa_sim::pointer(musa_sim_x, {kernel})) {{ return {kernel}; }}"
    call = f"[=](auto... musa_sim_x) {{ {kernel}(musa_sim_x...); }}"
    lines = "\n" * text.count("\n", first, start)
    head = f"::musa_sim::launch(::musa_sim::Configuration({lines}"
    return [(first, end, head), (*close, f'), "{quoted}", {pointer}, {call})')]


def _callee(text: str, end: int) -> int:
    """Return the start of the kernel's name before a ``<<<`` at ``end``, such as ``a::b<1, (2 > 1)>`` or ``(p)``."""
    position = len(text[:end].rstrip())
    while position:
        last = text[position - 1]
        if last == ">" or last == ")":
            position = _opening(text, position - 1)
            if last == ")":
                return position
        else:
            name = re.search(r"[A-Za-z_]\w*\s*$", text[max(0, position - 200) : position])
            if name is None:
                raise LaunchError(f"{place(text, end)}: error: <<< after something that names no kernel")
            position -= len(name[0])
            before = text[:position].rstrip()
            if not before.endswith("::"):
                return position
            position = len(before[:-2].rstrip())
            if not position or not (text[position - 1].isalnum() or text[position - 1] in "_>"):
                return position  # a name that starts with ::
    raise LaunchError(f"{place(text, end)}: error: <<< after nothing")


def _opening(text: str, position: int) -> int:
    """Return the position of the bracket that the one at ``position`` closes: of template arguments, or round."""
    pairs = {")": "(", ">": "<", "]": "["}
    stack: list[str] = []
    for at in range(position, -1, -1):
        character = text[at]
        if character in ")]" or (character == ">" and (not stack or stack[-1] == "<")):
            stack.append(pairs[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return at
    raise LaunchError(f"{place(text, position)}: error: a bracket without its beginning")


def _end_of_launch(text: str, position: int) -> tuple[int, int]:
    """Return the span of the ``>>>`` that ends the configuration which begins at ``position``."""
    depth = 0
    for found in _BRACKET.finditer(text, position):
        if found["close"] and depth == 0:
            return found.span()
        if found["bracket"]:
            depth += 1 if found["bracket"] in "([{" else -1
            if depth < 0:
                break
    raise LaunchError(f"{place(text, position)}: error: <<< without >>>")


def _closing(text: str, position: int) -> int:
    """Return the position after the bracket that closes the one at ``position``; -1 if none does."""
    depth = 0
    for found in _BRACKET.finditer(text, position):
        if found["bracket"]:
            depth += 1 if found["bracket"] in "([{" else -1
            if depth == 0:
                return found.end()
    return -1


def _declaration_before(text: str, position: int) -> str:
    """Return the text between the end of the last declaration or statement and ``position``."""
    return text[max(text.rfind(mark, 0, position) for mark in ";}{") + 1 : position]


def _kernel(text: str, start: int, end: int) -> tuple[str, int] | None:
    """Return the name of the kernel whose ``__global__`` is at ``start:end``, and where its body ends.

    None for declarations, and for templates: those have no address until something names their arguments.
    """
    found = _KERNEL.match(text, end)
    if found is None or re.search(r"\btemplate\s*<", _declaration_before(text, start)):
        return None
    after = _closing(text, found.end() - 1)
    body = re.compile(r"\s*(?:#[^\n]*\n\s*)*\{").match(text, after) if after > 0 else None
    if body is None:
        return None
    stop = _closing(text, body.end() - 1)
    return (found[1], stop) if stop > 0 else None


def _word(text: str, word: str, start: int, end: int) -> str:
    before = _declaration_before(text, start)
    if word == "__noinline__":  # also the name of the attribute that it stands for
        return word if before.rstrip().endswith(("(", ",")) else "__attribute__((noinline))"
    if word == "__forceinline__":
        declaration = before + text[end : text.find("(", end)]
        has_inline = re.search(r"\binline\b|\b__inline(?:__)?\b", declaration)
        return "__attribute__((always_inline))" if has_inline else "inline __attribute__((always_inline))"
    return ""


def place(text: str, position: int) -> str:
    """``file:line`` of a position in preprocessed text, by its line markers."""
    markers = list(re.finditer(r'^# (\d+) "([^"\n]*)"[^\n]*\n', text[:position], re.MULTILINE))
    if not markers:
        return f"line {text.count(chr(10), 0, position) + 1}"
    last = markers[-1]
    return f"{last[2]}:{int(last[1]) + text.count(chr(10), last.end(), position)}"
