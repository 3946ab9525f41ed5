"""An encoder and a decoder with an optimizer each: SGD with Nesterov's momentum, and Rprop's cousin ASGD."""

import torch
from torch import nn, optim


class Autoencoder(nn.Module):
    """Squeezes pictures through a narrow middle."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ELU(), nn.Linear(512, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ELU(), nn.Linear(512, 784), nn.Sigmoid())

    def forward(self, pictures):
        return self.decoder(self.encoder(pictures))


def train():
    torch.manual_seed(7)
    model, pictures = Autoencoder(), torch.rand(1024, 784)
    first = optim.SGD(model.encoder.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    second = optim.ASGD(model.decoder.parameters(), lr=0.05)
    for number in range(100_000):
        batch = pictures[(number * 128) % 1024 :][:128]
        loss = nn.functional.binary_cross_entropy(model(batch), batch)
        for one in (first, second):
            one.zero_grad()
        loss.backward()
        for one in (first, second):
            one.step()


train()
