"""Sharpness-aware minimization by hand: two passes per update, the second at weights that are moved uphill for it."""

import torch
from torch import nn

torch.manual_seed(12)
model = nn.Sequential(nn.Linear(128, 512), nn.LeakyReLU(0.1), nn.Dropout(0.1), nn.Linear(512, 512), nn.LeakyReLU(0.1))
head = nn.Linear(512, 16)
weights = [*model.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=5e-4)
criterion = nn.MultiMarginLoss()
inputs, labels = torch.randn(4096, 128), torch.randint(0, 16, (4096,))


def loss_at(rows):
    return criterion(head(model(inputs[rows])), labels[rows])


for _ in range(100_000):
    rows = torch.randperm(4096)[:192]
    loss_at(rows).backward()
    with torch.no_grad():
        norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
        uphill = [weight.grad * (0.05 / (norm + 1e-12)) for weight in weights]
        for weight, move in zip(weights, uphill, strict=True):
            weight.add_(move)
    optimizer.zero_grad()
    loss_at(rows).backward()
    with torch.no_grad():
        for weight, move in zip(weights, uphill, strict=True):
            weight.sub_(move)
    optimizer.step()
    optimizer.zero_grad()
