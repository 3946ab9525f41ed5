"""Nets as kernels: what they compute, how they are split, and that a runtime computes the same."""

import time

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.shared_data import shared_path
from windtunnel.errors import InputError, PriceError
from windtunnel.sources.torch.flop_count import count
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel, build, read_prior, split
from windtunnel.systems.tensor_programs.runtimes.run import (
    RUNTIMES,
    compile_for,
    find_fusions,
    in_turn,
    is_fused,
    measure_kernels,
)
from windtunnel.workloads.cells import network

FUSED = {("conv", "bn"), ("conv-bn", "relu")}
KERNELS = (
    LayerKernel("conv-bn-relu", 12, 8, 16, kernel=3, stride=2),
    LayerKernel("conv", 9, 3, 5, kernel=5),
    LayerKernel("conv-relu", 9, 3, 5, kernel=3, has_bias=True),
    LayerKernel("dwconv-bn", 12, 8, 8, kernel=3, groups=8),
    LayerKernel("conv-relu", 8, 8, 12, kernel=3, groups=4, batch_size=2),
    LayerKernel("fc-relu", 1, 20, 7, batch_size=3),
    LayerKernel("maxpool", 11, 4, 4, kernel=3, stride=2),
    LayerKernel("avgpool", 8, 4, 4, kernel=2, stride=2),
    LayerKernel("globalpool", 7, 6, 6),
    LayerKernel("add-relu", 6, 5, 5),
    LayerKernel("concat", 6, 7, 7),
    LayerKernel("bn-relu", 6, 5, 5),
    LayerKernel("mul", 6, 5, 5),
)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.relu, self.head = nn.ReLU(), nn.Linear(8, 3)

    def forward(self, images):
        first = self.relu(self.bn1(self.conv1(images)))
        both = torch.relu(first + self.bn2(self.conv2(first)))
        return self.head(nn.functional.adaptive_avg_pool2d(both, 1).flatten(1))


def residual():
    torch.manual_seed(0)
    model = Residual()
    for norm in (model.bn1, model.bn2):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return model.eval()


IMAGES = [torch.rand(2, 4, 16, 16)]


def test_without_fusion_every_layer_is_a_kernel():
    kinds = [kernel.kind for kernel in split(residual(), IMAGES)]

    assert kinds == ["conv", "bn", "relu", "dwconv", "bn", "add", "relu", "globalpool", "fc"]


def test_layers_fuse_where_the_second_alone_reads_the_first():
    found = split(residual(), IMAGES, {*FUSED, ("dwconv", "bn"), ("bn", "add"), ("add", "relu")})

    assert found == [
        LayerKernel("conv-bn-relu", 16, 4, 8, kernel=3, stride=2, batch_size=2),
        LayerKernel("dwconv-bn", 8, 8, 8, kernel=3, groups=8, batch_size=2),
        LayerKernel("add-relu", 8, 8, 8, batch_size=2),
        LayerKernel("globalpool", 8, 8, 8, batch_size=2),
        LayerKernel("fc", 1, 8, 3, batch_size=2),
    ]


def test_a_layer_that_two_others_read_fuses_with_neither():
    """The first ReLU feeds the convolution and the sum."""
    kinds = [kernel.kind for kernel in split(residual(), IMAGES, {("relu", "dwconv"), ("relu", "add")})]

    assert "relu-dwconv" not in kinds
    assert "relu-add" not in kinds


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.kind)
def test_a_kernel_is_what_its_module_is(kernel):
    """Split again with every pair fused, it is found again; its flops are those that the code counts."""
    module, inputs = build(kernel)
    pairs = {("-".join(kernel.layers[:end]), kernel.layers[end]) for end in range(1, len(kernel.layers))}

    assert split(module, inputs, pairs) == [kernel]
    if kernel.num_parameters:
        assert count(lambda: module(*inputs)).total == kernel.flops


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.kind)
def test_every_runtime_computes_the_same(runtime, kernel):
    module, inputs = build(kernel)
    with torch.inference_mode():
        torch.testing.assert_close(compile_for(runtime, module, inputs)(), module(*inputs))


