from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.systems.tensor_programs.model.small_set import small_set, split_sorted  # noqa: E402
from windtunnel.cost.metrics import mape  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.systems.tensor_programs.model.additive import AdditiveConfig, AdditiveNetwork  # noqa: E402
from windtunnel.systems.tensor_programs.model.checkpoint import load_predictor, read_header, save_predictor  # noqa: E402
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES  # noqa: E402
from windtunnel.systems.tensor_programs.model.predictor import RECIPES, Recipe, train  # noqa: E402
from windtunnel.systems.tensor_programs.model.samples import Buckets, Normalizer, labels_of, widths_of  # noqa: E402

SMALL = AdditiveConfig(width=16, num_blocks=1)


def network(**changes):
    torch.manual_seed(0)
    made = AdditiveNetwork(replace(SMALL, **changes))
    for layer in (made.deep, made.wide):
        torch.nn.init.normal_(layer.weight, std=0.1)
    return made.eval()


def test_times_of_leaves_add_up():
    made = network()
    made.label_shift.fill_(-3.0)
    made.label_scale.fill_(2.0)
    leaves = torch.randn(1, 3, 164)
    seconds = lambda z: torch.exp(z * 2 - 3)  # noqa: E731

    with torch.no_grad():
        together = seconds(made(leaves)[0])
        alone = sum(seconds(made(leaves[:, [place]])[0]) for place in range(3))

    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("has_code", [False, True])
def test_it_learns_and_its_file_gives_the_same_prices(tmp_path, has_code):
    programs = small_set()
    split = split_sorted(programs, "slow")
    training = replace(RECIPES["code"].training, max_epochs=60, batch_size=16)

    predictor, _ = train(programs, split, Recipe(network=SMALL, training=training, has_code=has_code))
    path = save_predictor(predictor, tmp_path / "additive.safetensors")

    prices = predictor.predict(programs, split.test)
    assert mape(prices, labels_of(programs, split.test)) < 0.2
    np.testing.assert_array_equal(load_predictor(path).predict(programs, split.test), prices)
    assert read_header(path)["architecture"] == "additive"
    assert any(name in CODE_NAMES for name in read_header(path)["features"]) == has_code


def test_labels_that_are_no_logarithms():
    programs = small_set(num_tasks=4, per_task=4)
    with pytest.raises(InputError, match="cannot add up in std labels"):
        train(programs, split_sorted(programs, "slow"), Recipe(network=SMALL, labels="std"))


def test_code_is_that_of_the_vectors_of_the_device():
    programs = small_set(num_tasks=4, per_task=4)
    split = split_sorted(programs, "slow")
    normalizer = Normalizer.fit(programs, np.concatenate([split.train, split.train + np.array([0, 1])]), has_code=True)
    samples = np.array([[0, 0], [0, 1]])

    batch = Buckets(programs, samples, normalizer, has_labels=False).batch(np.arange(2))

    rows = slice(programs.leaf_offset[0], programs.leaf_offset[1])
    for row, width in enumerate((1, 2)):  # of 256 and of 512 bits
        expected = normalizer.code(programs.code[rows, width])
        np.testing.assert_allclose(batch.leaves[row, :, 164:].numpy(), expected, rtol=1e-6)


def test_devices_of_one_width_need_no_other():
    programs = small_set(num_tasks=4, per_task=4)
    split = split_sorted(programs, "slow")
    normalizer = Normalizer.fit(programs, np.concatenate([split.train, split.train + np.array([0, 1])]), has_code=True)
    both, one = (np.array([[0, 1], [1, 1], *rest]) for rest in ([[0, 0]], []))
    first, second = (Buckets(programs, rows, normalizer, has_labels=False) for rows in (both, one))

    for row in np.arange(2):
        np.testing.assert_array_equal(first.batch(row[None]).leaves, second.batch(row[None]).leaves)


def test_a_device_of_unknown_vectors_has_no_code():
    programs = small_set(num_tasks=4, per_task=4)
    plain = tuple({key: value for key, value in one.items() if key != "simd_bits"} for one in programs.devices)
    with pytest.raises(InputError, match="simd_bits"):
        widths_of(replace(programs, devices=plain))
