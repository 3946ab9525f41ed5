"""What the code of a room does, read from its syntax: who launches processes, who times, who reaches out."""

from __future__ import annotations

import ast
import re
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
    "hardware/host.py": "asks the driver which GPUs there are; the package lies below measure",
    "search/placement/latency_ilp.py": "a solver that is ended when its time is over; nothing is timed",
    "systems/suite/workloads/actors.py": "the actors of A3C are part of the workload, as a loader's workers are",
}
# clocks that are what the file is about, and no way to take a time of something
ALLOWED_TIMING = {
    "sources/dry/host_side.py": "tracing: processor time of a program's own code between two calls of torch",
    "sources/torch/": "tracing: stamps of a live program while it is captured",
    "flights/process_variant.py": "stamps of a live program while it is flown",
    "systems/pipelines/training/rank.py": "spans of a rank on the clock that all ranks share",
    "systems/pipelines/training/trainer.py": "when a rank is done with each batch of a training that goes on",
    "cost/rerun/interpreter.py": "stamps of each operator while a captured program runs",
    "systems/suite/metrics.py": "CPU seconds of a job, which is a metric of it",
    "systems/tensor_programs/run/worker.py": "passes over compiled programs, timed in the process that holds them",
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
    """Imports of another package's internal module, as "who: whose"; a subject is a package of its own."""
    internal = internal_modules()
    found = []
    for path, tree in sources():
        package = ".".join(["windtunnel", *path.split("/")[: 2 if path.startswith("systems/") else 1]])
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            modules = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)} & internal
            found += [f"{path}: {module}" for module in sorted(modules) if not module.startswith(f"{package}.")]
    return found


def internal_modules() -> set[str]:
    """Modules that the docstring of their package declares internal, or leaves out of its public ones."""
    internal = set()
    for init in SOURCE.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        declared = re.search(r"^(Public|Internal) modules: ([^.]*)\.", text, re.MULTILINE)
        if not declared:
            continue
        named = set(re.findall(r"``(\w+)``", declared[2]))
        present = {
            path.stem for path in init.parent.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        if unknown := named - present:
            raise AssertionError(f"{init}: no modules {sorted(unknown)}")
        package = ".".join(("windtunnel", *init.parent.relative_to(SOURCE).parts))
        hidden = named if declared[1] == "Internal" else present - named - {"__init__", "__main__"}
        internal |= {f"{package}.{module}" for module in hidden}
    return internal


def lines() -> dict[str, tuple[int, int]]:
    """Lines and files of the core and of each subject."""
    count: dict[str, tuple[int, int]] = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        part = parts[1] if parts[0] == "systems" and len(parts) > 2 else "core"
        num_lines, num_files = count.get(part, (0, 0))
        count[part] = num_lines + len(path.read_text(encoding="utf-8").splitlines()), num_files + 1
    return count


def underscore_files() -> list[str]:
    """Files whose name begins with an underscore."""
    return sorted(
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("_*.py") if not path.name.startswith("__")
    )


def small_helpers() -> tuple[int, int]:
    """Private functions of five lines or fewer with one caller in their file, and all functions."""
    num_small = num_all = 0
    for _, tree in sources():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        uses: dict[str, int] = {}
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            uses[name] = uses.get(name, 0) + 1
        num_all += len(functions)
        for function in functions:
            body = function.body[1:] if ast.get_docstring(function) else function.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            is_private = function.name.startswith("_") and not function.name.startswith("__")
            num_small += is_private and length <= 5 and uses.get(function.name, 0) == 1
    return num_small, num_all


def comments_per_100_lines() -> float:
    """Lines with a comment among 100 lines of code."""
    texts = [path.read_text(encoding="utf-8").splitlines() for path in SOURCE.rglob("*.py")]
    comments = sum(bool(re.search(r"(^|\s)#\s", line)) for text in texts for line in text)
    return 100 * comments / sum(map(len, texts))


if __name__ == "__main__":
    for part, (num_lines, num_files) in sorted(lines().items(), key=lambda item: -item[1][0]):
        print(f"{part:16}{num_lines:9,} lines {num_files:5} files")
