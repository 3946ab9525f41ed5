"""Where the images of the suite come from."""

import json

import pytest

from tests.shared_data import shared_path
from windtunnel.errors import InputError

torch = pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.systems.suite.workloads.scenes import Scenes  # noqa: E402
from windtunnel.workloads.images import CIFAR_FILE, image_batches  # noqa: E402


@pytest.mark.slow
def test_decoded_photographs_have_the_published_hash():
    import hashlib

    from windtunnel.workloads.images import _decode_images

    images = _decode_images(shared_path(CIFAR_FILE))
    manifest = json.loads(shared_path("vision/cifar10_manifest.json").read_text())

    assert manifest["train"]["sha256_pixels_nhwc"] == hashlib.sha256(images.transpose(0, 2, 3, 1).tobytes()).hexdigest()


def test_a_damaged_file_of_photographs_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_DATA", str(tmp_path))
    (tmp_path / "vision").mkdir()
    (tmp_path / CIFAR_FILE).write_bytes(b"\xfd7zXZ\x00 cut")

    with pytest.raises(InputError) as caught:
        image_batches(pixels=32, batch_size=2, num_classes=10, seed=0)

    assert CIFAR_FILE in str(caught.value)


def test_each_batch_is_fresh_and_the_seed_decides(monkeypatch):
    monkeypatch.delenv("WINDTUNNEL_DATA", raising=False)
    first, second = (image_batches(pixels=16, batch_size=4, num_classes=10, seed=1) for _ in range(2))
    (images, labels), (next_images, _) = first.draw(), first.draw()
    same_images, same_labels = second.draw()

    assert torch.equal(images, same_images)
    assert torch.equal(labels, same_labels)
    assert not torch.equal(images, next_images)
    assert (4, 3, 16, 16) == tuple(images.shape)
    assert images.abs().max() <= 1


def test_images_of_one_class_are_more_alike_than_those_of_two(monkeypatch):
    monkeypatch.delenv("WINDTUNNEL_DATA", raising=False)
    images, labels = image_batches(pixels=16, batch_size=200, num_classes=2, seed=0).draw()
    colors = images.mean((2, 3))
    zero, one = colors[labels == 0], colors[labels == 1]

    assert torch.dist(zero.mean(0), one.mean(0)) > 3 * max(zero.std(0).max(), one.std(0).max())


def test_scenes_have_the_statistics_of_pascal_voc():
    scenes = Scenes(height=48, width=64, num_classes=20, max_objects=8, batch_size=2000, seed=0)
    boxes, present, classes = scenes._boxes(), scenes._present(), scenes._classes()
    numbers = present.sum(1).float()

    assert 1 == numbers.min()
    assert pytest.approx(2.45, abs=0.15) == numbers.mean().item()  # 2.5, cut at 8
    assert pytest.approx(0.37, abs=0.02) == (classes == 0).float().mean().item()
    assert (boxes[..., 0] >= 0).all()
    assert (boxes[..., 2] <= 64.001).all()
    assert (boxes[..., 3] <= 48.001).all()
    assert (boxes[..., 2:] - boxes[..., :2] > 1).all()


def test_only_pixels_within_a_box_differ_from_the_background():
    batch = Scenes(height=48, width=64, num_classes=4, max_objects=3, batch_size=4, seed=2).draw()
    rows, columns = torch.arange(48) + 0.5, torch.arange(64) + 0.5
    covered = torch.zeros(4, 48, 64, dtype=torch.bool)
    for picture in range(4):
        for (left, top, right, bottom), is_there in zip(batch.boxes[picture], batch.present[picture], strict=True):
            within = ((rows >= top) & (rows <= bottom))[:, None] & ((columns >= left) & (columns <= right))
            covered[picture] |= within & is_there
    background = batch.images.permute(0, 2, 3, 1)[~covered]

    assert pytest.approx(0.0, abs=0.02) == background.mean().item()
    assert pytest.approx(0.25, abs=0.02) == background.std().item()
