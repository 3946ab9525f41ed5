"""Bar ``style``: is the house as small and as plain as it says?

Reads the sources as text; measures nothing.
"""

from __future__ import annotations

import ast
import importlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import bar

SOURCE = Path(__file__).resolve().parent.parent / "src" / "windtunnel"
FILE_LINES = 400
FUNCTION_LINES = 40
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed() -> Iterator[tuple[Path, ast.Module, list[str]]]:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, ast.parse(text), text.splitlines()


def functions(tree: ast.Module) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def num_lines(function: Function) -> int:
    """Lines of the body, without signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 1


def is_annotated(function: Function) -> bool:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    named = [a for a in arguments if a.arg not in ("self", "cls")]
    return function.returns is not None and all(a.annotation is not None for a in named)


def is_kernel(function: Function) -> bool:
    return any(
        "njit" in ast.unparse(decorator) or "overload" in ast.unparse(decorator)
        for decorator in function.decorator_list
    )


def public_definitions(tree: ast.Module) -> list[ast.AST]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    found: list[ast.AST] = [*classes]
    for scope in (tree, *classes):
        found += [n for n in scope.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    return found


def main() -> int:
    lengths: list[int] = []
    long_files: list[str] = []
    unannotated: list[str] = []
    bare: list[str] = []
    public = documented = 0
    for path, tree, lines in parsed():
        where = str(path.relative_to(SOURCE))
        all_functions = functions(tree)
        kernels = [f for f in all_functions if is_kernel(f)]
        lengths += [num_lines(f) for f in all_functions if f not in kernels]
        if len(lines) > FILE_LINES and not kernels:
            long_files.append(f"{where} ({len(lines)})")
        unannotated += [
            f"{where}:{f.lineno} {f.name}" for f in all_functions if f not in kernels and not is_annotated(f)
        ]
        bare += [f"{where}:{n.lineno}" for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.type is None]
        definitions = public_definitions(tree)
        public += len(definitions)
        documented += sum(ast.get_docstring(node) is not None for node in definitions)  # type: ignore[arg-type]
    over = sum(length > FUNCTION_LINES for length in lengths) / len(lengths)
    names = importlib.import_module("windtunnel").__all__
    median = statistics.median(lengths)
    holds = (
        median <= 9
        and over <= 0.06
        and not long_files
        and not unannotated
        and documented >= 0.9 * public
        and not bare
        and len(names) <= 25
    )
    return (
        0
        if bar.report(
            "style",
            median,
            "median <= 9, <= 6 % over 40, no file over 400 but kernels, all annotated, docstrings >= 90 %, <= 25 names",
            holds,
            num_functions=len(lengths),
            median_function_lines=median,
            over_40_ratio=round(over, 4),
            long_files=long_files,
            unannotated=unannotated[:20],
            documented_ratio=round(documented / public, 3),
            bare_excepts=bare,
            num_public_names=len(names),
        )
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
