"""Write two half-precision matrices for `make demo`: FOLDER/a.npy (768 x 1024) and FOLDER/b.npy (1024 x 640)."""

import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng()
np.save(folder / "a.npy", rng.standard_normal((768, 1024)).astype(np.float16))
np.save(folder / "b.npy", rng.standard_normal((1024, 640)).astype(np.float16))
