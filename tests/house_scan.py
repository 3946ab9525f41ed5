"""What the code of a room does, read from its syntax: who launches processes, who times, who reaches out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import windtunnel

SOURCE = Path(windtunnel.__file__).parent
LAUNCHERS = {"subprocess", "multiprocessing", "pty"}
NO_LAUNCHERS = {"multiprocessing.connection", "multiprocessing.sharedctypes"}  # pipes and memory
FORKS = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "execv", "execve", "execvp"}
CLOCKS = {"perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time", "thread_time_ns"}
REACHES_OUT = {"multiprocessing", "os", "pathlib", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile"}
REACHES_OUT |= {"threading", "time", "torch"}

# processes that are not measured by us
ALLOWED_LAUNCHERS = {
    "hardware/host.py": "asks the driver which GPUs there are; the room lies below measure",
    "planning/codesign/constraint_schedule.py": "a solver beside whose library another one cannot be; nothing is timed",
    "planning/placement/latency_ilp.py": "a solver that is ended when its time is over; nothing is timed",
    "workloads/_actors.py": "the actors of A3C are part of the workload, as a loader's workers are",
}
# clocks that are what the file is about, and no way to take a time of something
ALLOWED_TIMING = {
    "sources/torch/": "tracing: stamps of a live program while it is captured",
    "flights/_lane.py": "stamps of a live program while it is flown",
    "training/pipelines/_rank.py": "spans of a rank on the clock that all ranks share",
    "training/pipelines/_trainer.py": "when a rank is done with each batch of a training that goes on",
    "cost/rerun/_interpreter.py": "stamps of each operator while a captured program runs",
    "suite/metrics.py": "CPU seconds of a job, which is a metric of it",
    "programs/run/worker.py": "passes over compiled programs, timed within the process that holds their code",
}


def sources(room: str = "") -> Iterator[tuple[str, ast.Module]]:
    """Path below the package, and syntax, of every file."""
    for path in sorted((SOURCE / room).rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def launchers() -> list[str]:
    """Files outside of measure/ that start processes by themselves."""
    found = []
    for path, tree in sources():
        if not path.startswith("measure/") and path not in ALLOWED_LAUNCHERS and _launches(tree):
            found.append(path)
    return found


def _launches(tree: ast.Module) -> bool:
    plain = {
        one.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names
    }
    forks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in FORKS
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    of = {
        str(node.module).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level and node.module not in NO_LAUNCHERS
    }
    pools = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "ProcessPoolExecutor"]
    return bool((plain | of) & LAUNCHERS or forks or pools)


def timing() -> list[str]:
    """Functions outside of measure/ that read a clock to take a time; a clock that is handed on is none."""
    found = []
    for path, tree in sources():
        if path.startswith("measure/") or any(path.startswith(allowed) for allowed in ALLOWED_TIMING):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _reads_clock(node):
                found.append(f"{path}:{node.name}")
    return found


def _reads_clock(function: ast.AST) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in CLOCKS for call in calls)


def reaching_out() -> list[str]:
    """Files of whatifs/ that import what starts processes, opens files or reads clocks, or call open."""
    return [path for path, tree in sources("whatifs") if _imported(tree) & REACHES_OUT or "open" in _called(tree)]


def _imported(tree: ast.Module) -> set[str]:
    plain = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    of = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | of}


def _called(tree: ast.Module) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name)}


def private_imports() -> list[str]:
    """Imports of another room's private module, as "who: whose"."""
    found = []
    for path, tree in sources():
        room = path.partition("/")[0]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            parts = str(node.module).split(".")
            if parts[0] == "windtunnel" and len(parts) > 1 and parts[1] != room:
                names = [*parts[1:], *(one.name for one in node.names if len(parts) == 1)]
                if any(name.startswith("_") for name in names):
                    found.append(f"{path}: {node.module}")
    return found


def lines() -> dict[str, int]:
    """Lines of each room, and of all."""
    count: dict[str, int] = {}
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        number = len(path.read_text(encoding="utf-8").splitlines())
        count[room.removesuffix(".py")] = count.get(room.removesuffix(".py"), 0) + number
        count["all"] = count.get("all", 0) + number
    return count
