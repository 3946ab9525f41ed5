"""This host measured, prices between samples, and when to stop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.interpolation import Process, coordinates
from windtunnel.cost.measured import ALONE, Calibration
from windtunnel.cost.work import extents_of, lies_otherwise
from windtunnel.graph.kernel_classes import class_of
from windtunnel.measure.database import Measurement, ProfileDatabase

RNG = np.random.default_rng(0)


def smooth(points, slope=0.2):
    """An efficiency that rises with size, as real ones do."""
    return -2.0 + slope * (points[:, 0] - 10) / 4


def drawn(count, seed):
    rng = np.random.default_rng(seed)
    points = np.stack([rng.uniform(8, 28, count), rng.uniform(0, 8, count), *np.zeros((2, count))], axis=1)
    return points, np.full(count, "aten::mm", dtype=object)


def test_between_samples_the_efficiency_is_theirs():
    points, names = drawn(80, 1)
    process = Process.fit(points, names, smooth(points))
    others, their_names = drawn(200, 2)
    value, deviation = process.predict(others, their_names)

    assert np.abs(value - smooth(others)).mean() < 0.03
    assert (deviation > 0).all()


def test_far_from_all_samples_a_price_is_less_sure():
    points, names = drawn(40, 3)
    process = Process.fit(points, names, smooth(points) + 0.1 * RNG.standard_normal(40))
    near, far = (process.predict(np.array([at]), names[:1])[1][0] for at in (points[0], [60.0, 30.0, 0.0, 0.0]))

    assert near < far


def test_leaving_one_out_equals_fitting_without_it():
    """The closed form against the obvious loop."""
    points, names = drawn(12, 4)
    values = smooth(points) + 0.2 * RNG.standard_normal(12)
    process = Process.fit(points, names, values)
    for row in range(12):
        rest = np.arange(12) != row
        form = process._form
        matrix = form.similar(points[rest], names[rest], points[rest], names[rest]) + form.noise**2 * np.eye(11)
        near = form.similar(points[row : row + 1], names[:1], points[rest], names[rest])
        mean = process.mean + near @ np.linalg.solve(matrix, values[rest] - process.mean)
        assert mean[0] - values[row] == pytest.approx(process.left_out[row], abs=1e-8)


def test_two_operators_of_a_class_may_differ():
    points, names = drawn(80, 5)
    names[::2] = "aten::addmm"
    offset = np.where(names == "aten::mm", 0.0, 1.0)
    process = Process.fit(points, names, smooth(points) + offset)
    others, _ = drawn(50, 6)
    first, second = (
        process.predict(others, np.full(50, name, dtype=object))[0] for name in ("aten::mm", "aten::addmm")
    )

    assert 0.7 < (second - first).mean() < 1.1


def test_an_operator_that_differs_everywhere_is_known_from_one_sample():
    """A tenth of the others' efficiency, seen once, at another size."""
    points, names = drawn(60, 8)
    values = smooth(points)
    others = [f"aten::{name}" for name in ("addmm", "bmm", "baddbmm")]
    for row, name in enumerate(others):
        names[row * 8 : row * 8 + 8] = name
        values[row * 8 : row * 8 + 8] += row - 1
    names[-1] = "aten::addbmm"
    values[-1] -= 2.0
    process = Process.fit(points, names, values)
    far = np.array([[*(36.0 - points[-1, :1]), *points[-1, 1:]]])
    value, _ = process.predict(far, names[-1:])

    assert value[0] == pytest.approx(smooth(far)[0] - 2.0, abs=0.6)


