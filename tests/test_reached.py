"""Every module is there for a verb or a registration: what neither reaches is dead weight, or a benchmark's."""

import ast
from collections.abc import Iterator
from pathlib import Path

import windtunnel
from windtunnel.registry import KINDS

ROOT = Path(windtunnel.__file__).parent
PUBLIC = ("windtunnel", "windtunnel.__main__", "windtunnel.testing")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """What code imports, and what it names in a text, as what it starts with ``-m`` or loads on first use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (source, *(f"{source}.{one.name}" for one in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("windtunnel."):
            yield node.value


def registers(tree: ast.Module) -> bool:
    """Whether a module registers something, or is the package that finds what its modules register."""
    calls = [one for node in tree.body for one in getattr(node, "decorator_list", ())]
    calls += [node.value for node in tree.body if isinstance(node, ast.Expr)]
    names = [ast.unparse(one.func) for one in calls if isinstance(one, ast.Call)]
    return any(name in {f"registry.{kind}" for kind in (*KINDS, "discover")} for name in names)


def unreached(trees: dict[str, ast.Module], packages: set[str]) -> list[str]:
    """Modules to which no verb, public name or registration leads; importing one imports its packages."""
    begun = [
        name for name, tree in trees.items() if name in PUBLIC or name.startswith("windtunnel.cli") or registers(tree)
    ]
    seen: set[str] = set()
    while begun:
        name = begun.pop()
        if name in seen or name not in trees:
            continue
        seen.add(name)
        package = name if name in packages else name.rpartition(".")[0]
        begun += [name.rpartition(".")[0], *imported(trees[name], package)]
    return sorted(set(trees) - seen)


def house() -> tuple[dict[str, ast.Module], set[str]]:
    paths = {name_of(path): path for path in ROOT.rglob("*.py")}
    packages = {name for name, path in paths.items() if path.name == "__init__.py"}
    return {name: ast.parse(path.read_text()) for name, path in paths.items()}, packages


def test_every_module_is_reached_by_a_verb_or_a_registration():
    trees, packages = house()

    assert [] == unreached(trees, packages)


def test_a_module_that_nothing_imports_is_found():
    trees, packages = house()
    alone = {"windtunnel.cost.alone": ast.parse("from windtunnel.cost.alone_too import x"),
             "windtunnel.cost.alone_too": ast.parse("x = 1")}  # fmt: skip

    assert sorted(alone) == unreached(trees | alone, packages)


def test_a_module_that_registers_is_reached_with_what_it_imports():
    trees, packages = house()
    code = "from windtunnel import registry\nfrom windtunnel.cost import used\n"
    code += "@registry.cost_model('new', source='')\ndef new(): ..."
    added = {"windtunnel.cost.new": ast.parse(code), "windtunnel.cost.used": ast.parse("x = 1")}

    assert [] == unreached(trees | added, packages)
