"""Write two half-precision matrices for `make demo`: FOLDER/a.npy (768 x 1024) and FOLDER/b.npy (1024 x 640).

python -m benchmarks.run.make_demo FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng()
    np.save(folder / "a.npy", rng.standard_normal((768, 1024)).astype(np.float16))
    np.save(folder / "b.npy", rng.standard_normal((1024, 640)).astype(np.float16))


if __name__ == "__main__":
    main()
