"""A variational autoencoder: many small operators."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(64, 32), nn.Linear(16, 64)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
images = torch.rand(36, 64)
for _ in range(100_000):
    optimizer.zero_grad()
    mean, log_variance = encoder(images).chunk(2, dim=1)
    latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
    restored = torch.sigmoid(decoder(latent))
    fit = nn.functional.binary_cross_entropy(restored, images, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    (fit + divergence).backward()
    optimizer.step()
