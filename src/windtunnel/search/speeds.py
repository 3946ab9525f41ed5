"""S: which part of its full speed a model has on a placement.

In: layers with times and gradient bytes, a graph of one device's step, or a table. Out: S in (0, 1] per model, batch
and shape; 1 for one GPU. Not here: which placements there are, and rings (``shapes``).

S = compute / (compute + communication that nothing hides).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.columns import number, read_rows
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import Discipline, EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.hardware import Link
from windtunnel.search.shapes import RULES, Shape, all_reduce_ns, parse_shape, shape_text
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns

__all__ = [
    "FreeCommunication",
    "GraphSpeeds",
    "LayerSpeeds",
    "Profile",
    "Speeds",
    "TableSpeeds",
    "iteration_graph",
    "read_profile",
    "read_profiles",
    "read_speed_table",
]

Links = Sequence[Link]


class Speeds(Protocol):
    """What the simulator asks."""

    def speed(self, model: str, batch: int, shape: Shape) -> float:
        """S of a model on several GPUs; ``batch`` 0: as it was measured."""


class FreeCommunication:
    """As if all GPUs were one: S is 1 everywhere."""

    def speed(self, model: str, batch: int, shape: Shape) -> float:  # noqa: ARG002
        """1."""
        return 1.0


@dataclass(frozen=True, eq=False)
class Profile:
    """Layers of a model on one device.

    Attributes
    ----------
    name : str
    batch : int
        That the times belong to.
    forward_ns, input_gradient_ns, weight_gradient_ns : float64 [L]
    gradient_bytes : int64 [L]
        What is summed over all workers after the weight gradient; 0: nothing.
    """

    name: str
    batch: int
    forward_ns: NDArray[np.float64]
    input_gradient_ns: NDArray[np.float64]
    weight_gradient_ns: NDArray[np.float64]
    gradient_bytes: NDArray[np.int64]

    @property
    def compute_ns(self) -> float:
        """Of one iteration."""
        return float((self.forward_ns + self.input_gradient_ns + self.weight_gradient_ns).sum())


class LayerSpeeds:
    """S from layers, by the closed form of hierarchical rings.

    Parameters
    ----------
    profiles : mapping of str to Profile
    links : three of Link
    rule : str
        How uneven placements are priced; see :func:`windtunnel.search.shapes.all_reduce_ns`.
    overlap : bool
        Overlap sums with the backward pass: an iteration is replayed as a graph.

    Raises
    ------
    InputError
        There is no such rule.
    """

    def __init__(
        self, profiles: Mapping[str, Profile], links: Links, *, rule: str = "exact", overlap: bool = False
    ) -> None:
        if rule not in RULES:
            raise InputError(f"no rule of shapes is called {rule!r}", fix=f"known: {', '.join(RULES)}")
        self.profiles, self.links, self.rule, self.overlap = profiles, links, rule, overlap
        self._sums_ns: dict[tuple[str, Shape], NDArray[np.int64]] = {}

    def profile(self, model: str) -> Profile:
        """Layers of a model.

        Raises
        ------
        PriceError
            No profile has this name; lists those that are there.
        """
        result: Profile = _find_by_name(self.profiles, model)
        return result

    def speed(self, model: str, batch: int, shape: Shape) -> float:
        """S; compute grows with the batch, gradients do not.

        Raises
        ------
        PriceError
            No profile has this name; lists those that are there.
        """
        if sum(map(sum, shape)) == 1:
            return 1.0
        profile = self.profile(model)
        scale = batch / profile.batch if batch else 1.0
        key = profile.name, shape
        if key not in self._sums_ns:
            self._sums_ns[key] = np.array(
                [all_reduce_ns(int(size), shape, self.links, self.rule) if size else 0
                 for size in profile.gradient_bytes], np.int64,
            )  # fmt: skip
        compute_ns = scale * profile.compute_ns
        if not self.overlap:
            return compute_ns / (compute_ns + float(self._sums_ns[key].sum()))
        # From the begin of an iteration to that of the next, when the first is over.
        graph = iteration_graph(profile, self._sums_ns[key], scale)
        begins = replay(graph).start_ns[graph.select(phase=Phase.FORWARD)].reshape(3, -1)[:, 0]
        return compute_ns / max(float(begins[2] - begins[1]), compute_ns)


class GraphSpeeds:
    """S from the graph of one device's step: workers are added to it, and it is replayed.

    Parameters
    ----------
    graphs : mapping of str to Graph
        Priced graphs of one worker, by model, as ``windtunnel capture`` or ``capture --dry-run`` write them.
    links : three of Link
    rule : str
    cores_per_rank : float
        Of their hosts; 0: all workers share as many as the host had on which a graph was captured.
    """

    def __init__(
        self, graphs: Mapping[str, Graph], links: Links, *, rule: str = "exact", cores_per_rank: float = 0.0
    ) -> None:
        self.graphs, self.links, self.rule, self.cores_per_rank = graphs, links, rule, cores_per_rank
        self._known: dict[tuple[str, Shape], float] = {}

    def speed(self, model: str, batch: int, shape: Shape) -> float:  # noqa: ARG002 - a graph has its own batch
        """S of the model's graph under data parallelism.

        Raises
        ------
        PriceError
            No graph has this name.
        """
        num = sum(map(sum, shape))
        if num == 1:
            return 1.0
        key = model, shape
        if key not in self._known:
            self._known[key] = self._replay_speed(_find_by_name(self.graphs, model), num, shape)
        return self._known[key]

    def _replay_speed(self, graph: Graph, num: int, shape: Shape) -> float:
        from windtunnel.whatifs import apply, parse_request
        from windtunnel.whatifs.placing import overlap_steps

        graph = overlap_steps(graph)
        link = self.links[0]
        text = f"data-parallel:num_ranks={num},bandwidth_bytes_per_s={link.bandwidth_bytes_per_s!r},latency_ns=0"
        text += f",num_cores={math.ceil(num * self.cores_per_rank)}" if self.cores_per_rank else ""
        joined = apply(graph, parse_request(text), prices="paper")
        rows = np.flatnonzero(joined.select(kind=Kind.COMM) & (joined.tasks["message_bytes"] > 0))
        sums_ns = [all_reduce_ns(int(joined.tasks["message_bytes"][row]), shape, self.links, self.rule) for row in rows]
        mask = np.zeros(joined.num_tasks, bool)
        mask[rows] = True
        priced = joined.set_duration(mask, np.array(sums_ns, np.int64), "hierarchical ring")
        alone_ns, joined_ns = (iteration_ns(replay(item), graph.num_iterations) for item in (graph, priced))
        return alone_ns / joined_ns


class TableSpeeds:
    """S from a table of measurements, by model and shape.

    Parameters
    ----------
    rows : mapping of (model, shape) to float
    source : str
    """

    def __init__(self, rows: Mapping[tuple[str, Shape], float], source: str = "table") -> None:
        self.rows, self.source = rows, source
        self._models = {model: model for model, _ in rows}

    @property
    def faster_than_ideal(self) -> list[str]:
        """Rows with S above 1, which noise can cause; they are used as they are."""
        return [f"{model} {shape_text(shape)}" for (model, shape), value in self.rows.items() if value > 1]

    def speed(self, model: str, batch: int, shape: Shape) -> float:  # noqa: ARG002
        """S as the table says.

        Raises
        ------
        PriceError
            It has no such model, or not on this shape.
        """
        if sum(map(sum, shape)) == 1:
            return 1.0
        known = _find_by_name(self._models, model)
        if (known, shape) not in self.rows:
            near = [shape_text(other) for name, other in self.rows if name == known]
            raise PriceError(
                f"{model} has no speed on {shape_text(shape)}",
                where=self.source,
                fix=f"add a row; it has {', '.join(near[:8])}",
            )
        return self.rows[known, shape]


def _find_by_name(known: Mapping[str, Any], model: str) -> Any:
    """By its name, letters and digits alone: ``MobileNetV3`` is ``mobilenet_v3``; or by the begin of one name only."""
    if model in known:
        return known[model]
    plain = _plain(model)
    same = [name for name in known if _plain(name) == plain]
    near = same or [name for name in known if plain and _plain(name).startswith(plain)]
    if len(near) != 1:
        raise PriceError(
            f"nothing is known of the model {model!r}",
            where="speeds",
            fix=f"add it to the table or folder of --speeds; known: {', '.join(sorted(known)) or 'none'}",
        )
    return known[near[0]]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def iteration_graph(profile: Profile, sums_ns: NDArray[np.int64], scale: float = 1.0, num_iterations: int = 3) -> Graph:
    """Iterations of one worker whose sums overlap with its backward pass.

    A sum begins after its layer's weight gradient, on the job's one network; the last that is ready goes first. The
    next iteration's forward pass of a layer waits for it.

    Parameters
    ----------
    profile : Profile
    sums_ns : int64 [L]
    scale : float
        Of all compute, for another batch.
    num_iterations : int
    """
    builder = GraphBuilder()
    device = builder.resource("gpu", ResourceKind.DEVICE)
    network = builder.resource("network", ResourceKind.LINK, discipline=Discipline.PRIORITY)
    last, sums = -1, dict[int, int]()

    def compute(name: str, duration_ns: float, phase: Phase, iteration: int) -> int:
        nonlocal last
        task = builder.task(
            name, duration_ns=round(scale * duration_ns), phase=phase, resource=device, iteration=iteration
        )
        if last >= 0:
            builder.edge(last, task, kind=EdgeKind.ORDER)
        last = task
        return task

    layers = range(len(sums_ns))
    for iteration in range(num_iterations):
        for layer in layers:
            task = compute(f"forward {layer}", profile.forward_ns[layer], Phase.FORWARD, iteration)
            if layer in sums:
                builder.edge(sums[layer], task)
        for layer in reversed(layers):
            created = compute(f"weight gradient {layer}", profile.weight_gradient_ns[layer], Phase.BACKWARD, iteration)
            if sums_ns[layer]:
                sums[layer] = builder.task(
                    f"sum {layer}", duration_ns=int(sums_ns[layer]), kind=Kind.COMM, resource=network, priority=layer,
                    iteration=iteration, phase=Phase.BACKWARD,
                )  # fmt: skip
                builder.edge(created, sums[layer])
            compute(f"input gradient {layer}", profile.input_gradient_ns[layer], Phase.BACKWARD, iteration)
    return builder.build()


def read_profiles(folder: Path) -> dict[str, Profile]:
    """Layer tables of a folder, ``MODEL_bBATCH.csv`` each.

    Raises
    ------
    InputError
        There are none, or one cannot be read.
    """
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise InputError("there are no layer tables", where=str(folder), fix="put one MODEL_bBATCH.csv per model there")
    created = [read_profile(path) for path in paths]
    return {item.name: item for item in created}


def read_profile(path: Path) -> Profile:
    """One layer table: ``layer,fwd_ns,input_grad_ns,weight_grad_ns,wg_comm,wg_comm_bytes``.

    Raises
    ------
    InputError
        Its name has no batch, a column is missing, or a value is no number of 0 or more.
    """
    match = re.fullmatch(r"(.+)_b(\d+)", path.stem)
    if match is None or not int(match[2]):
        raise InputError(
            "the name says no batch", where=str(path), fix="call it MODEL_bBATCH.csv, as resnet50_b512.csv"
        )
    columns = ("fwd_ns", "input_grad_ns", "weight_grad_ns", "wg_comm_bytes")
    rows = read_rows(path, (*columns, "wg_comm"))
    numbers = [[number(row, column, path, line) for column in columns] for line, row in enumerate(rows, 2)]
    values = np.array(numbers, np.float64)
    has_sum = np.array([row["wg_comm"] == "ALLREDUCE" for row in rows])
    size = np.where(has_sum, values[:, 3], 0).astype(np.int64)
    return Profile(match[1], int(match[2]), values[:, 0], values[:, 1], values[:, 2], size)


def read_speed_table(path: Path) -> TableSpeeds:
    """A table of speeds: ``model,shape,gpus,seconds_compute,seconds_exposed,source``.

    Raises
    ------
    InputError
        A row means nothing; names its line.
    """
    rows: dict[tuple[str, Shape], float] = {}
    for line, row in enumerate(read_rows(path, ("model", "shape", "gpus", "seconds_compute", "seconds_exposed")), 2):
        where = f"{path}: line {line}"
        try:
            shape = parse_shape(row["shape"])
        except InputError as error:
            raise InputError(error.message, where=where, fix=error.fix) from error
        compute = number(row, "seconds_compute", path, line)
        exposed = number(row, "seconds_exposed", path, line, least=-compute)  # below 0: noise, kept as it is
        if compute + exposed <= 0 or compute <= 0 or sum(map(sum, shape)) != number(row, "gpus", path, line):
            raise InputError("compute is above 0, and the shape has as many GPUs as the row says", where=where)
        if (row["model"], shape) in rows:
            raise InputError(f"{row['model']} on {row['shape']} has two rows", where=where, fix="leave one out")
        rows[row["model"], shape] = compute / (compute + exposed)
    return TableSpeeds(rows, str(path))
