"""RMSprop with momentum."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001, momentum=0.9)
inputs, labels = torch.randn(56, 32), torch.randint(0, 10, (56,))
for _ in range(100_000):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
