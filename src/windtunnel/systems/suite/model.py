"""The workloads of the suite and their sizes, without training.

In: registered workloads that have a domain. Out: their domain, source, parameters and FLOP per sample, counted under
fake tensors where the workload lets itself be built so, and what a cell will need of memory. Not here: measuring.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from windtunnel import registry
from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError, InputError, MissingExtraError, WindtunnelError
from windtunnel.measure.fingerprint import package_versions
from windtunnel.sources.targets import build_workload
from windtunnel.systems.suite.results import Cell, write_whole

if TYPE_CHECKING:
    from windtunnel.workloads import Workload

__all__ = [
    "Entry",
    "NeededMemory",
    "fitting_parameters",
    "list_workloads",
    "predict_step_memory",
    "suite_plugins",
    "workload_plugins",
]

Answer = TypeVar("Answer")
_OPTIONS = ("size", "batch_size")
_CACHE = Path(".windtunnel") / "suite.json"
_ADVICE = {
    "feature map": "a smaller batch, or activation-checkpointing",
    "temporary": "a smaller batch",
    "input": "a smaller batch",
    "optimizer state": "an optimizer that keeps less, or a smaller --size",
}


def suite_plugins() -> dict[str, registry.Plugin]:
    """Return the workloads of the suite by name, which are those with a domain."""
    return {name: plugin for name, plugin in registry.all("workload").items() if plugin.domain}


def workload_plugins(names: Sequence[str] | None) -> dict[str, registry.Plugin]:
    """Return the named workloads, or all of the suite.

    Raises
    ------
    InputError
        There is no workload of a name; the nearest are offered. Or the suite is empty.
    """
    if names:
        return {name: registry.get("workload", name) for name in names}
    result = suite_plugins()
    if not result:
        raise InputError("no installed workload has a domain", fix="name workloads: windtunnel list workloads")
    return result


def fitting_parameters(cell: Cell) -> dict[str, Any]:
    """Return the parameters of a workload: its size if it has sizes, the batch size if one is requested.

    Raises
    ------
    InputError
        The workload does not let its batch size be chosen.
    """
    known = registry.get("workload", cell.workload).parameters
    parameters: dict[str, Any] = {"size": cell.size} if "size" in known else {}
    if cell.batch_size and "batch_size" not in known:
        raise InputError(f"the batch size of {cell.workload} cannot be chosen", fix="leave the batch size out")
    return parameters | ({"batch_size": cell.batch_size} if cell.batch_size else {})


@dataclass(frozen=True)
class Entry:
    """One row of the suite's table.

    Attributes
    ----------
    num_parameters, flops_per_sample : int or None
        FLOP of a whole training step over its samples. None if they are unknown; ``note`` states why.
    """

    name: str
    domain: str
    source: str
    summary: str
    num_parameters: int | None = None
    flops_per_sample: float | None = None
    batch_size: int | None = None
    unit: str = ""
    data: str = ""
    note: str = ""


def list_workloads(
    size: str = "tiny",
    names: Sequence[str] | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[Entry]:
    """Return the table of the suite.

    Every workload is built and steps once under fake tensors, or really where it cannot be faked and ``size`` is tiny.
    What was counted is kept in ``cache`` (``~/.windtunnel/suite.json``) until the workload's source file changes.
    """
    path = Path.home() / _CACHE if cache is None else cache
    kept = _read_cache(path)
    entries: list[Entry] = []
    plugins = workload_plugins(names)
    for index, (name, plugin) in enumerate(plugins.items()):
        key = f"{name} {size} {_digest(plugin)}"
        if key not in kept:
            if progress is not None:
                progress(name, index, len(plugins))
            counted = _count_workload(name, size)
            if counted["num_parameters"] is not None:
                kept[key] = counted
                write_whole(path, json.dumps(kept, indent=1).encode())
        else:
            counted = kept[key]
        entries.append(Entry(name, plugin.domain, plugin.source, plugin.summary, **counted))
    return entries


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):  # a missing or broken cache is rebuilt
        return {}
    return kept if isinstance(kept, dict) else {}


def _digest(plugin: registry.Plugin) -> str:
    """Return a fingerprint of the workload's source file and of the relevant package versions."""
    try:
        text = Path(inspect.getsourcefile(plugin.function) or "").read_bytes()
    except OSError:  # a plug-in without a file is known by its name only
        text = plugin.name.encode()
    versions = json.dumps(package_versions(), sort_keys=True).encode()
    return hashlib.sha256(text + versions).hexdigest()[:12]


