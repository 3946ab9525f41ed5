"""One registry for everything that plugs in.

In: functions and classes, each with a name, a kind and a source. Out: a table by kind, from which the command
line, ``--help`` and the docs are generated. Built-in plug-ins come through the same entry-point group as those of other
packages: there is no second path. An entry point names a module, or a package that calls ``discover``, which imports
its modules; each module registers what it holds. An entry point called ``KIND.NAME`` is loaded only for that kind: at
first where the plug-in NAME is requested, and with the others of its kind where that does not find the plug-in. One
without such a name is loaded for every kind.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from windtunnel.errors import InputError

__all__ = [
    "KINDS",
    "Plugin",
    "all",
    "cost_model",
    "did_you_mean",
    "discover",
    "flight",
    "get",
    "layer",
    "page",
    "policy",
    "source",
    "strategy",
    "verb",
    "verbs",
    "whatif",
    "workload",
]

KINDS = ("whatif", "flight", "cost_model", "source", "workload", "strategy", "policy", "layer", "verb", "page")
ENTRY_POINT_GROUP = "windtunnel.plugins"

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Plugin:
    """One registered thing: what it is called, what it does and where it comes from."""

    name: str
    kind: str
    function: Callable[..., Any] = field(repr=False)
    source: str
    domain: str = ""
    sniff: Callable[[Path], bool] | None = field(default=None, repr=False)
    suffixes: tuple[str, ...] = ()
    decision: str = ""
    default: str = ""
    limits: Callable[..., Any] | None = field(default=None, repr=False)

    @property
    def decides(self) -> str:
        """What a what-if decides: two that decide the same exclude each other. Defaults to its own name."""
        return self.decision or self.name

    @property
    def module(self) -> str:
        """The module that registered it."""
        return self.function.__module__

    @property
    def package(self) -> str:
        """The distribution package that registered it."""
        return self.module.partition(".")[0]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Its parameters by name, after the graph of a what-if, and after the operator and its arguments of a layer."""
        items = list(inspect.signature(self.function).parameters.items())
        skipped = {"whatif": 1, "layer": 2}.get(self.kind, 0)
        return dict(items[skipped:])


_plugins: dict[str, dict[str, Plugin]] = {kind: {} for kind in KINDS}
_loaded: set[str] = set()


def _register(kind: str, name: str, source: str, **about: Any) -> Callable[[Target], Target]:
    def decorate(function: Target) -> Target:
        plugin = Plugin(name=name, kind=kind, function=function, source=source, **about)
        known = _plugins[kind].get(name)
        if known is not None and _origin(known) != _origin(plugin):  # equal origins: a module that is imported again
            which = "packages" if known.package != plugin.package else "modules"
            first, second = (known.package, plugin.package) if which == "packages" else (known.module, plugin.module)
            raise InputError(
                f"two plug-ins of kind {kind} are called {name!r}",
                where=f"{which} {first} and {second}",
                fix="rename one, or uninstall one of the packages",
            )
        _plugins[kind][name] = plugin
        return function

    return decorate


def _origin(plugin: Plugin) -> tuple[str, str]:
    return plugin.module, plugin.function.__qualname__


def discover(package: str, *, skip: Iterable[str] = ()) -> None:
    """Import the modules and packages in a package, so that what they register is found by its file alone.

    A package calls this in its own ``__init__`` with ``__name__``. A package in it that holds plug-ins calls it again.

    Parameters
    ----------
    package : str
    skip : iterable of str
        Modules that register nothing and are slow to import.
    """
    skipped = {"__main__", *skip}
    for module in pkgutil.iter_modules(sys.modules[package].__path__):
        if module.name not in skipped:
            importlib.import_module(f"{package}.{module.name}")


def whatif(
    name: str, *, source: str, decides: str = "", limits: Callable[..., Any] | None = None
) -> Callable[[Target], Target]:
    """Register ``f(graph, **parameters) -> graph`` as the what-if ``name``.

    Parameters
    ----------
    name, source : str
    decides : str
        Two what-ifs that decide the same (``"optimizer kernels"``) exclude each other in one request.
    limits : callable
        What physics allows of its answers: made by a function of :mod:`windtunnel.simulate.limits`.
    """
    return _register("whatif", name, source, decision=decides, limits=limits)


def flight(name: str, *, source: str) -> Callable[[Target], Target]:
    """Register the real run of the what-if ``name``."""
    return _register("flight", name, source)


def cost_model(name: str, *, source: str) -> Callable[[Target], Target]:
    """Register ``f(**parameters) -> pricer`` as the cost model ``name``; every parameter has a default."""
    return _register("cost_model", name, source)


