"""Batches from a loader on the training thread."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Numbers that take some work."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        row = torch.arange(32, dtype=torch.float32) + index
        for _ in range(5):
            row = row.sin()
        return row, index % 10


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, labels in DataLoader(Rows(), batch_size=20, num_workers=0):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
