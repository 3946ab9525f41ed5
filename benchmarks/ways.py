"""Bar ways: three data followed through the house, and what stands in it for nothing.

A captured step to its receipt, a dry run to folded ranks to a what-if, a model to a pipeline plan to a real run: each
in a process of its own, under a tracer that notes every file of the package of which a function runs, in the processes
that it starts as well; ``docs/architecture.md`` has to name it. Beside them: runs of lines that two rooms share, and
definitions that no verb, registration or public name leads to (vulture, of the extra ``bench``).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import entered
from benchmarks.bar import ROOT, report
from benchmarks.unreached import shared_runs, unreached

SOURCE = ROOT / "src" / "windtunnel"
PAGE = ROOT / "docs" / "architecture.md"
MOST_FILES, LEAST_LINES = 60, 10
ITERATIONS, ROUNDS = 5, 4
RANKS = 8
JOB = """
import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("nccl")
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 256).cuda()).square().mean().backward()
    optimizer.step()
"""


def captured(folder: Path) -> None:
    """A step is captured, changed, priced, replayed, flown, and leaves a receipt."""
    import torch

    import windtunnel as wt

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    inputs = torch.randn(32, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    graph = wt.capture(step, iterations=ITERATIONS)
    receipt = wt.verify(
        step,
        "fused-optimizer",
        graph=graph,
        model=model,
        optimizer=optimizer,
        rounds=ROUNDS,
        database=folder / "profiles.db",
        ledger=folder / "receipts.db",
    )
    assert receipt.measured > 0


def dry(folder: Path) -> None:
    """A job is traced without hardware, priced, copied to all ranks, folded in replay, and asked a what-if."""
    import windtunnel as wt
    from windtunnel.hardware import machines
    from windtunnel.simulate import fold

    script = folder / "job.py"
    script.write_text(JOB)
    graph = wt.dry_run(script, num_ranks=RANKS)
    priced = wt.forecast(graph, machines()["dgx-h100"]).graph
    many = priced.replicate(RANKS)
    assert fold(many).small.num_tasks < many.num_tasks
    answer = wt.whatif(many, "faster-link:factor=2", prices="paper")[0]
    assert answer.is_applicable, answer.reason


def planned(folder: Path) -> None:
    """A model is captured, cut into stages, its plans ranked by replay, the best one run, and its step kept."""
    from windtunnel.flights import Ledger
    from windtunnel.systems.pipelines.flight import receipt_of_training
    from windtunnel.systems.pipelines.training.job import PipelineSpec, plan_pipeline
    from windtunnel.systems.pipelines.training.profiled import capture_blocks, conditions_for, links_of, rank_on_host
    from windtunnel.systems.pipelines.training.train import train_pipeline
    from windtunnel.systems.pipelines.two_bw import Job, plan_2bw

    name, parameters, batch, size = "mlp", {"depth": 5, "width": 64}, 8, 2
    profiles = capture_blocks(name, parameters, batch, [size])
    conditions = conditions_for(name, parameters, profiles, 2, batch)
    table = plan_2bw(profiles, Job(2, float("inf"), batch, links_of(conditions, 2), "fp32", 0.0), depths=[2])
    best = rank_on_host(table.feasible, profiles, conditions)[0].row
    spec = PipelineSpec(name, {**parameters, "batch_size": batch}, best.depth, best.num_microbatches, best.schedule)
    pipeline = plan_pipeline(spec)
    trained = train_pipeline(pipeline.orders(10, num_alone=1))
    Ledger(folder / "receipts.db").add(receipt_of_training(pipeline, trained))


WAYS: dict[str, Callable[[Path], None]] = {"captured": captured, "dry": dry, "planned": planned}


def followed(way: str) -> dict[str, list[str]]:
    """Files of a way: those of the process that drives it, and those that only its other processes enter."""
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "entered.log"
        shutil.copy(entered.__file__, folder / "sitecustomize.py")
        paths = [str(folder), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        watched = {entered.LOG: str(log), entered.SOURCE: str(SOURCE), "PYTHONPATH": os.pathsep.join(paths)}
        # profiles, prices and receipts of whoever runs this are neither read nor written
        environment = {**os.environ, **watched, "HOME": name}
        command = [sys.executable, "-m", "benchmarks.ways", "--way", way, "--folder", name]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{way}: {done.stderr[-3000:]}")
        by_process = entered.entered(log)
    driving = next(iter(by_process.values()))
    others = set().union(*by_process.values()) - driving
    return {"driving": sorted(driving), "others": sorted(others)}


def named() -> set[str]:
    """Files that the page names: of the folder before them."""
    folder, found = "", set()
    for span in re.findall(r"`([^`\n]+)`", PAGE.read_text(encoding="utf-8")):
        if span.endswith("/"):
            folder = span.removeprefix("./")
        elif re.fullmatch(r"\w+\.py", span):
            found.add(folder + span)
    return found


def main() -> bool:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help="walk this one, count nothing")
    parser.add_argument("--folder", type=Path, help="where that one may write")
    parser.add_argument("--verbose", action="store_true", help="print what was found")
    options = parser.parse_args()
    if options.way:
        WAYS[options.way](options.folder)
        return True
    found = {way: followed(way) for way in WAYS}
    files = {way: sum(len(paths) for paths in one.values()) for way, one in found.items()}
    passed = {path for one in found.values() for paths in one.values() for path in paths}
    runs, lines = shared_runs(SOURCE, LEAST_LINES), unreached(SOURCE)
    num_unreached = sum(one.num_lines for one in lines)
    if options.verbose:
        for way, one in found.items():
            print(f"{way}: {files[way]} files, {len(one['others'])} of them in other processes only")
            print("".join(f"  {path}\n" for paths in one.values() for path in paths), end="")
        print("".join(f"{run}\n" for run in [*runs, *lines]), end="")
    return report(
        "ways",
        max(files.values()),
        f"<= {MOST_FILES} files each; 0 runs of {LEAST_LINES} lines in two rooms, 0 lines unreached, all on the page",
        max(files.values()) <= MOST_FILES and not runs and not num_unreached and passed <= named(),
        files=files,
        files_of_other_processes_only={way: len(one["others"]) for way, one in found.items()},
        files_that_the_page_leaves_out=sorted(passed - named()),
        shared_runs=len(runs),
        unreachable_lines=num_unreached,
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
