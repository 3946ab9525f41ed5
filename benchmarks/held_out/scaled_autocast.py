"""Mixed precision as it is written by hand: autocast, a gradient scaler, unscaled clipping, Adamax."""

import torch
from torch import nn

torch.manual_seed(6)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0), 2)
head = nn.Linear(128, 32)
words = nn.Embedding(500, 128)
parameters = [*encoder.parameters(), *head.parameters(), *words.parameters()]
optimizer = torch.optim.Adamax(parameters, lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for _ in range(100_000):
    tokens = torch.randint(0, 500, (16, 32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head(encoder(words(tokens)))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), (tokens % 32).flatten())
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler.step(optimizer)
    scaler.update()
