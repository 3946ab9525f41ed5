"""Would a wrong program pass? Changes of the sources that the fast tests have to see.

Two rows. ``mutations``: a sample of small changes (cosmic-ray's operators, every place equally likely) in the rooms
that compute answers; a change counts as seen when a fast test that runs it fails, hangs or dies, and that test passes
without it. What no fast test runs, and what changes no answer but cannot be told from what does, counts as not seen.
``mutations_planted``: mistakes made by hand that would matter. Everything runs in copies of the tree.
``--sample N --seed S`` choose how many and which, ``--jobs`` how many at once, ``--cache`` where copies and the record
of what each test runs are kept, ``--resume`` takes up what was seen before, ``--only`` one of the two rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import bar
from benchmarks.defects.covering import Choice, Covering, digest, stale_files, store
from benchmarks.defects.judge import Slot, Verdict
from benchmarks.defects.planted import planted
from benchmarks.defects.population import Mutant, draw
from benchmarks.defects.running import Sources

ROOMS = ("graph", "simulate", "measure", "cost", "whatifs", "sources", "search")
TESTS = (*ROOMS, "hardware", "comm", "flights", "cli", "test_contracts.py", "test_registry.py", "test_units.py")
SOURCE = bar.ROOT / "src" / "windtunnel"
TARGET = 0.85
_BATCH = 24  # test files per process that records
_PLANTED_BUDGET = 3  # times that of a sampled one

Item = TypeVar("Item")


@dataclass(frozen=True)
class Judged:
    """A change, the tests that were to see it and what they said."""

    mutant: Mutant
    choice: Choice
    verdict: Verdict


class Bench:
    """The slots, what tests run, and what was seen before.

    Parameters
    ----------
    cache : Path
    seed : int
    jobs : int
        Slots.
    budget_s : float
        Seconds of tests, as recorded, that a change is shown to.
    is_resumed : bool
        What was seen before is not shown again.
    """

    def __init__(self, cache: Path, seed: int, jobs: int, budget_s: float, *, is_resumed: bool) -> None:
        self.slots = [Slot(bar.ROOT, cache / f"slot-{number}", seed) for number in range(jobs)]
        self.source = self.slots[0].source  # a copy: the tree may move on meanwhile
        self.sources = Sources(self.source)
        self.budget_s = budget_s
        self._cache = cache
        self._files = test_files()
        self._seen = _kept(cache / "verdicts.jsonl") if is_resumed else {}
        self._record()
        self._covering = Covering(self._files, cache / "runs")

    def _record(self) -> None:
        tree, kept = self.slots[0].tree, self._cache / "runs"
        stale = stale_files(self._files, tree, kept)
        batches = [stale[begin : begin + _BATCH] for begin in range(0, len(stale), _BATCH)]

        def one(slot: Slot, batch: list[str]) -> None:
            store(batch, slot.record(batch)["tests"], tree, kept)
            say(f"recorded what {len(batch)} test files run, {batch[0]} ...")

        say(f"{len(self._files)} files of tests, {len(stale)} to record")
        self._each(batches, one)
        for slot in self.slots:
            for other in self.slots:
                slot.adopt(other)

    def judge(self, mutants: list[Mutant], *, times: float = 1.0) -> list[Judged]:
        """What the tests say of each."""
        begin = time.monotonic()
        done: list[Judged] = []

        def one(slot: Slot, mutant: Mutant) -> Judged:
            judged = self._judged(slot, mutant, self.budget_s * times)
            done.append(judged)
            say(f"[{len(done)}/{len(mutants)}, {time.monotonic() - begin:.0f} s] {line(judged)}")
            return judged

        return self._each(mutants, one)

    def _judged(self, slot: Slot, mutant: Mutant, budget_s: float) -> Judged:
        lines = self.sources.seen_at(mutant.path, mutant.first, mutant.last)
        choice = self._covering.choose(mutant.path, lines, budget_s)
        key = hashlib.sha256(f"{mutant.path}\n{mutant.text}".encode()).hexdigest()
        before = self._seen.get(key)
        if before and before == self._entry(key, Judged(mutant, choice, Verdict(**before["verdict"]))):
            return Judged(mutant, choice, Verdict(**before["verdict"]))
        if not choice.tests:
            return Judged(mutant, choice, Verdict(False, "no test runs the file", (), 0.0))
        verdict = Verdict(False, "none", (), 0.0)
        for tests, seconds in choice.parts():
            one = slot.judge(mutant.path, mutant.text, self._stale(mutant), tests, seconds)
            verdict = replace(one, seconds=verdict.seconds + one.seconds)
            if verdict.is_caught:
                break
        self._keep(key, Judged(mutant, choice, verdict))
        return Judged(mutant, choice, verdict)

    def _stale(self, mutant: Mutant) -> set[str]:
        """Files whose compiled code may hold what changed."""
        is_frozen = self.sources.is_frozen(mutant.path, mutant.first, mutant.last)
        files = self.sources.importers(mutant.path) if is_frozen else {mutant.path}
        return {file for file in files if self.sources.has_compiled(file)}

    def _keep(self, key: str, judged: Judged) -> None:
        with (self._cache / "verdicts.jsonl").open("a") as log:
            log.write(json.dumps(self._entry(key, judged)) + "\n")

    def _entry(self, key: str, judged: Judged) -> dict[str, Any]:
        """What was said, with what it rests on: the test that failed, or all that did not."""
        verdict = judged.verdict
        tests = verdict.failed if verdict.is_caught else judged.choice.tests
        files = sorted({test.split("::")[0] for test in tests})
        shown = "" if verdict.is_caught else hashlib.sha256("\n".join(tests).encode()).hexdigest()[:16]
        said = asdict(verdict) | {"failed": list(verdict.failed)}
        return {
            "key": key,
            "shown": shown,
            "files": {file: digest(self.slots[0].tree / file) for file in files},
            "verdict": said,
        }

    def unsure(self, judged: list[Judged]) -> set[str]:
        """Tests that saw a change, and fail without one too."""
        failed = {test for one in judged for test in one.verdict.failed if "::" in test}
        say(f"run again without any change: {len(failed)} tests")
        return self.slots[0].failing(tuple(sorted(failed))) if failed else set()

    def _each(self, items: Iterable[Item], work: Callable[[Slot, Item], Any]) -> list[Any]:
        free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in self.slots:
            free.put(slot)

        def one(item: Item) -> Any:
            slot = free.get()
            try:
                return work(slot, item)
            finally:
                free.put(slot)

        with ThreadPoolExecutor(len(self.slots)) as pool:
            return list(pool.map(one, items))


def test_files() -> list[str]:
    """Files of the fast tests, and sources whose examples run as tests."""
    places = [bar.ROOT / "tests" / name for name in TESTS]
    tests = [path for place in places for path in ([place] if place.is_file() else place.rglob("test_*.py"))]
    examples = [path for room in ROOMS for path in (SOURCE / room).rglob("*.py") if ">>> " in path.read_text()]
    return sorted(path.relative_to(bar.ROOT).as_posix() for path in (*tests, *examples))


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    return {one["key"]: one for one in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def say(text: str) -> None:
    """Progress goes to stderr."""
    print(text, file=sys.stderr, flush=True)


def line(judged: Judged) -> str:
    """One change and what became of it."""
    verdict, mutant = judged.verdict, judged.mutant
    by = f" by {verdict.failed[0]}" if verdict.failed else ""
    mark = f"seen ({verdict.how}){by}" if verdict.is_caught else f"NOT SEEN ({judged.choice.num_covering} tests run it)"
    return f"{mutant.path}:{mutant.first} {mutant.change}: {mark}, {verdict.seconds:.0f} s"


def is_seen(judged: Judged, unsure: set[str]) -> bool:
    """Whether a test that passes otherwise saw it."""
    failed = judged.verdict.failed
    return judged.verdict.is_caught and not (judged.verdict.how == "test" and set(failed) <= unsure)


def sampled_row(bench: Bench, count: int, seed: int) -> None:
    judged = bench.judge(draw(bench.source, ROOMS, count, seed))
    unsure = bench.unsure(judged)
    seen = [is_seen(one, unsure) for one in judged]
    drawn = Counter(one.mutant.path.split("/")[0] for one in judged)
    caught = Counter(one.mutant.path.split("/")[0] for one, is_one in zip(judged, seen, strict=True) if is_one)
    for one in [one for one, is_one in zip(judged, seen, strict=True) if not is_one]:
        say(f"not seen: {line(one)}")
    ratio = sum(seen) / len(judged)
    bar.report(
        "mutations",
        100 * ratio,
        f">= {100 * TARGET:.0f} % of {count} small changes seen by the fast tests",
        ratio >= TARGET and count >= 300,
        seed=seed,
        sample=count,
        seen=sum(seen),
        by_room={room: f"{caught[room]} of {drawn[room]}" for room in ROOMS},
        how=dict(Counter(one.verdict.how for one, is_one in zip(judged, seen, strict=True) if is_one)),
        no_fast_test_runs_it=sum(not one.choice.num_covering for one in judged),
        fail_without_change=sorted(unsure),
        not_seen=[f"{one.mutant.path}:{one.mutant.first} {one.mutant.change.partition(':')[0]}"
                  for one, is_one in zip(judged, seen, strict=True) if not is_one],
    )  # fmt: skip


def planted_row(bench: Bench) -> None:
    judged = bench.judge(planted(bench.source), times=_PLANTED_BUDGET)
    unsure = bench.unsure(judged)
    seen = [is_seen(one, unsure) for one in judged]
    bar.report(
        "mutations_planted",
        sum(seen),
        f">= {len(seen)} of {len(seen)} mistakes made by hand seen by the fast tests",
        all(seen) and len(seen) >= 20,
        not_seen=[one.mutant.change for one, is_one in zip(judged, seen, strict=True) if not is_one],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests that a change is shown to")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "windtunnel" / "mutations")
    parser.add_argument("--resume", action="store_true", help="what was seen before is not shown to the tests again")
    parser.add_argument("--only", choices=("sampled", "planted"))
    options = parser.parse_args()
    planted(SOURCE)  # a list that does not fit the sources is said at once
    bench = Bench(options.cache, options.seed, options.jobs, options.budget, is_resumed=options.resume)
    if options.only != "sampled":
        planted_row(bench)
    if options.only != "planted":
        sampled_row(bench, options.sample, options.seed)
    for slot in bench.slots:
        slot.close()


if __name__ == "__main__":
    main()
