"""The source of a kernel: which files it has, and what its cubin depends on."""

from __future__ import annotations

import re

from gemmhub_nvidia import sources

PLAIN = sources.source("copy", "copy.cu", {"copy.cu": '#include "ptx_blocks.cuh"'}, "sm_80", {"TILE": 64})


def test_a_source_has_the_shared_headers():
    assert set(PLAIN.files) == {"copy.cu", *sources.shared()}
    assert PLAIN.options == ("--gpu-architecture=sm_80", "--std=c++17", "-DTILE=64")


def test_what_a_header_includes_is_there():
    """All but the generated header of activations."""
    included = {name for text in sources.shared().values() for name in re.findall(r'#include "(.*)"', text)}
    assert included - set(sources.shared()) == set(sources.activations(())) == {"activations.cuh"}


def test_activations():
    ((_, text),) = sources.activations(["relu", "silu"]).items()
    assert "activated<2>(float x) { return gated(x, x); }" in text
    for function in ("gated", "normal_weighted"):
        assert f"DEVICE float {function}(float x" in sources.shared()["activation_functions.cuh"]
