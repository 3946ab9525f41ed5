"""NeuSight's own regression: its formulas by hand, and that it learns."""

import numpy as np
import pytest

for module in ("scipy", "torch"):
    pytest.importorskip(module)

from benchmarks.peers.tile_paper import Tiles, latency_ms, tiles_of, train_paper  # noqa: E402

from tests.cost.operators.test_tile import SHEET, measured  # noqa: E402
from windtunnel.cost.operators.physics import chips_of  # noqa: E402
from windtunnel.cost.operators.table import OpTable  # noqa: E402
from windtunnel.cost.operators.tile import errors_of_ratio  # noqa: E402


def by_hand(features):
    return np.log2(np.array([features]))


def test_the_formulas_of_the_paper_by_hand():
    table = OpTable.of_rows([("b", "bmm", (2, 130, 64, 100))])
    tiles = tiles_of(table, chips_of(table, SHEET), np.array([[128.0, 64.0]]))

    tile_gflop = 2 * 128 * 64 * 64 / 1e9
    tile_mib = 4 * (128 * 64 + 64 * 64 + 128 * 64) / 2**20
    flops = 2 * 256 * 64 * 128 / 1e9
    moved = 4 * (130 * 64 + 64 * 100 + 130 * 100) / 2**30
    assert 1 == tiles.waves[0]  # 2 * 2 * 2 blocks on 80 units
    np.testing.assert_allclose(tiles.tile_gflop, tile_gflop)
    np.testing.assert_allclose(tiles.roof_gflops_per_s, min(14e3, flops / moved * 900))
    features = (
        tile_gflop / (14e3 / 1000 / 80),
        tile_mib / (900 / 80),
        tile_mib / (16 * 1024 / 80),
        tile_mib / (6 * 1024 / 80),
    )
    np.testing.assert_allclose(tiles.features, by_hand(features))
    np.testing.assert_allclose(
        latency_ms(tiles, np.array([0.5])), 1e3 * 80 * tile_gflop / (tiles.roof_gflops_per_s * 0.5)
    )


def test_the_operations_of_softmax_and_norm_are_the_papers():
    rows = OpTable.of_rows([("b", "softmax", (160, 1000))])
    tiles: Tiles = tiles_of(rows, chips_of(rows, SHEET), np.array([[1000.0, 0.0]]))

    assert 2 == tiles.waves[0]
    np.testing.assert_allclose(tiles.tile_gflop, 5000 / 1e9)
    np.testing.assert_allclose(tiles.roof_gflops_per_s, (5000 / 1e9) / (8000 / 2**30) * 900)


@pytest.mark.slow
def test_the_papers_own_network_learns():
    rows = measured("a", 0, 1000).concat([measured("b", 1, 1000), measured("c", 2, 1000)])
    vectors = rows.of_class("elementwise")
    errors = []
    for num_epochs in (1, 8):
        model = train_paper(vectors, SHEET, num_epochs=num_epochs)["elementwise"]
        errors.append(errors_of_ratio(model.price(vectors, SHEET, "fp32").latency_ms / vectors.latency_ms)["mape"])
    assert errors[1] < errors[0]
