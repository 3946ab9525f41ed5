"""All verbs in one application, and what happens to their errors."""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import typer
import typer.core

from windtunnel import __version__, registry
from windtunnel.cli.console import advise, clean
from windtunnel.cli.errors import show_error, show_usage_error
from windtunnel.cli.subjects import is_script
from windtunnel.errors import InputError, WindtunnelError

__all__ = ["build_app", "run"]

# typer keeps its parser to itself; the base of its one public usage error is the error of all wrong usage
UsageError: Any = typer.BadParameter.__mro__[1]
INTERRUPTED = 130
_PANELS = {
    "Measure": ("capture", "explain", "memory", "diff", "convert", "slice", "calibrate"),
    "Ask": ("whatif", "verify", "predict", "list", "db", "models", "demo"),
}
"""Panels of the first screen; the other commands are subjects."""
_OTHERS = "Subjects"
_OWN_ARGUMENTS = {"allow_interspersed_args": False}  # all after the script is the script's
_OF_SCRIPTS = ("capture", "memory")
# Old spellings and new ones, to be removed at 1.0. Where the arguments have changed too, nothing is run.
_RENAMED = {
    "receipts": "db receipts",
    "dry-run": "capture --dry-run",
    "fly": "verify",
    "cost sample": "models sample", "cost harvest": "models sample tasks", "cost info": "models show",
    "cost train": "models train", "cost eval": "models eval",
    "place split": "place plan", "place fly": "place verify",
    "codesign model": "chip plan", "codesign circulant": "chip plan circulant", "codesign zeros": "chip predict",
    "codesign": "chip plan",
    "cluster simulate": "cluster predict", "cluster compare": "cluster plan", "cluster tune": "cluster plan timers",
    "cluster drive": "cluster run", "cluster explain": "cluster show",
    "serve fly": "serve verify", "serve size": "serve plan threads",
    "train compare": "train plan", "train tune": "train plan values",
    "evolve run": "kernel plan", "evolve step": "kernel plan step", "evolve show": "kernel show",
    "evolve apply": "kernel apply", "evolve rank": "kernel predict", "evolve place": "kernel predict step",
    "evolve": "kernel plan",
    "suite list": "suite show workloads", "suite report": "suite show", "suite compare": "suite verify",
}  # fmt: skip
_REPLACED = {
    "replay": "explain GRAPH --table resources",
    "report": "explain GRAPH --html FILE",
    "optimize": "whatif GRAPH --search",
    "recommend": "predict GRAPH --cheapest --samples N",
}


class _Verbs(typer.core.TyperGroup):
    """A group that lists its commands in the order of use and suggests the nearest three for a misspelled one."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = () if ctx.parent else [name for names in _PANELS.values() for name in names]
        return sorted(self.commands, key=lambda name: (order.index(name) if name in order else len(order), name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands of the first screen by panel, those of a group in one list."""
        panels = dict(_PANELS) if ctx.parent is None else {}
        others = tuple(name for name in self.list_commands(ctx) if not any(name in names for names in panels.values()))
        width = max(map(len, self.commands)) + 4
        for title, names in {**panels, _OTHERS if panels else "Commands": others}.items():
            present = [self.commands[name] for name in names if name in self.commands]
            if present:
                with formatter.section(title):
                    rows = [(command.name, command.get_short_help_str(formatter.width - width)) for command in present]
                    formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            near = registry.did_you_mean(args[0], self.commands)
            raise InputError(f"there is no command {args[0]!r}", where=ctx.command_path, fix=near)
        return super().resolve_command(ctx, args)


class _DefaultVerbs(_Verbs):
    """A group with a default command, which runs if the first argument names none of the commands."""

    default = ""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        named = args if not args or args[0] in self.commands else [self.default, *args]
        return super().resolve_command(ctx, named)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Insert the default command before leading options."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help of the default command below that of the group."""
        super().format_help(ctx, formatter)
        command = self.commands[self.default]
        formatter.write_paragraph()
        formatter.write_text(f"Default command: {self.default}")
        formatter.write_paragraph()
        command.format_help(type(ctx)(command, info_name=self.default, parent=ctx), formatter)


