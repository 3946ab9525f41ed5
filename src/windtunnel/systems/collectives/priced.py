"""What a schedule takes on a cluster of GPUs, without running it.

In: a program with fusions and overlaps, a cluster. Out: a priced ``Graph``, for ``windtunnel.simulate.replay``. Not
here: which schedules there are (``schedules``), which is best (``search``), plans that really run (``lower``).

A unit (a stage or a fusion) becomes one row of tasks for each of its phases, and a phase that works chunk by chunk one
task per chunk:

    compute stream   [MM 0][MM 1][MM 2][MM 3]
    link                   [RS 0][RS 1][RS 2][AG 0][RS 3][AG 1]...     chunk i after chunk i of the phase before
    collective             [C 0]..[C 1]..                              what is computed inside a fused collective

Pointwise work costs its traffic of memory and a launch; inside a fusion only what it reads from outside and what is
needed outside (or updates a tensor) is traffic. Products and passes reach the shares of the peaks that are published.
Collectives cost what NCCL's own model says (``cost.nccl``), a fused one what one all-reduce costs. Overlap is no
formula: it comes out of the replay.

A rank has its own block of a reduce-scatter after the last hop of the ring, and an all-gather starts with it. So where
the next unit takes a reduce-scatter's result in parts, or an all-gather gets its input in parts, each part goes around
the ring by itself and pays all its hops (a kernel does one hop after the other). Few parts overlap little, many pay
many hops: the price is that of the best number. A product that feeds a ring is none of these: its rows are the blocks
of one pass, in the order of the ring.

All ranks do the same, and rank 0 of a group has blocks as large as any (``layouts.block``), so that every rank waits
for rank 0 and its time is the time of all: one rank of each group stands for the group.

References
----------
Jangda et al., ASPLOS 2022, sections 5 and 6.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.nccl import NCCL_V100, NcclRelease, nccl_p2p_ns, nccl_price
from windtunnel.errors import InputError
from windtunnel.graph import Graph, GraphBuilder, Kind, ResourceKind
from windtunnel.hardware import Device, Topology, bandwidth_ratio, efficiency_ratios, machine
from windtunnel.simulate import replay
from windtunnel.systems.collectives.grouping import in_order, unit_predecessors, units
from windtunnel.systems.collectives.program import Program, Stage

__all__ = ["GpuCluster", "build_graph", "read_cluster"]

NUM_CHUNKS = 16
"""Of what works chunk by chunk: rows of a product, parts of a message."""
_PART_COUNTS = (1, 2, 4, 8, NUM_CHUNKS)
"""Numbers of parts to choose from where each part goes around a ring by itself."""
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_GPUS_PER_PORT = {"dgx-1v": 2, "dgx-2": 2}
"""Machines whose GPUs are those of the release's constants, with the GPUs that share a network port."""
_MEETING = frozenset({"all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"})
_DISTRIBUTING = frozenset({"all_gather", "broadcast"})
"""Collectives whose first hop needs a finished block; the result of the others is finished by their last hop."""


