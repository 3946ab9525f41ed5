"""Peaks are predicted: of jobs by fake tensors, of edits from a capture of the baseline.

Every workload at its tiny size: the peak under fake tensors against that of a real step by the same accounting
(storages; ``workspace`` says what share of all of torch's CPU allocator that leaves out), and beside it torch's own
MemTracker on the same step. Six workloads and six edits: the predicted peak against that of the changed program, really
run.

    python -m benchmarks.memory_fake --verbose --only mlp,cnn
"""

import contextlib
import statistics
import sys

import torch

from benchmarks import bar, jobs
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights.run import _flights_of
from windtunnel.sources.memory.tracking import predict_memory, track_memory
from windtunnel.sources.targets import WorkloadName, build_workload, discover
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.whatifs import parse_request, whatif

FAKE_TARGET, EDIT_TARGET = 0.01, 0.03
EDITED = ("mlp", "cnn", "lstm", "transformer", "gan", "recommender")
EDITS = (
    "batch-size:factor=2",
    "activation-checkpointing",
    "amp",
    "gradient-accumulation:passes=4",
    "fused-optimizer",
    "foreach-optimizer",
)
WARMUP = 3


def row(name: str) -> jobs.Row:
    """Measure one workload."""
    torch.set_num_threads(1)
    found: jobs.Row = {}
    with contextlib.suppress(WindtunnelError):  # one that hangs on values; told as such
        found["fake"] = predict_memory(lambda: jobs.build(name), warmup=WARMUP).peak_bytes
    found |= {"real": real(name, workspace=False), "with_workspace": real(name, workspace=True)}
    found["mem_tracker"] = mem_tracker(name)
    if name in EDITED:
        found["edits"] = edits(name)
    return found


def real(name: str, *, workspace: bool) -> int:
    """The peak of a step that really runs; built anew, as batches differ in length from step to step."""
    built = jobs.build(name)
    options = {"model": built.models, "optimizer": built.optimizers, "warmup": WARMUP, "workspace": workspace}
    profile = track_memory(built.step, **options)
    built.close()
    return profile.peak_bytes


def mem_tracker(name: str) -> int | str:
    """The tracker of torch itself on the same step; batches that rest in memory are not shown to it."""
    from torch.distributed._tools.mem_tracker import MemTracker

    built = jobs.build(name)
    for _ in range(WARMUP):
        built.step()
    tracker = MemTracker()
    try:
        tracker.track_external(*built.models, *built.optimizers)
        with tracker:
            built.step()
    except Exception as error:  # some programs it cannot follow, which is told
        return f"{type(error).__name__}: {error}"[:80]
    finally:
        built.close()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def edits(name: str) -> jobs.Row:
    """Every edit, predicted and flown."""
    graph = WorkloadName(name).capture(2, None)
    found: jobs.Row = {}
    for edit in EDITS:
        try:
            predicted = whatif(graph, edit, budget_s=0.1)[0]
            if not predicted.is_applicable:
                raise NotApplicableError(predicted.reason)
            real = flown(name, edit)
            before = graph.meta.memory["peak_bytes"]
            found[edit] = {"before": before, "predicted": predicted.peak_bytes, "real": real}
        except NotApplicableError as error:
            found[edit] = {"not applicable": error.message}
        except WindtunnelError as error:
            found[edit] = {"failed": error.message}
    return found


def flown(name: str, edit: str) -> int:
    """The peak of the changed program."""
    ((flight, parameters),) = _flights_of(parse_request(edit))
    program = LiveProgram()
    with contextlib.ExitStack() as stack:
        if getattr(flight, "is_at_start", False):
            stack.enter_context(flight(program, **parameters))
        built = build_workload(name, {}, program)
        discover(built.step, program)
        if not getattr(flight, "is_at_start", False):
            stack.enter_context(flight(program, **parameters))

        def step() -> None:
            for _ in range(program.iterations_per_sample):
                built.step()

        return track_memory(step, model=built.models, optimizer=built.optimizers).peak_bytes


def main() -> None:
    """Print the bar, and with --verbose its tables."""
    rows = jobs.rows("memory_fake", row)
    good = [entry for entry in rows if "failed" not in entry]
    fake = {str(entry["workload"]): entry["fake"] / entry["real"] - 1 for entry in good if "fake" in entry}
    flights = {f"{entry['workload']}/{edit}": one for entry in good for edit, one in entry.get("edits", {}).items()}
    errors = {
        key: one["predicted"] / one["real"] - 1 for key, one in flights.items() if one.get("predicted") is not None
    }
    changed = [abs(errors[key]) for key in errors if abs(flights[key]["real"] / flights[key]["before"] - 1) > 0.01]
    worst = max((abs(error) for error in fake.values()), default=1.0)
    median = statistics.median(abs(error) for error in errors.values()) if errors else 1.0
    unpredicted = [str(entry["workload"]) for entry in rows if "fake" not in entry]
    if bar.is_verbose():
        print(bar.table([{key: entry.get(key, "") for key in ("workload", "fake", "real")} for entry in rows]))
        print(bar.table([{"edit": key, **one, "error": errors.get(key, "")} for key, one in flights.items()]))
    bar.report(
        "memory_fake",
        worst,
        f"fake peak within {FAKE_TARGET:.0%} for every workload, edits' median <= {EDIT_TARGET:.0%}",
        worst <= FAKE_TARGET and median <= EDIT_TARGET and not unpredicted and len(good) == len(rows),
        num_workloads=len(rows),
        fake_errors=fake,
        unpredicted=unpredicted,
        edits_median=median,
        edits_worst=max((abs(error) for error in errors.values()), default=1.0),
        edits_that_change_median=statistics.median(changed) if changed else 1.0,
        num_edits=len(errors),
        edit_errors=errors,
        edits_without=[key for key in flights if key not in errors],
        workspace={str(entry["workload"]): 1 - entry["real"] / entry["with_workspace"] for entry in good},
        mem_tracker={
            str(entry["workload"]): entry["mem_tracker"] / entry["real"] - 1
            if isinstance(entry["mem_tracker"], int)
            else entry["mem_tracker"]
            for entry in good
        },
        failed={str(entry["workload"]): entry["failed"] for entry in rows if "failed" in entry},
    )


if __name__ == "__main__":
    sys.exit(main())
