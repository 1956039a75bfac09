"""Tables of ``mutlass_profiler`` as tuning records: which rows serve, and that calls choose by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_mutlass.backend import MutlassBackend

import gemmhub
from gemmhub._choice import records
from gemmhub.capability import Device, Refusal
from gemmhub.dtypes import PRECISIONS

pytestmark = pytest.mark.usefixtures("sim")

# What MUTLASS 0.1.1's profiler prints, in its order.
HEADER = (
    "Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,alpha,beta,batch_count,"
    "op_class,accum,cta_m,cta_n,cta_k,cluster_m,cluster_n,cluster_k,stages,inst_m,inst_n,inst_k,min_cc,max_cc,"
    "Bytes,Flops,Flops/Byte,Runtime,GB/s,GFLOPs"
)


def row(tile="256x128x32", runtime="0.02", align=8, arch=22, **changes):
    m, n, k = tile.split("x")
    values = dict.fromkeys(HEADER.split(","), "1") | {
        "Provider": "MUTLASS", "OperationKind": "gemm", "Disposition": "passed", "Status": "success",
        "Operation": f"mutlass_mp{arch}_tensorop_f32_f16_f16_f32_f32_f32_{tile}_ttt_align{align}",
        "gemm_kind": "universal", "m": "64", "n": "48", "k": "80", "A": "f16:row", "B": "f16:row", "C": "f32:row",
        "D": "f32:row", "alpha": "1", "beta": "0", "op_class": "tensorop", "accum": "f32", "cta_m": m, "cta_n": n,
        "cta_k": k, "Runtime": runtime,
    }  # fmt: skip
    return ",".join({**values, **changes}.values())


SINGLE = {"A": "f32:row", "B": "f32:column", "op_class": "simt"}
ROUNDED = {"A": "tf32:row", "B": "tf32:row"}
BYTES = {"A": "s8:row", "B": "s8:row", "C": "s32:row", "D": "s32:row", "accum": "s32"}


@pytest.fixture
def read(tmp_path):
    backend = MutlassBackend()
    backend.probe()

    def imported(*rows, header=HEADER):
        path = tmp_path / "profile.gemm.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return backend.import_times(path, Device("musa", 0))

    return imported


@pytest.mark.parametrize(("given", "candidate", "keys"), [
    (row(), "tensor_256x128x32", ["float16,float16->float32 order=rrr epilogue=none precision=ieee"]),
    (row(A="bf16:column", B="bf16:column"), "tensor_256x128x32",
     ["bfloat16,bfloat16->float32 order=ccr epilogue=none precision=ieee"]),
    (row(Disposition="not_verified", batch_count="3", alpha="2", beta="1"), "tensor_256x128x32",
     ["float16,float16->float32 order=rrr epilogue=alpha+c precision=ieee"]),
    (row("128x128x4", align=2, **SINGLE), "simt_128x128x4",
     [f"float32,float32->float32 order=rcr epilogue=none precision={x}" for x in PRECISIONS]),
    (row("128x64x16", align=4, **ROUNDED), "tf32_128x64x16",
     [f"float32,float32->float32 order=rrr epilogue=none precision={x}" for x in ("tf32", "bf16")]),
    (row("128x64x64", align=16, **BYTES), "tensor_128x64x64",
     ["int8,int8->int32 order=rrr epilogue=none precision=ieee"]),
    # Rows that are no multiples of 16 bytes: the kernels that read single elements.
    (row(n="47", align=1), "tensor_256x128x32", ["float16,float16->float32 order=rrr epilogue=none precision=ieee"]),
])  # fmt: skip
def test_rows_that_serve(read, given, candidate, keys):
    found = read(given)
    assert found.skipped == {}
    assert [name for _, name, _ in found.times] == [candidate] * len(keys)
    assert [problem.key.split(" ", 2)[2] for problem, _, _ in found.times] == keys
    problem, _, seconds = found.times[0]
    assert seconds == 2e-5
    assert (problem.m, problem.k, problem.batch_count) == (64, 80, 3 if "+c" in problem.key else 1)


@pytest.mark.parametrize(("given", "reason"), [
    (row(Provider="muBLAS"), "not a product by MUTLASS's kernels"),
    (row(Disposition="incorrect"), "disposition incorrect, status success"),
    (row(Status="internal_error"), "disposition passed, status internal_error"),
    (row(arch=31), "a kernel for mp_31, the device is mp_22"),
    (row(runtime="0"), "no runtime, or an empty product"),
    (row(runtime="inf"), "no runtime, or an empty product"),
    (row(D="f32:column", C="f32:column"), "the result or C is not row-major"),
    (row(A="f16:nhwc"), "a layout or dtype that the plugin does not have"),
    (row(A="e4m3:row"), "a layout or dtype that the plugin does not have"),
    (row(cluster_m="2"), "a cluster of several blocks"),
    (row(accum="f16"), "accumulates in f16"),
    (row("64x64x32"), "the plugin has no such kernel for the problem"),
    (row(align=1), "the plugin has no such kernel for the problem"),
    (row(n="47", align=8), "the plugin has no such kernel for the problem"),
    (row(C="f16:row", beta="1"), "the plugin has no such kernel for the problem"),
    (HEADER.replace("Provider", "MUTLASS").replace("OperationKind", "gemm").replace("Disposition", "passed").replace(
        "Status", "success"), "malformed"),
    ("1,MUTLASS,gemm,x,passed,success", "malformed"),
])  # fmt: skip
def test_rows_that_do_not(read, given, reason):
    found = read(given, row(), given)
    assert len(found.times) == 1
    assert found.skipped == {reason: 2}


def test_the_fastest_of_equal_rows(read):
    found = read(row(runtime="0.03"), row(runtime="0.02"), row(runtime="0.04"), row("128x128x32", "0.01"))
    assert [(name, seconds) for _, name, seconds in found.times] == [
        ("tensor_256x128x32", 2e-5), ("tensor_128x128x32", 1e-5),
    ]  # fmt: skip


def test_tags_before_the_columns(read):
    assert len(read("mine," + row(), header="tag," + HEADER).times) == 1


def test_other_files(read, tmp_path):
    found = read("1,2", header="m,n")
    assert isinstance(found, Refusal)
    assert "no column Provider, OperationKind" in found.reason
    found = MutlassBackend().import_times(tmp_path / "none.csv", Device("musa", 0))
    assert "cannot be read" in found.reason


@pytest.fixture
def tuned(tmp_path):
    """The record file in force."""
    path = tmp_path / "tuned.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMHUB_RECORDS", str(path))
        gemmhub.reload()
        yield path
    gemmhub.reload()


def test_calls_choose_by_the_table(tmp_path, tuned):
    """The command, then a product: of this card's tiles it takes the one that was fastest in the table."""
    from gemmhub_musa import from_numpy

    (tmp_path / "t.gemm.csv").write_text("\n".join([
        HEADER, row(), row("128x64x32", "0.0001"), row("128x128x32", "0.0002"), row(Provider="muBLAS"),
    ]))  # fmt: skip
    command = [sys.executable, "-m", "gemmhub", "tune", "--import", "t.gemm.csv", "--backend", "mutlass", "--json"]
    done = subprocess.run(command, env=dict(os.environ), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["records"] == 3
    assert told["skipped"] == ["t.gemm.csv: 1 rows: not a product by MUTLASS's kernels"]
    x, y = np.ones((64, 80), np.float16), np.ones((80, 48), np.float16)
    a, b = from_numpy(x, 0), from_numpy(y, 0)
    verdict = gemmhub.explain(a, b, out_dtype="float32")["mutlass"]
    assert (verdict.status, verdict.source, verdict.candidate) == ("chosen", "measured", "tensor_128x64x32")
    made = gemmhub.plan(a, b, out_dtype="float32")
    assert "tensor_128x64x32" in made.kernel.description
    assert np.array_equal(gemmhub.matmul(a, b, out_dtype="float32").numpy(), np.full((64, 48), 80, np.float32))
    # Another product has no record; those of a card of the same name with fewer multiprocessors do not serve here.
    assert gemmhub.explain(a, b)["mutlass"].source == "estimated"
    found = records.read(tuned).records.values()
    assert {entry.device for entry in found} == {"musa:0"}
    others = [replace(entry, versions={**entry.versions, "multiprocessors": "1"}) for entry in found]
    tuned.unlink()
    records.write(tuned, others)
    gemmhub.reload()
    verdict = gemmhub.explain(a, b, out_dtype="float32")["mutlass"]
    assert verdict.source == "estimated"
    assert "a record is not used: measured with multiprocessors 1" in verdict.remark