def source(
    name: str,
    *,
    source: str,
    sniff: Callable[[Path], bool] | None = None,
    suffixes: tuple[str, ...] = (),
) -> Callable[[Target], Target]:
    """Register a reader of outside data into a graph.

    Parameters
    ----------
    name, source : str
    sniff : callable, optional
        Whether what lies at a path is of this format: cheap, by its first bytes; no error for a file of any other.
        Absent where the graph does not come from a file.
    suffixes : tuple of str
        Ends of names of files that are read by it if no sniff knows their content.
    """
    return _register("source", name, source, sniff=sniff, suffixes=suffixes)


def workload(name: str, *, source: str, domain: str = "") -> Callable[[Target], Target]:
    """Register a model with data that can really be run; one with a domain belongs to the suite."""
    return _register("workload", name, source, domain=domain)


def strategy(name: str, *, source: str) -> Callable[[Target], Target]:
    """Register a synchronization strategy of distributed training."""
    return _register("strategy", name, source)


def policy(name: str, *, source: str) -> Callable[[Target], Target]:
    """Register a scheduling policy."""
    return _register("policy", name, source)


def layer(name: str, *, source: str) -> Callable[[Target], Target]:
    """Register ``f(operator, arguments, **parameters)`` as the layer ``name``.

    It gives what runs in place of an operator that is called with these arguments, and the parameters that it has of
    its own.
    """
    return _register("layer", name, source)


def verb(name: str, *, source: str, default: str = "") -> Callable[[Target], Target]:
    """Register a command of the command line.

    Parameters
    ----------
    name : str
        As it is typed: ``"predict"``, or ``"serve plan"`` for a command of the group ``serve``. A group is registered,
        too: by a function that does nothing, whose docstring is that of the group.
    source : str
    default : str
        Of a group: its command where the first argument names none.
    """
    return _register("verb", name, source, default=default)


def page(name: str, *, source: str) -> Callable[[Target], Target]:
    """Register what a subject adds to the output of a core verb.

    That verb states what it calls the function with, and what it takes: ``explain --html`` gives a graph and options to
    ``"utilization"`` and ``"placement"`` for a list of sections, ``predict`` gives forecasts and their devices to
    ``"predict-chips"`` for :class:`windtunnel.systems.chips.predict_page.Chips`.
    """
    return _register("page", name, source)


@functools.cache
def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    """Those of all that is installed; this package's own from its project file, where it runs out of its source tree.

    What such a tree was installed with may be older than the tree, or it may not be installed at all.
    """
    result = tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not project.is_file():
        return result
    own = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"][ENTRY_POINT_GROUP]
    others = [point for point in result if not point.value.startswith("windtunnel.")]
    return (*(importlib.metadata.EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in own.items()), *others)


def _load_entry_points(kind: str, name: str = "") -> None:
    """Load those that may hold plug-ins of a kind; where a name is given, those of that name alone."""
    for point in _entry_points():
        of_kind, _, rest = point.name.partition(".")
        is_other = of_kind in KINDS and (of_kind != kind or (name and rest.partition(".")[0] != name))
        if is_other or point.value in _loaded:
            continue
        try:
            point.load()
        except InputError:
            raise
        except Exception as error:  # a broken third-party plug-in must never stop the program
            if point.value.startswith("windtunnel."):
                raise
            warnings.warn(
                f"plug-in {point.name} ({point.value}) is broken and was skipped: {error}",
                stacklevel=2,
            )
        _loaded.add(point.value)


def all(kind: str) -> dict[str, Plugin]:  # noqa: A001 - reads as registry.all("whatif")
    """Every registered plug-in of a kind, by name, sorted."""
    _load_entry_points(kind)
    return dict(sorted(_plugins[kind].items()))


def verbs(name: str) -> dict[str, Plugin]:
    """Return a verb and, of a group, its commands, sorted; empty where no verb has the name.

    Only what holds this verb is imported, so that a command does not wait for those of other subjects.
    """
    _load_entry_points("verb", name)
    return {key: plugin for key, plugin in sorted(_plugins["verb"].items()) if key.partition(" ")[0] == name}


def get(kind: str, name: str) -> Plugin:
    """Find one plug-in.

    Raises
    ------
    InputError
        No plug-in of this kind has the name; the nearest three are offered.
    """
    if name in _plugins[kind]:  # what is installed is looked through for names that are not known yet
        return _plugins[kind][name]
    _load_entry_points(kind, name)
    known = _plugins[kind] if name in _plugins[kind] else all(kind)
    if name in known:
        return known[name]
    raise InputError(f"no {kind} is called {name!r}", fix=did_you_mean(name, known))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest three names that there are, as a fix; the first three where none is near, nothing where none is.

    Examples
    --------
    >>> did_you_mean("recurent", ["recurrent", "decoder"])
    'did you mean recurrent, decoder?'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
    return f"did you mean {', '.join(near)}?" if near else ""
