"""Whatever a file holds: an answer that can be, or an error that says what, where and what to do.

A hundred thousand files made wrong on purpose, over every reader, stored graphs and the ledger. Each batch runs in a
process of its own with a limit of memory (what the process has after reading good files, 512 MB and four times the
file) and of time per file; what is no ``WindtunnelError``, does not end, or answers what cannot be, is found.
``--num-mutants N --seed S`` choose how many and which, ``--only NAME`` one reader.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bar

TIME_LIMIT_S = 10
BATCH = 2500
MEMORY_BYTES = 512 << 20
_EXPLAINED = 8  # one of so many graphs is explained too, of one the reader is looked for
_KEPT = 20  # examples in the report


@dataclass(frozen=True)
class Batch:
    """Mutants ``first`` up to ``first + count`` of a reader."""

    subject: str
    first: int
    count: int


def mutant(subject: Any, seeds: list[bytes], seed: int, name: str, number: int) -> bytes:
    """The file of this number: always the same one."""
    rng = random.Random(f"{seed}/{name}/{number}")
    return rng.choice(subject.mutators)(rng.choice(seeds), rng)


def absurd(found: Any, size_bytes: int, *, is_text: bool) -> str:
    """What cannot be in an answer; empty if all can."""
    from windtunnel.graph import Discipline, Graph
    from windtunnel.simulate import replay

    if not isinstance(found, Graph):
        return ""
    if found.num_tasks > size_bytes and is_text:
        return f"{found.num_tasks} tasks of {size_bytes} bytes"
    if (found.duration_ns < 0).any():
        return "a negative duration"
    timeline = replay(found)
    if found.num_tasks and (timeline.start_ns.min() < 0 or (timeline.finish_ns < timeline.start_ns).any()):
        return "a task that ends before it starts"
    if (found.resources["discipline"] == Discipline.SHARED).any():
        return ""  # tasks that share slow each other down
    lags, earliest = found.edges.get("lag_ns"), found.tasks.get("earliest_ns")
    most = int(found.duration_ns.sum()) + (0 if lags is None else int(lags.sum()))
    most += 0 if earliest is None else int(earliest.max(initial=0))
    return f"a makespan of {timeline.makespan_ns} ns, at most {most} can be" if timeline.makespan_ns > most else ""


def child(batch: Batch, seed: int, progress: Path) -> dict[str, Any]:
    """Read every mutant of a batch; a file beside tells how far it is, for when this process is killed."""
    from benchmarks.mutant_seeds import SUBJECTS
    from windtunnel.errors import WindtunnelError
    from windtunnel.reports import explain
    from windtunnel.sources.stored import format_of

    subject = SUBJECTS[batch.subject]
    seeds, counts, vague, found = subject.seeds(), Counter[str](), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, progress.open("r+b", buffering=0) as told:
        path = Path(folder) / subject.name
        for name, data in subject.folder().items():
            (Path(folder) / name).write_bytes(data)
        for data in seeds:  # good files: code is compiled, libraries are loaded
            path.write_bytes(data)
            good = subject.read(path)
            if wrong := absurd(good, len(data), is_text=False):
                raise SystemExit(f"the good file of {batch.subject} is wrong: {wrong}")
        if batch.subject not in ("memory", "programs", "ledger", "placement"):
            str(explain(good))
        allowed = _virtual_bytes() + MEMORY_BYTES
        for number in range(batch.first, batch.first + batch.count):
            told.seek(0)
            told.write(b"%12d" % number)
            data = mutant(subject, seeds, seed, batch.subject, number)
            path.write_bytes(data)
            resource.setrlimit(resource.RLIMIT_AS, (allowed + 4 * len(data), resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)  # of the processor: others may run beside
            try:
                if number % _EXPLAINED == 1:
                    format_of(path)
                answer = subject.read(path)
                is_text = not subject.name.endswith((".parquet", ".gz")) and subject.name != "meta.json"
                what = absurd(answer, len(data), is_text=is_text)
                counts["absurd" if what else "read"] += 1
                if number % _EXPLAINED == 0 and hasattr(answer, "num_tasks"):
                    str(explain(answer))
            except WindtunnelError as error:
                counts["refused"] += 1
                counts["without place"] += not error.where
                vague[error.message[:50]] += not error.where
                what = ""
            except BaseException as error:
                what = f"{type(error).__name__}: {str(error)[:160]} at {_place(error)}"
                counts["uncaught"] += 1
            signal.setitimer(signal.ITIMER_PROF, 0)
            if what:
                found.append({"reader": batch.subject, "number": number, "what": what})
    return {"counts": counts, "found": found[:_KEPT], "vague": vague}


def _place(error: BaseException) -> str:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " ".join(frames[-3:])


def _virtual_bytes() -> int:
    """Address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def run(batch: Batch, seed: int) -> dict[str, Any]:
    """One batch; a mutant that kills its process is noted, and the rest goes on without it."""
    counts, vague, found = Counter[str](), Counter[str](), []
    first, end = batch.first, batch.first + batch.count
    with tempfile.NamedTemporaryFile() as progress:
        while first < end:
            progress.seek(0)
            progress.write(b"%12d" % -1)
            progress.flush()
            command = [sys.executable, "-m", "benchmarks.fuzz", "--child", batch.subject, str(first), str(end - first)]
            environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [*command, progress.name, "--seed", str(seed)],
                cwd=bar.ROOT,
                capture_output=True,
                text=True,
                env=environment,
            )
            lines = done.stdout.splitlines()
            if done.returncode == 0 and lines:
                result = json.loads(lines[-1])
                counts.update(result["counts"])
                vague.update(result["vague"])
                found += result["found"]
                break
            number = int(Path(progress.name).read_bytes() or b"-1")
            if number < 0:
                raise RuntimeError(f"{batch.subject}: {done.stderr[-2000:]}")
            is_hang = done.returncode == -signal.SIGPROF
            counts["hangs" if is_hang else "uncaught"] += 1
            what = "does not end" if is_hang else f"killed its process: {done.returncode} {done.stderr[-300:]}"
            found.append({"reader": batch.subject, "number": number, "what": what})
            counts["lost"] += number - first  # read, but their counts died with the process
            first = number + 1
    return {"counts": counts, "found": found, "vague": vague}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="one reader")
    parser.add_argument("--verbose", action="store_true", help="print every case that was found")
    parser.add_argument("--child", nargs=4, metavar=("READER", "FIRST", "COUNT", "PROGRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, first, count, progress = options.child
        print(json.dumps(child(Batch(name, int(first), int(count)), options.seed, Path(progress))))
        return 0
    from benchmarks.mutant_seeds import SUBJECTS

    chosen = {name: one for name, one in SUBJECTS.items() if not options.only or name == options.only}
    shares = sum(one.share for one in chosen.values())
    batches = []
    for name, subject in chosen.items():
        total = -(-options.num_mutants * subject.share // shares)
        batches += [Batch(name, first, min(BATCH, total - first)) for first in range(0, total, BATCH)]
    begun_s = time.monotonic()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda batch: run(batch, options.seed), batches))
    counts = sum((Counter(result["counts"]) for result in results), Counter[str]())
    found = [one for result in results for one in result["found"]]
    vague = sum((Counter(result["vague"]) for result in results), Counter[str]())
    if options.verbose:
        print(bar.table(found))
        print(bar.table([{"num": num, "without place": message} for message, num in vague.most_common(30)]))
    bad = counts["uncaught"] + counts["hangs"] + counts["absurd"]
    num = sum(batch.count for batch in batches)
    holds = bad == 0 and num >= options.num_mutants
    by_what = {
        what: int(counts[what]) for what in ("read", "refused", "without place", "uncaught", "hangs", "absurd", "lost")
    }
    bar.report(
        "fuzz",
        bad,
        "0 uncaught, 0 without end, 0 absurd of >= 100,000 files",
        holds,
        num_mutants=num,
        seed=options.seed,
        **by_what,
        readers=sorted(chosen),
        seconds=time.monotonic() - begun_s,
        found=found[:_KEPT],
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
