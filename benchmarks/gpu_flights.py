"""Every registered flight runs on a device, or says why it does not.

On a GPU where there is one, else on the host, which stands in for it: the same code chooses devices, optimizer states
and proofs. Each flight takes turns with the baseline of a small workload that has what the flight changes. A flight
that is refused with a reason is listed with it; a crash fails the bar, and so does an optimizer whose state does not
lie where the changed implementation keeps it.

    python -m benchmarks.gpu_flights
"""

import sys
from typing import Any

from benchmarks.bar import report
from windtunnel import registry
from windtunnel.errors import WindtunnelError
from windtunnel.flights import fly
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName

RULE = StopRule(rounds=3, min_rounds=3, precision=0.5, turn_ns=2_000_000, warmup=1, time_limit_s=20)
TIME_LIMIT_S = 150.0
MLP: tuple[str, dict[str, Any]] = ("mlp", {"batch_size": 8, "width": 32, "depth": 2})
CNN: tuple[str, dict[str, Any]] = ("cnn", {"batch_size": 4})
WORKLOADS = {
    "channels-last": CNN,
    "group-norm": CNN,
    "reconstructed-batchnorm": CNN,
    "loader-workers": CNN,
    "prefetch": CNN,
    "block-circulant": ("mlp", {"batch_size": 8, "width": 128, "depth": 2}),
    "structured-dropout": ("lstm", {"batch_size": 4}),
    "sparse-embedding-gradients": ("recommender", {"batch_size": 16}),
    "chunked-loss": ("transformer", {"batch_size": 2, "length": 16, "width": 32, "depth": 2, "vocabulary": 100}),
    "activation-checkpointing": ("transformer", {"batch_size": 2, "length": 16, "width": 32, "depth": 2}),
}
REQUESTS = {
    "batch-size": "batch-size:factor=2",
    "freeze-layers": "freeze-layers:layer=.*0",
    "data-parallel": "data-parallel:num_ranks=2",
    "powersgd": "data-parallel:num_ranks=2+powersgd",
    "fp16-gradients": "data-parallel:num_ranks=2+fp16-gradients",
    "gradient-buckets": "data-parallel:num_ranks=2+gradient-buckets",
}
MODES = ("compile:mode=reduce-overhead",)  # forms of flights that need more of a device


def outcome(name: str) -> str:
    """``flown``, why not, or ``crashed: ...``."""
    workload, parameters = WORKLOADS.get(name.partition(":")[0], MLP)
    try:
        fly(WorkloadName(workload, parameters), REQUESTS.get(name, name), rule=RULE, time_limit_s=TIME_LIMIT_S)
    except WindtunnelError as error:
        return f"{error.message}; {error.where}".rstrip("; ")
    except Exception as error:  # what a user would see as a crash
        return f"crashed: {type(error).__name__}: {error}"
    return "flown"


def main() -> None:
    import torch

    device = "cpu"
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
        device = torch.cuda.get_device_name()
    outcomes = {}
    for name in [*sorted(registry.all("flight")), *MODES]:
        outcomes[name] = outcome(name)
        print(name, outcomes[name], file=sys.stderr, flush=True)
    crashed = [name for name, text in outcomes.items() if text.startswith("crashed")]
    flown = [name for name, text in outcomes.items() if text == "flown"]
    report(
        "gpu_flights", len(crashed), "0 crash: every registered flight runs on a device or says why not", not crashed,
        device=device, num_flights=len(outcomes), num_flown=len(flown), crashed=crashed,
        not_flown={name: text for name, text in outcomes.items() if text != "flown"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
