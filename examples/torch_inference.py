"""Run a model whose linear layers are gemmhub's: python examples/torch_inference.py"""

import torch

import gemmhub
import gemmhub.torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(1024, 64))
model = model.to(device, torch.bfloat16).eval()
x = torch.randn(32, 256, device=device, dtype=torch.bfloat16)

with torch.no_grad():
    expected = model(x)
    print(gemmhub.torch.accelerate(model))
    result = model(x)
print("largest difference from torch:", float((result - expected).abs().max()))

with torch.no_grad():
    weight = model[0].weight.t()
    print(gemmhub.explain(x, weight, bias=model[0].bias))
    print(gemmhub.spot_check(x, weight, gemmhub.matmul(x, weight)))