def test_the_slope_of_the_likelihood_is_its_difference():
    from windtunnel.cost.interpolation import _surprise

    points, names = drawn(10, 9)
    points[:, 2:] = RNG.uniform(0, 4, (10, 2))
    names[::3] = "aten::addmm"
    squared = (points[:, None] - points[None]) ** 2
    alike, values = (names[:, None] == names[None]).astype(float), RNG.standard_normal(10)
    at = RNG.uniform(-1, 1, 8)
    _, slope = _surprise(at, squared, alike, values)
    for place in range(8):
        step = 1e-5 * np.eye(8)[place]
        above, below = (_surprise(one, squared, alike, values)[0] for one in (at + step, at - step))
        assert (above - below) / 2e-5 == pytest.approx(slope[place], rel=1e-4, abs=1e-6)


def test_a_form_is_found_whatever_the_samples():
    """One sample twice, all at one place, all equal: still numbers."""
    points, names = drawn(6, 10)
    for some, values in ((np.repeat(points[:1], 6, axis=0), np.arange(6.0)), (points, np.zeros(6))):
        process = Process.fit(some, names, values)
        value, deviation = process.predict(points, names)
        assert np.isfinite(value).all()
        assert (deviation > 0).all()
        assert np.isfinite(process.left_out_std).all()


def test_coordinates_are_octaves():
    size = np.array([1024.0])

    assert [[10.0, 1.0, 18.0]] == coordinates(size, size).tolist()  # all of it fits into a cache
    assert [[10.0, 1.0, 20.0, 5.0]] == coordinates(size, size, 2.0**20, [5.0]).tolist()
    assert [[30.0, 1.0, 28.0, 5.0, 0.0]] == coordinates(size * 2**20, size * 2**20, 0.0, [[5.0, 0.0]]).tolist()


def test_what_short_rows_cost_is_learned():
    """Efficiency falls with one extent alone; of two shapes of one size the finer one is known to take longer."""
    rng = np.random.default_rng(70)
    points, names = drawn(80, 7)
    points[:, 3] = rng.uniform(0, 8, 80)
    process = Process.fit(points, names, -3 + 0.3 * points[:, 3])
    fine, coarse = (process.predict(np.array([[18.0, 4.0, 0.0, extent]]), names[:1])[0][0] for extent in (1.0, 7.0))

    assert coarse - fine == pytest.approx(1.8, abs=0.3)


