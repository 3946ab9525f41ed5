"""A trainer class of its own: gradients accumulate over two batches, RAdam, warm restarts, progress on every step."""

import itertools
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    """Sums of sines, told apart by their pitch."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        pitch = index % 8
        time = torch.linspace(0, 1, 256)
        return torch.sin(2 * math.pi * (pitch + 1) * time).unsqueeze(0) + 0.1 * torch.randn(1, 256), pitch


class Trainer:
    """Holds all that training needs."""

    def __init__(self, model, data, *, accumulate=2):
        self.model, self.data, self.accumulate = model, data, accumulate
        self.optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, T_0=100)
        self.history = []

    def fit(self, epochs):
        for _ in range(epochs):
            for batches in (
                itertools.batched(self.data, self.accumulate) if hasattr(itertools, "batched") else self.pairs()
            ):
                self.history.append(self.update(batches))
                self.history = self.history[-100:]

    def pairs(self):
        waiting = []
        for batch in self.data:
            waiting.append(batch)
            if len(waiting) == self.accumulate:
                yield waiting
                waiting = []

    def update(self, batches):
        total = 0.0
        for waves, pitches in batches:
            loss = nn.functional.cross_entropy(self.model(waves), pitches) / self.accumulate
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return total


torch.manual_seed(9)
layers = [nn.Conv1d(1, 32, 9, 2, 4), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 9, 2, 4), nn.BatchNorm1d(64)]
net = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 8))
Trainer(net, DataLoader(Waves(), batch_size=32, shuffle=True, drop_last=True)).fit(epochs=10_000)
