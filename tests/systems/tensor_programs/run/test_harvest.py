"""Tasks out of networks that really run."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("pytorchcv")

from windtunnel.systems.tensor_programs.run import harvest as harvesting
from windtunnel.systems.tensor_programs.run.harvest import NETWORKS, choose, harvest
from windtunnel.systems.tensor_programs.run.tasks import read_tasks


@pytest.mark.slow
def test_a_residual_network_is_convolutions_with_what_follows_them():
    found = harvest(["resnet18"])
    names = {task.name: task.networks["resnet18"] for task in found.tasks}

    block = "conv2d n=1 ci=64 h=16 w=16 co=64 kh=3 kw=3 stride=1 pad_h=1 pad_w=1 groups=1"
    assert 2 == names[f"{block} bias+relu"]
    assert 2 == names[f"{block} bias+add+relu"]
    assert "dense m=1 n=1000 k=512 bias" in names
    assert len(harvesting.PIXELS) == sum(task.kind == "max_pool2d" for task in found.tasks)


@pytest.mark.slow
def test_the_table_in_the_package_is_what_its_networks_give_now():
    for network in ("mobilenetv2_w1", "bert:tiny"):
        now = {task.name: task.networks[network] for task in harvest([network]).tasks}
        kept = {task.name: task.networks[network] for task in read_tasks() if network in task.networks}

        assert kept
        assert kept == {name: now.get(name) for name in kept}


@pytest.mark.slow
def test_an_optimizer_adds_nothing_and_what_no_task_covers_is_counted():
    found = harvest(["dlrm:tiny"])

    assert found.uncovered["_embedding_bag"] > 0
    assert not any("lerp" in name or "addcdiv" in name for name in found.uncovered)


def test_every_network_of_the_table_is_known():
    assert {network for task in read_tasks() for network in task.networks} <= set(NETWORKS)


def test_chosen_tasks_are_of_all_kinds_and_few_of_each_network():
    tasks = read_tasks()
    chosen = choose(tasks, 60)

    assert 60 == len(chosen)
    assert {task.kind for task in tasks} == {task.kind for task in chosen}
    counts = [sum(network in task.networks for task in chosen) for network in ("resnet50", "swinv2", "bert:tiny")]
    assert min(counts) > 0
    assert harvesting.MAX_FLOPS >= max(task.flops for task in tasks)