@dataclass(frozen=True, slots=True)
class GpuCluster:
    """Equal nodes of GPUs whose collectives are NCCL's.

    Attributes
    ----------
    name : str
    device : Device
    network : Topology
        Ranks per node and nodes; ``sharers`` are the devices on each network port.
    release : NcclRelease
    """

    name: str
    device: Device
    network: Topology
    release: NcclRelease = NCCL_V100

    def of_group(self, num_ranks: int) -> Topology:
        """The network among this number of neighboring ranks.

        Raises
        ------
        InputError
            The cluster has fewer, or a part of a node would be left over.
        """
        per_node, num_nodes = self.network.sizes
        if num_ranks <= per_node:
            return Topology((num_ranks,), self.network.links[:1], self.network.sharers[:1])
        if num_ranks > per_node * num_nodes:
            raise InputError(
                f"{self.name} has {per_node * num_nodes} devices, not {num_ranks}",
                where="--on",
                fix=f"give {-(-num_ranks // per_node)} nodes",
            )
        if num_ranks % per_node:
            raise InputError(
                f"{num_ranks} ranks do not fill nodes of {per_node} devices", fix=f"give a multiple of {per_node}"
            )
        return Topology((per_node, num_ranks // per_node), self.network.links, self.network.sharers)

    def between_groups(self, group_sizes: tuple[int, ...]) -> Topology:
        """The network between counterparts of neighboring groups."""
        per_node = self.network.sizes[0]
        return self.of_group(per_node) if sum(group_sizes) <= per_node else self.network


def read_cluster(text: str) -> GpuCluster:
    """The cluster that a command line names: ``dgx-2``, ``16xdgx-2``.

    Raises
    ------
    InputError
        It is no number of machines of the catalog, or NCCL's constants are not known for its GPUs.
    """
    parts = re.fullmatch(r"(?:(\d+)x)?([a-z][\w-]*)", text.strip().lower())
    if parts is None or parts[1] == "0":
        raise InputError(f"{text!r} names no cluster", where="--on", fix="such as dgx-2 or 16xdgx-2")
    if parts[2] not in _GPUS_PER_PORT:
        known = ", ".join(_GPUS_PER_PORT)
        raise InputError(f"the constants of NCCL are not known for {parts[2]}", where="--on", fix=f"known: {known}")
    node = machine(parts[2])
    assert node.device_link is not None
    assert node.network_link is not None
    sizes, sharers = (len(node.devices), int(parts[1] or 1)), (1, _GPUS_PER_PORT[node.name])
    network = Topology(sizes, (node.device_link, node.network_link), sharers)
    return GpuCluster(f"{sizes[1]}x {node.name}", node.devices[0], network)


def build_graph(
    program: Program, cluster: GpuCluster, num_chunks: int | None = None, *, is_folded: bool = True
) -> Graph:
    """The tasks of a step, with their durations.

    Parameters
    ----------
    program : Program
    cluster : GpuCluster
    num_chunks : int, optional
        Of phases that work chunk by chunk. The fastest number where parts of a message go around a ring one by one,
        else ``NUM_CHUNKS``.
    is_folded : bool
        False has the tasks of all ranks, which takes as long.

    Raises
    ------
    InputError
        The cluster has no room for the groups.
    """
    builder = _Builder(program, cluster, num_chunks or NUM_CHUNKS, is_folded=is_folded)
    graph = builder.build()
    if num_chunks or not builder.has_passes:
        return graph
    others = (_Builder(program, cluster, num, is_folded=is_folded).build() for num in _PART_COUNTS[:-1])
    return min((graph, *others), key=lambda item: replay(item).makespan_ns)


@dataclass(frozen=True, slots=True)
class _Phase:
    """A part of a unit: where it runs, and by rank what its first chunk pays and what all chunks take together."""

    name: str
    op: str
    resource: str
    group: int
    start_ns: tuple[float, ...]  # launch, latency
    work_ns: tuple[float, ...]
    sent_bytes: int = 0
    pass_ns: float = 0.0  # hops of a ring, which each further chunk pays where it goes around the ring by itself
    is_chunked: bool = True
    rows: dict[int, list[int]] = field(default_factory=dict)  # tasks by rank


class _Builder:
    """Tasks of all units, in their order."""

    def __init__(self, program: Program, cluster: GpuCluster, num_chunks: int, *, is_folded: bool) -> None:
        self.program, self.num_chunks = program, num_chunks
        self.ranks = [range(1 if is_folded else size) for size in program.group_sizes]
        self.prices = _Prices(program, cluster, self.ranks)
        self.graph = GraphBuilder()
        self.resources: dict[tuple[str, int], int] = {}
        self.chain_of = {item: chain for chain in program.overlaps for item in chain.items}
        self.members = units(program)
        self.before = unit_predecessors(program)
        self.has_passes = False

    def build(self) -> Graph:
        phases: dict[str, list[_Phase]] = {}
        for unit in in_order(self.members, self.before):
            phases[unit] = self.prices.phases(unit, [self.program.by_name[name] for name in self.members[unit]])
            num = self.num_chunks if len(phases[unit]) > 1 or unit in self.chain_of else 1
            earlier = [(phases[name][-1], self._is_chained(name, unit)) for name in sorted(self.before[unit])]
            is_passing = len(phases[unit]) == 1 and phases[unit][0].pass_ns > 0 and self._passes_by_itself(unit)
            self.has_passes |= is_passing
            for phase in phases[unit]:
                self._add(phase, num if phase.is_chunked else 1, phase.pass_ns if is_passing else 0.0)
                for first, is_chained in earlier:
                    self._connect(first, phase, is_chained=is_chained)
                earlier = [(phase, True)]
        return self.graph.build()

    def _is_chained(self, first: str, unit: str) -> bool:
        """Whether a unit takes the chunks of another one as they come."""
        chain = self.chain_of.get(unit)
        if chain is None or first not in chain.items:
            return False
        makes_product = any(self.program.by_name[name].op == "matmul" for name in self.members[first])
        sends = any(self.program.by_name[name].communicates for name in self.members[unit])
        # in natural order rank 0 makes last what it has to send first, and the ring of all ranks waits for it
        return not (chain.order == "natural" and makes_product and sends)

    def _passes_by_itself(self, unit: str) -> bool:
        """Whether a part of a collective is a pass of its own: what feeds a ring, or takes its result, is in parts."""
        chain = self.chain_of.get(unit)
        if chain is None:
            return False
        if self.program.by_name[self.members[unit][0]].op in _DISTRIBUTING:
            return any(self._is_chained(name, unit) for name in self.before[unit])
        return any(unit in self.before[name] and self._is_chained(unit, name) for name in chain.items)

    def _add(self, phase: _Phase, num: int, pass_ns: float) -> None:
        is_sending = phase.resource in ("link", "network")
        columns = {"message_bytes": -(-phase.sent_bytes // num)} if is_sending else {}
        for rank in self.ranks[phase.group]:
            start_ns, work_ns = phase.start_ns[rank], phase.work_ns[rank]
            ends = [0, *(round(start_ns + pass_ns * i + work_ns * (i + 1) / num) for i in range(num))]
            resource = self._resource(phase, self.program.groups[phase.group][rank])
            phase.rows[rank] = [
                self.graph.task(
                    f"{phase.name} {i}" if num > 1 else phase.name, op=phase.op, resource=resource,
                    kind=Kind.COMM if is_sending else Kind.COMPUTE, rank=self.program.groups[phase.group][rank],
                    duration_ns=ends[i + 1] - ends[i], **columns,
                )
                for i in range(num)
            ]  # fmt: skip
            for row, following in itertools.pairwise(phase.rows[rank]):
                self.graph.edge(row, following)

    def _connect(self, first: _Phase, phase: _Phase, *, is_chained: bool) -> None:
        for rank, rows in phase.rows.items():
            # a collective starts when all of its group have come; a computation, or a message, waits for one rank
            peers = list(first.rows) if phase.op in _MEETING and first.group == phase.group else [rank]
            for peer in peers:
                earlier = first.rows[peer]
                if is_chained and len(earlier) == len(rows):
                    for row, following in zip(earlier, rows, strict=True):
                        self.graph.edge(row, following)
                else:
                    self.graph.edge(earlier[-1], rows[0])

    def _resource(self, phase: _Phase, rank: int) -> int:
        key = (phase.resource, rank)
        if key not in self.resources:
            kind = ResourceKind.LINK if phase.resource in ("link", "network") else ResourceKind.STREAM
            self.resources[key] = self.graph.resource(f"{phase.resource} of rank {rank}", kind, device=rank)
        return self.resources[key]


class _Prices:
    """Phases of units with their times."""

    def __init__(self, program: Program, cluster: GpuCluster, ranks: list[range]) -> None:
        self.program, self.cluster, self.device, self.ranks = program, cluster, cluster.device, ranks
        self.launch_ns = float(cluster.device.launch_overhead_ns or 0)
        self.bytes_per_s = cluster.device.bandwidth_bytes_per_s * bandwidth_ratio(cluster.device)

    def phases(self, unit: str, stages: list[Stage]) -> list[_Phase]:
        """What a unit consists of."""
        ops = [stage.op for stage in stages if not self.program.types[stage.name].is_scalar]
        if len(stages) > 1 and "reduce_scatter" in ops:
            return self._ring_phases(unit, stages)
        if len(stages) > 1 and "send" in ops:
            first = [stage for stage in stages if stage.op != "send"]
            return [self._pass(unit, first, stages, "collective"), self._sending(unit, stages[-1])]
        if stages[-1].communicates:
            return [self._sending(unit, stages[-1])]
        if stages[-1].op == "matmul":
            return [self._product(stages[-1])]
        return [self._pass(unit, stages, stages, "stream")]

    def _ring_phases(self, unit: str, stages: list[Stage]) -> list[_Phase]:
        """Reduce-scatter, computation and all-gather in one kernel, for the latency and the bytes of one all-reduce.

        Further all-gathers cost their bytes. Where a sum over ranks is needed in between, all wait for it.
        """
        scatter = next(stage for stage in stages if stage.op == "reduce_scatter")
        source = self.program.types[scatter.reads[0]]
        network = self.cluster.of_group(self.program.group_sizes[source.group])
        price = nccl_price("all_reduce", source.size_bytes, network, self.cluster.release)
        num_gathers = sum(stage.op == "all_gather" for stage in stages)
        half_ns, group, size = price.sending_ns / 2, source.group, source.size_bytes
        inside = [stage for stage in stages if stage.op not in ("reduce_scatter", "all_gather", "all_reduce")]
        totals = [stage for stage in stages if stage.op == "all_reduce"]
        names = {stage.name for stage in totals}
        first = [stage for stage in inside if self.program.reach([stage.name]) & names]
        rest = [stage for stage in inside if stage not in first]
        phases = [self._comm(f"{unit} reduce", "reduce_scatter", "link", group, price.latency_ns, half_ns, size)]
        if totals:
            total = nccl_price("all_reduce", 4 * len(totals), network, self.cluster.release)
            # the kernel runs already: no launch
            wait_ns = total.duration_ns - self.cluster.release.launch_ns(total)
            phases.append(self._pass(f"{unit} sums", first, stages, "collective"))
            barrier = self._comm(f"{unit} total", "all_reduce", "link", group, wait_ns, 0.0, 4 * len(totals))
            phases.append(replace(barrier, is_chunked=False))
        if rest:
            phases.append(self._pass(unit, rest, stages, "collective"))
        return [*phases, self._comm(f"{unit} gather", "all_gather", "link", group, 0.0, half_ns * num_gathers, size)]

    def _sending(self, unit: str, stage: Stage) -> _Phase:
        """A collective or a message in a kernel of its own."""
        source, release = self.program.types[stage.reads[0]], self.cluster.release
        num_ranks = self.program.group_sizes[source.group]
        if stage.op == "send":
            network, size = self.cluster.between_groups(self.program.group_sizes), source.local_bytes(0, num_ranks)
            latency_ns = nccl_p2p_ns(0, network, release)
            sending_ns = nccl_p2p_ns(size, network, release) - latency_ns
            return self._comm(unit, "send", "network", source.group, latency_ns, sending_ns, size)
        size = source.size_bytes
        price = nccl_price(stage.op, size, self.cluster.of_group(num_ranks), release)
        phase = self._comm(unit, stage.op, "link", source.group, price.latency_ns, price.sending_ns, size)
        return replace(phase, pass_ns=price.latency_ns - release.launch_ns(price))

    def _comm(
        self, name: str, op: str, resource: str, group: int, start_ns: float, work_ns: float, size_bytes: int
    ) -> _Phase:
        num = len(self.ranks[group])
        return _Phase(name, op, resource, group, (start_ns,) * num, (work_ns,) * num, size_bytes)

    def _product(self, stage: Stage) -> _Phase:
        """A matrix product: one kernel, also where it hands on rows chunk by chunk."""
        first, second = (self.program.types[name] for name in stage.reads)
        result = self.program.types[stage.name]
        num_ranks, dtype = self.program.group_sizes[result.group], _DTYPES[result.dtype]
        reached = efficiency_ratios(self.device).get(("product", dtype), 1.0)
        times = []
        for rank in self.ranks[result.group]:
            inner = first.local_shape(rank, num_ranks)[-1]
            flops = 2 * inner * math.prod(result.local_shape(rank, num_ranks))
            moved = sum(item.local_bytes(rank, num_ranks) for item in (first, second, result))
            bound = bounds_on(self.device, flops, moved, dtype=dtype, overhead_ns=0.0)
            times.append(max(float(bound.compute_ns[0]) / reached, float(bound.memory_ns[0])))
        return _Phase(stage.name, "matmul", "stream", result.group, (self.launch_ns,) * len(times), tuple(times))

    def _pass(self, unit: str, inside: Sequence[Stage], stages: Sequence[Stage], resource: str) -> _Phase:
        """A pass over memory: a kernel of its own on the stream, or part of a collective's."""
        group = self.program.types[inside[-1].name].group
        num_ranks = self.program.group_sizes[group]
        names = self._traffic(inside, stages)
        moved = [sum(self.program.types[name].local_bytes(rank, num_ranks) for name in names)
                 for rank in self.ranks[group]]  # fmt: skip
        launch_ns = self.launch_ns if names and resource == "stream" else 0.0
        times = tuple(1e9 * size / self.bytes_per_s for size in moved)
        op = inside[-1].op if len(inside) == 1 else "fused"
        return _Phase(unit, op, resource, group, (launch_ns,) * len(times), times)

    def _traffic(self, inside: Sequence[Stage], stages: Sequence[Stage]) -> list[str]:
        """Values that a pass reads from memory, once each, and those that it writes to memory.

        What a collective of the unit delivers or takes is in registers, and so is what only this pass reads. A slice is
        a view of what it is cut from.
        """
        working = [stage for stage in inside if stage.op != "slice"]
        created = {stage.name for stage in working}
        at_hand = {stage.name for stage in stages if stage.op in ("reduce_scatter", "all_gather", "send")}
        read = dict.fromkeys(
            name for stage in working for name in (stage.reads[1:] if stage.op == "update" else stage.reads)
            if name not in created | at_hand
        )  # fmt: skip
        written = [stage.name for stage in working if stage.op == "update" or self._leaves(stage, created | at_hand)]
        return [*read, *written]

    def _leaves(self, stage: Stage, here: set[str]) -> bool:
        """Whether a value is needed after the pass that makes it."""
        users = [user.name for user in self.program.users[stage.name]]
        return not here.issuperset(users) or (stage.name in self.program.outputs and not users)
