"""``windtunnel kernel plan``: kernels that become faster by search, and what their edits rest on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json, Output
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_ratio, parse_duration

if TYPE_CHECKING:
    from windtunnel.systems.kernels.model import Kernel


KernelName = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL",
        help="Kernel: a .ll file, a .py file with a Numba function, or a built-in such as hotspot, srad or nw.",
    ),
]
TestPath = Annotated[
    Path | None,
    typer.Option("--test", metavar="FILE", help="Python file that defines cases(split), the arguments to test with."),
]
FunctionName = Annotated[
    str, typer.Option("--function", metavar="NAME", help="Function to use, where the .py file has several.")
]
FolderPath = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder written by `kernel plan`.")]


@registry.verb("kernel", source="GEVO")
def _group() -> None:
    """Example: windtunnel kernel plan pathfinder --time-limit 60s

    Search for edits of a kernel's LLVM IR that make it faster.
    """


@registry.verb("kernel plan", source="GEVO", default="kernel")
def _plan_group() -> None:
    """Example: windtunnel kernel plan pathfinder --time-limit 60s

    Search for edits of a kernel (default) or of a training step.
    """


@registry.verb("kernel plan kernel", source="GEVO")
def run(
    kernel: KernelName,
    test: TestPath = None,
    function: FunctionName = "",
    allow: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Allowed edits: faithful (equal on every input), tests (on the test inputs) or promises (also of "
            "callers).",
        ),
    ] = "faithful",
    population: Annotated[int, typer.Option(min=4, metavar="N", help="Population size, a multiple of four.")] = 32,
    generations: Annotated[
        int, typer.Option("--max-generations", min=0, metavar="N", help="Maximum number of generations.")
    ] = 20,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time limit; no generation starts after it.")
    ] = "10min",
    operators: Annotated[
        str,
        typer.Option(
            metavar="LETTERS", help="Mutation operators, letters of crismpxha (default: those that --allow permits)."
        ),
    ] = "",
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Time limit of one candidate run.")] = "10s",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")] = 0,
    output: Output = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write a page with Pareto front, ablation and diff.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel kernel plan pathfinder --time-limit 60s

    Search for faster edits of a kernel, validate them on held-out inputs, and explain each.

    The output folder stores each generation, so that the same command resumes an interrupted search.
    """
    from windtunnel.systems.kernels.evolving import ALLOWED, evolve_kernel, read_result
    from windtunnel.systems.kernels.search import Options

    if page is not None:
        require_free(page, force=force)
    folder = output if output is not None else Path(f"{Path(kernel).stem}.evolve")
    if (folder / "result.json").exists():
        require_free(folder, force=force)
        for old in [folder / "result.json", *folder.glob("generation-*.json")]:
            old.unlink()
    result = _open(kernel, test, function)
    limit_s, timeout_s = parse_duration(time_limit) / 1e9, parse_duration(timeout) / 1e9
    options = Options(population, generations, operators=operators or ALLOWED.get(allow, "c"), seed=seed,
                      time_limit_s=limit_s)  # fmt: skip
    with Progress("evolving") as progress:
        evolve_kernel(result, options, allowed=allow, folder=folder, progress=progress, timeout_s=timeout_s)
    document = read_result(folder)
    _finish(document, folder, page, force=force, as_json=as_json)


