"""The float64 emulation of cuBLASLt: whether it runs, its speed beside native float64, and its errors beside the bound.

    python -m benchmarks.run.cublas_float64 [--sizes 1024 4096] [--rounds 5] [--json FILE]

It needs an NVIDIA card, torch and gemmhub-cublas with a cuBLASLt of CUDA 13.0 update 2 or later. The library is asked
for CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT with the strategy EAGER, dynamic mantissa control and all special values. A
device integer receives the number of mantissa bits that it kept, or -1 where it computed natively.

Errors are the largest over all elements of a 256 x 256 x 1024 product, against sums in double-double arithmetic, as
multiples of gemmhub's bound, gamma(k + 2) |A||B|. Products with infinities, NaN or numbers near the limits of the range
are judged by gemmhub.accuracy.
"""

from __future__ import annotations

import argparse
from ctypes import addressof, byref, c_double, c_int, c_size_t, c_void_p, string_at
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gemmhub_cublas import choose
from gemmhub_cublas.descriptors import Object
from gemmhub_cublas.library import Library, load

from benchmarks.lib import results
from gemmhub.accuracy import error_model, gamma, reference
from gemmhub.dtypes import as_dtype

M, N, K = 256, 256, 1024
FLOAT64, NATIVE, EMULATED = 1, 70, 79
STRATEGY, SPECIAL_VALUES, OFFSET, COUNT_POINTER, EMULATION = 0, 1, 4, 5, 38
EAGER, ALL_SPECIAL_VALUES = 2, 0xFFFF
UNTOUCHED = -99
FUNCTIONS = {
    "cublasLtEmulationDescCreate": (c_void_p,),
    "cublasLtEmulationDescDestroy": (c_void_p,),
    "cublasLtEmulationDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoCapGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, c_void_p),
}
FAMILIES = (
    "normal", "uniform", "exponents 8", "exponents 60", "undone 20", "undone 60", "spread 20", "spread 60",
    "interleaved 8", "interleaved 20", "interleaved 40", "digits", "digits 0/0", "digits 0/1", "digits 1/0",
    "digits 0/1 strided", "digits 0/1 last", "lost", "zeros", "zero rows",
)  # fmt: skip
EXTREME = ("an infinity", "a NaN", "both infinities", "huge", "tiny", "subnormal")


