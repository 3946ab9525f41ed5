import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("scipy")

from tests.systems.tensor_programs.model.small_set import small_set, split_sorted  # noqa: E402
from tests.systems.tensor_programs.model.test_network import tiny  # noqa: E402
from windtunnel.cost.metrics import mape  # noqa: E402
from windtunnel.errors import InputError, SchemaVersionError  # noqa: E402
from windtunnel.systems.tensor_programs.model.checkpoint import load_predictor, read_header, save_predictor  # noqa: E402
from windtunnel.systems.tensor_programs.model.context import paper_device_features  # noqa: E402
from windtunnel.systems.tensor_programs.model.losses import label_loss  # noqa: E402
from windtunnel.systems.tensor_programs.model.predictor import RECIPES, Recipe, train  # noqa: E402
from windtunnel.systems.tensor_programs.model.samples import labels_of  # noqa: E402
from windtunnel.systems.tensor_programs.model.splits import split_by_device, split_by_task  # noqa: E402
from windtunnel.systems.tensor_programs.model.training import PAPER_TRAINING, TrainingConfig, fit, learning_rate  # noqa: E402

SHORT = TrainingConfig(max_epochs=150, batch_size=16, learning_rate=2e-3, patience=100)


@pytest.fixture(scope="module")
def programs():
    return small_set()


@pytest.fixture(scope="module")
def trained(programs):
    recipe = Recipe(network=tiny(), training=SHORT)
    split = split_sorted(programs, "slow")
    return split, *train(programs, split, recipe)


def test_it_learns(programs, trained):
    """The loss falls to a half; the error of so small a training depends on the order of sums, and is not tested."""
    split, predictor, history = trained

    assert min(history.losses) < 0.6 * history.losses[0]
    assert history.best_error == pytest.approx(
        mape(predictor.predict(programs, split.validation), labels_of(programs, split.validation)), rel=1e-4
    )


def test_checkpoint_gives_the_same_prices(programs, trained, tmp_path):
    split, predictor, history = trained

    path = save_predictor(predictor, tmp_path / "one.safetensors")
    again = load_predictor(path)

    np.testing.assert_array_equal(again.predict(programs, split.test), predictor.predict(programs, split.test))
    header = read_header(path)
    assert header["devices"] == ["slow"]
    assert header["split"]["digest"] == split.digest()
    assert header["validation_mape"] == pytest.approx(history.best_error)
    with pytest.raises(InputError, match="is there already"):
        save_predictor(predictor, path)


def rewrite(path, **changes):
    import json

    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with safe_open(path, "np") as file:
        header = json.loads(file.metadata()["header"]) | changes
    save_file(load_file(path), path, {"header": json.dumps(header)})


def test_foreign_checkpoints_are_refused(trained, tmp_path):
    path = save_predictor(trained[1], tmp_path / "one.safetensors")
    rewrite(path, features=["float_mad", "color"])
    with pytest.raises(InputError, match=r"trained on 2 features.*unknown: color"):
        load_predictor(path)
    rewrite(path, schema=99)
    with pytest.raises(SchemaVersionError, match="schema 99"):
        load_predictor(path)
    path.write_bytes(b"not tensors at all")
    with pytest.raises(InputError, match="no cost model"):
        load_predictor(path)
    with pytest.raises(InputError, match="not there"):
        load_predictor(tmp_path / "none.safetensors")


@pytest.mark.parametrize("name", ["paper-small", "efficiency", "code"])
@pytest.mark.parametrize("domain", ["none", "cmd"])
def test_recipes_train_across_devices(programs, name, domain):
    recipe = replace(
        RECIPES[name],
        network=replace(tiny(heads="per-leaf"), num_heads=1),
        domain=domain,
        num_target=16,
        training=replace(SHORT, max_epochs=2),
    )
    split = split_by_device(programs, "fast")

    predictor, history = train(programs, split, recipe)

    assert len(history.losses) == 2
    assert np.isfinite(predictor.predict(programs, split.test)).all()


def test_one_device_switches_the_context_off_where_it_is_constant():
    programs = small_set(num_tasks=4, per_task=4)
    caches = {"l1d": 32 * 1024, "l2": 2**21, "l3": 2**25}
    sheet = {"clock_hz": 2e9, "memory_bytes": 16e9, "cache_bytes": caches}
    devices = tuple({**device, **sheet} for device in programs.devices)
    programs = replace(programs, devices=devices)
    recipe = Recipe(network=tiny(), context="paper", target="seconds", training=replace(SHORT, max_epochs=1))

    predictor, _ = train(programs, split_by_task(programs, "slow"), recipe)

    assert predictor.network.context is None


def test_fine_tuning_starts_from_the_given_weights(programs, trained):
    split, predictor, _ = trained
    frozen = Recipe(network=tiny(), training=replace(SHORT, max_epochs=1, learning_rate=1e-12, weight_decay=0))

    again, _ = train(programs, split, frozen, start=predictor)

    old, new = predictor.network.state_dict(), again.network.state_dict()
    torch.testing.assert_close(new["last.weight"], old["last.weight"])


