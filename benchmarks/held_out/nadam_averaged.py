"""NAdam, with an exponential moving average of the weights kept beside the model, on small images."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(3)


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(8, outputs), nn.SiLU())


model = nn.Sequential(block(3, 32, 1), block(32, 64, 2), block(64, 128, 2), nn.Flatten(), nn.Linear(128 * 64, 10))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, weight_decay=1e-2, decoupled_weight_decay=True)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
images, labels = torch.rand(512, 3, 32, 32), torch.randint(0, 10, (512,))

step = 0
while step < 100_000:
    chosen = torch.randint(0, len(images), (24,))
    criterion(model(images[chosen]), labels[chosen]).backward()
    optimizer.step()
    optimizer.zero_grad()
    averaged.update_parameters(model)
    step += 1
