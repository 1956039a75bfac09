"""Train a small network by gemmhub's products, gradients included: python examples/torch_training.py"""

import torch

import gemmhub.torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(
    gemmhub.torch.Linear(2, 64, activation="gelu"),
    gemmhub.torch.Linear(64, 64, activation="gelu"),
    gemmhub.torch.Linear(64, 1),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
points = torch.rand(512, 2, device=device) * 2 - 1
wanted = (points.norm(dim=1, keepdim=True) < 0.7).float()

for step in range(201):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3}: loss {loss.item():.4f}")

with torch.no_grad():
    right = ((model(points) > 0) == (wanted > 0)).float().mean()
print(f"{right:.0%} of the points are classified right")
assert right > 0.95
