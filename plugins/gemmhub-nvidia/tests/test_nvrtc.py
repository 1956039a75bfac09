"""NVRTC where it is missing or unusable, and the names of cubins. (Plugins' tests compile with it.)"""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import Compiled, Compiler, CompilerError, Source

from gemmhub.capability import Absent
from gemmhub.testing.answers import honest

SOURCE = Source("product", "product.cu", {"product.cu": "// a kernel", "ptx.cuh": ""}, ("-arch=sm_90",))


class Double:
    """A compiler that counts."""

    version, where = (13, 0), "libnvrtc.so"

    def __init__(self):
        self.compiled = 0

    def compile(self, source, verbose=False):
        self.compiled += 1
        return Compiled(b"\x7fELF", "")


def test_an_incomplete_library():
    with pytest.raises(CompilerError, match="has no function nvrtcVersion"):
        Compiler(SimpleNamespace(), "libnvrtc.so")


def test_pathfinder_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(CompilerError) as caught:
        nvrtc.find()
    assert "was not found" in caught.value.reason
    assert "pip install" in caught.value.remedy


def missing():
    raise CompilerError("NVRTC was not found", "pip install it")


def test_look():
    new, old = SimpleNamespace(cuda_version=(13, 0)), SimpleNamespace(cuda_version=(12, 8))
    compiler = Double()
    assert nvrtc.look(lambda: compiler, new) is compiler
    unfit, none = nvrtc.look(lambda: compiler, old), nvrtc.look(missing, new)
    for found in (unfit, none):
        assert isinstance(found, Absent)
        honest(found, "probe()")
    assert "NVRTC 13.0; the driver runs up to CUDA 12.8" in unfit.reason
    assert "nvidia-cuda-nvrtc-cu12" in unfit.remedy
    assert none.reason == "NVRTC was not found"


def test_a_cubin_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path))
    compiler = Double()
    assert nvrtc.cubin(compiler, SOURCE) == nvrtc.cubin(compiler, SOURCE) == b"\x7fELF"
    assert compiler.compiled == 1
    (kept,) = (tmp_path / "native").iterdir()
    assert re.fullmatch(rf"product-{nvrtc.key(compiler, SOURCE)}\.[0-9a-f]{{32}}\.cubin", kept.name)


def test_a_damaged_cubin_is_compiled_again(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path))
    compiler = Double()
    nvrtc.cubin(compiler, SOURCE)
    (kept,) = (tmp_path / "native").iterdir()
    for damaged in (b"", b"\x7fEL", b"\x7fELG", b"\x7fELF\0"):
        kept.write_bytes(damaged)
        before = compiler.compiled
        with caplog.at_level(logging.WARNING, "gemmhub"):
            assert nvrtc.cubin(compiler, SOURCE) == b"\x7fELF"
        assert compiler.compiled == before + 1
        assert f"{kept} is damaged" in caplog.text
        assert kept.read_bytes() == b"\x7fELF"


def test_a_cubin_that_cannot_be_kept_is_used(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path))

    def full(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nvrtc.disk.tempfile, "mkstemp", full)
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert nvrtc.cubin(Double(), SOURCE) == b"\x7fELF"
    assert "product cannot be stored, so every process compiles it again: [Errno 28] No space left" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        replace(SOURCE, options=("-arch=sm_80",)),
        replace(SOURCE, main="ptx.cuh"),
        replace(SOURCE, files={**SOURCE.files, "ptx.cuh": " "}),
        replace(SOURCE, files={"product.cu": "", "ptx.cuh": "// a kernel"}),
    ],
    ids=["options", "main", "text", "texts exchanged"],
)
def test_a_key_carries_all_that_matters(changed):
    compiler = Double()
    assert nvrtc.key(compiler, changed) != nvrtc.key(compiler, SOURCE)
    newer = SimpleNamespace(version=(13, 1))
    assert nvrtc.key(newer, SOURCE) != nvrtc.key(compiler, SOURCE)


def test_the_log_is_read():
    log = (
        "ptxas info : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
        "    8 bytes stack frame, 16 bytes spill stores, 32 bytes spill loads\nptxas info : Used 168 registers\n"
    )
    made = Compiled(b"", log)
    assert (made.spilled, made.warnings, made.registers) == (56, ["C7511"], 168)
