"""Small models with synthetic data that can really be run (room workloads).

In: sizes and a seed. Out: ``Workload``: models, optimisers and a function that does one training iteration. Not
here: measuring. Importing this room registers its workloads and needs no torch.
"""

from windtunnel.workloads import (
    cnn,
    convnext,
    diffusion_unet,
    faster_rcnn,
    gan,
    inception_v3,
    lstm,
    mlp,
    recommender,
    resnet50,
    transformer,
    vit,
    wgan_gp,
)
from windtunnel.workloads.workload import Workload

__all__ = [
    "Workload",
    "cnn",
    "convnext",
    "diffusion_unet",
    "faster_rcnn",
    "gan",
    "inception_v3",
    "lstm",
    "mlp",
    "recommender",
    "resnet50",
    "transformer",
    "vit",
    "wgan_gp",
]
