"""Advice from a captured net, and its trial."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn

from windtunnel.cost.host import Ceilings
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.errors import NotApplicableError
from windtunnel.sources.torch.step import capture
from windtunnel.systems.utilization import search as rules
from windtunnel.systems.utilization.run import fly_advice
from windtunnel.systems.utilization.search import Advice, advise

HOST = Ceilings(
    {"float32": Peak(1e11, 0.0, (512,) * 3, "avx512f", "float32", 1)}, (Bandwidth(1e10, 0.0, 96, 1),), num_threads=1
)


class Branches(nn.Module):
    """Two convolutions of one tensor; the second has channels that fill no vectors."""

    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Conv2d(16, size, 3, padding=1, bias=False) for size in (32, 24))

    def forward(self, images):
        images = images.relu()
        return self.left(images), self.right(images)


@pytest.fixture(scope="module")
def advice():
    model, images = Branches().eval(), torch.rand(2, 16, 24, 24)

    def step():
        with torch.inference_mode():
            model(images)

    graph = capture(step, iterations=3, warmup=1, model=model)
    with pytest.MonkeyPatch.context() as patch:  # on a loaded machine a gain may be lost in the spread
        patch.setattr(rules, "_MIN_GAIN", 1.0)
        patch.setattr(rules, "_MIN_SHARE", 0.0)
        return {one.kind: one for one in advise(graph, HOST)}


def test_channels_that_fill_no_vectors_are_to_be_padded(advice):
    found = advice["pad channels"]

    assert ("right",) == found.layers
    assert 32 / 24 == found.predicted_gain == found.work_ratio
    assert [(24, 16, 3, 3), (32, 16, 3, 3)] == [row[0].tensors[1].shape for row in (found.before, found.after)]


def test_products_of_one_tensor_are_to_be_merged(advice):
    found = advice["merge"]

    assert {"left", "right"} == set(found.layers)
    assert (56, 16, 3, 3) == found.after[0].tensors[1].shape
    assert found.predicted_gain >= 1


@pytest.mark.parametrize("kind", ["pad channels", "merge"])
def test_advice_on_layers_is_tried_without_the_model(advice, kind):
    flown = fly_advice(advice[kind], rounds=3)

    assert flown.before_ns > 0
    assert flown.measured_gain == advice[kind].work_ratio * flown.before_ns / flown.after_ns


def test_advice_on_the_batch_needs_the_model():
    batch = Advice("batch", (), "take 4 times the batch", 1.5, 1.0, work_ratio=4)

    with pytest.raises(NotApplicableError, match="only in the whole model"):
        fly_advice(batch)
    assert fly_advice(batch, Branches().eval(), [torch.rand(1, 16, 8, 8)], rounds=4).measured_gain > 0