@pytest.mark.parametrize(("model", "images"), [(residual(), IMAGES), (network(7_777), [torch.rand(1, 3, 32, 32)])])
def test_whole_nets_compute_the_same_folded(model, images):
    with torch.inference_mode():
        torch.testing.assert_close(compile_for("onednn", model, images)(), model(*images), rtol=1e-3, atol=1e-4)


def test_the_folded_net_is_shorter():
    """Five modules are left of nine layers: the convolutions took their norms and the ReLU with them."""
    compiled = compile_for("onednn", residual(), IMAGES)
    calls = [node for node in compiled.model.graph.nodes if node.op.startswith("call")]

    assert ["fused_conv1", "fused_conv2"] == [node.target for node in calls if "fused" in str(node.target)]
    assert not any("bn" in str(node.target) for node in calls)


def test_an_unknown_runtime_is_refused():
    with pytest.raises(InputError, match="no runtime is called"):
        compile_for("tpu", residual(), IMAGES)


def test_layers_without_a_kernel_are_named():
    with pytest.raises(PriceError, match="1 layers have no kernel") as caught:
        split(nn.Sequential(nn.PReLU()).eval(), IMAGES)
    assert "PReLU" in caught.value.where


def test_a_net_that_decides_by_values_is_refused():
    class Deciding(nn.Module):
        def forward(self, images):
            return images if images.sum() > 0 else -images

    with pytest.raises(PriceError, match="cannot be traced"):
        split(Deciding(), IMAGES)


def test_images_that_are_not_square_are_refused():
    with pytest.raises(PriceError, match="only square images"):
        split(nn.Sequential(nn.ReLU()).eval(), [torch.rand(1, 2, 4, 6)])


# --- times ------------------------------------------------------------------------------------------------


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 1))
def test_fusion_is_a_saving_of_more_than_half_of_the_shorter(first, second, saving):
    """nn-Meter, section 4.2, alpha one half."""
    chained = first + second - saving * min(first, second)

    if abs(saving - 0.5) > 1e-6:
        assert is_fused(first, second, chained) == (saving > 0.5)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_kernels_are_measured(runtime):
    took = measure_kernels(KERNELS[:3], runtime, rounds=2)

    assert (3,) == took.shape
    assert (took > 0).all()


def test_what_works_more_takes_longer():
    """A thousand times the work, by a clock that other processes do not move."""
    small, large = LayerKernel("conv", 4, 8, 8, kernel=3), LayerKernel("conv", 64, 32, 32, kernel=3)
    runs = [compile_for("eager", *build(kernel)) for kernel in (small, large)]
    first, second = in_turn(runs, 5, time.thread_time_ns)

    assert first < second


def test_pairs_are_run_alone_and_chained():
    (found,) = find_fusions("onednn", [("conv", "relu")], size=8, channels=8, rounds=2)

    assert ("conv", "relu") == found.pair
    assert found.is_fused == is_fused(found.first_ns, found.second_ns, found.chained_ns)


# --- priors -----------------------------------------------------------------------------------------------


def test_the_published_prior_is_read():
    """AlexNet's first convolution, and its first linear layer."""
    conv = read_prior(shared_path("cost/nnmeter/prior_conv.csv"), "conv-relu")
    linear = read_prior(shared_path("cost/nnmeter/prior_fc.csv"), "fc")

    assert LayerKernel("conv-relu", 224, 3, 64, kernel=11, stride=4) == conv[0]
    assert LayerKernel("fc", 1, 9216, 4096) == linear[0]
    assert len(conv) == len(set(conv)) == 437


@pytest.mark.parametrize(
    ("text", "where"), [("cin,cout\n3,8\n", "line 2"), ("input_h,cin,cout,ks,stride\n8,3,x,1,1\n", "line 2")]
)
def test_a_prior_that_cannot_be_read_says_where(tmp_path, text, where):
    path = tmp_path / "prior.csv"
    path.write_text(text)

    with pytest.raises(InputError) as caught:
        read_prior(path, "conv")
    assert where in caught.value.where
    with pytest.raises(InputError, match="cannot be read"):
        read_prior(tmp_path / "absent.csv", "conv")
