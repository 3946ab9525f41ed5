"""Tasks: what they are made of, and the table that comes with the package."""

from __future__ import annotations

import pytest

from tests.systems.tensor_programs.run.examples import SMALL
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.run import references
from windtunnel.systems.tensor_programs.run.tasks import KINDS, Task, format_tasks, read_tasks


def test_work_and_bytes_of_a_product_are_those_by_hand():
    task = Task("dense", {"m": 2, "n": 3, "k": 5}, ("bias", "relu"))

    assert 2 * 2 * 3 * 5 + 2 * 6 == task.flops
    assert 4 * (2 * 5 + 3 * 5 + 3 + 2 * 3) == task.size_bytes
    assert (2, 3) == task.output_shape


def test_work_of_a_grouped_convolution_counts_its_groups():
    shape = {"n": 1, "ci": 8, "h": 6, "w": 6, "co": 4, "kh": 3, "kw": 3, "stride": 2, "pad_h": 1, "pad_w": 1}
    dense, grouped = (Task("conv2d", shape | {"groups": groups}) for groups in (1, 4))

    assert (1, 4, 3, 3) == dense.output_shape
    assert 2 * 36 * 8 * 9 == dense.flops
    assert dense.flops == 4 * grouped.flops


@pytest.mark.parametrize("task", SMALL, ids=lambda task: task.kind)
def test_results_have_the_shape_that_tasks_say(task):
    result = references.result(task, references.arguments(task))

    assert task.output_shape == result.shape
    assert references.is_right(result, result)
    assert not references.is_right(result * 1.01 + 0.01, result)


def test_the_table_of_tasks_is_of_every_kind_and_many_networks():
    tasks = read_tasks()

    assert len(tasks) >= 200
    assert set(KINDS) == {task.kind for task in tasks}
    assert len({task.name for task in tasks}) == len(tasks)
    networks = {name for task in tasks for name in task.networks}
    assert {"resnet50", "mobilenetv2_w1", "resnext50_32x4d", "bert:tiny", "vit", "gan"} <= networks
    assert all(count >= 1 for task in tasks for count in task.networks.values())


def test_a_table_that_was_written_reads_back(tmp_path):
    tasks = [Task(task.kind, task.shape, task.ops, {"a": 2, "b": 1}) for task in SMALL]
    (tmp_path / "tasks.csv").write_text(format_tasks(tasks))

    assert tuple(tasks) == read_tasks(tmp_path / "tasks.csv")
    assert tasks == [Task.from_dict(task.to_dict()) for task in tasks]


@pytest.mark.parametrize("row", ["matmul,1 2,,net,1", "mat,1 2 3,,net,1", "matmul,1 2 3,jump,net,1", "matmul"])
def test_a_row_that_is_no_task_is_named_by_its_line(row, tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text(f"kind,shape,ops,network,count\nmatmul,1 2 3,,net,1\n{row}\n")

    with pytest.raises(InputError) as caught:
        read_tasks(path)
    assert f"{path}, line 3" == caught.value.where


@pytest.mark.parametrize(
    ("kind", "shape", "ops"),
    [
        ("matmul", {"m": 1, "n": 2}, ()),
        ("matmul", {"m": 0, "n": 2, "k": 3}, ()),
        ("gelu", {"b": 1, "c": 1, "s": 1}, ("gelu",) * 7),
    ],
)
def test_a_task_that_cannot_be_is_refused(kind, shape, ops):
    with pytest.raises(InputError):
        Task(kind, shape, ops)
