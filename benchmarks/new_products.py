"""What a product of a new size takes of the host's time: deciding what runs it, and getting that ready.

    python benchmarks/new_products.py [--backends hopper cublas]

Needs an NVIDIA card, torch and the plugins to time. ``gemmhub.plan`` is timed for 14 sizes that this process has not
asked about, of 16 bits, tf32 and float32: by all backends that there are, and by single ones. The first two of each are
left out, as they load what others share. Kernels are to be in the cache (``gemmhub build hopper``).
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

import gemmhub

_SIZES, _LEFT_OUT = 14, 2
_N = _K = 4096
_KINDS = ((torch.bfloat16, "ieee"), (torch.float32, "tf32"), (torch.float32, "ieee"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backends", nargs="*", default=["hopper", "cublas"], metavar="BACKEND")
    options = parser.parse_args()
    for dtype, precision in _KINDS:
        m = 1024
        for backend in (None, *options.backends):
            times = []
            for _ in range(_SIZES):
                m += 8
                a, b, out = (torch.randn(x, device="cuda", dtype=dtype) for x in ((m, _K), (_K, _N), (m, _N)))
                torch.cuda.synchronize()
                start = time.perf_counter()
                gemmhub.plan(a, b, out=out, backend=backend, precision=precision)
                times.append(1e3 * (time.perf_counter() - start))
            kept = times[_LEFT_OUT:]
            words = f"median {median(kept):.2f} ms, {min(kept):.2f} to {max(kept):.2f}"
            print(f"{str(dtype)[6:]:8} {precision}  {backend or 'all':6}  {words}", flush=True)


if __name__ == "__main__":
    main()
