"""Every module is there for a verb or a registration: what neither reaches is dead weight, or a benchmark's."""

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

import windtunnel
from windtunnel.registry import KINDS

ROOT = Path(windtunnel.__file__).parent
PUBLIC = (
    "windtunnel",
    "windtunnel.__main__",
    "windtunnel.testing",
    "windtunnel.systems.cluster.testing",
    "windtunnel.systems.uneven.testing",
)


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


@dataclass(frozen=True)
class Module:
    """What counts of a file: what it imports, and whether a verb, a public name or a registration is in it."""

    imports: tuple[str, ...]
    is_door: bool


def module_of(name: str, tree: ast.Module, packages: Set[str]) -> Module:
    package = name if name in packages else name.rpartition(".")[0]
    is_door = name in PUBLIC or name.startswith("windtunnel.cli") or registers(tree)
    return Module((name.rpartition(".")[0], *imported(tree, package)), is_door)


def unreached(modules: dict[str, Module]) -> list[str]:
    """Modules to which no verb, public name or registration leads; importing one imports its packages."""
    begun = [name for name, one in modules.items() if one.is_door]
    seen: set[str] = set()
    while begun:
        name = begun.pop()
        if name not in seen and name in modules:
            seen.add(name)
            begun += modules[name].imports
    return sorted(set(modules) - seen)


@pytest.fixture(scope="module")
def house() -> dict[str, Module]:
    paths = {name_of(path): path for path in ROOT.rglob("*.py")}
    packages = {name for name, path in paths.items() if path.name == "__init__.py"}
    return {name: module_of(name, ast.parse(path.read_text()), packages) for name, path in paths.items()}


def more(code: dict[str, str]) -> dict[str, Module]:
    return {name: module_of(name, ast.parse(text), set()) for name, text in code.items()}


def test_every_module_is_reached_by_a_verb_or_a_registration(house):
    assert [] == unreached(house)


def test_a_module_that_nothing_imports_is_found(house):
    alone = {"windtunnel.cost.alone": "from windtunnel.cost.alone_too import x", "windtunnel.cost.alone_too": "x = 1"}

    assert sorted(alone) == unreached(house | more(alone))


def test_a_module_that_registers_is_reached_with_what_it_imports(house):
    code = "from windtunnel import registry\nfrom windtunnel.cost import used\n"
    code += "@registry.cost_model('new', source='')\ndef new(): ..."

    assert [] == unreached(house | more({"windtunnel.cost.new": code, "windtunnel.cost.used": "x = 1"}))
