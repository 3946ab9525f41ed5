"""A job that was not run has no times: verbs that need some send it to ``predict``."""

import pytest

from tests.cli.command import windtunnel
from windtunnel.graph import GraphBuilder, Phase, load, save
from windtunnel.whatifs.placing import NOT_RUN


@pytest.fixture
def dry(tmp_path):
    """What ``capture --fake`` writes, in small."""
    builder = GraphBuilder()
    host = builder.resource("main thread")
    for name, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD), ("adam", Phase.UPDATE)):
        builder.task(name, resource=host, duration_ns=0, phase=phase, op="aten::mm", cost_source=NOT_RUN, flops=2**30,
                     bytes_read=2**20, bytes_written=2**20)  # fmt: skip
    return save(builder.build({}), tmp_path / "dry.wt")


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "DRY", "DRY"),
        ("explain", "DRY"),
        ("whatif", "--search", "DRY"),
        ("place", "DRY"),
        ("explain", "DRY", "--table", "resources"),
        ("explain", "DRY", "--html", "page.html"),
        ("utilization", "DRY"),
        ("verify", "DRY", "--whatif", "amp"),
        ("verify", "mlp", "--graph", "DRY", "--whatif", "amp"),
        ("whatif", "DRY", "amp"),
    ],
)
def test_verbs_that_need_times_name_the_one_that_predicts_them(dry, words):
    outcome = windtunnel(*(dry if word == "DRY" else word for word in words))

    assert "error: the tasks of this job have no times, because it was not run" in outcome.stderr
    assert f"windtunnel predict {dry} --on h100" in outcome.stderr
    assert "" == outcome.stdout
    assert 2 == outcome.code


def test_what_was_predicted_has_times(dry, tmp_path):
    predicted = tmp_path / "predicted.wt"
    windtunnel("predict", dry, "--on", "h100", "--out", predicted)
    explained = windtunnel("explain", predicted)

    assert load(predicted).tasks["duration_ns"].all()
    assert 0 == explained.code, explained.stderr
