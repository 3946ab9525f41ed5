"""What is missed on known devices is transferred to a new one."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.residual_transfer import fit_residual_transfer


class Formula:
    """Predicts one microsecond for everything."""

    def predict(self, programs, samples):
        return np.full(len(samples), 1e-6)


def measured_set(missed, *, seed=0):
    """Programs whose logarithms of measured over predicted are given [P, D]."""
    programs = small_set(6, 10, seed)
    number = len(programs.task)
    sheets = tuple({**programs.devices[0], "name": f"device-{at}"} for at in range(missed.shape[1]))
    times = (1e-6 * np.exp(missed[:number])).astype(np.float32)
    return replace(programs, mean_s=times, std_s=times * 0, devices=sheets)


def drawn(weights, *, level=0.0, noise=0.0, seed=0, spread=0.4):
    generator = np.random.default_rng(seed)
    shared = generator.normal(0, spread, (60, 1))
    sources = shared + generator.normal(0, 0.15, (60, len(weights)))
    target = sources @ np.asarray(weights) + level + noise * generator.standard_normal(60)
    return np.column_stack([sources, target])


def samples_of(programs, rows, column):
    return np.column_stack([rows, np.full(len(rows), column)])


def test_without_profiling_the_mean_is_carried():
    missed = drawn([0.5, 0.5])
    programs = measured_set(missed)
    transfer = fit_residual_transfer(Formula(), programs, "device-2")
    price = transfer.predict(programs, samples_of(programs, np.arange(60), 2))
    middle = missed[:, :2].mean(1)
    np.testing.assert_allclose(price, 1e-6 * np.exp(middle), rtol=1e-4)


def test_weights_and_level_follow_what_was_profiled():
    programs = measured_set(drawn([0.9, 0.1, 0.0], level=0.4, noise=0.01))
    rows = np.arange(40)
    transfer = fit_residual_transfer(Formula(), programs, "device-3", samples_of(programs, rows, 3))
    assert transfer.weights[0] > transfer.weights[1] > transfer.weights[2] - 0.1
    assert transfer.level == pytest.approx(0.4, abs=0.1)
    rest = np.arange(40, 60)
    error = np.abs(transfer.predict(programs, samples_of(programs, rest, 3)) / programs.mean_s[rest, 3] - 1)
    assert error.mean() < 0.08


def test_the_verdict_is_not_looked_at():
    programs = measured_set(drawn([0.7, 0.3]))
    profiled = samples_of(programs, np.arange(20), 2)
    rest = samples_of(programs, np.arange(20, 60), 2)
    before = fit_residual_transfer(Formula(), programs, "device-2", profiled).predict(programs, rest)
    times = programs.mean_s.copy()
    times[20:, 2] = np.nan
    hidden = replace(programs, mean_s=times)
    after = fit_residual_transfer(Formula(), hidden, "device-2", profiled).predict(hidden, rest)
    np.testing.assert_array_equal(before, after)


def test_a_program_that_no_source_measured_keeps_its_price():
    missed = drawn([0.5, 0.5])
    missed[5, :2] = np.nan
    missed[6, 0] = np.nan
    programs = measured_set(missed)
    price = fit_residual_transfer(Formula(), programs, "device-2").predict(programs, samples_of(programs, [5, 6], 2))
    np.testing.assert_allclose(price, [1e-6, 1e-6 * np.exp(missed[6, 1])], rtol=1e-4)


def test_one_wild_time_moves_little():
    missed = drawn([0.5, 0.5, 0.0], noise=0.02, seed=3)
    wild = missed.copy()
    wild[3, 3] += 3.0
    wild[7, 1] += 3.0
    rows, rest = np.arange(30), np.arange(30, 60)
    found = []
    for one in (missed, wild):
        programs = measured_set(one)
        transfer = fit_residual_transfer(Formula(), programs, "device-3", samples_of(programs, rows, 3))
        found.append(transfer.predict(programs, samples_of(programs, rest, 3)))
    assert np.abs(np.log(found[0] / found[1])).max() < 0.1


def test_samples_of_another_device_and_lonely_devices_are_refused():
    programs = measured_set(drawn([0.5, 0.5]))
    with pytest.raises(InputError, match="column 0"):
        fit_residual_transfer(Formula(), programs, "device-2", samples_of(programs, [1, 2], 0))
    with pytest.raises(InputError, match="column 1"):
        fit_residual_transfer(Formula(), programs, "device-2").predict(programs, samples_of(programs, [1], 1))
    lonely = measured_set(drawn([0.5])[:, :1])
    with pytest.raises(InputError, match="no other device"):
        fit_residual_transfer(Formula(), lonely, "device-0")
