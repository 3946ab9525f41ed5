"""A shipped case, from its description to times and memory: traced, priced, cut into stages, replayed.

One tensor-parallel group of a model with two blocks runs one microbatch under ``dry_run``. What the last forward and
the last backward block take, and what the second keeps for its backward pass, is that of every block of the real one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.megatron.system import System
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.hardware import device, fabric_of
from windtunnel.simulate import replay
from windtunnel.sources.dry.run import dry_run
from windtunnel.systems.pipelines.chunked import interleaved
from windtunnel.systems.pipelines.schedules import Action, Schedule, one_forward_one_backward
from windtunnel.systems.pipelines.timed import StageTimes, build_schedule_graph
from windtunnel.whatifs.forecast import forecast

SCRIPT = Path(__file__).parent / "train.py"
A100 = "a100-sxm4-80g"
VOCABULARY, ITEM_BYTES = 51_200, 2
_RECOMPUTE = {"none": "none", "attn_only": "attention", "full": "full"}
Spent = dict[tuple[str, int], int]


@dataclass(frozen=True)
class Case:
    """A model and how it runs."""

    model: dict[str, int]
    run: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, model: str, figure: str, mode: str) -> "Case":
        """From the files of a folder."""
        found = [folder / f"models/{model}.json", folder / f"executions/{figure}_{model}_{mode}.json"]
        return cls(*(json.loads(path.read_text()) for path in found))

    @property
    def splits_sequence(self) -> bool:
        """Whether norms and dropouts are shared out, too."""
        return bool(self.run["tensor_par_comm_type"] == "rs_ag")

    @property
    def num_microbatches(self) -> int:
        """Of an iteration."""
        return int(self.run["batch_size"] // self.run["data_par"] // self.run["microbatch_size"])

    @property
    def blocks_per_stage(self) -> int:
        """Of each of the parts that a rank holds."""
        return int(self.model["num_blocks"] // (self.run["pipeline_par"] * self.run["pipeline_interleaving"]))

    @property
    def boundary_bytes(self) -> int:
        """Between two blocks, on all ranks of a group together."""
        return int(self.run["microbatch_size"] * self.model["seq_size"] * self.model["hidden"] * ITEM_BYTES)

    def traced(self, *, overlaps: bool = False) -> Graph:
        """One microbatch through two blocks and both ends."""
        told = {
            "hidden": self.model["hidden"],
            "heads": self.model["attn_heads"],
            "feedforward": self.model["feedforward"],
            "sequence": self.model["seq_size"],
            "blocks": 2,
            "vocabulary": VOCABULARY,
            "microbatch": self.run["microbatch_size"],
            "recompute": _RECOMPUTE[self.run["activation_recompute"]],
        }
        argv = [word for name, value in told.items() for word in (f"--{name}", str(value))]
        argv += ["--splits_sequence"] * self.splits_sequence + ["--waits"] * (not overlaps)
        return dry_run(SCRIPT, argv, num_ranks=self.run["tensor_par"])

    def schedule(self) -> Schedule:
        """Interleaved 1F1B, or one stage alone."""
        ranks, chunks = self.run["pipeline_par"], self.run["pipeline_interleaving"]
        if ranks == chunks == 1:
            return one_forward_one_backward(1, self.num_microbatches)
        return interleaved(ranks, self.num_microbatches, chunks)

    def message_ns(self, system: System) -> float:
        """A boundary: each rank of a group sends its part, and who needs the whole gathers it."""
        size, members = self.boundary_bytes, self.run["tensor_par"]
        sent_ns = system.message_ns("p2p", size / members, 2, self.run["pipeline_par_net"])
        if self.splits_sequence:
            return sent_ns
        return sent_ns + system.message_ns("all_gather", size, members, self.run["tensor_par_net"])

    def tied_ns(self, system: System) -> float:
        """The first and the last rank add up their gradients of the words' weight, in fp32."""
        if self.run["pipeline_par"] == 1:
            return 0.0
        size = VOCABULARY // self.run["tensor_par"] * self.model["hidden"] * 4
        return system.message_ns("all_reduce", size, 2, self.run["pipeline_par_net"])


