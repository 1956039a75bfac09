"""What `gemmhub build hopper` compiles."""

from __future__ import annotations

import importlib.metadata
import pickle

import pytest
from gemmhub_hopper import build
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.shapes import shapes
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.cubins import Entry, packed
from problems import problem

from gemmhub.kit.native import cache


def test_it_is_found_by_name():
    (point,) = importlib.metadata.entry_points(group="gemmhub.build", name="hopper")
    assert point.load() is build.jobs


@pytest.mark.parametrize(
    ("kinds", "dtype", "precision"),
    [({"bfloat16"}, "bfloat16", "ieee"), ({"float16"}, "float16", "ieee"), ({"tf32"}, "float32", "tf32"),
     ({"split", "f16x3"}, "float32", "ieee")],
)  # fmt: skip
def test_the_kernels_of_plain_products_are_among_them(kinds, dtype, precision):
    every = set(build.variants())
    for b in ("row", "col"):
        lowerings = lower.lowerings(problem(512, 512, 512, dtype, b=b, precision=precision))
        assert {lowering.form.input for lowering in lowerings} == kinds
        for lowering in lowerings:
            for shape in shapes(lowering.form):
                variant = build.Variant(shape, lowering.form)
                assert (variant in every) == (variant.refusal is None)


def test_jobs():
    """Bounded, with names of their own, and fit to be sent to other processes."""
    jobs = build.jobs()
    assert len({job.name for job in jobs}) == len(jobs) <= 800
    assert all(pickle.loads(pickle.dumps(job)) == job for job in jobs)


def test_what_is_compiled_is_found_again():
    small = min((x for x in build.variants() if x.form.input == "split"), key=lambda x: x.shape.m * x.shape.n)
    assert build._kernel(small) == "compiled"
    assert build._kernel(small) == "already there"
    assert build._prepass("split") == "compiled"
    source = sources.source(small)
    assert cache.find(f"{source.name}-{nvrtc.key(nvrtc.load(), source)}.cubin").read_bytes()[:4] == b"\x7fELF"


def test_what_the_wheel_has_is_left_out(monkeypatch, tmp_path):
    source = sources.prepass("split")
    (tmp_path / "sm_90a.cubins").write_bytes(packed([Entry(source.name, source.digest, b"cubin")], "12.6"))
    monkeypatch.setattr(build, "cubins_of", lambda package: tmp_path)
    assert build._prepass("split") == "in the wheel"
    assert build._prepass("tf32") == "compiled"


def test_nowhere_to_keep_it(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(OSError, match="cannot be made"):
        build._prepass("tf32")
