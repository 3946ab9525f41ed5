"""Commands that errors, help and tables name exist, with the options that are named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import windtunnel
from windtunnel import registry
from windtunnel.cli.app import build_app

SOURCES = Path(windtunnel.__file__).parent
COMMAND = re.compile(r"(?<![\w./-])windtunnel ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*){0,2})([^`;:()\n]*)")
OPTION = re.compile(r"--[a-z][a-z-]*")
OLD_SPELLINGS = "cli/app.py"


def texts(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield node.lineno, "".join(map(str, parts))


@pytest.fixture(scope="module")
def commands():
    return typer.main.get_command(build_app(registry.all("verb")))


def find_command(command, words):
    """The command that words name, as deep as they go, and how many of them name it."""
    depth = 0
    while hasattr(command, "commands"):
        word = words[depth] if depth < len(words) else ""
        if word in command.commands:
            command, depth = command.commands[word], depth + 1
        elif getattr(command, "default", ""):
            command = command.commands[command.default]
        else:
            break
    return command, depth


def test_commands_that_texts_name_have_the_options_that_are_named(commands):
    found, wrong = 0, []
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        for line, text in texts(path) if name != OLD_SPELLINGS else ():
            for words, rest in COMMAND.findall(text):
                command, depth = find_command(commands, words.split())
                known = {option for parameter in command.params for option in parameter.opts}
                known |= {option for parameter in command.params for option in parameter.secondary_opts}
                named = OPTION.findall(rest.partition(".py ")[0])  # what follows a script is the script's
                found += depth > 0
                wrong += [f"{name}:{line}: windtunnel {words} {option}" for option in named if option not in known]
    assert found > 300
    assert not wrong, "\n".join(wrong)
