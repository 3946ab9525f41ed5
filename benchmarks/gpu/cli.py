"""The command line on scripts of users, as one would type it (stage ``cli`` of ``benchmarks.gpu``).

In: the name of a script of ``scripts``. Out: of ``NAME`` what is timed on the device: the script alone, captured, alone
again (drift of the machine shows between the two), its memory, and some changes flown; of ``NAME+answers`` what the
graph says afterwards, which computes on the host. Every command has a limit of its own, and none ends the others.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bar import ROOT
from benchmarks.gpu.pairs import SCRIPTS
from benchmarks.gpu.stages import Job, Row, lacking, path_of, write

IS_APART = False
UNIT_S = 130.0  # on an H200, operators run again included
NEEDED = ("numba", "pyarrow", "msgspec", "typer", "pydantic", "rich")
ORDER = ("decoder_lm", "residual_net", "perceptron", "compiled_lm", "attention_by_hand", "lora_accumulation")
FLOWN = {
    "decoder_lm": "chunked-loss,fused-optimizer,activation-checkpointing",
    "residual_net": "amp,channels-last",
    "perceptron": "cuda-graphs,fused-optimizer,foreach-optimizer",
    "attention_by_hand": "tf32,fused-optimizer",
    "lora_accumulation": "no-activation-checkpointing",
    "streams_net": "amp,channels-last",
}
STEPS = {"decoder_lm": 100, "residual_net": 80, "perceptron": 600, "lora_accumulation": 40}
ALONE_S, COMMAND_S, FLIGHT_S, RERUN_S = 45.0, 45.0, 75.0, 90.0
RERUN = ("amp", "tf32", "channels-last", "fused-optimizer", "batch-size:factor=2", "activation-checkpointing",
         "chunked-loss")  # fmt: skip
SHOWN_BYTES, KEPT_GRAPH_BYTES = 4000, 1_500_000


def names(job: Job) -> tuple[str, ...]:
    return ("perceptron",) if job.is_small else (*ORDER, *sorted({*SCRIPTS} - {*ORDER}))


def units(job: Job) -> Sequence[str]:
    return [*names(job), *(f"{name}+answers" for name in names(job))]


def run(unit: str, job: Job) -> Row:
    missing = lacking(NEEDED)
    if missing:
        return {"pending": f"needs {', '.join(missing)}"}
    name, _, answers = unit.partition("+")
    folder = Path(tempfile.gettempdir()) / f"benchmarks-gpu-cli-{os.getuid()}" / name
    folder.mkdir(parents=True, exist_ok=True)
    script = Path(shutil.copy(ROOT / "benchmarks" / "gpu" / "scripts" / f"{name}.py", folder))
    commands = _answers() if answers else _timed(name, job)
    row: Row = {"commands": {}}
    for title, words in commands.items():
        row["commands"][title] = _run(title, words, script, job)
        write(path_of("cli/recorded", unit, job), row)
    return row


def _timed(name: str, job: Job) -> dict[str, list[str]]:
    steps = "6" if job.is_small else str(STEPS.get(name, 60))
    small = ["--small"] * job.is_small
    capture = ["capture", "--force", "--json", "-o", "graph.wt", "SCRIPT", "--steps", "100000", *small]
    fewer = ["capture", "--iterations", "4", *capture[1:]] if job.is_small else capture
    flown = FLOWN.get(name, "")
    rounds = ["--rounds", "3" if job.is_small else "20"]
    verify = [
        "verify",
        "SCRIPT",
        "--graph",
        "graph.wt",
        "--whatif",
        flown,
        *rounds,
        "--ledger",
        "receipts.db",
        "--json",
    ]
    return {
        "alone": ["SCRIPT", "--steps", steps, *small],
        "capture": fewer,
        "alone-again": ["SCRIPT", "--steps", steps, *small],
        "rerun": ["whatif", "graph.wt", *RERUN, "--fresh", "--json"],
        **({"verify": [*verify, "--", "--steps", "100000", *small]} if flown else {}),
        "memory": ["memory", "--json", "SCRIPT", "--steps", "100000", *small],
    }


def _answers() -> dict[str, list[str]]:
    return {
        "explain": ["explain", "graph.wt", "--json"],
        "explain-layers": ["explain", "graph.wt", "--by", "layer"],
        "explain-lines": ["explain", "graph.wt", "--by", "line"],
        "whatif": ["whatif", "graph.wt", "--all", "--why", "--json"],
        "predict": ["predict", "graph.wt", "--on", "h100,a100", "--json"],
        "memory-fake": ["memory", "--fake", "--on", "h100", "--json", "SCRIPT", "--steps", "100000"],
        "dry-capture": ["capture", "--fake", "--force", "-o", "dry.wt", "SCRIPT", "--steps", "100000"],
        "dry-predict": ["predict", "dry.wt", "--on", "h100,h200", "--json"],
    }


def _run(title: str, words: Sequence[str], script: Path, job: Job) -> Row:
    """One command, by the words of its line; ``SCRIPT`` is the script."""
    limit_s = {"alone": ALONE_S, "alone-again": ALONE_S, "verify": FLIGHT_S, "rerun": RERUN_S}.get(title, COMMAND_S)
    chosen = [str(script) if word == "SCRIPT" else word for word in words]
    begins = [sys.executable] if words[0] == "SCRIPT" else [sys.executable, "-m", "windtunnel"]
    search = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if job.device == "cpu" else {}
    environment = {"PYTHONPATH": search, "COLUMNS": "110", "NO_COLOR": "1", **hidden}
    begun_s = time.monotonic()
    try:
        done = subprocess.run(
            [*begins, *chosen], env={**os.environ, **environment}, cwd=script.parent, capture_output=True, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as cut:
        said = (cut.stderr or b"").decode(errors="replace")[-SHOWN_BYTES:]
        return {"seconds": limit_s, "code": None, "stderr": f"cut off after {limit_s:g} s; so far: {said}"}
    row: Row = {"seconds": round(time.monotonic() - begun_s, 1), "code": done.returncode}
    row["stderr"] = done.stderr[-SHOWN_BYTES:]
    kept = job.folder / "cli" / "files"
    kept.mkdir(parents=True, exist_ok=True)
    if len(done.stdout) <= SHOWN_BYTES:
        row["stdout"] = done.stdout
    else:
        row["file"] = f"{script.stem}-{title}.txt.gz"
        (kept / row["file"]).write_bytes(gzip.compress(done.stdout.encode()))
    if title == "capture" and done.returncode == 0:
        row["graph"] = _keep(script.parent / "graph.wt", kept / f"{script.stem}.wt.tar.gz")
    return row


def _keep(graph: Path, path: Path) -> str:
    """A graph as one file, where it is small."""
    with tarfile.open(path, "w:gz") as archive:
        archive.add(graph, arcname=f"{path.name.partition('.')[0]}.wt")
    size_bytes = path.stat().st_size
    if size_bytes <= KEPT_GRAPH_BYTES:
        return path.name
    path.unlink()
    return f"not kept: {size_bytes:,} bytes"


def summary(rows: Mapping[str, Row], job: Job) -> Row:
    """Milliseconds alone and captured, changes that apply, speed-ups predicted and flown, and what failed."""
    found: dict[str, Any] = {"failed_commands": []}
    for unit, row in rows.items():
        name, commands = unit.partition("+")[0], row.get("commands", {})
        about = found.setdefault(name, {})
        for title, command in commands.items():
            if command["code"] != 0:
                last = [*command["stderr"].strip().splitlines(), ""][0]
                found["failed_commands"].append(f"{unit} {title}: {command['code']} {last[:160]}")
        alone = [_printed(commands.get(title, {}), job).get("ms_per_step") for title in ("alone", "alone-again")]
        if None not in alone and alone:
            about["alone_ms"] = alone
        captured = _printed(commands.get("capture", {}), job).get("meta", {}).get("iteration_ns", {})
        if isinstance(captured, Mapping) and captured.get("median") and about.get("alone_ms"):
            about["captured_ms"] = captured["median"] / 1e6
            about["captured_over_alone"] = about["captured_ms"] / statistics.mean(about["alone_ms"])
        rerun = _printed(commands.get("rerun", {}), job).get("answers", [])
        about["rerun"] = {one["whatif"]: one.get("speedup") for one in rerun if one.get("is_applicable")}
        answers = _printed(commands.get("whatif", {}), job).get("answers", [])
        if answers:
            about["num_apply"] = sum(bool(one.get("is_applicable")) for one in answers)
    return found


def _printed(command: Row, job: Job) -> Row:
    """The last JSON document that a command printed."""
    text = command.get("stdout", "")
    if "file" in command:
        text = gzip.decompress((job.folder / "cli" / "files" / command["file"]).read_bytes()).decode()
    for part in (text, *reversed(text.splitlines())):
        try:
            document = json.loads(part)
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    return {}
