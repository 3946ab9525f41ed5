"""Replay and what-ifs hold on scripts in styles that nothing here was made on (``benchmarks/held_out``).

Other optimizers, a closure, a compiled model, a trainer of a library, mixed precision by hand, averaged weights, two
optimizers, gradients by ``torch.func``, accumulation: unmodified scripts, each in a process of its own, on one thread.
A script is captured, its replay compared with bare iterations of itself that the correction never saw, and two or three
what-ifs are predicted and really run beside it. Every pair is reported; what does not apply is listed with its reason,
and so is a script whose library is not installed here: that is no failure, but no success either. ``strangers`` lets
other scripts go the same way.

    python -m benchmarks.held_out_style --verbose
    python -m benchmarks.held_out_style --scripts lbfgs_closure --small
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks import bar
from benchmarks.suite_fidelity import captured
from benchmarks.whatif_error import compared, fresh_prices
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights import Ledger, verify
from windtunnel.graph import Graph
from windtunnel.measure import StopRule
from windtunnel.simulate import replay
from windtunnel.sources.targets import Script
from windtunnel.sources.torch.launch import Ranks

REPLAY_MEDIAN, WHATIF_MEDIAN = 0.03, 0.05
RULE = StopRule(rounds=30, precision=0.008, time_limit_s=8.0, turn_ns=50_000_000, warmup=2)
SMALL_RULE = StopRule(rounds=4, min_rounds=3, precision=0.2, time_limit_s=1.0, turn_ns=10_000_000, warmup=2)
TIMEOUT_S = 900
NUM_SCRIPTS = 10
Row = dict[str, object]


@dataclass(frozen=True)
class Record:
    """Scripts that go the same way.

    ``bar`` is its name and that of its module; ``changes`` says by script what is flown, ``needs`` which modules it
    imports, ``ranks`` in how many processes it runs. ``then`` gives further rows of a script, ``counted`` further parts
    of the bar's line from all rows.
    """

    bar: str
    folder: Path
    changes: Mapping[str, tuple[str, ...]]
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    then: Callable[[Script, str, bool], list[Row]] = lambda _subject, _change, _is_small: []
    counted: Callable[[list[Row]], dict[str, object]] = lambda _rows: {}

    def script(self, name: str) -> Script:
        """What is captured and flown."""
        return Script(self.folder / f"{name}.py", ranks=Ranks(self.ranks.get(name, 1)))


CHANGES = {
    "adagrad_step_lr": ("foreach-optimizer", "threads:threads=2", "batch-size:factor=2"),
    "rmsprop_clipped_gru": ("foreach-optimizer", "threads:threads=2", "gc-pauses"),
    "nadam_averaged": ("foreach-optimizer", "channels-last", "amp"),
    "lbfgs_closure": ("threads:threads=2", "amp"),
    "compiled_mixer": ("fused-optimizer", "threads:threads=2"),
    "scaled_autocast": ("foreach-optimizer", "threads:threads=2", "activation-checkpointing"),
    "two_optimizers": ("foreach-optimizer", "threads:threads=2", "freeze-layers:layer=encoder.*"),
    "functional_gradients": ("foreach-optimizer", "threads:threads=2"),
    "accumulating_trainer": ("loader-workers:num_workers=1", "foreach-optimizer", "threads:threads=2"),
    "sharpness_aware": ("fused-optimizer", "threads:threads=2", "amp"),
    "hf_trainer": ("foreach-optimizer", "amp", "threads:threads=2"),
    "lightning_fit": ("fused-optimizer", "threads:threads=2"),
}
NEEDS = {"hf_trainer": ("transformers", "accelerate"), "lightning_fit": ("lightning",)}
HELD_OUT = Record("held_out_style", Path(__file__).resolve().parent / "held_out", CHANGES, NEEDS)


def arguments(description: str | None) -> argparse.Namespace:
    """What was asked on the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print every row")
    parser.add_argument("--small", action="store_true", help="see that it works: short flights, times mean nothing")
    parser.add_argument("--scripts", default="", help="names, with commas; all by default")
    parser.add_argument("--json", default="", help="of one script: write its rows to this file")
    return parser.parse_args()


