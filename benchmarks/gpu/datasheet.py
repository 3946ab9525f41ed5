"""What a set of timings is, in words (stage ``operators`` of ``benchmarks.gpu``)."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

import torch

from benchmarks.gpu.cases import LIMITS, SEED
from benchmarks.gpu.stages import Row

TEXT = """# Operators timed on {name}

{num_good:,} timings of {num_asked:,} cases, {num_failed:,} of which could not be run; made by
`python -m benchmarks.gpu operators` on {date}.

| | |
| --- | --- |
| device | {device} |
| torch, CUDA | {torch}, {cuda} |
| sizes | even over their logarithms, seed {seed}; at most {most_bytes:.3g} bytes, {most_flops:.3g} operations |
| values | uniform in [0, 1): the power that a chip draws hangs on them |
| protocol | three calls to warm up; 5 to 9 rounds of calls in a row that take about a millisecond; lower quartile |
| `latency_ms` | of one call by the stream's events; on a GPU the calls are one CUDA graph, so that no launch is in it |
| `eager_ms` | the same calls in three rounds, launched from Python: the larger of launch and kernel |
| `spread` | interquartile range of the rounds over their median |
| caches | warm: a call finds what the one before it left |
| tiles | not known: the kernels' names are not recorded |

## Columns

Those of the published op sets, by form of arithmetic in a folder each (`fp32`, `tf32`, `bf16`, `fp16`): `train_*.csv`
is what `windtunnel models train tile --data FOLDER` reads, `other.csv` what it has no model for. A product is (M x N)
times (N x K). Attention has B heads, M queries, N keys and K elements per head. B rows have H elements.

{counts}

## Not in it

Backward passes, sparse operators, other layouts than the usual one, several streams at once. {failures}
"""


def datasheet(facts: Row, name: str, good: Sequence[Row], failed: Sequence[Row], num_asked: int) -> str:
    """The page."""
    kinds = Counter((row["kind"], row["dtype"]) for row in good)
    lines = ["| kind | form | timings |", "| --- | --- | --- |"]
    lines += [f"| {kind} | {form} | {count:,} |" for (kind, form), count in sorted(kinds.items())]
    reasons = Counter(str(row["failed"])[:60] for row in failed).most_common(5)
    told = "; ".join(f"{reason} ({count})" for reason, count in reasons)
    most_bytes, most_flops = LIMITS[num_asked < 1000]
    return TEXT.format(
        name=name,
        num_good=len(good),
        num_asked=num_asked,
        num_failed=len(failed),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        device=facts["name"],
        torch=torch.__version__,
        cuda=facts.get("cuda", "none"),
        seed=SEED,
        most_bytes=most_bytes,
        most_flops=most_flops,
        counts="\n".join(lines),
        failures=f"Cases that could not be run: {told}." if told else "",
    )