def test_device_features_of_the_paper():
    """A device with every field of the MAX row is ones, and missing fields are named."""
    caches = {"l1d": 256 * 1024, "l2": 64 * 2**20, "l3": 256 * 1024}
    most = {"clock_hz": 2e9, "memory_bytes": 64e9, "cache_bytes": caches}
    most |= {"bandwidth_bytes_per_s": 2048e9, "peak_flops_per_s": 12e12}

    np.testing.assert_allclose(paper_device_features(most), np.ones(8))
    with pytest.raises(InputError, match=r"lacks clock_hz, cache_bytes\.l2"):
        paper_device_features({**most, "clock_hz": None, "cache_bytes": {"l1d": 1, "l3": 1}})


def test_trained_weights_stay_where_no_epoch_is_better(programs, trained):
    split, predictor, _ = trained
    harmful = Recipe(network=tiny(), training=replace(SHORT, max_epochs=2, learning_rate=0.5, schedule="none"))

    again, history = train(programs, split, harmful, start=predictor)

    assert history.best_error == history.start_error
    np.testing.assert_array_equal(again.predict(programs, split.test), predictor.predict(programs, split.test))


def test_domain_term_without_target(programs):
    with pytest.raises(InputError, match="target samples"):
        train(programs, split_by_task(programs, "slow"), Recipe(network=tiny(), domain="cmd"))


def test_triangular_rate():
    rate = lambda step: learning_rate(PAPER_TRAINING, step, 0.0)  # noqa: E731
    peak = PAPER_TRAINING.learning_rate

    assert rate(0) == pytest.approx(peak / 10)
    assert rate(2000) == pytest.approx(10 * peak)
    assert rate(4000) == pytest.approx(peak / 10)
    assert rate(1000) == pytest.approx((peak / 10 + 10 * peak) / 2)


def line(config, rows=8):
    model = torch.nn.Linear(1, 1)
    x = torch.linspace(0, 1, rows)[:, None]
    batches = lambda epoch: [x]  # noqa: E731
    loss = lambda model, batch: ((model(batch) - 3 * batch) ** 2).mean()  # noqa: E731
    return model, fit(model, batches, loss, lambda model: float(loss(model, x).detach()), config)


def test_stops_at_the_budget_at_convergence_and_without_gain():
    assert "budget" in line(TrainingConfig(budget_s=0.0))[1].reason
    assert "converged" in line(TrainingConfig(learning_rate=1e-9, schedule="none"))[1].reason
    stuck = line(TrainingConfig(learning_rate=50.0, schedule="none", patience=3, optimizer="adam"))[1]
    assert "no better" in stuck.reason


def test_best_weights_are_kept():
    model, history = line(TrainingConfig(learning_rate=0.3, schedule="none", max_epochs=40, patience=99))

    x = torch.linspace(0, 1, 8)[:, None]
    error = float(((model(x) - 3 * x) ** 2).mean().detach())
    assert error == pytest.approx(min(history.errors), rel=1e-6)


def test_a_loss_that_is_no_number_is_named():
    with pytest.raises(InputError, match="no number in epoch 0"):
        fit(torch.nn.Linear(1, 1), lambda _: [torch.ones(1)], lambda *_: torch.tensor(math.nan, requires_grad=True),
            lambda _: 0.0, TrainingConfig())  # fmt: skip


def test_losses_by_hand():
    predicted, label = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0])

    assert float(label_loss("mse", predicted, label)) == pytest.approx((1 + 4) / 2)
    assert float(label_loss("mape", predicted, label)) == pytest.approx((0.5 + 200) / 2)
    hybrid = 1000 * 2.5 + (0.5 + 200) / 2
    assert float(label_loss("hybrid", predicted, label)) == pytest.approx(hybrid)
    assert float(label_loss("mspe", predicted, label)) == pytest.approx((0.25 + 40000) / 2)
    assert float(label_loss("mae", predicted, label)) == pytest.approx((1 + 2) / 2)
    with pytest.raises(InputError, match="unknown loss"):
        label_loss("l7", predicted, label)


def test_the_loss_of_ratios_by_hand_and_of_logarithms_alone():
    label, scale = torch.tensor([0.0, 0.0, 0.0, 0.0]), 0.5
    predicted = torch.tensor([0.2, -0.2, 3.0, 100.0])
    huber = [0.02, 0.02, 2.5, 99.5]
    shares = [math.expm1(0.1), -math.expm1(-0.1), math.expm1(1.5), math.expm1(2.0)]

    found = float(label_loss("ratio", predicted, label, log_scale=scale))

    assert found == pytest.approx((sum(huber) + sum(shares)) / 4)
    with pytest.raises(InputError, match="is of logarithms"):
        label_loss("ratio", predicted, label)


def test_averaged_weights_soon_forget_where_they_began():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    history = fit(model, lambda _: [torch.ones(4, 1)] * 20, lambda net, x: ((net(x) - 1) ** 2).mean(),
                  lambda net: float((net(torch.ones(1, 1)) - 1).abs()),
                  TrainingConfig(learning_rate=0.1, schedule="none", max_epochs=5, average_decay=0.9999))  # fmt: skip
    assert history.best_error < 0.1