def rows_of(record: Record, name: str, *, is_small: bool) -> list[Row]:
    """The replay's row, one per change, and what the record adds."""
    torch.set_num_threads(1)
    subject = record.script(name)
    try:
        graph, sampling = (subject.capture(6, None), {}) if is_small else captured(subject, 20)
    except WindtunnelError as error:
        return [{"script": name, "failed": f"capture: {error.message} ({error.fix})"}]
    rows = [replayed(name, graph) | sampling]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "receipts.db")
        rule = SMALL_RULE if is_small else RULE
        rows += [flown(subject, change, graph, ledger, rule) for change in record.changes[name]]
    return rows + record.then(subject, record.changes[name][0], is_small)


def replayed(name: str, graph: Graph) -> Row:
    """How far the replay is off the script's own bare iterations."""
    measured_ns = statistics.median(graph.meta.overhead["held_out_ns"])
    error = replay(graph).makespan_ns / measured_ns - 1
    return {"script": name, "replay_error": error, "measured_ms": measured_ns / 1e6, "tasks": graph.num_tasks}


def flown(subject: Script, change: str, graph: Graph, ledger: Ledger, rule: StopRule) -> Row:
    """Predict, fly, compare."""
    row: Row = {"script": subject.path.stem, "change": change}
    try:
        receipt = verify(subject, change, graph=graph, rule=rule, ledger=ledger, **fresh_prices(ledger))
        return row | compared(receipt)
    except NotApplicableError as error:
        return row | {"not applicable": error.message}
    except WindtunnelError as error:
        return row | {"failed": f"{error.message} ({error.where})"}


def apart(record: Record, name: str, asked: argparse.Namespace) -> list[Row]:
    """One script in a process of its own; a crash is its row."""
    missing = [module for module in record.needs.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        return [{"script": name, "skipped": f"needs {', '.join(missing)}"}]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "rows.json"
        options = ["--scripts", name, "--json", str(kept), *(["--small"] * asked.small)]
        command = [sys.executable, "-m", f"benchmarks.{record.bar}", *options]
        try:
            done = subprocess.run(
                command,
                cwd=bar.ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return [{"script": name, "failed": f"no answer within {TIMEOUT_S} s"}]
        if not kept.exists():
            return [{"script": name, "failed": f"crashed: {done.stderr[-300:]}"}]
        rows: list[Row] = json.loads(kept.read_text())
        return rows


def main(record: Record, description: str | None) -> None:
    """Print the bar, and with --verbose its rows; of one script with ``--json``, write its rows."""
    asked = arguments(description)
    names = [name for name in asked.scripts.split(",") if name] or list(record.changes)
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows_of(record, names[0], is_small=asked.small)))
        return
    rows: list[Row] = []
    for name in names:
        found = apart(record, name, asked)
        rows += found
        if asked.verbose:
            for row in found:
                print(json.dumps(row), flush=True)
    finish(record, rows)


def finish(record: Record, rows: list[Row]) -> None:
    """The line."""
    replays = {str(row["script"]): float(str(row["replay_error"])) for row in rows if "replay_error" in row}
    pairs = {f"{row['script']}/{row['change']}": float(str(row["error"])) for row in rows if "error" in row}
    failed = {
        f"{row['script']}/{row.get('change', row.get('verb', 'capture'))}": row["failed"]
        for row in rows
        if "failed" in row
    }
    replay_median = statistics.median(map(abs, replays.values())) if replays else float("inf")
    whatif_median = statistics.median(map(abs, pairs.values())) if pairs else float("inf")
    bar.report(
        record.bar,
        whatif_median,
        f"what-ifs median <= {WHATIF_MEDIAN:.0%}, replay median <= {REPLAY_MEDIAN:.0%}, ten scripts, none failed",
        whatif_median <= WHATIF_MEDIAN
        and replay_median <= REPLAY_MEDIAN
        and not failed
        and len(replays) >= NUM_SCRIPTS,
        replay_median=replay_median,
        num_scripts=len(replays),
        num_pairs=len(pairs),
        replay_errors=replays,
        standard_errors={str(row["script"]): row["standard_error"] for row in rows if "standard_error" in row},
        whatif_errors=pairs,
        failed=failed,
        not_applicable={
            f"{row['script']}/{row['change']}": row["not applicable"] for row in rows if "not applicable" in row
        },
        skipped={str(row["script"]): row["skipped"] for row in rows if "skipped" in row},
        **record.counted(rows),
    )


if __name__ == "__main__":
    main(HELD_OUT, __doc__)
