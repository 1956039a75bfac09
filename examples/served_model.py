"""Serve a model with tuned records: python examples/served_model.py

Tuning measures every backend once for the products that are served, and keeps the results; a server that finds them
decides by them at its first call. The server here answers requests from threads on this machine.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

os.environ.setdefault("GEMMHUB_RECORDS", os.path.join(tempfile.mkdtemp(), "records.jsonl"))

import gemmhub

rng = np.random.default_rng(0)
weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((256, 512), (512, 64))]


def answer(request):
    """Two layers of a network."""
    hidden = gemmhub.matmul(request, weights[0], activation="relu")
    return gemmhub.matmul(hidden, weights[1])


def tune(rows):
    """Once, where the model is deployed: every product of an answer."""
    print(gemmhub.tune(answer, np.ones((rows, 256), np.float32)))


tune(16)
with ThreadPoolExecutor(4) as pool:
    requests = [rng.standard_normal((16, 256)).astype(np.float32) for _ in range(64)]
    answers = list(pool.map(answer, requests))

print(gemmhub.explain(requests[0], weights[0], activation="relu"))
hidden = np.maximum(requests[7] @ weights[0], 0)
print("answers are right:", np.allclose(answers[7], hidden @ weights[1], rtol=1e-4, atol=1e-3))