def parts_of(graph: Graph) -> list[tuple[int, tuple[str, int]]]:
    """Tasks of the device in order, each with its part of the model (block, end or update) and its phase."""
    tasks = graph.tasks
    layers, phases = tasks.strings("layer").to_numpy(), tasks["phase"]
    found, part = [], ("update", int(Phase.UPDATE))
    for row in np.flatnonzero(tasks["kind"] != Kind.HOST).tolist():
        if phases[row] == Phase.UPDATE:
            part = ("update", int(Phase.UPDATE))
        elif layers[row]:  # what has none belongs to the part before it
            names = layers[row].split(".")
            part = (".".join(names[: 2 if names[0] == "blocks" else 1]), int(phases[row]))
        found.append((row, part))
    return found


def spent_ns(priced: Graph) -> Spent:
    """What each part adds to the step."""
    finish = replay(priced).finish_ns
    spent: Spent = {}
    last = 0
    for row, part in parts_of(priced):
        end = max(last, int(finish[row]))
        spent[part] = spent.get(part, 0) + end - last
        last = end
    return spent


def kept_bytes(graph: Graph) -> int:
    """What a block holds when its forward pass is done, beside what the block before it holds."""
    tasks = graph.tasks
    held = np.cumsum(np.where(tasks["kind"] == Kind.HOST, 0, tasks["output_bytes"] - tasks["freed_bytes"]))
    last = {part: row for row, part in parts_of(graph) if part[1] == Phase.FORWARD}
    first, second = (int(held[last[f"blocks.{block}", int(Phase.FORWARD)]]) for block in (0, 1))
    return second - first


def most_kept(schedule: Schedule, per_stage_bytes: int) -> int:
    """The most that any rank keeps for backward passes at once."""
    return max(max(np.cumsum([_change(one) for one in row])) for row in schedule.actions) * per_stage_bytes


def _change(action: Action | None) -> int:
    return 0 if action is None else 1 if action.kind == "F" else -1


def iteration_ns(case: Case, priced: Graph, system: System) -> int:
    """The whole job's iteration."""
    schedule, spent = case.schedule(), spent_ns(priced)
    forward, backward = int(Phase.FORWARD), int(Phase.BACKWARD)
    num = case.blocks_per_stage
    block = {forward: spent["blocks.1", forward], backward: spent["blocks.0", backward]}
    ways = {}
    for way, phase in (("forward_ns", forward), ("backward_ns", backward)):
        ways[way] = np.full(schedule.num_stages, num * block[phase])
        ways[way][0] += spent["embedding", phase]
        ways[way][-1] += spent["head", phase]
    update_ns = spent["update", int(Phase.UPDATE)] * share_of_update(case, priced) + case.tied_ns(system)
    per_stage_ns = update_ns / case.run["pipeline_interleaving"]
    stages = StageTimes(**ways, update_ns=per_stage_ns, message_ns=case.message_ns(system))
    graph = build_schedule_graph(schedule, stages, messages="exchanged")
    return replay(graph).makespan_ns


def share_of_update(case: Case, graph: Graph) -> float:
    """Parameters of the rank that holds most, of its blocks and of the words, over those that were traced."""
    sizes: dict[str, int] = {}
    for row, (part, phase) in parts_of(graph):
        if phase == Phase.FORWARD:
            sizes[part] = sizes.get(part, 0) + int(graph.tasks["param_bytes"][row])
    num = case.blocks_per_stage * case.run["pipeline_interleaving"]
    return (num * sizes["blocks.1"] + sizes["embedding"]) / (2 * sizes["blocks.1"] + sizes["embedding"])


def described(graph: Graph, system: System) -> Graph:
    """Priced by the system's description."""
    return forecast(system.with_messages(graph), device(A100), model=[system]).graph


def by_catalog(graph: Graph) -> Graph:
    """Priced by what the catalog says of a DGX A100, as ``predict`` does."""
    return forecast(graph, device(A100), fabric=fabric_of(device(A100))).graph
