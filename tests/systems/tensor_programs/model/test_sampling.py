from typing import get_args

import numpy as np
import pytest

pytest.importorskip("sklearn")

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.sampling import (
    Selection,
    members_of,
    program_vectors,
    rows_to_measure,
    select_tasks,
)


def blobs():
    """Three far groups of tasks: 5, 3 and 1 tasks of four programs."""
    generator = np.random.default_rng(0)
    centers = np.repeat(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), [5, 3, 1], axis=0)
    task = np.repeat(np.arange(9), 4)
    return centers[task] + 0.01 * generator.standard_normal((36, 2)), task


def test_kmeans_takes_one_task_of_each_group_largest_first():
    vectors, task = blobs()

    chosen = select_tasks(vectors, task, 3)

    assert chosen[0] in range(5)
    assert chosen[1] in range(5, 8)
    assert chosen[2] == 8


@pytest.mark.parametrize("method", get_args(Selection))
@pytest.mark.parametrize("num_tasks", [1, 4, 9])
def test_every_method_gives_different_tasks(method, num_tasks):
    vectors, task = blobs()

    chosen = select_tasks(vectors, task, num_tasks, method, seed=3)

    assert len(set(chosen.tolist())) == num_tasks
    assert set(chosen) <= set(range(9))
    np.testing.assert_array_equal(chosen, select_tasks(vectors, task, num_tasks, method, seed=3))


def test_at_most_so_many_programs_of_each_task_are_measured():
    task = np.array([4, 7, 4, 4, 9, 7, 4])

    places = members_of(task, np.array([7, 4]), most=3, seed=1)

    assert [7, 7, 4, 4, 4] == task[places].tolist()
    assert len(set(places.tolist())) == 5
    assert sorted(members_of(task, np.array([4]), most=None).tolist()) == [0, 2, 3, 6]


def test_without_a_choice_the_first_programs_are_of_all_tasks():
    programs = small_set(num_tasks=6)
    num_tasks = np.unique(programs.task).size

    rows = rows_to_measure(programs)

    assert sorted(rows.tolist()) == list(range(60))
    assert np.unique(programs.task[rows[:num_tasks]]).size == num_tasks
    assert np.bincount(programs.task[rows_to_measure(programs, per_task=2)]).max() == 2


def test_of_chosen_tasks_only_their_programs_are_measured():
    programs = small_set(num_tasks=6)

    rows = rows_to_measure(programs, num_tasks=2, per_task=3)

    assert np.unique(programs.task[rows]).size == 2
    assert len(rows) == sum(min(3, int((programs.task == task).sum())) for task in np.unique(programs.task[rows]))


def test_center_is_nearest_to_the_mean():
    vectors, task = blobs()

    assert select_tasks(vectors, task, 1, "centre")[0] in range(5)


def test_vectors_of_programs():
    programs = small_set(num_tasks=4, per_task=2)

    vectors = program_vectors(programs, np.arange(programs.num_programs))

    assert vectors.shape == (8, 492)
    assert vectors.min() >= 0
    assert vectors.max() <= 1


def test_bad_requests_are_named():
    vectors, task = blobs()
    with pytest.raises(InputError, match="10 tasks are asked for, 9"):
        select_tasks(vectors, task, 10)
    with pytest.raises(InputError, match="unknown way"):
        select_tasks(vectors, task, 2, "best")
