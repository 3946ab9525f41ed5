"""The strategy that is found for a data-parallel job is really faster than the usual ones, by what was predicted.

Models over slow links: captured under DistributedDataParallel as it comes, searched, and the strategy flown in turns
with the job as it is; so are one message for all gradients, and one per layer. Then the search by itself: dPRO's scan
beside all plans on small chains, and how many replays of the whole graph it takes beside a search without the chain.

    python -m benchmarks.optimizer_flown --verbose
"""

import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import bar
from benchmarks.dpro_replay_error import JOB
from windtunnel.comm.links import averaging_rate, measure_link
from windtunnel.errors import FlightError, WindtunnelError
from windtunnel.flights import fly, verify
from windtunnel.graph import Graph
from windtunnel.measure import StopRule
from windtunnel.sources.torch.launch import Ranks
from windtunnel.sources.torch.ranks import capture_ranks
from windtunnel.systems.strategy import search
from windtunnel.systems.strategy.model import Chain, schedule
from windtunnel.systems.strategy.optimizer import chain_of, optimize
from windtunnel.systems.strategy.search import Plan, Worth, worth_of
from windtunnel.whatifs import whatif
from windtunnel.whatifs.buckets import averaging_of

# at these rates averaging takes about as long as computing
JOBS = {"mlp": 150e6, "vit": 10e6, "decoder-lm": 12e6, "convnext": 5e6}
RULE = StopRule(rounds=12, precision=0.01, time_limit_s=25.0, turn_ns=400_000_000, warmup=2)
SPEEDUP, NUM_FASTER, ERROR, NOISE = 1.2, 2, 0.08, 0.03
CHAINS, LOSS, FEWER = 300, 0.01, 10
ONE_MESSAGE, PER_LAYER = "gradient-buckets:caps_bytes=1GiB", "gradient-buckets:caps_bytes=1"


def flown(graph: Graph, request: str) -> float:
    """Measured speed-up over the job as it is; 1 where it changes nothing."""
    try:
        return float(fly(graph, request, rule=RULE).speedup.value)
    except FlightError as error:
        if "changed nothing" in error.message:
            return 1.0
        raise


def row(model: str, rate: float, ledger: Path) -> dict[str, object]:
    """Capture, search, fly."""
    graph = capture_ranks(JOB, (model,), ranks=Ranks(2, rate), iterations=16, warmup=3)
    latency_ns, sent_bytes_per_s = averaging_rate(measure_link(2, rate).fit, 2)
    found = optimize(graph, latency_ns=latency_ns, bandwidth_bytes_per_s=sent_bytes_per_s)
    answer = {"job": f"{model}, {rate / 1e6:.0f} MB/s", "strategy": found.request, "predicted": found.speedup}
    if not found.request:
        return {**answer, "measured": 1.0, "error": 0.0, "one": flown(graph, ONE_MESSAGE), "per_layer": 1.0}
    receipt = verify(graph, found.request, graph=graph, rule=RULE, ledger=ledger)
    return {
        **answer,
        "measured": receipt.measured,
        "error": receipt.error_ratio,
        "one": flown(graph, ONE_MESSAGE),
        "per_layer": flown(graph, PER_LAYER),
        "replays": found.num_replays,
    }


