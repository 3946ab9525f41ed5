"""The tile model on kernels of machines that follow a law: what it learns, keeps to itself, stores and refuses."""

import dataclasses
import json

import numpy as np
import pytest

from windtunnel.cost.operators.physics import chips_of, tile_bounds
from windtunnel.cost.operators.table import CLASSES, OpSplit, OpTable
from windtunnel.cost.operators.tile import errors_of_ratio, train_tile
from windtunnel.cost.operators.tile_lookup import TileLookup
from windtunnel.errors import InputError, PriceError, SchemaVersionError
from windtunnel.hardware import Device

for module in ("xgboost", "safetensors", "scipy", "torch"):
    pytest.importorskip(module)

from windtunnel.cost.operators.tile_file import load_tile, read_tile_header, save_tile  # noqa: E402


def gpu(name, units, peak, bandwidth, cache_mib):
    return Device(
        name,
        memory_bytes=16 * 2**30,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s={"fp32": peak, "fp16": 4 * peak},
        num_units=units,
        lanes_per_unit=64,
        l2_bytes=cache_mib * 2**20,
    )


SHEET = {
    "a": gpu("a", 40, 6e12, 2e11, 2),
    "b": gpu("b", 80, 14e12, 9e11, 6),
    "c": gpu("c", 108, 19e12, 1.5e12, 40),
    "d": gpu("d", 100, 18e12, 1.7e12, 40),
}


def measured(device, seed, largest):
    """Rows of a machine that runs 128x64 tiles at 0.7 of its bound after a launch of 20 us."""
    rng = np.random.default_rng(seed)
    size = lambda: int(rng.integers(16, largest))  # noqa: E731
    rows = [(device, "bmm", (size() % 16 + 1, size(), size(), size())) for _ in range(80)]
    rows += [(device, "linear", (1, size(), size(), size())) for _ in range(80)]
    rows += [(device, op, (size(), size())) for op in ("add", "relu", "ln", "softmax") for _ in range(60)]
    table = OpTable.of_rows(rows)
    product = table.H == 0
    found = np.empty(len(table))
    for mine, tile in ((product, (128.0, 64.0)), (~product, None)):
        some = table.take(mine)
        found[mine] = tile_bounds(some, chips_of(some, SHEET), 20e3, tile).bound_ns
    sides = (np.where(product, 128.0, 256.0), np.where(product, 64.0, 0.0))
    sizes = (getattr(table, name) for name in "BMNKH")
    return OpTable(table.device, table.op, found / 0.7 / 1e6, *sizes, *sides)


@pytest.fixture(scope="module")
def data():
    return measured("a", 0, 1000).concat([measured(name, seed, 1000) for seed, name in enumerate("bc", start=1)])


@pytest.fixture(scope="module")
def model(data):
    return train_tile(data, SHEET, num_rounds=60)


def test_large_shapes_on_a_device_never_seen_follow_the_law(model):
    unseen = measured("d", 9, 4000)

    ratio = model.price(unseen, SHEET).latency_ms / unseen.latency_ms

    for name in CLASSES:
        assert errors_of_ratio(ratio[unseen.op_class == name])["mape"] < 0.15, name


def test_prices_say_tile_distance_and_interval(model, data):
    prices = model.price(data.take(np.arange(0, len(data), 7)), SHEET)

    assert {(128.0, 64.0), (0.0, 0.0)} == set(map(tuple, prices.tile.tolist()))
    np.testing.assert_allclose(prices.distance, 0, atol=1e-6)  # each row was measured
    assert (prices.low_ms <= prices.high_ms).all()
    np.testing.assert_allclose(prices.bounds.duration_ns(prices.efficiency), 1e6 * prices.latency_ms)


def test_what_names_a_chip_moves_no_price_of_the_half_that_is_shared(model):
    """On a device that was not measured, what trees learned of single chips counts half, elementwise apart."""
    rows = measured("d", 3, 500)
    named = replace_views(model, lambda trees: dataclasses.replace(trees, plain=trees.data))

    shared, alone = (one.price(rows, SHEET).latency_ms for one in (model, named))

    is_elementwise = rows.op_class == "elementwise"
    np.testing.assert_array_equal(shared[is_elementwise], alone[is_elementwise])
    assert (shared[~is_elementwise] != alone[~is_elementwise]).any()
    known = measured("b", 3, 500)
    np.testing.assert_array_equal(*(one.price(known, SHEET).latency_ms for one in (model, named)))


def test_a_twin_has_the_tiles_of_its_chip_and_a_stranger_those_of_all(model):
    trees = dataclasses.replace(
        model.classes["bmm"].views[0], tiles={"a": ((64.0, 64.0),), "b": ((32.0, 32.0),), "c": ((128.0, 64.0),)}
    )
    sheet = SHEET | {"more-memory": gpu("more-memory", 108, 19e12, 1.9e12, 40), "other": gpu("other", 9, 9e12, 1e12, 1)}
    rows = OpTable.of_rows([(name, "bmm", (1, 8, 8, 8)) for name in ("a", "more-memory", "other")])

    found = trees.tiles_of(rows, chips_of(rows, sheet))

    assert found == [((64.0, 64.0),), ((128.0, 64.0),), ((32.0, 32.0), (64.0, 64.0), (128.0, 64.0))]


