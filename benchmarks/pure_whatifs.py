"""Bar pure_whatifs: one captured graph and one set of prices give one answer, bit for bit.

Six workloads are captured, and what all what-ifs need is measured once. Two fresh profile databases are filled with
these measurements. Two fresh processes, a database each, apply every what-if to every graph; their graphs must be
equal in every column, and while a what-if edits, no file may be opened, no process started and no clock read.
"""

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.bar import ROOT, report
from windtunnel import registry
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph, Strings, load, save
from windtunnel.hardware import link
from windtunnel.measure import ProfileDatabase
from windtunnel.sources.targets import WorkloadName
from windtunnel.whatifs import Step, Unpriced, whatif
from windtunnel.whatifs.ask import call_whatif, needs_of, pricer_of

MODELS = ("mlp", "cnn", "lstm", "transformer", "gan", "recommender")
PREFIXES = ("open", "subprocess.", "os.fork", "os.posix_spawn", "os.exec", "os.system", "sqlite3.", "socket.")
CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
seen = Counter[str]()
watching = False


def watch(event: str, _arguments: tuple[object, ...]) -> None:
    """Count what opens a file or starts a process."""
    if watching and event.startswith(PREFIXES):
        seen[event] += 1


def counted(name: str, clock: object) -> object:
    """A clock that is counted."""

    def read() -> object:
        if watching:
            seen[f"time.{name}"] += 1
        return clock()

    return read


@contextlib.contextmanager
def within_a_whatif() -> Iterator[None]:
    """Count here."""
    global watching
    watching = True
    try:
        yield
    finally:
        watching = False


def answers(folder: Path, database: ProfileDatabase) -> dict[str, str]:
    """Digest of every what-if's graph, or why it does not apply."""
    price = pricer_of(database)
    found = {}
    for model in MODELS:
        graph = load(folder / f"{model}.wt")
        for name in registry.all("whatif"):
            try:
                with within_a_whatif():
                    change = call_whatif(graph, Step(name))
                if isinstance(change, Unpriced):
                    needs, is_run = needs_of(change, "auto")
                    prices = price(needs, is_run) if needs else {}
                    changed = finished(change, [prices[need] for need in needs])
                else:
                    changed = change
                found[f"{model} {name}"] = digest(changed)
            except WindtunnelError as error:
                found[f"{model} {name}"] = f"not applicable: {error.message}"
    return found


def finished(change: Unpriced, prices: list[object]) -> Graph:
    """The graph of these prices, or of published ones where there are none."""
    for price in prices:
        if isinstance(price, WindtunnelError):
            raise price
    with within_a_whatif():
        if prices and all(price is not None for price in prices):
            return change.finish(*prices)
        return change.published()


def digest(graph: Graph) -> str:
    """Of every column, of what is known about the graph and of all recorded edits."""
    whole = hashlib.sha256()
    for table in (graph.tasks, graph.edges, graph.resources):
        for name in sorted(table):
            column = table[name]
            whole.update(name.encode())
            if isinstance(column, Strings):
                whole.update("\0".join(column.to_numpy().tolist()).encode())
            else:
                whole.update(np.ascontiguousarray(column).tobytes())
    whole.update(json.dumps([graph.meta, [edit.json() for edit in graph.edits]], default=str, sort_keys=True).encode())
    return whole.hexdigest()


def child(folder: Path, database: str) -> None:
    """All what-ifs twice in this process: what is imported or compiled the first time is not counted."""
    sys.addaudithook(watch)
    for name in CLOCKS:
        setattr(time, name, counted(name, getattr(time, name)))
    link("loopback")
    known = ProfileDatabase(database)
    before = len(known)
    first = answers(folder, known)
    seen.clear()
    second = answers(folder, known)
    new = len(known) - before
    print(json.dumps({"answers": second, "is_same": first == second, "seen": dict(seen), "measured": new}))


def in_a_process(folder: Path, database: Path) -> dict[str, object]:
    """What a fresh process finds."""
    command = [sys.executable, "-m", "benchmarks.pure_whatifs", "--folder", str(folder), "--database", str(database)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> bool:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="")
    parser.add_argument("--database", default="")
    asked = parser.parse_args()
    if asked.folder:
        child(Path(asked.folder), asked.database)
        return True
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        source = ProfileDatabase(str(folder / "measured.db"))
        for model in MODELS:
            graph = WorkloadName(model, {}).capture(4, None)
            save(graph, folder / f"{model}.wt")
            whatif(graph, "all", database=source)
        rows = list(source)
        results = []
        for number in (1, 2):
            ProfileDatabase(str(folder / f"{number}.db")).add(rows)
            results.append(in_a_process(folder, folder / f"{number}.db"))
    first, second = results
    graphs = [key for key, text in first["answers"].items() if not text.startswith("not applicable")]
    differ = [key for key in first["answers"] if first["answers"][key] != second["answers"][key]]
    calls = {name: one["seen"].get(name, 0) for one in results for name in one["seen"]}
    holds = not differ and not calls and all(one["is_same"] and not one["measured"] for one in results)
    return report(
        "pure_whatifs",
        len(differ) + sum(calls.values()),
        "0 graphs that differ, 0 calls of a clock, process or file",
        holds and len(graphs) >= len(MODELS),
        captured=len(MODELS),
        graphs=len(graphs),
        not_applicable=len(first["answers"]) - len(graphs),
        differ=differ,
        calls=calls,
        measured_again=[one["measured"] for one in results],
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
