"""Small models with synthetic data that can really be run (room workloads).

In: sizes and a seed. Out: ``Workload``: models, optimizers and a function that does one training iteration. Not
here: measuring. Importing this room registers its workloads and needs no torch.
"""

from windtunnel.workloads import (
    a3c,
    bert,
    cnn,
    convnext,
    decoder_lm,
    deep_speech_2,
    diffusion_unet,
    dlrm,
    faster_rcnn,
    gan,
    graph_network,
    inception_v3,
    lstm,
    mlp,
    moe_lm,
    ncf,
    recommender,
    resnet50,
    seq2seq,
    transformer,
    translation_transformer,
    vit,
    wgan_gp,
)
from windtunnel.workloads.workload import Workload

__all__ = [
    "Workload",
    "a3c",
    "bert",
    "cnn",
    "convnext",
    "decoder_lm",
    "deep_speech_2",
    "diffusion_unet",
    "dlrm",
    "faster_rcnn",
    "gan",
    "graph_network",
    "inception_v3",
    "lstm",
    "mlp",
    "moe_lm",
    "ncf",
    "recommender",
    "resnet50",
    "seq2seq",
    "transformer",
    "translation_transformer",
    "vit",
    "wgan_gp",
]
