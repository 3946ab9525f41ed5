"""A decoder on slices at random places of one long text, as small language models are trained."""

import torch
from torch import nn

torch.manual_seed(0)
text = torch.randint(0, 64, (10_000,))
embed, head = nn.Embedding(64, 32), nn.Linear(32, 64)
block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
parameters = [*embed.parameters(), *block.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
for _ in range(100_000):
    starts = torch.randint(len(text) - 17, (12,))
    inputs = torch.stack([text[i : i + 16] for i in starts])
    labels = torch.stack([text[i + 1 : i + 17] for i in starts])
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(head(block(embed(inputs))).flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()
