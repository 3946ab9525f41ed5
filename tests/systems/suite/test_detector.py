"""The parts of the detector do what the papers say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from windtunnel.systems.suite.workloads.boxes import anchors, clip, decode, encode, first_true, iou, match, sample  # noqa: E402
from windtunnel.systems.suite.workloads.detector import Proposer, Rules, roi_align  # noqa: E402
from windtunnel.systems.suite.workloads.nms import nms  # noqa: E402


def random_boxes(seed, *shape, extent=40.0):
    generator = np.random.default_rng(seed)
    corner = generator.uniform(0, extent, (*shape, 2))
    size = generator.uniform(1, extent / 2, (*shape, 2))
    return torch.tensor(np.concatenate([corner, corner + size], -1), dtype=torch.float32)


def slow_iou(one, other):
    across = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    down = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    area = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    return across * down / (area - across * down)


def greedy(boxes, eligible, threshold, limit):
    """The textbook: take the best box that is left, drop all that overlap it."""
    left, kept = [at for at in range(len(boxes)) if eligible[at]], []
    while left and len(kept) < limit:
        best = left.pop(0)
        kept.append(best)
        left = [at for at in left if slow_iou(boxes[best], boxes[at]) <= threshold]
    return kept


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.1, 0.3, 0.5, 0.7]), st.integers(1, 40))
@settings(max_examples=30)
def test_suppression_keeps_what_the_textbook_keeps(seed, count, threshold, limit):
    boxes = random_boxes(seed, 2, count)
    eligible = torch.from_numpy(np.random.default_rng(seed).random((2, count)) < 0.8)

    keep = nms(boxes, eligible, threshold, limit)

    for picture in range(2):
        expected = greedy(boxes[picture].tolist(), eligible[picture].tolist(), threshold, limit)
        assert expected == keep[picture].nonzero().flatten().tolist()


def test_suppression_by_hand():
    """The second box overlaps the first by 2/3, the third the second by 1/2 and the first by 3/13."""
    boxes = torch.tensor([[[0.0, 0, 10, 10], [2, 0, 12, 10], [6, 0, 16, 10], [50, 50, 60, 60]]])
    everything = torch.ones(1, 4, dtype=torch.bool)

    assert [[True, False, True, True]] == nms(boxes, everything, 0.4, 4).tolist()
    assert [[True, True, True, True]] == nms(boxes, everything, 0.7, 4).tolist()
    assert [[True, False, True, False]] == nms(boxes, everything, 0.4, 2).tolist()


@pytest.mark.slow
def test_suppression_is_one_operator_that_a_dry_run_knows():
    with FakeTensorMode():
        keep = nms(torch.zeros(2, 5, 4), torch.ones(2, 5, dtype=torch.bool), 0.5, 3)

    assert ((2, 5), torch.bool) == (tuple(keep.shape), keep.dtype)
    torch.library.opcheck(nms, (random_boxes(0, 2, 6), torch.ones(2, 6, dtype=torch.bool), 0.5, 4))


@given(st.integers(0, 10_000))
def test_overlaps_equal_the_slow_reference(seed):
    boxes, others = random_boxes(seed, 4), random_boxes(seed + 1, 3)
    expected = [[slow_iou(one, other) for other in others.tolist()] for one in boxes.tolist()]

    assert np.allclose(expected, iou(boxes, others), atol=1e-5)


@given(st.integers(0, 10_000))
def test_a_box_is_found_again_from_its_code(seed):
    boxes, places = random_boxes(seed, 2, 5), random_boxes(seed + 1, 5)

    assert torch.allclose(boxes, decode(encode(boxes, places), places), atol=1e-3)


def test_a_code_by_hand():
    """Half of the width to the right, twice as tall."""
    code = encode(torch.tensor([5.0, -5, 15, 15]), torch.tensor([0.0, 0, 10, 10]))

    assert [0.5, 0.0, 0.0, math.log(2)] == pytest.approx(code.tolist())


def test_anchors_have_the_sides_and_ratios_of_the_paper():
    """Nine per cell around the middle of its 16 x 16 pixels, tall ones at a ratio of 2."""
    found = anchors(2, 3, stride=16, sides=(128.0, 256.0, 512.0), ratios=(0.5, 1.0, 2.0))
    widths, heights = found[:, 2] - found[:, 0], found[:, 3] - found[:, 1]
    centers = (found[:, :2] + found[:, 2:]) / 2

    assert (2 * 3 * 9, 4) == tuple(found.shape)
    assert [-56.0, -56.0, 72.0, 72.0] == pytest.approx(found[1].tolist())
    assert [0.5, 1, 2] * 18 == pytest.approx((heights / widths).tolist(), rel=1e-5)
    assert ([128.0] * 3 + [256.0] * 3 + [512.0] * 3) * 6 == pytest.approx((heights * widths).sqrt().tolist(), rel=1e-5)
    assert [8.0, 8.0, 24.0, 8.0, 40.0, 8.0, 8.0, 24.0] == pytest.approx(centers[::9][:4].flatten().tolist())


def test_a_box_is_matched_with_the_object_that_it_overlaps_most():
    places = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [40, 40, 50, 50]])
    objects = torch.tensor([[[0.0, 0, 10, 9], [0, 0, 10, 10]], [[1.0, 1, 2, 2], [39, 40, 49, 50]]])
    present = torch.tensor([[True, False], [True, True]])

    overlap, which, is_best = match(iou(places, objects), present)

    assert [[0.9, 5 / 9, 0.0], [0.01, 0.02, 90 / 110]] == [pytest.approx(row) for row in overlap.tolist()]
    assert [[0, 0, 0], [0, 0, 1]] == which.tolist()
    assert [[True, False, False], [False, True, True]] == is_best.tolist()


@given(st.integers(0, 1000), st.integers(0, 12))
def test_a_sample_has_at_most_so_many_and_only_eligible_ones(seed, limit):
    eligible = torch.from_numpy(np.random.default_rng(seed).random((3, 10)) < 0.5)

    chosen = sample(eligible, limit)

    assert not (chosen & ~eligible).any()
    assert eligible.sum(1).clamp_max(limit).tolist() == chosen.sum(1).tolist()


def test_the_first_true_entries_come_in_order_and_are_filled_up():
    mask = torch.tensor([[False, True, False, True, True], [False, False, False, True, False]])

    index, is_real = first_true(mask, 3)

    assert [1, 3, 4] == index[0].tolist()
    assert 3 == index[1, 0]
    assert [[True, True, True], [True, False, False]] == is_real.tolist()


def test_clipped_boxes_lie_in_the_picture():
    assert [0.0, 2.0, 8.0, 6.0] == clip(torch.tensor([-3.0, 2.0, 9.0, 7.0]), 6, 8).tolist()


def slow_roi_align(features, box, scale, size, samples):
    """Point by point; features [C, rows, columns], one box."""
    channels, rows, columns = features.shape
    left, top, right, bottom = (side * scale for side in box)
    out = np.zeros((channels, size, size))
    for down in range(size * samples):
        for across in range(size * samples):
            y = top + (down + 0.5) * (bottom - top) / (size * samples) - 0.5
            x = left + (across + 0.5) * (right - left) / (size * samples) - 0.5
            y, x = min(max(y, 0), rows - 1), min(max(x, 0), columns - 1)
            y0, x0 = min(int(y), rows - 2), min(int(x), columns - 2)
            value = sum(
                features[:, y0 + i, x0 + j] * abs(1 - i - (y - y0)) * abs(1 - j - (x - x0))
                for i in (0, 1)
                for j in (0, 1)
            )
            out[:, down // samples, across // samples] += value / samples**2
    return out


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=20)
def test_roi_align_equals_the_slow_reference(seed, size, samples):
    features = torch.tensor(np.random.default_rng(seed).normal(size=(2, 3, 6, 9)), dtype=torch.float32)
    boxes = random_boxes(seed, 2, 3, extent=60.0)

    found = roi_align(features, boxes, 0.125, size, samples)

    expected = [
        slow_roi_align(features[picture].numpy(), box, 0.125, size, samples)
        for picture in range(2)
        for box in boxes[picture].tolist()
    ]
    assert np.allclose(expected, found, atol=1e-4)


def test_roi_align_gives_the_published_values():
    """The example that Detectron2's tests hold its aligned version to: 5 x 5 numbers, box (1, 1, 3, 3), 4 x 4 cells."""
    features = torch.arange(25.0).view(1, 1, 5, 5)

    found = roi_align(features, torch.tensor([[[1.0, 1.0, 3.0, 3.0]]]), 1.0, 4)

    expected = [[4.5, 5.0, 5.5, 6.0], [7.0, 7.5, 8.0, 8.5], [9.5, 10.0, 10.5, 11.0], [12.0, 12.5, 13.0, 13.5]]
    assert expected == [pytest.approx(row) for row in found[0, 0].tolist()]


def test_a_proposer_that_is_sure_proposes_its_anchors():
    """Scores say which anchor; codes of zero leave it where it is; what it overlaps is gone."""
    rules = Rules(anchor_sides=(16.0,), num_before_suppression=12, num_after_suppression=4, min_side=4.0)
    proposer = Proposer(1, 1, rules)
    places = anchors(2, 2, stride=16, sides=rules.anchor_sides, ratios=(0.5, 1.0, 2.0))
    scores = torch.zeros(1, 12).index_fill(1, torch.tensor([4]), 5.0).index_fill(1, torch.tensor([1]), 4.0)

    boxes, is_real = proposer.proposals(places, scores, torch.zeros(1, 12, 4), (32, 32))

    assert (1, 4, 4) == tuple(boxes.shape)
    assert is_real.all()
    assert [[16.0, 0.0, 32.0, 16.0], [0.0, 0.0, 16.0, 16.0]] == boxes[0, :2].tolist()
