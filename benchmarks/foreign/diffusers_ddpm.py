"""Diffusers: a small UNet learns the noise that was added to drawn pictures; clipped gradients, warm-up of the rate."""

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.utils.data import DataLoader, TensorDataset


def squares(count, size):
    pictures = -torch.ones(count, 3, size, size)
    for picture in pictures:
        top, left = torch.randint(0, size // 2, (2,)).tolist()
        picture[:, top : top + size // 3, left : left + size // 3] = torch.rand(3, 1, 1)
    return pictures


torch.manual_seed(0)
dataset = TensorDataset(squares(1024, 16))
train_dataloader = DataLoader(dataset, batch_size=16, shuffle=True)
model = UNet2DModel(
    sample_size=16,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(32, 64, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
num_epochs = 100
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, 500, len(train_dataloader) * num_epochs)
for _ in range(num_epochs):
    for (clean_images,) in train_dataloader:
        noise = torch.randn(clean_images.shape)
        timesteps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (clean_images.shape[0],))
        noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
        noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
        loss = F.mse_loss(noise_pred, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
