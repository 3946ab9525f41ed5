"""Which tasks to measure on a new device: program vectors without times in, tasks in order of worth out.

Measuring costs, code does not: the vectors of every program of the new device are known. KMeans with as many clusters
as the budget has tasks; each cluster, largest first, picks the task whose programs lie nearest to its centre. Random
and centre stand beside it. Not here: measuring, fine-tuning.

Source: CDMPP (EuroSys 2024), section 5.
"""

# M programs, W width of a vector, T tasks, K clusters

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.transforms import FeatureScale
from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = [
    "PROGRAMS_PER_TASK",
    "Selection",
    "members_of",
    "program_vectors",
    "rows_to_measure",
    "select_tasks",
]

Selection = Literal["kmeans", "random", "centre"]
POOLED = 3
PROGRAMS_PER_TASK = 6
"""That are measured of a chosen task: what costs is programs, and tasks have from one to dozens of them."""


def program_vectors(programs: ProgramSet, rows: np.ndarray, scale: FeatureScale | None = None) -> np.ndarray:
    """One vector per program whatever its number of leaves: mean, greatest and sum of scaled leaves, float32 [M, 492].

    The sum is divided by 16, so that every entry of training programs lies within 0 and 1.
    """
    scale = FeatureScale.fit(programs.features) if scale is None else scale
    vectors = np.zeros((len(rows), POOLED * programs.features.shape[1]), dtype=np.float32)
    for index, row in enumerate(rows):
        leaves = scale(programs.features[programs.leaf_offset[row] : programs.leaf_offset[row + 1]])
        vectors[index] = np.concatenate([leaves.mean(0), leaves.max(0), leaves.sum(0) / 16])
    return vectors


def select_tasks(
    vectors: np.ndarray, task: np.ndarray, num_tasks: int, method: Selection = "kmeans", seed: int = 0
) -> np.ndarray:
    """Tasks to measure, best first, int64 [num_tasks].

    Parameters
    ----------
    vectors, task
        [M, W] and [M]: program vectors and the task of each.
    """
    known = np.unique(task)
    if not 0 < num_tasks <= known.size:
        raise InputError(f"{num_tasks} tasks are asked for, {known.size} are known", fix="a smaller budget")
    if method not in METHODS:
        raise InputError(f"unknown way to choose tasks {method!r}", fix=", ".join(get_args(Selection)))
    return METHODS[method](vectors, task, num_tasks, seed)


def members_of(
    task: np.ndarray, selected: np.ndarray, most: int | None = PROGRAMS_PER_TASK, seed: int = 0
) -> np.ndarray:
    """Return random rows of ``task`` [M], at most ``most`` programs of each selected task, task by task."""
    generator = np.random.default_rng(seed)
    return np.concatenate([generator.permutation(np.flatnonzero(task == item))[:most] for item in selected])


def rows_to_measure(
    programs: ProgramSet,
    num_tasks: int | None = None,
    per_task: int | None = None,
    seed: int = 0,
    *,
    among: np.ndarray | None = None,
) -> np.ndarray:
    """Programs of a set, or of its rows ``among``, to measure on a new device, int64: of chosen tasks, or of all.

    Of chosen tasks they come task by task, ``PROGRAMS_PER_TASK`` of each unless ``per_task`` says otherwise; of all
    tasks in rounds, so that the first ones are of all tasks.
    """
    rows = np.arange(programs.num_programs) if among is None else among
    task = programs.task[rows]
    if num_tasks is not None:
        selected = select_tasks(program_vectors(programs, rows), task, num_tasks, seed=seed)
        return np.asarray(rows[members_of(task, selected, per_task or PROGRAMS_PER_TASK, seed)])
    order = members_of(task, np.unique(task), per_task, seed)
    counts = np.unique(task[order], return_counts=True)[1]
    turn = np.concatenate([np.arange(count) for count in counts])
    return np.asarray(rows[order[np.lexsort((np.random.default_rng(seed).permutation(order.size), turn))]])


def _kmeans(vectors: np.ndarray, task: np.ndarray, num_tasks: int, seed: int) -> np.ndarray:
    cluster = require("sklearn.cluster", extra="learn").KMeans(num_tasks, random_state=seed, n_init=3).fit(vectors)
    known = np.unique(task)
    distance_KT = _mean_distances(cluster.cluster_centers_, vectors, task, known)
    sizes = np.bincount(cluster.labels_, minlength=num_tasks)
    selected: list[int] = []
    for centre in np.argsort(-sizes, kind="stable"):
        order = np.argsort(distance_KT[centre], kind="stable")
        selected.append(next(int(index) for index in order if int(index) not in selected))
    return np.asarray(known[selected])


def _mean_distances(centers: np.ndarray, vectors: np.ndarray, task: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Mean distance of each task's programs to each centre [K, T]."""
    index = np.searchsorted(known, task)
    counts = np.bincount(index)
    rows = []
    for centre in centers:
        distances = np.linalg.norm(vectors - centre, axis=1)
        rows.append(np.bincount(index, weights=distances) / counts)
    return np.array(rows)


def _random(vectors: np.ndarray, task: np.ndarray, num_tasks: int, seed: int) -> np.ndarray:  # noqa: ARG001
    return np.asarray(np.random.default_rng(seed).permutation(np.unique(task))[:num_tasks])


def _centre(vectors: np.ndarray, task: np.ndarray, num_tasks: int, seed: int) -> np.ndarray:  # noqa: ARG001
    known = np.unique(task)
    distance_T = _mean_distances(vectors.mean(0, keepdims=True), vectors, task, known)[0]
    return np.asarray(known[np.argsort(distance_T, kind="stable")[:num_tasks]])


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]] = {
    "kmeans": _kmeans,
    "random": _random,
    "centre": _centre,
}
