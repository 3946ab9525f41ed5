"""Workloads compute where torch makes new tensors: nothing that they draw on the host meets what lies on a device."""

import pytest
import torch

from windtunnel import registry
from windtunnel.workloads.workload import placed

# those whose step reads no value, which tensors without data do not have
READ_NOTHING = ("bert", "decoder-lm", "deep-speech-2", "gan", "graph-network", "moe-lm", "ncf", "seq2seq")


@pytest.fixture
def meta():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("name", READ_NOTHING)
def test_a_workload_steps_on_another_device_than_the_host(name, meta):
    if name == "bert":
        pytest.importorskip("transformers")
    if name == "graph-network":
        pytest.importorskip("torch_geometric")
    factory = registry.get("workload", name).function
    built = factory(batch_size=2) if name == "gan" else factory(size="tiny", batch_size=4)

    assert "meta" == built.step().device.type


def test_on_the_host_what_was_drawn_is_not_copied():
    drawn = torch.arange(3).numpy()

    assert placed(drawn).data_ptr() == drawn.ctypes.data
