"""Convolutions, four passes per update."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
inputs, labels = torch.randn(5, 3, 24, 24), torch.randint(0, 10, (5,))
for _ in range(100_000):
    optimizer.zero_grad()
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(inputs), labels) / 4
        loss.backward()
    optimizer.step()
