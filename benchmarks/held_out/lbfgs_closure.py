"""L-BFGS, whose step calls back for the loss as often as its line search wants, on a fit of a field."""

import torch

torch.manual_seed(4)
points = torch.rand(2048, 2) * 2 - 1
field = torch.sin(3 * points[:, :1]) * torch.cos(2 * points[:, 1:])
net = torch.nn.Sequential(
    torch.nn.Linear(2, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
)
# steps of one evaluation each: two iterations that differ in how often they call back are two kinds of iteration
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=4, max_eval=4, history_size=10)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    noisy = points + 0.01 * torch.randn_like(points)
    loss = (net(noisy) - field).square().mean()
    loss.backward()
    return loss


for _ in range(100_000):
    optimizer.step(closure)
