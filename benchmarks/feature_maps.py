"""Feature maps are most of what training an image classifier holds: ResNet-50, batches of 32.

Published (TBD, IISWC 2018): 62 to 89 % of the footprint, where every category counts with the most that it ever takes,
as the frameworks of then kept each for good. That share is the bar; the share at the instant of the peak stands beside
it. The step is predicted with fake tensors, and really run where the host has twice the predicted memory.
"""

import torch

from benchmarks import bar
from windtunnel import registry
from windtunnel.hardware.host import available_bytes
from windtunnel.sources.memory.tracking import MemoryProfile, predict_memory, track_memory

LEAST, MOST = 0.60, 0.90


def build() -> object:
    """ResNet-50 on images of 224 x 224 pixels."""
    return registry.get("workload", "resnet50").function(size="paper", batch_size=32)


def shares(profile: MemoryProfile) -> dict[str, float]:
    """Of the feature maps: in the footprint by category, and at the peak."""
    most = profile.at_most()
    return {
        "footprint": most["feature map"] / sum(most.values()),
        "at_peak": profile.by_category()["feature map"] / profile.peak_bytes,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    predicted = predict_memory(build)
    rows = [{"how": "fake", "peak": predicted.peak_bytes, **shares(predicted), **predicted.at_most()}]
    if available_bytes() > 2 * predicted.peak_bytes:
        torch.manual_seed(0)
        built = build()
        real = track_memory(built.step, model=built.models, optimizer=built.optimizers, warmup=1)
        rows.append({"how": "real", "peak": real.peak_bytes, **shares(real), **real.at_most()})
        built.close()
    if bar.is_verbose():
        print(bar.table(rows))
    share = float(rows[-1]["footprint"])
    bar.report(
        "feature_maps",
        share,
        f"{LEAST:.0%} to {MOST:.0%} of the footprint",
        all(LEAST <= float(row["footprint"]) <= MOST for row in rows),
        share_at_peak=rows[-1]["at_peak"],
        is_really_run=len(rows) > 1,
        peak_bytes=rows[-1]["peak"],
        predicted_peak_bytes=predicted.peak_bytes,
        peak_reserved_bytes=predicted.peak_reserved_bytes,
        at_most={key: rows[-1][key] for key in predicted.at_most()},
    )


if __name__ == "__main__":
    main()
