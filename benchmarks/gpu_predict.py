"""Bare steps of GPUs beside what ``predict`` says of them from a capture on fake tensors, without a GPU.

Recorded: nine steps on an H100 and three on an H200 (workloads of the suite), and six scripts on an H200. Each is
built here on fake tensors, placed on the GPU with the shipped model of operators and the shipped times of a GPU's host,
and replayed. The shipped model learned from operators of six recorded steps, too: each of these is predicted by a model
that did not see it. What a host needs was fitted to ten steps (``benchmarks.gpu.host_costs``): each is predicted by
a fit to the others. The steps of the H100 ran with the GPU as torch's default device, as all steps of
``benchmarks.gpu`` did on that day, so that calls passed through a mode of torch and Adam's counters lay on the GPU.

    python -m benchmarks.gpu_predict --verbose
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks.bar import is_verbose, report, table
from benchmarks.gpu import jobs
from benchmarks.gpu.host_costs import WAITING, fit_costs
from benchmarks.gpu.stages import Job
from benchmarks.gpu.timings import read_all, shared_folder
from benchmarks.gpu.trace_timings import read_traces, traces
from benchmarks.gpu.train_operator_model import STEP_TRUST, examples_of, train
from windtunnel.cost.host_times import COSTS, HostCosts
from windtunnel.cost.operators.learned import LearnedPricer
from windtunnel.cost.operators.learned_model import read_shipped_model
from windtunnel.cost.pricer import Pricer
from windtunnel.cost.pricing import AUTO, Tiers, tiers_of
from windtunnel.graph import Graph
from windtunnel.hardware import device
from windtunnel.sources.torch.fake import fake_capture, fake_capture_script
from windtunnel.whatifs.forecast import forecast
from windtunnel.whatifs.placing import place_on

FOLDER = Path(__file__).parent / "gpu"
# graphed_net is one CUDA graph, and streams_net depends on values: neither is captured on fake tensors
SCRIPTS = ("decoder_lm", "residual_net", "perceptron", "attention_by_hand", "lora_accumulation", "compiled_lm")
SHARED = ("vit-paper", "resnet50-paper", "translation-transformer-paper")
MEDIAN, WORST, COVERED = 8.0, 20.0, (85.0, 95.0)


def recorded() -> list[tuple[str, str, float]]:
    """Chip, name and bare time of each step; a bare block's lower quartile."""
    rows = [("h100", name, float(row["bare_ns"])) for name, row in json.loads(_text("h100/steps.json")).items()]
    folder = find_shared("gpu_h200/steps/recorded")
    if folder is not None:
        rows += [("h200", name, json.loads((folder / f"{name}.json").read_text())["bare_ns"]) for name in SHARED]
    for name in SCRIPTS:
        blocks = json.loads(_text(f"h200/pairs/{name}.json"))["bare"]["blocks_ns"]
        rows.append(("h200", name, float(np.quantile(blocks, 0.25))))
    return rows


def _text(path: str) -> str:
    return (FOLDER / path).read_text(encoding="utf-8")


def capture_of(name: str) -> Callable[[], Graph]:
    if name in SCRIPTS:
        return lambda: fake_capture_script(FOLDER / "scripts" / f"{name}.py", guesses=True, has_device=True)
    job = Job("cuda", FOLDER, time.monotonic())
    return lambda: fake_capture(lambda: jobs.build(name, job), has_device=True)


class Models:
    """Cost models that did not see the step that they predict: the shipped one learned from operators of six steps."""

    def __init__(self) -> None:
        self.examples = examples_of(read_all(shared_folder()))
        self.known: dict[str, list[list[Pricer]]] = {}

    def tiers(self, name: str) -> Tiers:
        own = {"resnet50": "resnet50-paper"}.get(name, name)
        if own not in traces():
            return tiers_of(AUTO)
        if own not in self.known:
            steps = examples_of(read_traces([other for other in traces() if other != own]), STEP_TRUST)
            model = replace(train(self.examples.join(steps)), ends=read_shipped_model().ends)
            pricer = LearnedPricer(model)
            shipped = [[item for item in tier if item.name != pricer.name] for tier in tiers_of(AUTO)]
            self.known[own] = [shipped[0], [pricer, *shipped[1]], *shipped[2:]]
        return self.known[own]


def costs_without(name: str, steps: list[tuple[str, Graph, float]]) -> HostCosts:
    """What a host needs, by steps of other workloads than this one, of whatever size."""
    if name not in WAITING:
        return COSTS
    plain = name.removesuffix(jobs.PAPER)
    others = [(graph, bare_ns) for other, graph, bare_ns in steps if other.removesuffix(jobs.PAPER) != plain]
    return fit_costs(others)


def main() -> None:
    """Print the bar, and with --verbose its table."""
    captured: dict[str, Graph] = {}
    steps = []
    for chip, name, bare_ns in recorded():
        if name not in captured:
            captured[name] = capture_of(name)()
        steps.append((chip, name, captured[name].with_meta(has_default_device=chip == "h100"), bare_ns))
    waiting = [(name, graph, bare_ns) for _, name, graph, bare_ns in steps if name in WAITING]
    rows, models = [], Models()
    for chip, name, graph, bare_ns in steps:
        placed = place_on(graph, device(chip), host_costs=costs_without(name, waiting))
        found = forecast(placed, device(chip), model=models.tiers(name))
        rows.append(
            {
                "step": name,
                "chip": chip,
                "bare_ms": bare_ns / 1e6,
                "predicted_ms": found.makespan_ns / 1e6,
                "low_ms": found.low_ns / 1e6,
                "high_ms": found.high_ns / 1e6,
                "device_ms": found.device_ns / 1e6,
                "host_ms": found.host_ns / 1e6,
                "percent": 100 * (found.makespan_ns / bare_ns - 1),
            }
        )
    errors = [abs(row["percent"]) for row in rows]
    logs = np.log([row["bare_ms"] / row["predicted_ms"] for row in rows])
    # each step's interval comes from what the others were off by
    others = [np.delete(logs, index) for index in range(len(logs))]
    covered = 100 * float(np.mean([rest.min() <= log <= rest.max() for log, rest in zip(logs, others, strict=True)]))
    if is_verbose():
        print(table(rows))
    report(
        "gpu_predict",
        statistics.median(errors),
        "bare steps on an H100 and an H200: median <= 8 %, worst <= 20 %, 90 % intervals cover 85 to 95 %",
        statistics.median(errors) <= MEDIAN and max(errors) <= WORST and COVERED[0] <= covered <= COVERED[1],
        worst_percent=max(errors),
        covered_percent=covered,
        log_ends=[float(logs.min()), float(logs.max())],
        num_steps=len(rows),
        signed_median_percent=statistics.median(row["percent"] for row in rows),
        percent={f"{row['step']} on {row['chip']}": row["percent"] for row in rows},
    )


if __name__ == "__main__":
    main()