@pytest.mark.parametrize(
    ("operator", "shapes", "extents"),
    [
        ("aten::mm", "[[256,32],[32,64]]", (256, 32, 64, 1)),
        ("aten::mm.default", "(float32[256, 32]/[1, 256], float32[32, 64])", (256, 32, 64, 1)),
        ("aten::addmm", "[[8],[256,32],[32,64]] ignored [[1],[2,2]]", (256, 32, 64, 1)),
        ("aten::addmm", "[[256,64],[256,32],[32,64]]", (256, 32, 64, 1)),
        ("aten::baddbmm", "[[4,8,2],[4,8,16],[4,16,2]]", (8, 16, 2, 4)),
        ("aten::mkldnn_rnn_layer", "[[20,16,256],[1024,256],[1024,256],[1024],[1024]]", (16, 256, 1024, 1)),
        ("aten::mkldnn_convolution", "[[32,64,8,8],[128,16,3,3],[],[[],[]]]", (16, 128, 9, 2048)),
        ("aten::convolution_backward", "[[2,64,4,4],[2,32,8,8],[64,1,3,3],[[]]]", (1, 64, 9, 128)),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "[[64,4,65,24],[64,4,65,24],[]]", (256, 65, 24, 1)),
        ("aten::native_batch_norm", "[[32,16,8,8],[16],[16]]", (64, 512, 1, 1)),
        ("aten::native_layer_norm", "[[64,65,96],[[]],[96],[96],[]]", (96, 4160, 1, 1)),
        ("aten::sum", "[[320,16],[[]],[],[]]", (16, 320, 1, 1)),
        ("aten::index_select", "[[1024,32],[],[256]]", (256, 1024, 32, 1)),
        ("aten::embedding.default", "(float32[64, 8], int64[4, 32])", (128, 64, 8, 1)),
        ("aten::embedding_dense_backward", "[[8,32,64],[8,32],[],[],[]]", (256, 8, 2048, 1)),
        ("aten::gelu", "[[64,65]]", (1, 1, 1, 1)),
        ("aten::convolution", "[[64,65]]", (1, 1, 1, 1)),
        ("aten::sum", "[[]]", (1, 1, 1, 1)),
        ("aten::sum", "", (1, 1, 1, 1)),
    ],
)
def test_the_extents_of_an_operator(operator, shapes, extents):
    assert extents_of(operator, shapes) == pytest.approx(np.log2(extents))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ('[[8,4],[4,2]] ["Tensor(float)","Tensor(float)"] [[4,1],[2,1]]', False),
        ('[[8,4],[4,2]] ["Tensor(float)","Tensor(long int)"] [[4,1],[1,4]] [null,null]', True),
        ('[[8,1],[]] ["Tensor(float)","Int"] [[1,7],[]]', False),  # one column: its step is never taken
        ('[[[8,4],[8,4]],[]] ["GenericList[]","Int"] [[[4,1],[1,8]],[]]', True),
        ('[[8,4]] ["Tensor(float)"] []', False),
        ("[[8,4]]", False),
        ("", False),
        ("(float32[8, 4], 2.0)", False),
        ("(float32[8, 4], float32[8, 4]/[1, 8])", True),
    ],
)
def test_inputs_lie_row_by_row_or_otherwise(inputs, expected):
    assert expected == lies_otherwise(inputs)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("aten::mm", "product"),
        ("aten::convolution_backward", "convolution backward"),
        ("aten::_softmax", "normalization"),
        ("aten::native_batch_norm_backward", "normalization"),
        ("aten::max_pool2d_with_indices", "pooling"),
        ("aten::copy_", "moving"),
        ("aten::sum.dim_IntList", "reduction"),
        ("aten::linalg_vector_norm", "reduction"),
        ("aten::addcmul_", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::clamp_min", "elementwise"),
        ("aten::nll_loss_forward", "reduction"),
        ("aten::nll_loss_backward", "elementwise"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention backward"),
        ("aten::mkldnn_rnn_layer", "product"),
        ("aten::normal_", "drawing"),
        ("aten::native_dropout", "drawing"),
        ("aten::embedding_dense_backward", "indexing"),
        ("aten::sort", "sorting"),
    ],
)
def test_operators_have_classes(operator, name):
    assert name == class_of(operator)


def test_samples_of_an_older_database_are_kept(tmp_path):
    import sqlite3

    path = tmp_path / "old.db"
    with sqlite3.connect(path) as old:
        names = (
            "operator signature phase change threads machine libraries old_ns new_ns spread_ratio rounds bytes_ratio"
        )
        old.execute(f"CREATE TABLE measurements ({', '.join(names.split())}, measured_at)")
        old.execute("INSERT INTO measurements VALUES ('a','s','forward','c',1,'m','l',1.0,2.0,0.0,3,1.0,5)")
        old.execute("PRAGMA user_version = 1")
    old.close()
    database = ProfileDatabase(path)
    database.add([Measurement("b", "s", "forward", "c", 1, "m", "l", 1.0, 4.0, flops=8.0)])

    assert [2.0, 4.0] == [one.new_ns for one in database]
    assert ["b"] == [one.operator for one in database.samples("m", "l", 1)]
    assert [] == database.samples("m", "l", 2)


def captured_here(graph, **changes):
    """The graph as if this host had captured it with one thread."""
    import torch

    from windtunnel.hardware import machine

    known = {"processor": machine().cpu_name, "torch": torch.__version__, "num_threads": 1}
    return graph.with_meta(hardware=known | changes)


