"""The shipped model of operators on GPUs: its processes, its bounds, its intervals, and what it leaves to others."""

from __future__ import annotations

import json

import numpy as np
import pytest

from windtunnel.cost import price
from windtunnel.cost.operators.calls import Call
from windtunnel.cost.operators.facts import FAMILIES, facts_of
from windtunnel.cost.operators.learned import LearnedPricer
from windtunnel.cost.operators.learned_features import FEATURES, features_of
from windtunnel.cost.operators.learned_model import SHIPPED, load_learned_model, read_shipped_model
from windtunnel.cost.operators.learned_process import GaussianProcess, covariance, distances
from windtunnel.cost.operators.row_facts import describe_table
from windtunnel.cost.pricing import AUTO
from windtunnel.cost.work import Work
from windtunnel.errors import SchemaVersionError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import device

H200 = device("h200")


def work(operator, shapes, *, flops=0.0, moved=0.0, dtype="fp32", strides=None, arguments=None) -> Work:
    """One row of work."""
    texts = [operator, *(json.dumps(item) if item is not None else "" for item in (shapes, None, strides, arguments))]
    columns = [np.array([text], dtype=object) for text in (*texts, dtype)]
    return Work(*columns, np.array([flops]), np.array([moved]), np.ones(1, dtype=np.int64))


def product(rows, inner, columns, dtype="bf16") -> Work:
    item = 2 if dtype in ("bf16", "fp16") else 4
    moved = item * (rows * inner + inner * columns + rows * columns)
    flops = 2.0 * rows * inner * columns
    return work("aten::mm", [[rows, inner], [inner, columns]], flops=flops, moved=moved, dtype=dtype)


def took_ns(row: Work, chip=H200, pricer=None) -> float:
    return float((pricer or LearnedPricer()).price(row, chip).duration_ns[0])


def process_of(points, labels, center=0.0) -> GaussianProcess:
    """The process that passes through the labels, but for their center."""
    weights = np.linalg.solve(covariance(distances(points, points)), labels - center)
    return GaussianProcess(points.astype(np.float32), weights, np.ones(points.shape[1], np.float32), center)


def test_a_process_passes_through_its_timings_and_is_its_center_far_from_them():
    points = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32).astype(float)
    labels = points[:, 0] - np.sin(points[:, 1])
    process = process_of(points, labels, center=2.0)
    np.testing.assert_allclose(process.predict(points), labels, atol=1e-4)
    np.testing.assert_allclose(process.predict(points + 100), 2.0, atol=1e-6)
    assert process.predict(points[:0]).shape == (0,)


def test_many_rows_are_priced_as_each_by_itself():
    points = np.random.default_rng(1).normal(size=(5000, 2))
    process = process_of(points[:30], points[:30, 0])
    np.testing.assert_allclose(process.predict(points)[4990:], process.predict(points[4990:]), rtol=1e-9, atol=1e-9)


def test_a_feature_without_a_scale_counts_for_nothing():
    points = np.random.default_rng(2).normal(size=(20, 2))
    process = process_of(points, points[:, 0])
    blind = GaussianProcess(process.features, process.weights, np.array([1, 0], np.float32), 0.0)
    np.testing.assert_array_equal(blind.predict(points), blind.predict(points * [1, 5]))


def test_the_shipped_file_is_small_and_holds_every_family():
    assert SHIPPED.stat().st_size <= 2**20
    model = read_shipped_model()
    assert set(FAMILIES) == set(model.ends) == {*model.scales, "loss", "update", "multi-tensor"}
    assert {part.split("/")[0] for part in model.rates} <= set(FAMILIES)
    assert {"h100-sxm5-80g", "h200-sxm5-141g"} == set(read_shipped_model().chips)


def test_a_file_with_other_features_is_refused_and_a_saved_one_is_read_back(tmp_path):
    path = read_shipped_model().save(tmp_path / "same.npz")
    row = facts_of(product(512, 512, 512))
    assert read_shipped_model().durations_ns(row, H200) == load_learned_model(path).durations_ns(row, H200)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes()) | {"features": ["other"]}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(SchemaVersionError, match="other features"):
        load_learned_model(tmp_path / "other.npz")


