"""A runtime learned from a few real kernels, kept, and read again."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn", reason="needs the extra learn")
pytest.importorskip("safetensors", reason="needs the extra learn")

from windtunnel.cost.model_file import read_model_header, write_model
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel
from windtunnel.systems.tensor_programs.runtimes.learned import learn_runtime, load_runtime_model, save_runtime_model
from windtunnel.systems.tensor_programs.runtimes.model import PRESETS


@pytest.fixture(scope="module")
def net():
    import torch

    layers = (torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 1), torch.nn.ReLU())
    return torch.nn.Sequential(*layers).eval(), [torch.rand(1, 3, 16, 16)]


@pytest.fixture(scope="module")
def model(net):
    extra = [LayerKernel("conv", 16, 8 * width, 16) for width in range(1, 9)]
    settings = replace(PRESETS["efficiency"], num_trees=40)
    return learn_runtime([net], "eager", extra=extra, num_first=20, settings=settings)


def test_a_net_is_the_sum_of_kernels_that_were_learned(model, net):
    kernels = model.kernels(net)

    assert ["conv", "relu", "conv", "relu"] == [kernel.kind for kernel in kernels]
    assert model.forests.net_ns(kernels) > 0
    assert model.is_of_this_host
    assert model.num_measured >= 20
    assert len(model.test_errors) >= 1


def test_a_file_keeps_every_price(model, net, tmp_path):
    read = load_runtime_model(save_runtime_model(model, tmp_path / "kernels.safetensors"))
    prices, again = (one.forests.prices(one.kernels(net)) for one in (model, read))

    np.testing.assert_array_equal(prices.efficiency, again.efficiency)
    np.testing.assert_array_equal(prices.duration_low_ns, again.duration_low_ns)
    assert (read.runtime, read.fused, read.num_threads) == (model.runtime, model.fused, 1)
    assert read.forests.ceilings == model.forests.ceilings
    assert read.is_of_this_host


def test_trees_that_lead_back_are_refused(model, tmp_path):
    from safetensors.numpy import load_file

    path = save_runtime_model(model, tmp_path / "kernels.safetensors")
    header = read_model_header(path, kind="kernels", schema=2, command="")
    tensors = load_file(path)
    inner = int(np.flatnonzero(tensors["conv.feature"] >= 0)[0])
    tensors["conv.left"][inner] = inner

    with pytest.raises(InputError, match="damaged"):
        load_runtime_model(write_model(tmp_path / "loop.safetensors", header, tensors))
    with pytest.raises(SchemaVersionError):
        load_runtime_model(write_model(tmp_path / "next.safetensors", {**header, "schema": 3}, tensors))
    del header["fused"]
    with pytest.raises(InputError, match="damaged"):
        load_runtime_model(write_model(tmp_path / "less.safetensors", header, tensors))


def test_nothing_to_learn_from_is_an_error():
    with pytest.raises(InputError, match="prior is empty"):
        learn_runtime([], "eager")
