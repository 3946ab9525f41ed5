"""RMSprop on a recurrent network that reads sequences; gradients are clipped by value, the rate goes in one cycle."""

import torch


class Counter(torch.nn.Module):
    """Counts how often a sign changes."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.read = torch.nn.GRU(16, width, num_layers=2, batch_first=True)
        self.tell = torch.nn.Linear(width, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        _, last = self.read(series)
        return self.tell(last[-1])


def main(steps: int = 100_000) -> None:
    torch.manual_seed(2)
    model = Counter()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9, centered=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps + 1)
    for _ in range(steps):
        series = torch.randn(32, 24, 16)
        changes = (series[:, 1:, :1].sign() != series[:, :-1, :1].sign()).float().sum(dim=1)
        loss = (model(series) - changes).pow(2).mean()
        model.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        cycle.step()


if __name__ == "__main__":
    main()
