"""Gradients by ``torch.func``: a stateless call, per-sample weights, and Adadelta that is handed its gradients."""

import torch
from torch.func import functional_call, grad_and_value

torch.manual_seed(8)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)
)
named = dict(model.named_parameters())
optimizer = torch.optim.Adadelta(named.values(), lr=1.0)
inputs, labels = torch.randn(4096, 64), torch.randint(0, 10, (4096,))


def loss_of(weights, batch, wanted):
    scores = functional_call(model, weights, (batch,))
    return torch.nn.functional.cross_entropy(scores, wanted)


gradients_of = grad_and_value(loss_of)
for step in range(100_000):
    rows = torch.arange(128) + (step * 128) % 3968
    weights = {name: one.detach() for name, one in named.items()}
    gradients, loss = gradients_of(weights, inputs[rows], labels[rows])
    for name, gradient in gradients.items():
        named[name].grad = gradient
    optimizer.step()
