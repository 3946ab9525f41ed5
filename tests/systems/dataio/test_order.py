"""Orders of samples: permutations, other ones in other epochs, divided among ranks without loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.systems.dataio.order import Dataset, epoch_order, rank_order, steps_per_epoch

shuffles = st.sampled_from(["off", "seed", "random"])
datasets = st.builds(
    Dataset, st.integers(1, 40), st.integers(1, 9), shuffles, shuffles, st.integers(0, 2**31), st.booleans(),
    st.integers(0, 2**31),
)  # fmt: skip


@given(datasets, st.integers(0, 5))
def test_an_order_is_a_permutation(dataset: Dataset, epoch: int) -> None:
    assert sorted(epoch_order(dataset, epoch).tolist()) == list(range(dataset.num_samples))


@given(datasets, st.integers(0, 5), st.integers(1, 7))
def test_shares_of_ranks_are_disjoint_and_complete(dataset: Dataset, epoch: int, num_ranks: int) -> None:
    """And as long as the steps need."""
    shares = [rank_order(dataset, epoch, rank, num_ranks) for rank in range(num_ranks)]

    assert sorted(np.concatenate(shares).tolist()) == list(range(dataset.num_samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(8, 60), st.integers(1, 4), st.integers(0, 9))
def test_shuffled_orders_differ_by_epoch(num_files: int, per_file: int, seed: int) -> None:
    for options in ({"file_shuffle": "seed"}, {"sample_shuffle": "seed"}, {"sample_shuffle": "random"}):
        dataset = Dataset(num_files, per_file, seed=seed, **options)  # type: ignore[arg-type]

        assert epoch_order(dataset, 0).tolist() != epoch_order(dataset, 1).tolist()


def test_shuffled_files_keep_their_samples_together() -> None:
    order = epoch_order(Dataset(20, 5, file_shuffle="seed"), 1)

    assert (order.reshape(20, 5) // 5 == order.reshape(20, 5)[:, :1] // 5).all()
    assert (np.diff(order.reshape(20, 5), axis=1) == 1).all()


def test_a_constant_seed_gives_every_epoch_the_same_order() -> None:
    dataset = Dataset(30, sample_shuffle="seed", seed_changes=False)

    assert epoch_order(dataset, 0).tolist() == epoch_order(dataset, 3).tolist()


def test_an_epoch_without_steps_shows_the_arithmetic() -> None:
    with pytest.raises(InputError, match=r"8 files x 1 samples = 8 samples, fewer than batch 7 x 2 ranks = 14"):
        steps_per_epoch(Dataset(8), 7, 2)
    assert steps_per_epoch(Dataset(8, 2), 7, 2) == 1
