"""The workloads of the suite: models of ten domains with data that can be run; one file per model.

In: sizes and a seed. Out: :class:`windtunnel.workloads.workload.Workload`. Not here: measuring them (``run``).

Internal modules: ``actors``, ``boxes``, ``catch``, ``classifier``, ``ctc``, ``decoder``, ``detector``, ``next_word``,
``nms``, ``nms_engine``, ``scenes``, ``speech``, ``translation``, ``unet``, ``wgan_networks``.
"""

from windtunnel import registry

registry.discover(__name__, skip=["boxes", "classifier", "detector", "nms", "scenes", "unet", "wgan_networks"])