def test_features_are_finite_and_named():
    features = features_of(facts_of(product(640, 512, 320)), H200)
    assert (1, len(FEATURES)) == features.shape
    assert np.isfinite(features).all()


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("chip", ["h100", "h200", "a100", "l4", "v100"])
def test_much_more_work_takes_longer(dtype, chip):
    """Twice the work may reach a better share of the peak; eight times the work never takes less."""
    given = device(chip)
    if dtype not in given.peak_flops_per_s:
        pytest.skip(f"{chip} has no peak for {dtype}")
    small, large = (took_ns(product(size, 1024, 1024, dtype), given) for size in (512, 4096))
    assert small < large
    huge = took_ns(product(32_768, 1024, 1024, dtype), given)
    assert 2 < huge / large < 32


def test_no_price_in_a_graph_is_below_the_physical_bound():
    builder = GraphBuilder()
    for size in (8, 64, 512, 4096, 8192):
        builder.task(
            f"mm {size}", op="aten::mm", kind=Kind.COMPUTE, duration_ns=1, flops=2 * size**3,
            bytes_read=2 * 2 * size**2, bytes_written=2 * size**2,
            input_shapes=json.dumps([[size, size], [size, size]]),
            input_dtypes='["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)"]',
        )  # fmt: skip
    for name in ("h200", "a100", "l4"):
        priced = price(builder.build(), device(name), AUTO)
        assert {"learned", "learned under its bound"} >= set(priced.tasks.strings("cost_source").to_numpy())
        assert (priced.tasks["efficiency"] <= 1).all()
        assert (priced.tasks["efficiency_low"] <= priced.tasks["efficiency"]).all()


def test_intervals_widen_with_the_distance_from_measured_chips():
    model, facts = read_shipped_model(), facts_of(product(1024, 1024, 1024))

    def width(chip):
        low, high = model.log_ends(facts, device(chip))
        return float(high[0] - low[0])

    assert model.distance(H200) == model.distance(device("h100")) == 0
    assert width("h200") == width("h100") < width("a100") < width("v100")
    assert width("a100") < width("mi210")


def test_what_no_family_knows_is_left_to_the_bound():
    unknown = work("aten::_thnn_fused_lstm_cell", [[64, 1024], [64, 1024]], flops=1e6, moved=1e6)
    assert not LearnedPricer().covers(unknown, H200).any()
    without_shapes = work("aten::mm", None, flops=1e9, moved=1e6)
    assert not LearnedPricer().covers(without_shapes, H200).any()
    assert not LearnedPricer().covers(product(64, 64, 64), device("tpu-v4-like")).any()
    wrong_arguments = work("aten::convolution", [[1]], flops=1e9, moved=1e6)
    assert not LearnedPricer().covers(wrong_arguments, H200).any()


def test_devices_that_are_compared_differ_only_by_their_sheets():
    """The H200 has the peaks of the H100 and more bandwidth: with one device's factors it is never the slower one."""
    pricer = LearnedPricer().among([device("h100"), H200])
    for size in (16, 100, 512, 2000, 8192):
        row = product(size, 768, 768)
        assert took_ns(row, H200, pricer) <= took_ns(row, device("h100"), pricer)


def test_a_mask_covers_as_many_dimensions_as_it_has():
    """Masking [12, 8192, 4096] by [12, 8192] writes rows of 4096, not of 8192 · 4096."""
    masked = Call("index_put", [[12, 8192, 4096], [[12, 8192]], [], []], [], [], 2, 0.0)
    numbered = Call("index_put", [[100, 8, 4], [[5], [5]], [5, 4], []], [], [], 2, 0.0)

    assert 12 * 8192 * 4096 * 2 == describe_table(masked)[1]["written_bytes"]
    assert 5 * 4 * 2 == describe_table(numbered)[1]["written_bytes"]
