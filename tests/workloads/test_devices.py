"""Workloads compute on the device on which they were built, whatever is the default one afterwards."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from windtunnel import registry
from windtunnel.errors import MissingExtraError
from windtunnel.workloads.workload import move_to_device

# those whose step reads no value, which tensors without data do not have
READ_NOTHING = ("bert", "decoder-lm", "deep-speech-2", "gan", "graph-network", "moe-lm", "ncf", "seq2seq")
ON_THE_HOST = ("a3c", "cnn")  # actors, and a loader with its workers


def built(name):
    workload = registry.get("workload", name)
    try:
        return workload.function(size="tiny") if "size" in workload.parameters else workload.function(batch_size=2)
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", READ_NOTHING)
def test_a_workload_steps_on_another_device_than_the_host(name):
    with torch.device("meta"):
        workload = built(name)

    assert "meta" == workload.step().device.type


class Undecided(TorchFunctionMode):
    """Notes what makes a tensor and does not say where."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in _device_constructors() and (kwargs or {}).get("device") is None:
            self.seen.append((function.__name__, args, kwargs))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [name for name in registry.all("workload") if name not in ON_THE_HOST])
def test_a_step_says_where_it_makes_tensors(name):
    workload = built(name)
    workload.step()  # optimizers make their counts, which lie on the host
    with Undecided() as undecided:
        workload.step()
    workload.close()

    assert [] == undecided.seen


def test_on_the_host_what_was_drawn_is_not_copied():
    drawn = torch.arange(3).numpy()

    assert move_to_device(drawn, torch.device("cpu")).data_ptr() == drawn.ctypes.data