def _count_workload(name: str, size: str) -> dict[str, Any]:
    """Count parameters, FLOP per sample and batch size; a note states what could not be counted."""
    parameters = fitting_parameters(Cell(name, size))
    try:
        return _ask_fake(name, parameters, _count)
    except WindtunnelError as error:
        return _unknown(error.message)
    except Exception as error:  # not every workload can be faked: a real step counts the same
        if size != "tiny":
            return _unknown(f"not counted: {type(error).__name__} under fake tensors; try size tiny")
    try:
        return _ask_real(name, parameters, _count)
    except Exception as error:
        return _unknown(f"not counted: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _unknown(note: str) -> dict[str, Any]:
    unknown = asdict(Entry("", "", "", "", note=note))
    return {key: value for key, value in unknown.items() if key not in ("name", "domain", "source", "summary")}


def _ask_fake(name: str, parameters: Mapping[str, Any], ask: Callable[[Workload], Answer]) -> Answer:
    """Build a workload under fake tensors and apply ``ask`` to it."""
    from windtunnel.sources.memory.tracking import predict_memory

    answers: list[Answer] = []

    def build() -> Callable[[], None]:
        answers.append(_ask_real(name, parameters, ask))
        return lambda: None

    predict_memory(build, warmup=1)
    return answers[0]


def _ask_real(name: str, parameters: Mapping[str, Any], ask: Callable[[Workload], Answer]) -> Answer:
    built = build_workload(name, parameters)
    try:
        return ask(built)
    finally:
        built.close()


def _count(built: Workload) -> dict[str, Any]:
    from windtunnel.sources.torch.flop_count import count

    flops = count(built.step).total
    return {
        "num_parameters": sum(parameter.numel() for model in built.models for parameter in model.parameters()),
        "flops_per_sample": flops / built.batch_size,
        "batch_size": built.batch_size,
        "unit": built.unit,
        "data": built.data,
        "note": "",
    }


@dataclass(frozen=True)
class NeededMemory:
    """The peak memory of the tensors of a training step, by category, in bytes.

    If that is unknown, there are no categories, and ``reason`` states why.
    """

    by_category: Mapping[str, int]
    reason: str = ""

    @property
    def total_bytes(self) -> int:
        """The sum of all categories."""
        return sum(self.by_category.values())

    @property
    def largest(self) -> str:
        """The largest category that can be reduced."""
        return max(self.by_category, key=lambda category: self.by_category[category])

    @property
    def advice(self) -> str:
        """Advice on how to reduce it."""
        return _ADVICE.get(self.largest, "choose a smaller --size")


def predict_step_memory(name: str, parameters: Mapping[str, Any]) -> NeededMemory:
    """Predict the peak memory of a step without allocating it; no categories if its shapes depend on values.

    Raises
    ------
    MissingExtraError, InputError
        The workload cannot be built at all.
    """
    from windtunnel.sources.memory.tracking import predict_memory

    try:
        profile = predict_memory(lambda: build_workload(name, parameters), warmup=1)
    except (MissingExtraError, InfeasibleError):
        raise
    except Exception as error:  # what cannot be faked is built for real, and measured
        if isinstance(error, InputError) and error.where in _OPTIONS:
            raise
        message = error.message if isinstance(error, WindtunnelError) else f"{type(error).__name__}: {error}"
        return NeededMemory({}, message.partition("\n")[0])
    return NeededMemory(profile.by_category())