@registry.verb("kernel plan step", source="GEVO")
def step(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="Workload whose step is a model and a loss, such as mlp.")
    ],
    parameters: Annotated[
        str, typer.Option(metavar="LIST", help="Parameters of the workload, such as batch_size=8,width=32,depth=3.")
    ] = "",
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, metavar="RATIO", help="Relative error allowed in loss and gradients; 0: bitwise equal."),
    ] = 0.0,
    population: Annotated[int, typer.Option(min=4, metavar="N", help="Population size, a multiple of four.")] = 8,
    generations: Annotated[
        int, typer.Option("--max-generations", min=0, metavar="N", help="Maximum number of generations.")
    ] = 20,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time limit; no generation starts after it.")
    ] = "2min",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Example: windtunnel kernel plan step mlp --parameters batch_size=8,width=32

    Search a training step for operators that do not affect its loss and gradients.
    """
    from windtunnel.systems.kernels.search import Options
    from windtunnel.systems.kernels.steps.run import OPERATORS, evolve_step

    options = Options(population, generations, operators=OPERATORS, seed=seed,
                      time_limit_s=parse_duration(time_limit) / 1e9)  # fmt: skip
    with Progress("evolving") as progress:
        result = evolve_step(workload, options, parameters=_numbers(parameters), tolerance=tolerance, progress=progress)
    if result.edits:
        low, value, high = result.measured.low, result.measured.value, result.measured.high
        lines = [
            f"{workload}: {value:.3f}x ({low:.3f}-{high:.3f}, 95 %), predicted {result.predicted:.3f}x",
            f"{result.num_left} of {result.num_operators} operators remain",
            *(f"  {words}" for words in result.words),
        ]
    else:
        lines = [f"{workload}: no edit is significantly faster; the step is unchanged"]
    show(result.json(), lines, as_json=as_json)


def _numbers(text: str) -> dict[str, Any]:
    """``name=number`` with commas between."""
    parts = [part.partition("=") for part in text.split(",") if part]
    if not all(name and value.lstrip("-").isdecimal() for name, _, value in parts):
        raise InputError(f"{text!r} is no list of numbers by name", where="--parameters",
                         fix="write it like batch_size=8,width=32")  # fmt: skip
    return {name.strip(): int(value) for name, _, value in parts}


@registry.verb("kernel show", source="GEVO")
def show_result(
    folder: FolderPath,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write a page with Pareto front, ablation and diff.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel kernel show pathfinder.evolve

    Show the result of a search, as text or as a page.
    """
    from windtunnel.systems.kernels.evolving import read_result

    _finish(read_result(folder), folder, page, force=force, as_json=as_json)


