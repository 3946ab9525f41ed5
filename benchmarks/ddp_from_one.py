"""A data-parallel step predicted from one process and a fitted link is what it takes when really run.

The job is captured in one process alone, on the one thread that torchrun gives each; the link between processes is
fitted to messages that are really sent over it. From both, ``data-parallel`` predicts the step on two and four
processes; then the job runs so. Nothing of those runs enters the prediction.

    python -m benchmarks.ddp_from_one --verbose
"""

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import bar
from benchmarks.dpro_replay_error import JOB, MODELS, Case, really
from windtunnel.comm.links import measure_link
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph
from windtunnel.hardware.sheet import write_link
from windtunnel.measure.spaces import can_shape
from windtunnel.measure.threads import threads
from windtunnel.sources.torch.script import capture_script
from windtunnel.whatifs import whatif

MEDIAN_TARGET = 0.08
NUM_RANKS = (2, 4)
RATES = (None, 60e6)
CAPTURED = 20


def predicted_ns(graph: Graph, case: Case) -> float:
    """The what-if, over the link that was measured and written, as ``calibrate --links`` does."""
    asked = f"data-parallel:num_ranks={case.num_ranks}"
    if case.bandwidth_bytes_per_s is None:
        answer = whatif(graph, [asked])[0]
    else:
        wire = measure_link(case.num_ranks, case.bandwidth_bytes_per_s).fit.link
        with tempfile.TemporaryDirectory() as folder:
            answer = whatif(graph, [f"{asked},link={write_link(wire, Path(folder) / 'link.json')}"])[0]
    if not answer.is_applicable:
        raise WindtunnelError(answer.reason)
    return float(answer.predicted_ns)


def main() -> None:
    """Print the bar, and with --verbose each row as it comes."""
    rows, failed = [], {}
    rates = RATES if can_shape() else RATES[:1]
    for model in MODELS:
        with threads(1):
            graph = capture_script(JOB, (model, "--alone"), iterations=CAPTURED)
        for case in [Case(model, count, rate) for rate in rates for count in NUM_RANKS]:
            try:
                predicted, measured = predicted_ns(graph, case), statistics.median(really(case))
            except WindtunnelError as error:
                failed[str(case)] = str(error)
                continue
            rows.append(
                {
                    "job": str(case),
                    "measured_ms": measured / 1e6,
                    "predicted_ms": predicted / 1e6,
                    "error": predicted / measured - 1,
                }
            )
            if bar.is_verbose():
                print(bar.table(rows[-1:]), file=sys.stderr, flush=True)
    errors = [abs(float(str(one["error"]))) for one in rows]
    median = statistics.median(errors)
    bar.report(
        "ddp_from_one",
        median,
        f"median <= {MEDIAN_TARGET:.0%}, none failed",
        median <= MEDIAN_TARGET and not failed,
        worst=max(errors),
        num_jobs=len(rows),
        errors={str(one["job"]): one["error"] for one in rows},
        failed=failed,
        shaped=can_shape(),
    )


if __name__ == "__main__":
    main()
