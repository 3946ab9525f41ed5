import numpy as np
import pytest

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.splits import (
    Split,
    keep,
    split_by_device,
    split_by_network,
    split_by_task,
)


@pytest.fixture(scope="module")
def programs():
    return small_set()


def tasks(programs, samples):
    return set(programs.task[samples[:, 0]].tolist())


@pytest.mark.parametrize("seed", range(3))
def test_tasks_lie_on_one_side(programs, seed):
    split = split_by_task(programs, "fast", seed=seed)

    uses = [tasks(programs, samples) for samples in (split.train, split.validation, split.test)]
    assert sum(map(len, uses)) == len(set.union(*uses)) == len(programs.tasks)


def test_equal_work_under_another_number_is_the_same_task(programs):
    from dataclasses import replace

    twins = [dict(task, shape=[8, 8, 8], ops=[], kind="matmul") for task in programs.tasks]
    with pytest.raises(InputError, match="0 samples to learn from"):
        split_by_task(replace(programs, tasks=tuple(twins)), "fast")


def test_network_split_takes_shared_tasks_out_of_training(programs):
    split = split_by_network(programs, "slow", ["net_1"])

    held_out = {number for number, task in enumerate(programs.tasks) if "net-1" in task["networks"]}
    assert tasks(programs, split.test) == held_out
    assert not tasks(programs, split.train) & held_out
    assert not tasks(programs, split.validation) & held_out
    with pytest.raises(InputError, match="none of vgg"):
        split_by_network(programs, "slow", ["vgg"])


def test_device_split_keeps_the_held_out_device_for_the_verdict(programs):
    split = split_by_device(programs, "fast")

    assert set(split.train[:, 1]) == set(split.validation[:, 1]) == {0}
    assert set(split.test[:, 1]) == set(split.target[:, 1]) == {1}
    assert not tasks(programs, split.test) & tasks(programs, split.target)


def test_a_leak_cannot_be_built():
    one, two, none = np.array([[0, 0]]), np.array([[1, 0]]), np.zeros((0, 2), dtype=int)
    with pytest.raises(InputError, match="also in train"):
        Split("mine", train=one, validation=none, test=one, target=none)
    with pytest.raises(InputError, match="also in validation"):
        Split("mine", train=two, validation=one, test=one, target=none)
    with pytest.raises(InputError, match="CMD"):
        Split("mine", train=two, validation=none, test=one, target=one)
    assert Split("mine", two, none, one, none).digest() != Split("mine", two, none, none, one).digest()


def test_filters(programs):
    from dataclasses import replace

    mean_s, std_s = programs.mean_s.copy(), programs.std_s.copy()
    std_s[0, 0], mean_s[1, 1], std_s[1, 1] = mean_s[0, 0], np.nan, np.nan
    passes = keep(replace(programs, mean_s=mean_s, std_s=std_s))

    assert not passes[0, 0]
    assert not passes[1, 1]
    assert passes.sum() == passes.size - 2