@registry.verb("kernel apply", source="GEVO")
def apply(
    folder: FolderPath,
    kernel: KernelName,
    test: TestPath = None,
    function: FunctionName = "",
    optimized: Annotated[
        bool, typer.Option("--optimized", help="Write the module after the compiler's optimization for this host.")
    ] = False,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel kernel apply pathfinder.evolve pathfinder

    Apply the edits of a search and write the kernel's module (LLVM IR).
    """
    from windtunnel.base.outputs import whole
    from windtunnel.systems.kernels.evolving import apply_edits, edits_of, read_result

    document = read_result(folder)
    path = require_free(output or Path(f"{Path(kernel).stem}.evolved.ll"), force=force)
    edits = edits_of(document, str(folder))
    text = apply_edits(_open(kernel, test, function), edits, is_optimized=optimized)
    with whole(path) as scratch:
        scratch.write_text(text, encoding="utf-8")
    about = {"schema": "windtunnel.evolve-apply/1", "file": str(path), "num_edits": len(edits)}
    show(about, [f"{path}: {document['kernel']} with {len(edits)} edits"], as_json=as_json)


def _open(name: str, test: Path | None, function: str) -> Kernel:
    from windtunnel.systems.kernels.evolving import open_kernel

    if test is not None and not test.exists():
        raise InputError(f"there is no {test}", where="--test", fix="check the path")
    return open_kernel(name, test, function)


def _finish(document: dict[str, Any], folder: Path, page: Path | None, *, force: bool, as_json: bool) -> None:
    if page is not None:
        from windtunnel.systems.kernels.page import kernel_page

        require_free(page, force=force)
        kernel_page(document, page, overwrite=force)
    show(document, _lines(document), as_json=as_json)
    if page is not None:
        advise(f"wrote {page}")
    else:
        suggest("windtunnel", "kernel", "show", folder, "--html", f"{folder.stem}.html")


def _lines(document: dict[str, Any]) -> Iterator[str | Table]:
    low, value, high = (document[name] for name in ("speedup_low", "speedup", "speedup_high"))
    if not document["edits"]:
        yield f"{document['kernel']}: no edit is significantly faster; the original is unchanged"
    else:
        yield f"{document['kernel']}: {value:.3f}x ({low:.3f}-{high:.3f}, 95 %), {document['label']}"
        rows = [("yes" if gene["is_faithful"] else "no", gene["rests_on"], gene["words"])
                for gene in document["genes"]]  # fmt: skip
        yield Table({"faithful": str, "depends on": str, "edit": str}, rows, wraps="edit")
        yield (
            f"{len(document['edits'])} of {document['num_raw_edits']} edits remain after minimization; "
            f"{_needs(document)}"
        )
    counts = document["counts"]
    classes = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
    yield f"candidates: {classes}"
    if document["num_discarded"]:
        yield f"discarded: {document['num_discarded']}, such as {document['discarded'][0]}"


def _needs(document: dict[str, Any]) -> str:
    together = len(document["cluster"])
    if not together:
        return "each is faster by itself"
    stones = len(document["stepping_stones"])
    return f"{together} are faster only together" + (
        f", {stones} of them without any gain of their own" if stones else ""
    )


@registry.verb("kernel predict", source="GEVO", default="operators")
def _predict_group() -> None:
    """Example: windtunnel kernel predict train.wt

    Predict the speed-up of a step by faster kernels: per operator (default), or from search results.
    """


@registry.verb("kernel predict operators", source="GEVO")
def rank(
    graph: Annotated[Path, typer.Argument(metavar="STEP", help="Captured graph, such as train.wt.")],
    factor: Annotated[float, typer.Option(metavar="X", help="Speed-up assumed for each operator.")] = 1.3,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of rows to show.")] = 15,
    as_json: Json = False,
) -> None:
    """Example: windtunnel kernel predict train.wt

    Rank operators by the speed-up of the whole step if their kernel were faster.
    """
    from windtunnel.cli.files import open_graph
    from windtunnel.simulate import replay
    from windtunnel.systems.kernels.rank import by_operator

    with Progress("replaying", heartbeat=True) as progress:
        opened = open_graph(graph, progress=progress)
        result = by_operator(replay(opened), factor)
    columns = {"operator": str, "tasks": "{:g}", "time": format_duration, "step speed-up": "{:.3f}x",
               "hidden": format_ratio, "built-in kernel": str}  # fmt: skip
    names = ("operator", "num_tasks", "own_ns", "speedup", "hidden", "at_hand")
    rows = [[getattr(item, name) for name in names] for item in result]
    lines: list[str | Table] = [
        f"speed-up of the step if one operator were {factor:g} times as fast:",
        Table(columns, rows[:top]),
        "hidden: fraction of the saved time that is off the critical path",
    ]
    document = {"schema": "windtunnel.evolve-rank/1", "factor": factor,
                "operators": [item.to_dict() for item in result]}  # fmt: skip
    show(document, lines, as_json=as_json)
    if as_json:
        return
    kernel = next((item.at_hand for item in result[:top] if item.at_hand), "")
    searched = Path(f"{kernel}.evolve")
    if kernel and (searched / "result.json").exists():
        suggest("windtunnel", "kernel", "predict", "step", graph, searched)
    else:
        suggest("windtunnel", "kernel", "plan", kernel or "KERNEL.ll")


@registry.verb("kernel predict step", source="GEVO")
def place(
    graph: Annotated[Path, typer.Argument(metavar="STEP", help="Captured graph, such as train.wt.")],
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders written by `kernel plan`.")],
    operator: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Operator that the kernel implements (default: that of the built-in kernel)."
        ),
    ] = "",
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel kernel predict step train.wt softmax.evolve -o faster.wt

    Predict the speed-up of a step that uses the kernels found by searches.
    """
    from windtunnel.cli.files import open_graph
    from windtunnel.graph import save
    from windtunnel.simulate import replay
    from windtunnel.systems.kernels.evolving import read_result
    from windtunnel.systems.kernels.variant import gain_text, place_winners

    if output is not None:
        require_free(output, force=force)
    winners = [read_result(folder) for folder in folders]
    with Progress("replaying", heartbeat=True) as progress:
        timeline = replay(open_graph(graph, progress=progress))
        changed, placed = place_winners(timeline, winners, operator)
        gain = timeline.makespan_ns / replay(changed).makespan_ns
    if output is not None:
        save(changed, output, overwrite=force)
    columns = {"kernel": str, "operator": str, "measured": gain_text, "edits": str, "step speed-up": gain_text}
    rows = [(item.kernel, item.operator, item.measured, item.label, item.step) for item in placed]
    total = f"all kernels together: {gain:.3f}x, if the step uses the kernels that the searches started from"
    placements = [item.to_dict() for item in placed]
    document = {"schema": "windtunnel.evolve-place/1", "speedup": gain, "placed": placements}
    show(document, [Table(columns, rows, wraps="operator"), total], as_json=as_json)
    if output is not None and not as_json:
        advise(f"next: windtunnel diff {graph} {output}")
