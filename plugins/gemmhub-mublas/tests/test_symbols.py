"""Names of functions: plain, mangled, and found in the symbol table of a library that is compiled here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
from gemmhub_mublas import symbols
from gemmhub_mublas.library import _MANGLED, EX_KINDS

COMPILER = shutil.which("g++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

NAME = "mublasGemmEx"
HEAD = b"\x7fELF\x02\x01"
TYPES = """
enum {op} {{ N }}; enum {type} {{ T }}; enum {compute} {{ K }}; enum {algo} {{ A }};
struct {handle};
"""
RIGHT = """
int mublasGemmEx({handle}*, {op}, {op}, int, int, int, const void*, const void*, {type}, int, const void*, {type}, int,
                 const void*, void*, {type}, int, {compute}, {algo}) {{ return 42; }}
"""
OLD = """
int mublasGemmEx({handle}*, {op}, {op}, int, int, int, const void*, const void*, {type}, int, const void*, {type}, int,
                 const void*, const void*, {type}, int, void*, {type}, int, {type}, {algo}, int, unsigned) {{
  return 7;
}}
"""
VENDOR = {
    "handle": "_mublasHandle_t", "op": "mublasOperation_t", "type": "musaDataType_t",
    "compute": "mublasComputeType_t", "algo": "mublasGemmAlgo_t",
}  # fmt: skip
RENAMED = {**VENDOR, "handle": "mublasContext", "type": "musaDataType"}


@pytest.fixture
def compiled(tmp_path):
    def build(source, names):
        path = tmp_path / "library.cpp"
        source = TYPES + source + 'extern "C" int mublasCreate(void*) {{ return 0; }}\n'
        path.write_text(source.format(**names))
        out = tmp_path / "libmublas.so"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", out, path], check=True)
        return ctypes.CDLL(str(out)), out

    return build


def resolved(library):
    return symbols.resolve(library, NAME, _MANGLED[NAME], EX_KINDS[NAME])


def test_kinds_of_the_usual_names():
    assert EX_KINDS == {
        "mublasGemmEx": "peeiiippeipeippeiee",
        "mublasGemmStridedBatchedEx": "peeiiippeixpeixppeixiee",
        "mublasGemmBatchedEx": "peeiiippeipeippeiiee",
    }


@pytest.mark.parametrize(("symbol", "kinds"), [
    ("_Z1fv", "v"), ("_Z1fix", "ix"), ("_Z1fPKvPv", "pp"), ("_Z1f3FooS_i", "eei"), ("_Z1fP3FooS0_S_", "ppe"),
    ("_Z1f3FooPKS_S1_", "epp"), ("mublasGemmEx", ""), ("_Z1fSt6vector", ""), ("_ZN1a1fEv", ""), ("_Z99f", ""),
    ("_Z", ""), ("_Z1f3Fo", ""), ("_Z1fS5_", ""),
])  # fmt: skip
def test_parameters(symbol, kinds):
    assert symbols.parameters(symbol) == kinds


@needs_compiler
def test_the_vendors_name(compiled):
    """g++ makes the published name of the published parameters."""
    library, path = compiled(RIGHT, VENDOR)
    assert _MANGLED[NAME] in symbols.exported(path)
    found = resolved(library)
    assert (found.how, found.symbol) == ("mangled", _MANGLED[NAME])


def plainly(function):
    return function.replace("\nint", '\nextern "C" int')


@needs_compiler
@pytest.mark.parametrize(("names", "how"), [(VENDOR, "mangled"), (RENAMED, "scanned")])
def test_a_plain_name_comes_last(compiled, names, how):
    """As it does not state its parameters, it may be that of another overload."""
    library, _ = compiled(plainly(OLD) + RIGHT, names)
    found = resolved(library)
    assert found.how == how
    assert found.function() == 42


@needs_compiler
def test_a_plain_name_alone(compiled):
    library, _ = compiled(plainly(RIGHT), VENDOR)
    found = resolved(library)
    assert (found.how, found.symbol) == ("plain", NAME)
    assert found.function() == 42


@needs_compiler
def test_a_scan_finds_renamed_types(compiled):
    library, _ = compiled(OLD + RIGHT, RENAMED)
    found = resolved(library)
    assert found.how == "scanned"
    assert found.function() == 42


@needs_compiler
def test_a_scan_does_not_take_the_old_overload(compiled):
    library, path = compiled(OLD, RENAMED)
    assert any(NAME in symbol for symbol in symbols.exported(path))
    assert resolved(library) is None


@needs_compiler
def test_where_a_library_is(compiled):
    library, path = compiled(RIGHT, VENDOR)
    assert symbols.where(library) == path
    assert symbols.where(library, "no_such_function") is None


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(20), b"\x7fELF\x02\x01" + b"\xff" * 80, b"text"]
)
def test_files_that_are_no_libraries(tmp_path, data):
    path = tmp_path / "libmublas.so"
    path.write_bytes(data)
    assert symbols.exported(path) == set()


def test_a_file_that_is_not_there(tmp_path):
    assert symbols.exported(tmp_path / "none.so") == set()
