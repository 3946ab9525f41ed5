"""What-ifs about traced jobs: what is in effect already is no gain, and a fused chain holds what its parts held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.sources.test_dry_run import AVERAGED, SHARDED, traced  # noqa: E402
from windtunnel.cli.predict import _too_large  # noqa: E402
from windtunnel.cli.predict_targets import targets_of  # noqa: E402
from windtunnel.errors import InEffectError, NotApplicableError  # noqa: E402
from windtunnel.graph import GraphBuilder, Kind, ResourceKind  # noqa: E402
from windtunnel.hardware import machine  # noqa: E402
from windtunnel.simulate import replay  # noqa: E402
from windtunnel.simulate.breakdown import communication_ns  # noqa: E402
from windtunnel.whatifs.amp import amp  # noqa: E402
from windtunnel.whatifs.forecast import forecast  # noqa: E402
from windtunnel.whatifs.fully_sharded import zero_3  # noqa: E402
from windtunnel.whatifs.fusion import fuse_kernels  # noqa: E402
from windtunnel.whatifs.tf32 import tf32  # noqa: E402
from windtunnel.whatifs.workers import rank_count  # noqa: E402
from windtunnel.whatifs.zero import zero_1, zero_2  # noqa: E402

HALVES = SHARDED.replace(".to(device)", ".to(device, torch.bfloat16)").replace(
    "train(model", "model.register_forward_pre_hook(lambda _, given: given[0].bfloat16())\ntrain(model"
)
CLIPPED = "dist.all_reduce(torch.ones(1, device=device))"


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    body = HALVES.replace('print(f"{loss.item():.3f}")', CLIPPED)
    return forecast(traced(folder, body, 8), machine("dgx-h100"), model="roofline").graph


@pytest.mark.parametrize("whatif", [lambda graph: amp(graph).published(), tf32], ids=["amp", "tf32"])
def test_products_in_16_bits_gain_nothing(halves, whatif):
    with pytest.raises(InEffectError, match="16 bits"):
        whatif(halves)


@pytest.mark.parametrize("whatif", [zero_1, zero_2, zero_3])
def test_a_sharded_job_is_not_sharded_again(halves, whatif):
    """It all-reduces as well: a number, as clipping does."""
    with pytest.raises(InEffectError, match="the job is sharded"):
        whatif(halves)


def test_a_job_that_takes_more_hosts_is_traced_again(tmp_path):
    """From 8 ranks on one host to 1,024 was once "128x", as if all were on it."""
    graph = forecast(traced(tmp_path, AVERAGED, 8), machine("dgx-h100"), model="roofline").graph

    assert 4 / 8 == rank_count(graph, 4).meta.samples_ratio
    with pytest.raises(NotApplicableError, match="1024 ranks take several hosts of 8 devices") as refusal:
        rank_count(graph, 1024)
    assert "dry-run --ranks 1024" in refusal.value.fix


def test_a_sharded_job_of_more_ranks_is_traced_again(halves):
    with pytest.raises(NotApplicableError, match="sharded") as refusal:
        rank_count(halves, 1024)

    assert "dry-run --ranks" in refusal.value.fix


def test_a_fused_chain_holds_what_its_parts_held(halves):
    fused = fuse_kernels(halves)
    held = [int((graph.tasks["output_bytes"] - graph.tasks["freed_bytes"]).sum()) for graph in (halves, fused)]

    assert held[0] == held[1]
    assert fused.num_tasks < halves.num_tasks
    assert replay(fused).makespan_ns <= replay(halves).makespan_ns
    assert np.all(fused.tasks["output_bytes"] >= 0)


def test_exposed_communication_is_what_no_computing_hides():
    builder = GraphBuilder()
    stream, wire = (builder.resource(name, ResourceKind.STREAM) for name in ("stream", "wire"))
    first = builder.task("first", kind=Kind.COMPUTE, resource=stream, duration_ns=10)
    sent = builder.task("sent", kind=Kind.COMM, resource=wire, duration_ns=25)
    second = builder.task("second", kind=Kind.COMPUTE, resource=stream, duration_ns=20)
    builder.edge(first, sent)
    builder.edge(first, second)
    timeline = replay(builder.build())

    assert (25, 5) == communication_ns(timeline.graph, timeline.start_ns, timeline.finish_ns)


def test_a_forecast_of_a_traced_job_says_what_is_exposed(halves):
    found = forecast(halves, machine("dgx-h100"), model="roofline")

    assert 0 < found.exposed_ns <= found.communication_ns <= found.makespan_ns


def test_a_rank_that_does_not_fit_is_reported(halves):
    small = replace(machine("dgx-h100").devices[0], memory_bytes=1000)
    large, targets = targets_of("h100"), [replace(targets_of("h100")[0], device=small)]

    assert [] == _too_large(halves, large)
    assert "out of memory" in _too_large(halves, targets)[0]
