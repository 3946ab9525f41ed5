"""Each parameter is updated as soon as its gradient is there."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
inputs, labels = torch.randn(48, 32), torch.randint(0, 10, (48,))
updaters = {parameter: torch.optim.SGD([parameter], lr=0.01, foreach=False) for parameter in model.parameters()}


def update(parameter):
    """Step and let the gradient go."""
    updaters[parameter].step()
    updaters[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for _ in range(100_000):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
