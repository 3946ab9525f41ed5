"""A mixer that is compiled as a whole, with AdamW in its multi-tensor form."""

import torch
from torch import nn


class Mixer(nn.Module):
    """Mixes places and channels in turn."""

    def __init__(self, places: int = 64, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.inside = nn.Linear(48, width)
        self.over_places = nn.ModuleList(nn.Linear(places, places) for _ in range(depth))
        self.over_channels = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.classes = nn.Linear(width, 10)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        hidden = self.inside(patches)
        for places, channels, norm in zip(self.over_places, self.over_channels, self.norms, strict=True):
            hidden = hidden + places(norm(hidden).transpose(1, 2)).transpose(1, 2).relu()
            hidden = hidden + torch.nn.functional.gelu(channels(hidden))
        return self.classes(hidden.mean(dim=1))


torch.manual_seed(5)
model = Mixer()
fast = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
patches, labels = torch.rand(32, 64, 48), torch.randint(0, 10, (32,))
for _ in range(100_000):
    loss = nn.functional.cross_entropy(fast(patches), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
