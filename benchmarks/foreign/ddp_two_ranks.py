"""torch.distributed: DistributedDataParallel over gloo with a DistributedSampler, as ``torchrun`` starts it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer, rank):
        self.rank = rank
        self.train_data = train_data
        self.optimizer = optimizer
        self.model = DDP(model)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            if self.rank == 0:
                print(f"Epoch {epoch} | Steps: {len(self.train_data)}")
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                self._run_batch(source, targets)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=64, shuffle=False, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, int(os.environ["RANK"])).train(max_epochs=300)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