def _windtunnel(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Example: windtunnel capture train.py, then windtunnel whatif train.wt --all

    Measure a deep-learning job, predict changes to it, and verify the best by real runs.
    """
    del version, debug  # both are taken from the arguments before parsing: they may stand anywhere


def build_app(verbs: Mapping[str, registry.Plugin]) -> typer.Typer:
    """Make the parser of these verbs; a name of several words lies in the groups that its first words name."""
    groups = {"": _typer_of("")}
    groups[""].callback(invoke_without_command=False)(_windtunnel)
    heads = {name.rpartition(" ")[0] for name in verbs}
    for name, plugin in verbs.items():  # sorted, so that a group comes before what lies in it
        head, _, word = name.rpartition(" ")
        if name not in heads:
            settings = _OWN_ARGUMENTS if name in _OF_SCRIPTS else None
            groups[head].command(word, short_help=_summary_of(plugin), context_settings=settings)(plugin.function)
            continue
        groups[name] = _typer_of(inspect.getdoc(plugin.function) or "")
        kind = type("_Group", (_DefaultVerbs,), {"default": plugin.default}) if plugin.default else _Verbs
        groups[head].add_typer(groups[name], name=word, cls=kind, short_help=_summary_of(plugin))
    return groups[""]


def _typer_of(text: str) -> typer.Typer:
    return typer.Typer(
        cls=_Verbs,
        help=text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=not text,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80, "terminal_width": 80},
    )


def _summary_of(plugin: registry.Plugin) -> str:
    """What a verb does: its docstring is an example, then that."""
    return (inspect.getdoc(plugin.function) or "").split("\n\n")[1].replace("\n", " ")


def run(arguments: list[str]) -> int:
    """Run one command; every error becomes a message and an exit code."""
    arguments, is_debug = _take_debug(arguments)
    try:
        arguments = _workload_last(_as_spelled_now(arguments))
    except InputError as error:
        return show_error(error, is_debug=is_debug)
    _warn_of_late_options(arguments)
    if arguments == ["--version"]:
        print(f"windtunnel {__version__}")  # noqa: T201 - the answer
        return 0
    command = _command_of(arguments[0] if arguments else "")
    if not arguments:
        arguments = ["--help"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = command.main(args=arguments, prog_name="windtunnel", standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without its verb
            print(error.format_message())  # noqa: T201 - the answer
            return 0
        return show_usage_error(error, is_debug=is_debug)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except WindtunnelError as error:
        return show_error(error, is_debug=is_debug)
    except Exception as error:  # nothing may end in a traceback that nobody asked for
        return show_error(error, is_debug=is_debug)
    return code if isinstance(code, int) else 0


@functools.cache
def _command_of(verb: str) -> Any:
    """The parser of one verb, or of all where it names none: making all of them takes a quarter of a second."""
    return typer.main.get_command(build_app(registry.verbs(verb) or registry.all("verb")))


def _as_spelled_now(arguments: list[str]) -> list[str]:
    """Replace an old spelling by the new one, and print it.

    Raises
    ------
    InputError
        The command has other arguments now.
    """
    for length in (2, 1):
        old = " ".join(arguments[:length])
        if old in _REPLACED:
            raise InputError(f"windtunnel {old} is now another command", fix=f"windtunnel {_REPLACED[old]}")
        if old in _RENAMED and len(arguments) >= length:
            advise(f"windtunnel {old} is now windtunnel {_RENAMED[old]}")
            return [*_RENAMED[old].split(), *arguments[length:]]
    return arguments


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out, wherever it stands, but leave what belongs to a captured script."""
    ours = len(arguments)
    if "--" in arguments:
        ours = arguments.index("--")
    if arguments and arguments[0] in _OF_SCRIPTS:
        scripts = [index for index, argument in enumerate(arguments) if index and argument.endswith(".py")]
        ours = min([ours, *scripts])
    kept = [argument for argument in arguments[:ours] if argument != "--debug"]
    return kept + arguments[ours:], len(kept) < ours


def _warn_of_late_options(arguments: list[str]) -> None:
    """Options of ours that stand behind a script go to the script: say so, with the order that was meant."""
    if not arguments or arguments[0] not in _OF_SCRIPTS:
        return
    position = next((row for row, word in enumerate(arguments) if row and word.endswith(".py")), len(arguments))
    behind = arguments[position + 1 :]
    if "--" in arguments[: position + 2]:  # an explicit separator needs no warning
        return
    ours = _options_of(arguments[0])
    late = [word for word in behind if word.partition("=")[0] in ours]
    if not late:
        return
    moved: list[str] = []
    for index, word in enumerate(behind):
        name, sign, _ = word.partition("=")
        if name in ours:
            moved.append(word)
            if ours[name] and not sign and index + 1 < len(behind):
                moved.append(behind[index + 1])
    command = shlex.join(["windtunnel", arguments[0], *moved, *arguments[1 : position + 1]])
    advise(
        f"warning: {', '.join(late)} comes after {arguments[position]} and is passed to it; for windtunnel: {command}"
    )


def _options_of(verb: str) -> dict[str, bool]:
    """Options of a verb, and whether each takes a value."""
    command = _command_of(verb).commands[verb]
    return {
        name: not getattr(param, "is_flag", False)
        for param in command.params
        for name in getattr(param, "opts", ())
        if name.startswith("-")
    }


def _workload_last(arguments: list[str]) -> list[str]:
    """Allow ``memory mlp --fake``: a workload has no arguments of its own, so options may follow it."""
    is_of_scripts = len(arguments) > 2 and arguments[0] in _OF_SCRIPTS
    if not is_of_scripts or arguments[1].startswith("-") or is_script(arguments[1]):
        return arguments
    return [arguments[0], *arguments[2:], arguments[1]]


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {clean(str(message), 600)}", file=sys.stderr)  # noqa: T201
