"""Only the last layer learns."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model[:4].requires_grad_(False)
optimizer = torch.optim.Adam(model[4].parameters(), lr=1e-3)
inputs, labels = torch.randn(48, 32), torch.randint(0, 10, (48,))
for _ in range(100_000):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