class Product:
    """C = A B of row-major float64 matrices by cuBLASLt, native or emulated."""

    def __init__(self, library: Library, handle: int, m: int, n: int, k: int, emulated: bool, offset: int = 0) -> None:
        self.library, self.handle = library, handle
        self.operation = Object(library, "MatmulDesc", EMULATED if emulated else NATIVE, FLOAT64)
        # Column-major, the library computes C^T = B^T A^T.
        shapes = (n, k, n), (k, m, k), (n, m, n)
        self.layouts = [Object(library, "MatrixLayout", FLOAT64, *shape) for shape in shapes]
        self.bits = torch.full((1,), UNTOUCHED, dtype=torch.int32, device="cuda")
        if emulated:
            self.emulation = Object(library, "EmulationDesc")
            self.emulation.set(STRATEGY, "i", EAGER)
            self.emulation.set(SPECIAL_VALUES, "i", ALL_SPECIAL_VALUES)
            self.emulation.set(OFFSET, "i", offset)
            self.emulation.set(COUNT_POINTER, "Q", self.bits.data_ptr())
            self.operation.set(EMULATION, "Q", self.emulation.handle or 0)
        self.one, self.nil = c_double(1.0), c_double(0.0)
        self.algo: bytes | None = None
        self.workspace = torch.empty(0, dtype=torch.uint8, device="cuda")

    def asked(self, limit: int) -> tuple[int, list[tuple[bytes, int]]]:
        """Return the status of the heuristic within ``limit`` bytes of workspace, and (algorithm, workspace) pairs."""
        preference, found, count = Object(self.library, "MatmulPreference"), (choose._Result * 8)(), c_int()
        preference.set(1, "Q", limit)
        a, b, c = (layout.handle for layout in self.layouts)
        status = self.library.lt.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.operation.handle, a, b, c, c, preference.handle, 8, found, byref(count)
        )
        return status, [(string_at(addressof(x), 64), x.workspace) for x in found[: count.value] if x.state == 0]

    def choose(self, limit: int) -> None:
        """Take the library's first choice, with its workspace."""
        status, found = self.asked(limit)
        if not found:
            raise SystemExit(f"cuBLASLt {self.library.version} proposes nothing (status {status})")
        self.algo, nbytes = found[0]
        self.workspace = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        first, second, third = (layout.handle for layout in self.layouts)
        status = self.library.lt.cublasLtMatmul(
            self.handle, self.operation.handle, addressof(self.one), b.data_ptr(), first, a.data_ptr(), second,
            addressof(self.nil), out.data_ptr(), third, out.data_ptr(), third, self.algo,
            self.workspace.data_ptr() or None, self.workspace.numel(), torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if status:
            raise SystemExit(f"cublasLtMatmul: status {status}")


def drawn(family: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands of a family on the card."""
    rng = torch.Generator("cuda").manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float64, generator=rng)

    def exponents(width: int, *shape: int) -> torch.Tensor:
        return torch.randint(-width // 2, width // 2, shape, device="cuda", generator=rng).double().exp2()

    a, b = normal(m, k), normal(k, n)
    name, _, number = family.partition(" ")
    if family == "uniform":
        a, b = a.abs().frac(), b.abs().frac()
    elif name == "exponents":
        a, b = a * exponents(int(number), m, k), b * exponents(int(number), k, n)
    elif name == "undone":  # what a's columns are scaled by, b's rows are divided by
        scale = exponents(int(number), k)
        a, b = a * scale, b / scale[:, None]
    elif name == "spread":  # one large element in each row, beside a row of b that is no larger than the others
        a[:, 0] *= 2.0 ** int(number)
    elif name == "interleaved":  # large elements of a meet small ones of b, and the reverse
        a[:, ::2] *= 2.0 ** -int(number)
        b[1::2] *= 2.0 ** -int(number)
    elif name == "digits":
        a, b = digits(m, k), digits(n, k).t()
        if number:  # the one pair that counts stands among pairs of 0 and 1, 256 in a row or each 16th
            among = slice(16, None, 16) if "strided" in number else slice(1, 256)
            a[:, among], b[among] = (float(x) for x in number[:3].split("/"))
        if "last" in number:
            a, b = a.flip(1), b.flip(0)
        b = b.contiguous()
    elif family == "lost":  # beside the one product that counts, small elements meet large ones
        a = torch.full_like(a, 2.0**-54 * 1.99)
        b = torch.full_like(b, 1.99)
        a[:, 0], b[0], a[:, 1], b[1] = 1.0, 1.0, 1.99, 2.0**-60
    elif family == "zeros":
        a.zero_()
    elif family == "zero rows":
        a[::2], b[:, ::3] = 0.0, 0.0
    elif family == "an infinity":
        a[m // 2, k // 2] = float("inf")
    elif family == "a NaN":
        a[m // 2, k // 2] = float("nan")
    elif family == "both infinities":
        a[m // 2, 0], a[m // 2, 1], b[0], b[1] = float("inf"), float("-inf"), 1.0, 1.0
    elif family == "huge":
        a, b = a * 1e152, b * 1e152
    elif family == "tiny":
        a, b = a * 1e-155, b * 1e-154
    elif family == "subnormal":
        a = a * 1e-310
    return a, b


def digits(rows: int, k: int) -> torch.Tensor:
    """Return rows of 1 and then one number whose digits to base 256 are all alike: the least favourable ones.

    A fixed-point product that leaves out the products of low digits then loses a term of the same sign everywhere.
    """
    made = torch.empty(rows, k, dtype=torch.float64)
    for row in range(rows):
        digit, shift = (127, -128, 255, 85)[row % 4], row // 4 % 9
        made[row] = sum(digit * 2.0 ** (shift + 1 - 8 * place) for place in range(2, 8))
    made[:, 0] = 1.0
    return made.cuda()


def exact(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product as the unevaluated sum of two matrices, by error-free products and sums (Dekker, Knuth)."""
    high = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device="cuda")
    low = torch.zeros_like(high)

    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top = x * 134217729.0
        top = top - (top - x)
        return top, x - top

    a_top, a_rest = halves(a)
    b_top, b_rest = halves(b)
    for p in range(a.shape[1]):
        left, right = slice(p, p + 1), p
        term = a[:, left] * b[right]
        rest = a_top[:, left] * b_top[right] - term
        rest = rest + a_top[:, left] * b_rest[right] + a_rest[:, left] * b_top[right]
        rest = rest + a_rest[:, left] * b_rest[right]
        total = high + term
        part = total - high
        low = low + (rest + ((high - (total - part)) + (term - part)))
        high = total
    return high, low


def share_of_bound(out: Any, a: torch.Tensor, b: torch.Tensor, sums: tuple[Any, Any]) -> float:
    """Return the largest error as a multiple of gamma(k + 2) |A||B|; infinite where a result without terms is not 0."""
    error, size = ((out - sums[0]) - sums[1]).abs(), a.abs() @ b.abs()
    bound = gamma(a.shape[1] + 2, 2.0**-53) * size
    return float(torch.where(error == 0, 0.0, error / bound).nan_to_num(float("inf"), float("inf")).max())


def share_of_model(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest error as a multiple of the bound of gemmhub.accuracy, special values included."""
    kind = as_dtype("float64")
    model = error_model(kind, kind, kind, kind)
    return float(reference(a.cpu().numpy(), b.cpu().numpy(), model=model).ratio(out.cpu().numpy()).max())


def timed(calls: dict[str, Any], operands: tuple[Any, Any, Any], rounds: int) -> dict[str, float]:
    """Return median seconds of each call, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call(*operands)
            start.record()
            for _ in range(5):
                call(*operands)
            end.record()
            end.synchronize()
            found[name].append(start.elapsed_time(end) / 5e3)
    return {name: median(times) for name, times in found.items()}


def opened() -> tuple[Library, int]:
    """Return torch's cuBLASLt and a handle of it. Raises SystemExit where it has no emulation."""
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    library = load(int((torch.version.cuda or "12").split(".")[0]))
    for name, arguments in FUNCTIONS.items():
        if not hasattr(library.lt, name):
            raise SystemExit(f"cuBLASLt {library.version} ({library.where}) has no {name}")
        getattr(library.lt, name).argtypes = arguments
    handle = c_void_p()
    library.lt.cublasLtCreate(byref(handle))
    return library, handle.value or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=(1024, 2048, 4096, 8192))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workspace", type=int, default=8192, help="MiB of workspace that the library may use")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library, handle = opened()
    print(f"cuBLASLt {library.version}, {library.where}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    limit = options.workspace * 2**20
    speeds, errors = [], []
    for size in options.sizes:
        operands = *drawn("normal", size, size, size), torch.empty(size, size, dtype=torch.float64, device="cuda")
        native, emulated = (Product(library, handle, size, size, size, kind) for kind in (False, True))
        native.choose(32 * 2**20)
        emulated.choose(limit)
        times = timed({"native": native, "emulated": emulated}, operands, options.rounds)
        row = {
            "size": size, "bits": int(emulated.bits), "workspace": emulated.workspace.numel(), **times,
            "ratio": times["native"] / times["emulated"],
        }  # fmt: skip
        speeds.append(row)
        print(
            f"{size:6} bits {row['bits']:3}  workspace {row['workspace'] / 2**20:8.1f} MiB  native "
            f"{1e6 * times['native']:9.1f} us  emulated {1e6 * times['emulated']:9.1f} us  ratio {row['ratio']:.2f}",
            flush=True,
        )
        del native, emulated, operands
    calls = {
        "native": Product(library, handle, M, N, K, False),
        "emulated": Product(library, handle, M, N, K, True),
        "8 bits more": Product(library, handle, M, N, K, True, 8),
    }
    for call in calls.values():
        call.choose(limit)
    print(f"{'data':18}" + "".join(f"{name:>20}" for name in calls))
    for family in (*FAMILIES, *EXTREME):
        a, b = drawn(family, M, N, K)
        sums = exact(a, b) if family in FAMILIES else None
        row = {"data": family}
        for name, call in calls.items():
            out = torch.full((M, N), float("nan"), dtype=torch.float64, device="cuda")
            call.bits.fill_(UNTOUCHED)
            call(a, b, out)
            share = share_of_bound(out, a, b, sums) if sums is not None else share_of_model(out, a, b)
            row |= {name: share, f"{name}: bits": int(call.bits)}
        errors.append(row)
        print(f"{family:18}" + "".join(f"{row[name]:14.4f} ({row[f'{name}: bits']:3})" for name in calls), flush=True)
    if options.json:
        results.save(options.json, cublas=library.version, speeds=speeds, errors=errors)


if __name__ == "__main__":
    main()
