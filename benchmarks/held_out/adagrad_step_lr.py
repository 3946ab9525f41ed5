"""Adagrad with a step schedule on a tabular regression, written as a plain loop over epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
features = torch.randn(8192, 96)
target = (features[:, :8].prod(dim=1, keepdim=True) + features[:, 8:12].sum(dim=1, keepdim=True)).tanh()
loader = DataLoader(TensorDataset(features, target), batch_size=256, shuffle=True)
net = nn.Sequential(nn.Linear(96, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1))
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)

for _epoch in range(10_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
