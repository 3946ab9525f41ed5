"""Small models with synthetic data that can really be run.

In: sizes and a seed. Out: ``Workload``: models, optimizers and a function that does one training iteration. Not
here: measuring. One file per model, found by its registration alone; importing this room needs no torch.

Internal modules: ``actors``, ``boxes``, ``catch``, ``classifier``, ``ctc``, ``decoder``, ``detector``, ``images``,
``next_word``, ``nms``, ``nms_engine``, ``scenes``, ``speech``, ``translation``, ``unet``, ``wgan_networks``.
"""

from windtunnel import registry
from windtunnel.workloads.workload import Workload

__all__ = ["Workload"]

registry.discover(
    __name__, skip=["boxes", "classifier", "detector", "images", "nms", "scenes", "unet", "wgan_networks"]
)
