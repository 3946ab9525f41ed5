"""Four passes per update."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(48, 32), torch.randint(0, 10, (48,))
for _ in range(100_000):
    optimizer.zero_grad()
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(inputs), labels) / 4
        loss.backward()
    optimizer.step()
