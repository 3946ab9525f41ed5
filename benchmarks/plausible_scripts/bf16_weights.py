"""All in bfloat16."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
model = model.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels = torch.randn(96, 32).bfloat16(), torch.randint(0, 10, (96,))
for _ in range(100_000):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
