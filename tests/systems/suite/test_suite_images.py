"""The image half of the training suite really trains, and can be dry-run."""

import gc
import math
import threading
import weakref

import numpy as np
import pytest

from tests.shared_data import shared_path
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.workloads.workload import SIZES, Workload

torch = pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("pytorchcv", reason="needs the extra suite")
pytest.importorskip("transformers", reason="needs the extra suite")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from windtunnel.systems.suite.workloads.boxes import iou  # noqa: E402
from windtunnel.systems.suite.workloads.scenes import Scenes  # noqa: E402

DOMAINS = {
    "convnext": "image classification",
    "diffusion-unet": "diffusion",
    "faster-rcnn": "object detection",
    "inception-v3": "image classification",
    "resnet50": "image classification",
    "vit": "image classification",
    "wgan-gp": "adversarial",
}
NAMES = tuple(DOMAINS)
PUBLISHED_PARAMETERS = {  # [models] the papers say 25.6, 23.8, 28.6, 86 and 35.7 million
    "resnet50": [25_557_032],
    "inception-v3": [23_834_568],
    "convnext": [28_589_128],
    "vit": [86_567_656],
    "diffusion-unet": [35_746_307],
}
ADDED_TO_BOTH_SIDES = {  # the critic's loss is a difference: a constant in its output has no gradient
    "wgan-gp": {"3.conv2.bias", "3.shortcut.bias", "4.1.bias"}
}
NUM_STEPS = {"faster-rcnn": 60, "inception-v3": 30, "wgan-gp": 20}


@pytest.fixture(autouse=True)
def _without_real_data(monkeypatch):
    monkeypatch.delenv("WINDTUNNEL_DATA", raising=False)


def make(name, size="tiny", **options) -> Workload:
    return registry.get("workload", name).function(size=size, **options)


def losses(workload, count):
    return [float(workload.step()) for _ in range(count)]


def parameters(workload):
    return [parameter for model in workload.models for parameter in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_registered_with_source_domain_and_sizes(name):
    found = registry.all("workload")[name]

    assert DOMAINS[name] == found.domain
    assert found.source
    assert found.summary
    assert ["size", "batch_size", "seed"] == list(found.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_three_steps_change_every_parameter(name):
    """Layers that begin with zeros hold the gradient back from those before them for one step each."""
    workload = make(name, batch_size=2)
    before = [(name, old.detach().clone()) for model in workload.models for name, old in model.named_parameters()]

    found = losses(workload, 3)

    after = parameters(workload)
    unchanged = {name for (name, old), new in zip(before, after, strict=True) if torch.equal(old, new)}
    assert all(math.isfinite(loss) for loss in found)
    assert unchanged <= ADDED_TO_BOTH_SIDES.get(workload.name, set())
    assert (2, "tiny") == (workload.batch_size, workload.size)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_losses_and_another_seed_others(name):
    first, second, other = (losses(make(name, batch_size=2, seed=seed), 2) for seed in (3, 3, 4))

    assert first == pytest.approx(second, rel=1e-4)
    assert first != pytest.approx(other, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls_on_fresh_batches(name):
    found = losses(make(name), NUM_STEPS.get(name, 40))

    assert np.mean(found[:5]) > np.mean(found[-5:])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_step_runs_without_data(name):
    with FakeTensorMode():
        workload = make(name, batch_size=2)
        loss = workload.step()

    assert () == tuple(loss.shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_paper_size_has_the_published_number_of_parameters(name):
    with FakeTensorMode():
        workload = make(name, "paper")
    found = [sum(parameter.numel() for parameter in model.parameters()) for model in workload.models]

    assert PUBLISHED_PARAMETERS.get(name, found) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diffusion-unet", "vit", "wgan-gp"])
def test_real_images_are_used_where_they_are(name, monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_DATA", str(shared_path("vision").parent))
    workload = make(name, batch_size=2)

    assert math.isfinite(float(workload.step()))
    assert workload.data.startswith("CIFAR-10 (10,000 images")


@pytest.mark.parametrize("name", ["faster-rcnn", "vit"])
def test_without_real_images_the_data_are_called_synthetic(name):
    assert make(name).data.startswith("synthetic: ")


@pytest.mark.parametrize("name", ["diffusion-unet", "faster-rcnn"])
def test_a_workload_ends_with_its_last_reference_and_leaves_nothing(name):
    threads = threading.active_count()
    workload = make(name, batch_size=1)
    workload.step()
    model = weakref.ref(workload.model)
    del workload
    gc.collect()

    assert model() is None
    assert torch.get_default_dtype() == torch.float32
    assert threads == threading.active_count()


def test_the_critic_is_trained_more_often_than_the_generator():
    """Each step of the critic needs the gradient of a gradient."""
    workload = make("wgan-gp", batch_size=2)
    counts = {}
    for optimizer in workload.optimizers:
        optimizer.register_step_post_hook(lambda which, *_: counts.update({id(which): counts.get(id(which), 0) + 1}))

    workload.step()

    assert [1, 2] == [counts[id(optimizer)] for optimizer in workload.optimizers]


def test_an_unknown_size_names_those_that_exist():
    with pytest.raises(InputError) as caught:
        make("resnet50", "huge")

    assert all(size in str(caught.value) for size in SIZES)


@pytest.mark.parametrize("name", ["faster-rcnn", "vit"])
def test_an_empty_batch_is_refused(name):
    with pytest.raises(InputError) as caught:
        make(name, batch_size=0)

    assert "a batch of 0 images" in str(caught.value)


@pytest.mark.slow
def test_the_detector_finds_objects_in_pictures_that_it_has_not_seen():
    """The 16 best of 432 anchors' proposals then cover at least twice as many objects as untrained."""
    workload = make("faster-rcnn")
    scenes = Scenes(height=96, width=128, num_classes=4, max_objects=8, batch_size=40, seed=0)
    scenes.generator.manual_seed(99)  # the patterns of the workload's classes in other pictures
    unseen = scenes.draw()
    before = share_found(workload.model, unseen)

    losses(workload, 120)

    assert share_found(workload.model, unseen) > 2 * before


@torch.no_grad()
def share_found(model, batch):
    found = model.proposer(model.backbone(batch.images))
    boxes, _ = model.proposer.proposals(*found, tuple(batch.images.shape[-2:]))
    best = iou(boxes[:, :16], batch.boxes).amax(dim=1)
    return ((best >= 0.5) & batch.present).sum().item() / batch.present.sum().item()
