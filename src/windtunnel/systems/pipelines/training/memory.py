"""Memory of the stages of a rank, measured storage by storage.

In: a part of a training. Out: bytes: the peak, what lay there before, the most of each category. Versions of weights
are weights, what a microbatch leaves for its backward pass are feature maps. Not here: what a plan
says (``pipelines``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windtunnel.sources.memory.profile import CATEGORIES
from windtunnel.sources.memory.watch import Watch
from windtunnel.systems.pipelines.training.runtime import StageRun

__all__ = ["measure_stage_memory"]


def measure_stage_memory(train: Callable[[], None], stages: Sequence[StageRun]) -> dict[str, int]:
    """Bytes of these stages while ``train`` runs: ``peak``, ``base``, and by category."""
    watch = Watch()
    optimizers = [stage.weights.optimizer for stage in stages if stage.weights.optimizer is not None]
    modules = [copy for stage in stages for copy in stage.weights.copies]
    watch.discovery.add(modules, optimizers)
    with watch.learning():
        assert watch.tracker is not None
        base_bytes = watch.tracker.live_bytes
        train()
        profile = watch.profile()
    most = profile.at_most()
    return {"peak": profile.peak_bytes, "base": base_bytes, **{name: most[name] for name in CATEGORIES}}
