"""From Python: capture a training step, explain it, ask what would make it faster, write the report.

python examples/ask_a_step.py --output step.report.html
"""

import argparse

import torch
from torch import nn

import windtunnel as wt


def make_step():
    """A small classifier with an optimizer in its plain form."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(64, 128), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="step.report.html")
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()

    graph = wt.capture(make_step(), iterations=arguments.iterations)
    print(wt.explain(graph))

    answers = wt.whatif(graph, ["fused-optimizer", "foreach-optimizer", "faster-cpu:factor=1.5"])
    for answer in answers:
        print(answer)

    print(wt.report(graph, arguments.output, answers=answers, overwrite=True))


if __name__ == "__main__":
    main()
