"""Published placement problems with the values that are known of them (NeurIPS 2020 inputs, PipeDream profiles)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.shared_data import find_shared

from benchmarks.peers.pipedream_planner import Level, LevelTable, States
from benchmarks.peers.pipedream_profile import Profile
from windtunnel.search.downsets import downsets
from windtunnel.search.placement.model import Problem
from windtunnel.systems.placement.formats import ACCELERATOR, CPU, read_problem

MISSING = "public data is not here"
FOLDER = "placement/dnn_partitioning"
IGNORED = {"layer_bert24": ("4", "37"), "layer_gnmt": ("2", "40", "46", "100", "137", "142")}
"""Nodes whose edges the published PipeDream baseline leaves out: masks and hidden states that all layers read."""


@dataclass(frozen=True)
class Published:
    """One row of the table; milliseconds per sample."""

    name: str
    num_nodes: int
    num_supernodes: int
    num_downsets: int
    num_pairs: int
    single: float
    exact: float | None
    chain: float
    expert: str = ""
    expert_value: float = 0.0
    pipedream: float = 0.0


TABLE = (
    Published("layer_bert24_inference", 32, 28, 30, 464, 92.406, 17.78990625, 17.78990625,
              "bert24_inference", 20.083953, 17.789906),
    Published("layer_bert24_training", 64, 28, 30, 464, 217.813, 41.7458125, 41.7458125,
              "bert24_training", 49.404906),
    Published("layer_gnmt_inference", 96, 78, 17_914, 15_506_678, 182.563, 32.910658203, 32.910658,
              "gnmt_inference", 46.208451, 33.031146),
    Published("layer_inceptionv3_training", 652, 326, 36_596, 578_883_582, 710.738, None, 124.07,
              "inceptionv3_inference", 213.654152),
    Published("layer_resnet50_inference", 177, 177, 242, 28_971, 201.45, 33.774666016, 33.774666,
              "resnet50_inference", 43.918258, 39.398109),
    Published("layer_resnet50_training", 354, 177, 242, 28_971, 462.381, 78.6318125, 78.6498125,
              "resnet50_inference", 112.107516),
    Published("operator_bert_l-3_inference", 235, 128, 1_428, 675_546, 49.352569, 27.918567680, 27.918568,
              pipedream=38.187721),
    Published("operator_bert_l-3_training", 600, 138, 2_774, 1_966_176, 122.987224, 65.303149122, 65.303149),
    Published("operator_bert_l-12_inference", 783, 424, 2_906, 3_826_566, 642.779962, 147.477984449, 147.477984,
              pipedream=642.779962),
    Published("operator_bert_l-12_training", 2012, 451, 2_938, 3_917_521, 1891.742322, 437.997637858, 437.997638),
    Published("operator_resnet50_inference", 604, 176, 241, 28_729, 325.131989, 124.348849774, 124.348850,
              pipedream=129.155166),
)  # fmt: skip

# profile, levels innermost first, options, stages as (first state, last state, replicas), s per stage, speed-ups
PLANS = (
    ("vgg16", [(4, 1e9)], {"compression": 1.0}, [(0, 17, 3), (17, 40, 1)], 0.205520896, 3.27234, 2.83770),
    ("vgg16", [(4, 1e9)], {}, [(0, 15, 3), (15, 40, 1)], 0.175732624, 3.82704, 3.31871),
    ("vgg16", [(4, 1e9)], {"compression": 1.0, "is_straight": True},
     [(0, 10, 1), (10, 27, 1), (27, 34, 1), (34, 40, 1)], 0.411041792, 1.63617, 1.41885),
    ("vgg16", [(16, 1.25e9)], {"compression": 1.0}, [(0, 24, 13), (24, 32, 2), (32, 40, 1)],
     0.054794891, 12.27368, 2.66086),
    ("vgg16", [(4, 8e9), (4, 1.25e9)], {"compression": 1.0}, [(0, 32, 3), (32, 40, 1)], 0.067241554, 10.00178, 2.05258),
    ("alexnet", [(4, 1e9)], {"compression": 1.0}, [(0, 15, 3), (15, 22, 1)], 0.034217141, 2.49352, 5.98042),
    ("alexnet", [(16, 1.25e9)], {"compression": 1.0},
     [(0, 6, 6), (6, 15, 7), (15, 19, 1), (19, 21, 1), (21, 22, 1)], 0.015099494, 5.65059, 3.38807),
    ("resnet18", [(4, 1e9)], {"compression": 1.0}, [(0, 100, 4)], 0.100004036, 2.59732, 1.0),
    ("resnet18", [(16, 1.25e9)], {"compression": 1.0}, [(0, 62, 9), (62, 88, 4), (88, 99, 2), (99, 100, 1)],
     0.024425497, 10.63405, 1.02356),
)  # fmt: skip


def folder() -> Path | None:
    """Where the public problems lie, if they do."""
    return find_shared(FOLDER)


def problem(name: str, kind: str = "throughput") -> Problem:
    """One of them."""
    return read_problem(folder() / kind / f"{name}.json")


def ignored(name: str) -> tuple[str, ...]:
    """Nodes that the published PipeDream baseline passes by."""
    return next((nodes for head, nodes in IGNORED.items() if name.startswith(head)), ())


def assignment_of(path: Path, problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A split that somebody gives: device of every node [N], and row of ``types`` of every device [D].

    Backward nodes that it does not name lie with their color.
    """
    document = json.loads(path.read_text())
    row_of = {name: row for row, name in enumerate(problem.names)}
    device_N = np.full(problem.num_nodes, -1)
    kinds: list[int] = []
    for field, kind in (("fpgas", ACCELERATOR), ("cpus", CPU)):
        for part in document[field]:
            for node in part.get("nodes", ()):
                device_N[row_of[str(node)]] = len(kinds)
            kinds.append(kind)
    device_of_color = {int(problem.color[row]): int(device_N[row]) for row in np.flatnonzero(device_N >= 0)}
    for row in np.flatnonzero((device_N < 0) & problem.is_backward).tolist():
        device_N[row] = device_of_color.get(int(problem.color[row]), -1)
    assert (device_N >= 0).all()
    return device_N, np.array(kinds, np.int64)


def stages_time_s(
    profile: Profile,
    levels: Sequence[Level],
    stages: Sequence[tuple[int, int, int]],
    *,
    is_straight: bool = False,
    compression: float | None = None,
) -> float:
    """What given stages (first, last, replicas) of the outermost level take, by the planner's own formulas."""
    lattice = downsets(profile.num_layers, profile.src, profile.dst)
    states = States.of(profile, lattice)
    time_II, inside = states.time_II, 1
    for level in levels[:-1]:
        table = LevelTable.of(states, time_II, level, inside, every_start=True, is_straight=is_straight,
                               compression=compression, memory_bytes=None)  # fmt: skip
        time_II, inside = table.best_IIM[:, :, level.num_machines], level.num_machines
    bandwidth, worst = levels[-1].bandwidth_bytes_per_s, 0.0
    for first, last, replicas in stages:
        shared = inside if first == 0 else 1  # as released: only a first stage synchronizes inside of machines too
        sync = 4.0 * (replicas - 1) * states.weights_II[first, last] / (bandwidth * replicas * shared)
        worst = max(worst, float(time_II[first, last] + sync) / replicas)
        if compression is not None and first > 0:
            ends = [first] if last == lattice.num_downsets - 1 else [first, last]
            worst = max(worst, *(2.0 * float(states.out_I[end]) / (bandwidth * replicas) / compression for end in ends))
    return worst