class TestOnThisHost:
    @pytest.fixture(autouse=True)
    def torch(self):
        pytest.importorskip("torch", reason="needs the extra torch")

    @pytest.fixture
    def host(self, monkeypatch):
        """A host whose limits are given: tests must not wait for peaks."""
        from windtunnel.cost.host import HOST
        from windtunnel.hardware import Device
        from windtunnel.measure.fingerprint import machine

        return Device(HOST, 2**34, 1e10, {"fp32": 1e11}, kind="cpu", num_units=1, source=f"measured on {machine()}",
                      launch_overhead_ns=1000)  # fmt: skip

    def samples(self, host, count=60, true=0.4):
        from windtunnel.measure.fingerprint import libraries, machine

        rng = np.random.default_rng(7)
        flops, moved = np.exp(rng.uniform(8, 22, count)), np.exp(rng.uniform(8, 18, count))
        took = bounds_on(host, flops, moved).bound_ns / (true * np.exp(0.05 * rng.standard_normal(count)))
        return [
            Measurement("aten::mm", f"s{row}", "forward", ALONE, 1, machine(), libraries(), 1.0, float(took[row]),
                        flops=float(flops[row]), bytes_moved=float(moved[row]))
            for row in range(count)
        ]  # fmt: skip

    def test_a_graph_is_priced_between_samples_with_an_interval(self, host):
        from windtunnel.cost.measured import CalibratedPricer
        from windtunnel.cost.work import Work

        database = ProfileDatabase(":memory:")
        database.add(self.samples(host))
        work = Work.of_counts(np.array(["aten::mm", "aten::relu"]), np.array([1e6, 1e6]), np.array([1e5, 1e5]))
        pricer = CalibratedPricer(database)

        assert [True, False] == pricer.covers(work, host).tolist()
        price = pricer.price(work.take(np.array([0])), host)
        assert 0.4 == pytest.approx(price.efficiency[0], rel=0.1)
        assert price.efficiency_low[0] < 0.4 < price.efficiency_high[0]

    def test_prices_of_this_host_are_not_for_another(self, host):
        from windtunnel.cost.measured import CalibratedPricer, MeasuredPricer
        from windtunnel.cost.work import Work
        from windtunnel.hardware import device

        database = ProfileDatabase(":memory:")
        database.add(self.samples(host))
        work = Work.of_counts(np.array(["aten::mm"]), np.array([1e6]), np.array([1e5]))
        for pricer in (CalibratedPricer(database), MeasuredPricer(database)):
            assert not pricer.covers(work, device("epyc-7742")).any()

    def test_what_ran_in_a_graph_is_its_own_price_afterwards(self, host):
        from tests.whatifs.test_forecast import step
        from windtunnel.cost.measured import MeasuredPricer, remember
        from windtunnel.cost.pricing import price

        database = ProfileDatabase(":memory:")
        assert 3 == remember(captured_here(step()), database)
        priced = price(step(), host, [MeasuredPricer(database)])

        assert step().duration_ns.tolist() == priced.duration_ns.tolist()
        assert "measured" == priced.tasks.strings("cost_source").decode(1)

    def test_what_ran_within_steps_prices_steps(self, host):
        """Alone twice as efficient as within a step that fills the caches: the price depends on the step."""
        from dataclasses import replace

        from windtunnel.cost.measured import IN_GRAPH, CalibratedPricer
        from windtunnel.cost.work import Work

        database = ProfileDatabase(":memory:")
        database.add(self.samples(host, true=0.6))
        database.add(replace(one, change=IN_GRAPH, step_bytes=1e9) for one in self.samples(host, true=0.3))
        work = Work.of_counts(np.array(["aten::mm"]), np.array([1e6]), np.array([1e5]))
        often = replace(work, num_tasks=np.array([10_000]))
        alone, within = (CalibratedPricer(database).price(one, host).efficiency[0] for one in (work, often))

        assert 0.6 == pytest.approx(alone, rel=0.15)
        assert 0.3 == pytest.approx(within, rel=0.15)

    def test_samples_of_an_older_method_do_not_count(self, host):
        from dataclasses import replace

        from windtunnel.cost.measured import calibration_of

        old = [replace(one, change="alone, in turn (calibration, method 1)") for one in self.samples(host)]
        assert {} == calibration_of(old, host).processes

    def test_captures_of_another_machine_are_not_learned(self):
        from tests.whatifs.test_forecast import step
        from windtunnel.cost.measured import remember
        from windtunnel.errors import InputError

        database = ProfileDatabase(":memory:")
        for graph in (step(), captured_here(step(), processor="Z80"), captured_here(step(), torch="0.1")):
            with pytest.raises(InputError, match="was captured on"):
                remember(graph, database)
        assert 0 == len(database)

    def test_errors_and_intervals_come_from_samples_left_out(self, host):
        samples = self.samples(host, 100)
        limits = bounds_on(host, [one.flops for one in samples], [one.bytes_moved for one in samples])
        found = Calibration.fit(samples, limits)

        assert 0.02 < found.error < 0.08  # the samples scatter by 5 %
        assert {"product"} == set(found.errors)

    def test_samples_say_what_they_compute_and_move(self):
        from windtunnel.cost.operator_samples import CLASSES, draw

        rng = np.random.default_rng(8)
        for name in CLASSES:
            one = draw(name, rng)
            assert name == class_of(one.kernel.operator)
            assert one.flops >= (name != "moving")
            for tensor in one.kernel.tensors:
                assert math.prod(tensor.shape) == 1 + sum((size - 1) * step for size, step in
                                                          zip(tensor.shape, tensor.stride, strict=True))  # fmt: skip
            assert one.bytes_moved >= 4 * sum(np.prod(tensor.shape) for tensor in one.kernel.tensors)

    def test_every_sample_can_be_run(self):
        from windtunnel.cost.calibration import _times
        from windtunnel.cost.operator_samples import CLASSES, draw

        rng = np.random.default_rng(9)
        small = []
        for name in CLASSES:
            small.append(min((draw(name, rng) for _ in range(20)), key=lambda one: one.flops + one.bytes_moved))
        times = _times([one.kernel for one in small], 1)

        assert all(times[one.kernel] > 0 for one in small)

    def test_the_forecast_follows_a_falling_curve(self):
        from windtunnel.cost.calibration import Round, forecast_gain

        rounds = [Round(count, 2.0 / (count + 10) + 0.1) for count in (20, 40, 60, 80, 100, 120)]
        truth = 2.0 / 130 - 2.0 / 150

        assert truth == pytest.approx(forecast_gain(rounds), rel=0.3)
        assert np.inf == forecast_gain(rounds[:3])
        assert 0.0 == forecast_gain([Round(count, 0.3) for count in range(20, 80, 10)])

    def test_calibrate_ends_and_keeps_its_samples(self, host, monkeypatch):
        from windtunnel.cost import calibration

        monkeypatch.setattr(calibration, "host_device", lambda *_, **__: host)
        monkeypatch.setattr(calibration, "_ROUND_S", 0.0)
        monkeypatch.setattr(calibration, "_FEWEST_TURNS", 1)
        monkeypatch.setattr(calibration, "CLASSES", {"moving": calibration.CLASSES["moving"]})
        database = ProfileDatabase(":memory:")
        found = calibration.calibrate(0.05, num_threads=1, database=database)

        assert found.reason in ("budget", "settled")
        assert len(database) >= 8
        assert found.rounds[-1].num_samples == len(database)
        assert found.error == found.errors["moving"]

    def test_impossible_requests_are_refused(self):
        from windtunnel.cost.calibration import calibrate
        from windtunnel.cost.host import host_device
        from windtunnel.errors import InputError

        with pytest.raises(InputError, match="nothing can be measured"):
            calibrate(0)
        with pytest.raises(InputError, match="threads, not 100000"):
            host_device(100_000)