def test_an_interval_is_as_wide_as_the_worst_device_needs(model, data):
    """One device of three that ran everything twice as slow widens the interval of every class to both sides."""
    slow = np.where(data.device == "b", 2 * data.latency_ms, data.latency_ms)

    found = train_tile(dataclasses.replace(data, latency_ms=slow), SHEET, num_rounds=20).intervals

    for name in CLASSES:
        low, high = found.by_class[name]
        assert low == -high
        assert high > max(0.3, model.intervals.by_class[name][1])


def replace_views(model, change):
    """The same model with other trees."""
    classes = {
        name: dataclasses.replace(one, views=tuple(map(change, one.views))) for name, one in model.classes.items()
    }
    return dataclasses.replace(model, classes=classes)


def test_a_row_costs_the_same_alone_and_among_others(model, data):
    some = data.take(np.arange(0, len(data), 11))

    together = model.price(some, SHEET).latency_ms
    alone = [model.price(some.take(np.array([row])), SHEET).latency_ms[0] for row in range(len(some))]

    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_another_type_has_other_peaks(model):
    rows = OpTable.of_rows([("d", "bmm", (8, 2048, 2048, 2048))])

    single, half = (model.price(rows, SHEET, dtype) for dtype in ("fp32", "fp16"))

    np.testing.assert_allclose(half.bounds.compute_ns, single.bounds.compute_ns / 4)
    assert half.latency_ms[0] < single.latency_ms[0]


def test_nothing_of_a_held_out_device_is_kept(data):
    split = OpSplit.without_device(data, "b")
    spoiled = OpTable(
        data.device,
        data.op,
        np.where(data.device == "b", 100 * data.latency_ms, data.latency_ms),
        *(getattr(data, name) for name in ("B", "M", "N", "K", "H", "tile1", "tile2")),
    )

    ours = train_tile(split.train, SHEET, is_calibrated=False, num_rounds=5)
    theirs = train_tile(OpSplit.without_device(spoiled, "b").train, SHEET, is_calibrated=False, num_rounds=5)

    assert ("a", "c") == ours.devices
    assert ours.digest == theirs.digest
    same = [one.price(split.held_out, SHEET).latency_ms for one in (ours, theirs)]
    np.testing.assert_array_equal(*same)


def test_a_file_prices_as_the_model_did(model, data, tmp_path):
    path = save_tile(model, tmp_path / "tile.safetensors")

    loaded = load_tile(path)

    assert (model.devices, model.digest) == (loaded.devices, loaded.digest)
    assert json.loads(json.dumps(model.validation)) == loaded.validation
    before, after = (one.price(data, SHEET) for one in (model, loaded))
    np.testing.assert_array_equal(before.latency_ms, after.latency_ms)
    np.testing.assert_array_equal(before.high_ms, after.high_ms)
    with pytest.raises(InputError, match="is there already"):
        save_tile(model, path)


def rewritten(path, **changes):
    """The same file with another header."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with safe_open(path, "np") as file:
        header = json.loads(file.metadata()["header"])
    save_file(load_file(path), path, {"header": json.dumps(header | changes)})
    return path


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"schema": 99}, SchemaVersionError, "schema 99"),
        ({"kind": "cdmpp"}, SchemaVersionError, "kind cdmpp"),
        ({"features": {"products": ["speed"], "vectors": []}}, InputError, "unknown: speed; missing: alignment"),
        ({"classes": {"bmm": {"kind": "trees"}}}, InputError, "damaged"),
    ],
)
def test_a_file_of_another_form_is_refused(model, tmp_path, changes, error, message):
    path = rewritten(save_tile(model, tmp_path / "tile.safetensors"), **changes)

    with pytest.raises(error, match=message):
        load_tile(path)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing")

    with pytest.raises(InputError, match="no cost model"):
        read_tile_header(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="is not there"):
        read_tile_header(tmp_path / "y.safetensors")


def test_what_cannot_be_priced_is_named(model, data):
    conv = OpTable.of_rows([("a", "conv2d", (8, 64))])

    with pytest.raises(PriceError, match="conv2d"):
        model.price(conv, SHEET)
    with pytest.raises(InputError, match="no row is of a class"):
        train_tile(conv, SHEET)


def test_the_nearest_kernel_is_found_in_logarithms(data):
    lookup = TileLookup.fit(data.of_class("bmm"), SHEET)
    far = OpTable.of_rows([("a", "bmm", (8, 10**6, 10**6, 10**6))])

    tile, distance = lookup.nearest(far, SHEET)

    assert [[128.0, 64.0]] == tile.tolist()
    assert distance[0] > 5
