"""Low-rank adapters on a frozen stack that is checkpointed, four passes per update."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    """A frozen layer and a low-rank change of it."""

    def __init__(self, width, rank=4):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        """Both together."""
        return x + torch.tanh(self.base(x) + self.up(self.down(x)))


class Net(nn.Module):
    """Four adapted layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Adapted(64) for _ in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        """Each computed again in the backward pass."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
inputs, labels = torch.randn(40, 64), torch.randint(0, 10, (40,))
for _ in range(100_000):
    optimizer.zero_grad()
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(inputs), labels) / 4
        loss.backward()
    optimizer.step()