def scan_beside_all() -> dict[str, float]:
    """Over chains of up to eight operators: how far dPRO's scan, and the exact programme, are from the best plan."""
    rng = np.random.default_rng(0)
    losses: dict[str, list[float]] = {"scan": [], "exact": []}
    for _ in range(CHAINS):
        count = int(rng.integers(2, 7))
        compute, size = rng.integers(1, 1000, count), rng.integers(1, 1000, count)
        latency, per_byte, saving = rng.integers(0, 2000), rng.uniform(0.1, 4), rng.integers(0, 300)

        def fused(first: int, last: int, compute: np.ndarray = compute, saving: int = int(saving)) -> float:
            return max(1.0, float(compute[first : last + 1].sum()) - saving * (last - first))

        def sync(size: float, parts: int, latency: float = float(latency), per_byte: float = per_byte) -> float:
            return latency * parts + per_byte * size

        chain = Chain(compute, size, sync, fused)
        groups = itertools.product(search._all_groups(chain.num_operators), repeat=2)
        worth = worth_of(chain, budget=4**chain.num_operators)
        best = _value(chain, min((Plan(*one) for one in groups), key=worth))
        for name in losses:
            losses[name].append(_value(chain, search.SEARCHES[name](chain, worth_of(chain))) / best - 1)
    told = {f"{name}_worst_loss": max(found) for name, found in losses.items()}
    return told | {"scan_best_share": float(np.mean(np.array(losses["scan"]) < 1e-9))}


def _value(chain: Chain, plan: Plan) -> float:
    return schedule(chain, plan.operators, plan.gradients).makespan_ns


def replays_saved(graph: Graph) -> tuple[float, float]:
    """Replays of the whole graph that a search without the chain takes over ours, and what ours loses to it."""
    averaging = averaging_of(graph)
    chain, sizes = chain_of(graph, averaging), averaging.size_bytes

    def replayed(plan: Plan) -> float:
        ends = [*plan.gradients[1:], len(sizes)]
        caps = [int(sizes[first:last].sum()) for first, last in zip(plan.gradients, ends, strict=True)]
        request = f"gradient-buckets:caps_bytes={'/'.join(map(str, caps))}"
        return float(whatif(graph, [request], prices="paper")[0].predicted_ns)

    plain = Worth(replayed, budget=3000)
    slow = plain(search.beam(chain, plain))
    plans = {find(chain, worth_of(chain)) for find in search.SEARCHES.values()}
    ours = min(replayed(plan) for plan in plans)
    return plain.num_asked / len(plans), ours / slow - 1


def main() -> None:
    """Print the bar, and with --verbose each row as it comes."""
    rows, failed = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for model, rate in JOBS.items():
            try:
                rows.append(row(model, rate, Path(folder) / "receipts.db"))
            except WindtunnelError as error:
                failed[model] = str(error)
                continue
            if bar.is_verbose():
                print(json.dumps(rows[-1], default=float), file=sys.stderr, flush=True)
    chains = scan_beside_all()
    ratio, loss = replays_saved(capture_ranks(JOB, ("vit",), ranks=Ranks(2), iterations=6))
    speedups = [float(str(one["measured"])) for one in rows]
    worse = {
        str(one["job"]): one
        for one in rows
        if float(str(one["measured"])) < (1 - NOISE) * max(1.0, float(str(one["one"])), float(str(one["per_layer"])))
    }
    errors = [abs(float(str(one["error"]))) for one in rows]
    num_faster = sum(speedup >= SPEEDUP for speedup in speedups)
    holds = num_faster >= NUM_FASTER and not worse and max(errors) <= ERROR and not failed
    holds = holds and ratio >= FEWER and loss <= LOSS and chains["exact_worst_loss"] < 1e-9
    bar.report(
        "optimizer_flown",
        statistics.median(speedups),
        f"never worse than default, one message, per layer; >= {SPEEDUP}x in >= {NUM_FASTER}; within {ERROR:.0%}; "
        f">= {FEWER}x fewer replays at <= {LOSS:.0%} loss; the best plan on small chains",
        holds,
        speedups={str(one["job"]): one["measured"] for one in rows},
        predicted={str(one["job"]): one["predicted"] for one in rows},
        one_message={str(one["job"]): one["one"] for one in rows},
        per_layer={str(one["job"]): one["per_layer"] for one in rows},
        strategies={str(one["job"]): one["strategy"] for one in rows},
        worse=sorted(worse),
        worst_error=max(errors),
        replays_ratio=ratio,
        replays_loss=loss,
        failed=failed,
        **chains,
    )


if __name__ == "__main__":
    main()
