"""An unmodified DDP script trains faster by CoCoNet's schedule, by what was predicted, with the same losses.

Two ranks on two cores, AdamW, 500 Mbit/s that the kernel shapes. The job is the suite's ViT-S, two images per rank.
Job and rate were chosen by an estimate: with a forward pass f, backward 2f, optimizer o and h for each half of the
transfers, DDP's default buckets (1 MiB, then 25 MiB) leave nearly all of its 22 MB to send behind the backward pass,
3f + 2h + o, and slices in small buckets take max(2f, h) + max(f, h) + o/2. The ratio is largest for h = 2f, 7/4 without
o; h is 185 ms at this rate, and two images take 78 ms. Where h is longer than computing, the processor time that
messages take from ranks without cores to spare is hidden as well: it cost a fifth at 1 Gbit/s. Most of the gain comes
from small buckets, without which halves cannot overlap; what DDP gains by them alone is predicted, too
(``buckets_alone``). On the suite's mlp over 300 MB/s, where messages and computing compete for the cores, it is 1.19x.

The job is captured as it is; the bucket size is chosen by the prediction; then the script runs in turns as it is and
with the schedule. Nothing of those runs enters the prediction. Losses are compared in processes of their own.

    python -m benchmarks.coconet_user --verbose
"""

import json
import math
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import bar
from benchmarks.dpro_replay_error import JOB
from windtunnel.flights import verify
from windtunnel.flights.paused_processes import LaneConfig, ProcessLane
from windtunnel.graph import Graph
from windtunnel.measure import StopRule
from windtunnel.sources.torch.launch import Ranks
from windtunnel.sources.torch.ranks import capture_ranks
from windtunnel.whatifs import parse_request, whatif

ARGUMENTS, RANKS = ("vit", "--size=small", "--batch=2", "--adamw"), Ranks(2, 62.5e6)
CAPS = ("1MiB", "2MiB", "4MiB")
SLICED = "sliced-optimizer"
RULE = StopRule(rounds=9, precision=0.01, time_limit_s=40.0, turn_ns=1_000_000_000, warmup=2)
SPEEDUP, ERROR, LOSS, NUM_STEPS = 1.3, 0.08, 1e-6, 50


def predict(graph: Graph, *, is_sliced: bool = True) -> dict[str, float]:
    """Predicted speed-ups with buckets of several sizes, with the schedule or without, the best first."""
    buckets = [f"gradient-buckets:caps_bytes={cap}" for cap in CAPS]
    requests = [SLICED, *(f"{item}+{SLICED}" for item in buckets)] if is_sliced else buckets
    return {str(answer.request): float(answer.speedup) for answer in whatif(graph, requests) if answer.is_applicable}


def compare_losses(request: str) -> dict[str, object]:
    """The largest relative difference of losses over the steps, and what each form keeps."""
    steps = tuple((step.name, dict(step.parameters)) for step in parse_request(request).steps)
    configs = [LaneConfig(script=JOB, argv=ARGUMENTS, ranks=RANKS, steps=given) for given in ((), steps)]
    with ExitStack() as stack:
        lanes = [stack.enter_context(ProcessLane(config, title="losses")) for config in configs]
        for lane in lanes:
            lane.wait_until_ready()
        turns = [[lane.turn(1) for _ in range(NUM_STEPS // 2)] for lane in lanes]  # and one step to settle each
    plain, sliced = ([turn.losses[-1] for turn in item if turn is not None] for item in turns)
    first = [item[0] for item in turns]
    assert len(plain) == len(sliced) == NUM_STEPS // 2
    assert first[0] is not None
    assert first[1] is not None
    return {
        "loss_difference": max(abs(one / other - 1) for one, other in zip(sliced, plain, strict=True)),
        "last_loss": plain[-1],
        "state_bytes": [turn.seen["optimizer state bytes"] for turn in first if turn is not None],
        "reduce_scatters": first[1].seen["reduce-scatters"],
    }


def main() -> None:
    """Print the bar, and with --verbose each part as it comes."""
    graph = capture_ranks(JOB, ARGUMENTS, ranks=RANKS, iterations=12, warmup=3)
    plans = predict(graph)
    request = next(iter(plans))
    if bar.is_verbose():
        print(json.dumps(plans), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        receipt = verify(graph, request, graph=graph, rule=RULE, ledger=Path(folder) / "receipts.db")
    losses = compare_losses(request)
    error = plans[request] / receipt.measured - 1
    difference = float(str(losses["loss_difference"]))
    bar.report(
        "coconet_user",
        receipt.measured,
        f">= {SPEEDUP}x over DDP as it is; predicted within {ERROR:.0%}; losses of {NUM_STEPS} steps equal to {LOSS:g}",
        receipt.measured >= SPEEDUP and abs(error) <= ERROR and difference <= LOSS and not math.isnan(difference),
        plan=request,
        predicted=plans[request],
        error=error,
        interval=[receipt.speedup.low, receipt.speedup.high],
        baseline_ms=receipt.baseline.value / 1e6,
        changed_ms=receipt.changed.value / 1e6,
        predicted_ms=receipt.predicted_ns / 1e6,
        predicted_baseline_ms=receipt.predicted_baseline_ns / 1e6,
        plans=plans,
        buckets_alone=predict(graph, is_sliced=False),
        **losses,
    )


if __name__ == "__main__":
    main()
