"""A network as a ratio: it learns a law, and errors that it makes on both devices cancel."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from benchmarks.peers.wave_network import PRESETS, Operators, device_features, fit_ratio_network

from windtunnel.errors import InputError
from windtunnel.hardware import device

NAMES = ("t4", "v100-sxm2-32g", "rtx3090")
QUICK = replace(PRESETS["small"], width=32, num_epochs=40, batch_size=64)


def products(num_rows=600, seed=0):
    """Matrix products whose efficiency depends on their rows only."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.uniform(4, 11, (num_rows, 3))
    features = np.array([device_features(device(name)) for name in rng.choice(NAMES, num_rows)])
    bound_ns = 2e-3 * sizes.prod(axis=1) / features[:, 3]
    efficiency = 0.2 + 0.05 * np.log2(sizes[:, 0])
    return Operators(sizes, features, bound_ns, bound_ns / efficiency)


def mape(found, truth):
    return float(np.abs(found / truth - 1).mean())


@pytest.mark.slow
def test_efficiencies_are_learned_and_sizes_extrapolate_by_the_bound():
    learned, new = fit_ratio_network(products(), QUICK), products(seed=1)
    longer = replace(new, sizes_PS=new.sizes_PS * [1, 1, 4], bound_ns=4 * new.bound_ns)

    assert mape(learned.duration_ns(new), new.duration_ns) < 0.1
    assert mape(learned.duration_ns(longer), 4 * new.duration_ns) < 0.2


def test_an_error_on_both_devices_cancels():
    """The same devices on both sides: whatever the network says, the measured time comes back."""
    learned, some = fit_ratio_network(products(50), replace(QUICK, num_epochs=1)), products(seed=2)

    np.testing.assert_allclose(some.duration_ns, learned.transfer_ns(some.duration_ns, some, some))


@pytest.mark.slow
def test_the_papers_regression_learns_times():
    paper = replace(PRESETS["paper"], num_layers=3, width=64, num_epochs=60, batch_size=64)
    some = products()
    learned = fit_ratio_network(some, paper)

    assert mape(learned.duration_ns(some), some.duration_ns) < mape(np.median(some.duration_ns), some.duration_ns) / 2
    assert ("latency", 8, 1024, 512, 80) == tuple(
        getattr(PRESETS["paper"], name) for name in ("target", "num_layers", "width", "batch_size", "num_epochs")
    )


def test_training_is_the_same_again():
    first, second = (fit_ratio_network(products(50), replace(QUICK, num_epochs=2), seed=5) for _ in range(2))

    assert first.duration_ns(products(20)).tolist() == second.duration_ns(products(20)).tolist()


def test_features_of_a_device_are_as_published():
    assert device_features(device("t4")).tolist() == pytest.approx([17.18, 320.0, 40.0, 8.1], rel=1e-3)


def test_what_cannot_be_learned_from_is_refused():
    some = products(10)

    with pytest.raises(InputError, match="duration_ns must be above zero"):
        fit_ratio_network(replace(some, duration_ns=np.where(np.arange(10) == 3, 0.0, 1.0)))
    with pytest.raises(InputError, match="unknown target"):
        fit_ratio_network(some, replace(QUICK, target="energy"))
    with pytest.raises(InputError, match="no operators"):
        fit_ratio_network(Operators(some.sizes_PS[:0], some.device_PF[:0], some.bound_ns[:0], some.duration_ns[:0]))
