"""What a rank reads of a workload's batches."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from windtunnel.systems.pipelines.training.parts import Batches  # noqa: E402


def batches(**more):
    """Batches of eight samples that are all different, in two microbatches."""
    torch.manual_seed(0)
    pieces = SimpleNamespace(draw=lambda: ((torch.randn(8, 3),), torch.randn(8)))
    return Batches(pieces, 2, num_reads=(2, 2), **more)


def test_batches_that_were_trained_on_before_are_left_out():
    every, later = batches(), batches(skip=2)

    for batch in (2, 3):
        for part in range(2):
            assert torch.equal(every.inputs(batch, part)[0], later.inputs(batch, part)[0])
            assert torch.equal(every.target(batch, part), later.target(batch, part))


def test_the_example_is_the_first_microbatch_to_come():
    assert torch.equal(batches().inputs(1, 0)[0], batches(skip=1).example[0])


def test_replicas_share_out_a_batch():
    alone, both = batches(num_replicas=2), batches(num_replicas=2, replica=1)
    read = [one.inputs(0, part)[0] for one in (alone, both) for part in range(2)]

    assert 8 == len(torch.unique(torch.cat(read), dim=0))


def test_what_others_draw_meanwhile_changes_nothing():
    quiet, disturbed = batches(), batches()
    torch.randn(100)

    assert torch.equal(quiet.inputs(1, 1)[0], disturbed.inputs(1, 1)[0])
