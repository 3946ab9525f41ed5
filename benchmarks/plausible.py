"""Bar plausible: no answer is outside of what physics allows, and nothing is predicted that is in effect already.

Small scripts in many styles (``plausible_scripts``, ``held_out``), jobs of several ranks in dry runs (``dry_run``) and
workloads are each asked every what-if in a process of their own. Counted are: answers that break a limit, their own or
one of the few that are written down here; predictions of what a script does already; scripts whose memory under fake
tensors is more than 2 % off that of a real step, both without workspace, which is known only when operators run;
scripts of which not the one batch size is found. ``--full`` also types the verbs.

    python -m benchmarks.plausible                  # decides within five minutes
    python -m benchmarks.plausible --full --verbose
    python -m benchmarks.plausible --only lora,checkpointed
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from benchmarks import bar

FOLDER = Path(__file__).parent
SHORT_S, CHILD_S, FULL_CHILD_S, VERB_S = 285.0, 100.0, 900.0, 300.0
MIN_SUBJECTS, MEMORY_TARGET, SLACK = 30, 0.02, 1.02
VERBS = (("explain",), ("whatif", "--all"), ("predict", "--on", "h100-sxm"))
ANSWER_IS_NO = 1
NUM_PROCESSES = 2
FORKED = multiprocessing.get_context("fork")
PROCESSES = ("data-parallel",)  # measured between processes, which takes longest: by published ratios in the short form


@dataclass(frozen=True)
class Subject:
    """What is asked: a script, one of a dry run where it has ranks, or a workload where it has no folder."""

    folder: str = "plausible_scripts"
    batch: int = 0
    in_effect: tuple[str, ...] = ()
    ranks: int = 0
    follows_memory: bool = True


SUBJECTS = {
    "checkpointed": Subject(batch=48, in_effect=("activation-checkpointing",)),
    "checkpointed_reentrant": Subject(batch=48, in_effect=("activation-checkpointing",)),
    "checkpointed_accumulated": Subject(batch=48, in_effect=("activation-checkpointing", "gradient-accumulation")),
    "lora": Subject(batch=40, in_effect=("activation-checkpointing", "gradient-accumulation")),
    "accumulated": Subject(batch=48, in_effect=("gradient-accumulation",)),
    "images_accumulated": Subject(batch=5, in_effect=("gradient-accumulation",)),
    "fused": Subject(batch=48, in_effect=("fused-optimizer",)),
    "foreach": Subject(batch=48, in_effect=("foreach-optimizer",)),
    "sgd_plain": Subject(batch=40),
    "adagrad": Subject(batch=24),
    "rmsprop": Subject(batch=56),
    "clipped": Subject(batch=40),
    "frozen": Subject(batch=48, in_effect=("freeze-layers:layer=0",)),
    "autocast": Subject(batch=96, in_effect=("amp",)),
    "bf16_weights": Subject(batch=96, in_effect=("amp",)),
    "in_backward": Subject(batch=48, in_effect=("optimizer-in-backward",)),
    "images": Subject(batch=6),
    "images_channels_last": Subject(batch=6, in_effect=("channels-last",)),
    "loaded": Subject(batch=20),
    # batches that workers sent early are in memory or not, as it happens
    "loaded_by_workers": Subject(batch=20, in_effect=("loader-workers", "prefetch"), follows_memory=False),
    "autoencoder": Subject(batch=36),
    "sliced_decoder": Subject(batch=12),
    "accumulating_trainer": Subject("held_out"),
    "adagrad_step_lr": Subject("held_out"),
    "compiled_mixer": Subject("held_out"),
    "functional_gradients": Subject("held_out"),
    "nadam_averaged": Subject("held_out"),
    "rmsprop_clipped_gru": Subject("held_out"),
    "scaled_autocast": Subject("held_out", in_effect=("amp",)),
    "sharpness_aware": Subject("held_out"),
    "two_optimizers": Subject("held_out"),
    "mlp": Subject("", follows_memory=False),
    "cnn": Subject("", follows_memory=False),
    "transformer": Subject("", follows_memory=False),
    "ddp": Subject("dry_run", ranks=4, in_effect=("data-parallel",)),
    "fsdp": Subject("dry_run", ranks=4, in_effect=("data-parallel",)),
    "tensor": Subject("dry_run", ranks=4),
    "pipeline": Subject("dry_run", ranks=4),
}


# --- one subject, in a process of its own -------------------------------------------------------------------


def asked(name: str, *, is_full: bool) -> dict[str, Any]:
    """Everything about one subject, as plain values."""
    import torch

    from windtunnel import registry
    from windtunnel.whatifs import whatif
    from windtunnel.whatifs.another_batch import batch_of

    torch.set_num_threads(1)
    subject = SUBJECTS[name]
    graph = captured(name, iterations=10 if is_full else 2)
    names = [one for one in registry.all("whatif") if is_full or one not in PROCESSES]
    answers = whatif(graph, names, database=":memory:", budget_s=0.3 if is_full else 0.01)
    answers += [] if is_full else whatif(graph, PROCESSES, prices="paper")
    expected = whatif(graph, list(subject.in_effect), database=":memory:", budget_s=0.01) if subject.in_effect else []
    found: dict[str, Any] = {
        "answers": len(answers),
        "predicted": sum(answer.is_applicable for answer in answers),
        "outside": [text for answer in answers for text in outside(answer)],
        "in_effect_predicted": [str(answer.request) for answer in expected if answer.is_applicable],
        "in_effect_not_said": [f"{answer}" for answer in expected if answer.status != "already in effect"],
        "batch": batch_of(graph),
        "batch_expected": subject.batch,
    }
    if subject.follows_memory and not subject.ranks:
        found["memory"] = memory_of(name)
    if is_full:
        found["verbs"] = list(typed(name, graph))
    return found


def captured(name: str, iterations: int) -> Any:
    """A graph with durations."""
    from windtunnel.hardware import device
    from windtunnel.sources.dry.run import dry_run
    from windtunnel.sources.targets import Script, WorkloadName
    from windtunnel.whatifs.forecast import forecast

    subject = SUBJECTS[name]
    path = FOLDER / subject.folder / f"{name}.py"
    if subject.ranks:
        return forecast(dry_run(path, num_ranks=subject.ranks), device("h100-sxm5-80g")).graph
    return (
        Script(path).capture(iterations, None, warmup=2)
        if subject.folder
        else WorkloadName(name).capture(iterations, None)
    )


def outside(answer: Any) -> Iterator[str]:
    """What is impossible about an answer: by the limits that it states, and by some that are known here."""
    request = str(answer.request)
    if answer.status == "implausible":
        yield f"{request}: {answer.reason}"
    if not answer.is_applicable:
        return
    if answer.peak_violation:
        yield f"{request}: {answer.peak_violation}"
    if not (math.isfinite(answer.speedup) and answer.speedup > 0):
        yield f"{request}: speed-up {answer.speedup}"
    most = known_limits(answer).get(answer.name, math.inf)
    if answer.graph_speedup > most * SLACK:
        yield f"{request}: {answer.graph_speedup:.3f}x, where {most:.3f}x is possible"
    before, after = answer.baseline_peak_bytes, answer.peak_bytes
    if before and after and answer.name in ("fuse-kernels", "zero-1", "zero-2"):
        yield from [f"{request}: {after - before:,} bytes more memory"] * (after > before * SLACK)


def known_limits(answer: Any) -> dict[str, float]:
    """Largest speed-ups, worked out from nothing but the phases of the graph before."""
    from windtunnel.graph import Kind, Phase, lags

    graph = answer.baseline.graph
    updates = graph.select(phase=Phase.UPDATE)
    messages = graph.select(kind=Kind.COMM)
    into = lags(graph.edges)[(updates | messages)[graph.edges["dst"]] | updates[graph.edges["src"]]].sum()
    count = max(graph.num_iterations, 1)
    update_ns = float(graph.duration_ns[updates].sum() + into) / count / max(graph.num_ranks, 1)
    left = max(1.0 - update_ns / answer.baseline_ns, 1e-9)
    once = 1 / left
    return {
        "activation-checkpointing": 1.0,
        "vdnn": 1.0,
        "gist": 1.0,
        "fused-optimizer": once,
        "foreach-optimizer": once,
        "gradient-accumulation": min(4.0, 1 / (1 - (1 - left) * 3 / 4)),
        "batch-size": 2.0,
        "data-parallel": 2.0,
        "rank-count": 2.0,
        "faster-cpu": 2.0,
        "faster-device": 2.0,
        "faster-operator": 2.0,
        "faster-link": 2.0,
    }


def memory_of(name: str) -> dict[str, Any]:
    """Peaks without workspace of a real step and of one under fake tensors; how much the real peak is above that."""
    from windtunnel.errors import WindtunnelError
    from windtunnel.sources.memory.script import track_script

    path = FOLDER / SUBJECTS[name].folder / f"{name}.py"
    try:
        real, fake = (track_script(path, fake=is_fake) for is_fake in (False, True))
    except WindtunnelError as error:
        return {"refused": error.message}
    real_bytes, fake_bytes = real.peak_without_workspace_bytes, fake.peak_without_workspace_bytes
    off = fake_bytes / real_bytes
    return {
        "real_bytes": real_bytes,
        "fake_bytes": fake_bytes,
        "error": max(1 - off, 0.0 if fake.meta.get("is_uncompiled") else off - 1),  # compiled code may hold less
        "workspace_share": 1 - real_bytes / real.peak_bytes,
    }


def typed(name: str, graph: Any) -> Iterator[dict[str, Any]]:
    """Verbs as a user types them: one that fails is counted."""
    from windtunnel.graph import save

    with tempfile.TemporaryDirectory() as folder:
        path = save(graph, Path(folder) / f"{name}.wt")
        for verb, *options in VERBS:
            command = [sys.executable, "-m", "windtunnel", verb, str(path), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=VERB_S)
            is_fine = done.returncode <= ANSWER_IS_NO or "Traceback" not in done.stderr
            yield {"verb": verb, "code": done.returncode, "fails": not is_fine, "says": done.stderr[-300:]}


# --- all of them --------------------------------------------------------------------------------------------


def in_processes(names: list[str], ends_s: float, *, is_full: bool) -> dict[str, dict[str, Any]]:
    """What the process of each subject finds, two at a time; why not, where it fails or time is over.

    All are forked by the main thread: a profiler takes no other for that of its process.
    """
    waiting, results = list(names), dict[str, dict[str, Any]]()
    running: dict[Any, tuple[str, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < NUM_PROCESSES and time.monotonic() < ends_s:
            name = waiting.pop(0)
            ours, theirs = FORKED.Pipe(duplex=False)
            child = FORKED.Process(target=_answered, args=(theirs, name, is_full))
            child.start()
            theirs.close()
            stops_s = min(ends_s, time.monotonic() + (FULL_CHILD_S if is_full else CHILD_S))
            running[ours] = (name, child, stops_s)
        if not running:
            break
        ready = connection.wait(list(running), timeout=1.0)
        for ours, (name, child, stops_s) in list(running.items()):
            if ours in ready:
                results[name] = _received(ours)
            elif time.monotonic() > stops_s:
                results[name] = {"not_reached": "its time was over"}
            else:
                continue
            child.kill()
            child.join()
            del running[ours]
    return {name: results.get(name, {"not_reached": "no time was left"}) for name in names}


def _received(pipe: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = pipe.recv()
    except EOFError:
        return {"failed": "its process ended without an answer"}
    return found


def _answered(pipe: Any, name: str, is_full: bool) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout = sys.stderr = nowhere  # what scripts print is no part of the bar
        try:
            pipe.send(asked(name, is_full=is_full))
        except BaseException as error:
            pipe.send({"failed": f"{type(error).__name__}: {error}"})


def _warmed_up() -> None:
    """Import, and load compiled code, once for all processes that are forked."""
    from windtunnel.graph import GraphBuilder, ResourceKind
    from windtunnel.sources.dry import run
    from windtunnel.sources.memory import script
    from windtunnel.whatifs import whatif

    builder = GraphBuilder()
    builder.task("work", resource=builder.resource("cpu", ResourceKind.HOST_THREAD), duration_ns=1)
    whatif(builder.build(), "all", database=":memory:")
    assert run.dry_run
    assert script.track_script


def listed(results: dict[str, dict[str, Any]], key: str) -> list[str]:
    """All texts under a key, with the names of their subjects."""
    return [f"{name}: {text}" for name, found in results.items() for text in found.get(key, [])]


def main() -> bool:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names with commas between them")
    parser.add_argument("--full", action="store_true", help="more iterations, more time to measure, the verbs typed")
    parser.add_argument("--verbose", action="store_true", help="print what came of each subject")
    options = parser.parse_args()
    _warmed_up()
    names = options.only.split(",") if options.only else list(SUBJECTS)
    ends_s = time.monotonic() + (len(names) * FULL_CHILD_S if options.full else SHORT_S)
    results = in_processes(names, ends_s, is_full=options.full)
    if options.verbose:
        for name, result in results.items():
            print(name, json.dumps(result))
    reached = {name: result for name, result in results.items() if "answers" in result}
    memories = {name: result["memory"] for name, result in reached.items() if "error" in result.get("memory", {})}
    wrong_batches = [
        f"{name}: {result['batch']}, not {result['batch_expected']}"
        for name, result in reached.items()
        if result["batch_expected"] and result["batch"] != result["batch_expected"]
    ]
    wrong_memory = {name: one["error"] for name, one in memories.items() if one["error"] > MEMORY_TARGET}
    outside_limits, predicted = listed(reached, "outside"), listed(reached, "in_effect_predicted")
    failing = [
        f"{name} {verb['verb']}" for name, one in reached.items() for verb in one.get("verbs", []) if verb["fails"]
    ]
    wrong = [*outside_limits, *predicted, *wrong_memory, *wrong_batches, *failing]
    return bar.report(
        "plausible",
        len(wrong),
        f"0 wrong answers of >= {MIN_SUBJECTS} subjects",
        not wrong and len(reached) >= min(MIN_SUBJECTS, len(names)),
        subjects=len(reached),
        answers=sum(result["answers"] for result in reached.values()),
        predicted=sum(result["predicted"] for result in reached.values()),
        outside_limits=outside_limits,
        in_effect_predicted=predicted,
        in_effect_not_said=listed(reached, "in_effect_not_said"),
        memories=len(memories),
        fake_memory_off=wrong_memory,
        workspace_shares={name: one["workspace_share"] for name, one in memories.items() if one["workspace_share"]},
        wrong_batches=wrong_batches,
        failing_verbs=failing,
        not_reached={name: result for name, result in results.items() if name not in reached},
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
