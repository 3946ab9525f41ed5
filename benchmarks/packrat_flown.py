"""Splits of two threads that really answer, beside their predictions: ResNet-50, BERT-base and GPT-2-small.

For each model one instance is profiled alone. What a busy neighbor costs is taken from splits flown with the smallest
batch; with that the larger batches are predicted, then flown: one instance with both threads, two with one each, in
turns. Models have random weights; sequences are those of the paper (15 and 9 tokens). ``--rounds N``, ``--models``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import bar
from windtunnel.systems.serving.model import fit_slowdown
from windtunnel.systems.serving.profile import Profile
from windtunnel.systems.serving.run import fly_splits, measure_cells
from windtunnel.systems.serving.search import equal_split

JOBS = {
    "resnet50": ("resnet50:size=paper", (2, 4, 8, 16)),
    "bert": (f"{Path(__file__).resolve()}:bert", (4, 8, 16, 32, 64)),
    "gpt2": (f"{Path(__file__).resolve()}:gpt2", (4, 8, 16, 32, 64)),
}


def bert() -> object:
    """BERT-base over 15 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    from windtunnel.systems.serving.job import Served

    torch.manual_seed(0)
    config = BertConfig()
    return Served(BertModel(config), lambda batch: (torch.randint(0, config.vocab_size, (batch, 15)),))


def gpt2() -> object:
    """GPT-2-small over 9 tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from windtunnel.systems.serving.job import Served

    torch.manual_seed(0)
    config = GPT2Config(use_cache=False)
    return Served(GPT2LMHeadModel(config), lambda batch: (torch.randint(0, config.vocab_size, (batch, 9)),))


def fly(name: str, rounds: int, budget_s: float) -> list[dict[str, object]]:
    job, batches = JOBS[name]
    cells = [(1, batch) for batch in batches] + [(2, batch) for batch in batches]
    alone = measure_cells(job, cells, rounds=rounds, budget_s=budget_s)
    first, *later = batches[1:]

    def splits(profile: Profile, batch: int) -> list:
        return [one for count in (1, 2) if (one := equal_split(profile, 2, count, batch)) is not None]

    seen = fly_splits(job, splits(alone, first), rounds=rounds, budget_s=budget_s)
    slowdown = fit_slowdown(alone, [row for one in seen for row in one.cells_ns])
    beside = slowdown.of(alone)
    rows = []
    for batch in later:
        flown = fly_splits(job, splits(beside, batch), rounds=rounds, budget_s=budget_s)
        predicted, measured = (
            min(flown, key=lambda one: one.split.latency_ns).split,
            min(flown, key=lambda one: one.latency.value),
        )
        for one in flown:
            took_alone = max(alone.cells[cell] for cell in one.split.cells)
            factor = slowdown.factor_at(one.split.instances[0].threads)
            rows.append({
                "model": name, "batch": batch, "split": str(one.split), "predicted_ms": one.split.latency_ns / 1e6,
                "measured_ms": one.latency.value / 1e6, "error": one.error_ratio,
                "as_if_alone": took_alone / one.latency.value - 1, "slowdown": factor,
                "picked_over_best": next(it for it in flown if it.split is predicted).latency.value
                / measured.latency.value,
            })  # fmt: skip
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=25.0, help="seconds of each measurement")
    parser.add_argument("--models", default=",".join(JOBS))
    options = parser.parse_args()
    rows = [row for name in options.models.split(",") for row in fly(name, options.rounds, options.budget)]
    worst = max(abs(float(row["error"])) for row in rows)  # type: ignore[arg-type]
    bar.report(
        "packrat_flown",
        worst,
        "every split within 10 % of its prediction, two threads, three models",
        worst <= 0.1 and len({row["model"] for row in rows}) == len(JOBS),
        worst_as_if_alone=max(abs(float(row["as_if_alone"])) for row in rows),  # type: ignore[arg-type]
        worst_pick=max(float(row["picked_over_best"]) for row in rows),  # type: ignore[arg-type]
        num_splits=len(rows), rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
