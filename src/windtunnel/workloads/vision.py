"""Image classifiers of many families, with random weights.

In: a name. Out: a module in ``eval`` mode for images [batch, 3, size, size]. The CNN families come from pytorchcv, the
others from the configurations of transformers; nothing is downloaded. Nets whose last pooling is as wide as an image
of 224 pixels leaves it get a global one, so that they take small images too. Not here: training, measuring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.registry import did_you_mean

if TYPE_CHECKING:
    import torch

__all__ = ["CONFIGURED", "CONVOLUTIONAL", "vision_model", "vision_names"]

CONVOLUTIONAL = (
    "resnet10",
    "resnet18",
    "resnet50",
    "preresnet18",
    "resnext50_32x4d",
    "seresnet18",
    "wrn50_2",
    "resnesta18",
    "cbam_resnet18",
    "diracnet18v2",
    "mobilenet_w1",
    "mobilenet_wd2",
    "fdmobilenet_w1",
    "mobilenetv2_w1",
    "mobilenetv3_large_w1",
    "mobilenetv3_small_w1",
    "shufflenet_g1_w1",
    "shufflenetv2_w1",
    "menet108_8x1_g3",
    "igcv3_w1",
    "mnasnet_b1",
    "efficientnet_b0",
    "spnasnet",
    "fbnet_cb",
    "proxylessnas_cpu",
    "ghostnet",
    "mixnet_s",
    "densenet121",
    "condensenet74_c4_g4",
    "peleenet",
    "dla34",
    "dla46c",
    "hrnet_w18_small_v1",
    "vovnet39",
    "selecsls42",
    "hardnet39ds",
    "darknet53",
    "inceptionv3",
    "bninception",
    "bagnet9",
    "nasnet_4a1056",
    "espnetv2_wd2",
)
"""Names of pytorchcv."""

_NARROW = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
CONFIGURED: dict[str, dict[str, Any]] = {
    "vit": _NARROW,
    "beit": _NARROW,
    "dinov2": {"hidden_size": 192, "num_attention_heads": 3},
    "swinv2": {},
    "convnext": {},
    "convnextv2": {},
    "poolformer": {},
    "regnet": {},
    "mobilenet_v1": {},
    "cvt": {},
    "pvt": {},
    "pvt_v2": {},
    "focalnet": {},
    "segformer": {},
    "hgnet_v2": {},
    "textnet": {},
}
"""Model types of transformers, and what differs from their own defaults."""


def vision_names() -> list[str]:
    """Every name that :func:`vision_model` knows."""
    return [*CONVOLUTIONAL, *CONFIGURED]


def vision_model(name: str, *, size: int = 96, seed: int = 0) -> torch.nn.Module:
    """Build a classifier.

    Parameters
    ----------
    name : str
        One of :func:`vision_names`.
    size : int
        Pixels of a side of its images.
    seed : int
        Of the weights.

    Raises
    ------
    InputError
        No such model is known; names the nearest.
    MissingExtraError
        The extra ``suite`` is not installed.
    """
    if name not in vision_names():
        raise InputError(f"no vision model is called {name!r}", where="model", fix=did_you_mean(name, vision_names()))
    require("torch", extra="torch")
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = _model_from_config(name, size) if name in CONFIGURED else _convolutional(name)
    return model.eval()


def _convolutional(name: str) -> torch.nn.Module:
    from torch import nn

    provider = require("pytorchcv.model_provider", extra="suite")
    model: nn.Module = provider.get_model(name)
    if hasattr(model.features, "final_pool"):
        model.features.final_pool = nn.AdaptiveAvgPool2d(1)
    return model


def _model_from_config(name: str, size: int) -> torch.nn.Module:
    transformers = require("transformers", extra="suite")
    config = transformers.AutoConfig.for_model(name, **CONFIGURED[name])
    if hasattr(config, "image_size"):
        config.image_size = size
    model: torch.nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    return model
