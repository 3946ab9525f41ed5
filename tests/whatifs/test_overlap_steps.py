"""Steps of a device that the host need not wait for overlap: a graph that was placed there is judged by its period."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.roofline import RooflinePricer
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.hardware import Device, device
from windtunnel.reports.explanation import explain
from windtunnel.simulate import replay
from windtunnel.whatifs.ask import whatif
from windtunnel.whatifs.forecast import forecast
from windtunnel.whatifs.placing import overlap_steps, place_on

US = 1000
CHIP = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12})


COPY = "Memcpy HtoD (Pageable -> Device)"


def step(*rows, reads=()):
    """A thread with Python or a copy of so many microseconds, or operators that take as long on CHIP, without weights.

    ``reads`` are pairs of rows: a result, and what needs it.
    """
    builder = GraphBuilder()
    thread = builder.resource("main thread", ResourceKind.HOST_THREAD)
    kinds = {"python": Kind.HOST, COPY: Kind.COPY}
    tasks = []
    for op, took_us in rows:
        kind = kinds.get(op, Kind.COMPUTE)
        phase = Phase.UPDATE if op.startswith("update") else Phase.FORWARD
        flops = took_us * 10**6 if kind is Kind.COMPUTE else 0
        tasks.append(builder.task(op, op=op, kind=kind, resource=thread, duration_ns=took_us * US, phase=phase,
                                  flops=flops, bytes_read=8, bytes_written=8))  # fmt: skip
    for one, following in itertools.pairwise(tasks):
        builder.edge(one, following, kind=EdgeKind.ORDER)
    for source, reader in reads:
        builder.edge(tasks[source], tasks[reader], kind=EdgeKind.DATA)
    return builder.build()


def predict(graph):
    return forecast(graph, CHIP, model=[RooflinePricer()], launch_ns=5 * US)


def test_a_device_that_is_behind_does_not_idle_between_steps():
    found = predict(step(("python", 40), ("gemm", 100), ("python", 10), ("gemm", 200)))
    assert 340 == round(replay(found.graph).makespan_ns / US) - 5  # alone, it waits for Python and a launch
    assert 300 == round(found.makespan_ns / US)


def test_a_host_that_is_behind_is_not_made_longer_by_the_last_kernel():
    found = predict(step(("python", 200), ("gemm", 10), ("python", 100), ("gemm", 30)))
    assert 310 == round(found.makespan_ns / US)


def test_a_number_that_is_read_at_the_end_lets_no_step_overlap():
    found = predict(step(("python", 40), ("gemm", 100), ("python", 1), reads=[(1, 2)]))
    assert 40 + 5 + 100 + 1 == round(found.makespan_ns / US)


def test_a_batch_that_is_copied_from_pageable_memory_waits_for_the_step_before():
    found = predict(step((COPY, 30), ("python", 40), ("gemm", 100)))
    assert 30 + 40 + 5 + 100 == round(found.makespan_ns / US)


def test_what_an_update_computes_of_gradients_is_no_counter_of_the_host():
    graph = step(("gemm", 500), ("update norm", 1), ("update clamp", 1), ("update count", 1), reads=[(0, 1), (1, 2)])
    placed = place_on(graph, CHIP)
    assert [1, 1, 1, 0] == placed.tasks["resource"][:4].tolist()


@given(
    st.lists(st.tuples(st.sampled_from(["python", "gemm"]), st.integers(1, 300)), min_size=1, max_size=8).filter(
        lambda rows: any(op == "gemm" for op, _ in rows)
    )
)
def test_without_waits_a_step_takes_as_long_as_the_busier_of_host_and_device(rows):
    found = predict(step(*rows))
    assert max(found.host_ns, found.device_ns) == pytest.approx(found.makespan_ns, abs=2)


def test_ranks_and_queues_keep_to_their_own_order_over_steps():
    builder = GraphBuilder()
    common = {"phase": Phase.BACKWARD, "cost_source": "test"}
    for rank in (0, 1):
        thread = builder.resource(f"thread {rank}", ResourceKind.HOST_THREAD)
        queue, link = (builder.resource(f"{name} {rank}", ResourceKind.STREAM) for name in ("queue", "link"))
        gather = builder.task("all-gather", kind=Kind.COMM, resource=link, duration_ns=100, rank=rank, **common)
        gemm = builder.task("gemm", kind=Kind.COMPUTE, resource=queue, duration_ns=50, rank=rank, **common)
        launch = builder.task("launch", kind=Kind.HOST, resource=thread, duration_ns=1, rank=rank, **common)
        builder.edge(launch, gather, kind=EdgeKind.LAUNCH)
        builder.edge(gather, gemm, kind=EdgeKind.SYNC)
    graph = builder.build().with_meta(runs_ahead=True)
    # the parameters that a step gathers are those that the step before has updated
    timeline = replay(overlap_steps(graph))
    gathers = timeline.start_ns[timeline.graph.select(kind=Kind.COMM)].reshape(-1, 2)
    assert [[1 + 150 * number] * 2 for number in range(len(gathers))] == gathers.tolist()


def test_every_verb_has_the_same_step_of_a_priced_graph():
    found = predict(step(("python", 40), ("gemm", 100), ("python", 10), ("gemm", 200)))
    (answer,) = whatif(found.graph, "faster-device:factor=2")
    assert found.makespan_ns == answer.baseline_ns
    assert 40 + 10 + 2 * 5 + 100 > answer.predicted_ns / US >= 150  # bound by the device still
    assert found.makespan_ns == explain(found.graph).iteration_ns


def test_a_graph_that_ran_is_left_as_it_is():
    graph = step(("python", 40), ("gemm", 100))
    assert overlap_steps(graph) is graph


@pytest.fixture(scope="module")
def priced():
    """A step that really ran, its results known, priced for a GPU that it keeps busy."""
    torch = pytest.importorskip("torch")
    from windtunnel.sources.torch.step import capture

    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2)
    batch = torch.randn(32, 64, 128)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    captured = capture(step, iterations=2, warmup=1, model=model, optimizer=optimizer)
    return forecast(captured, device("t4"), launch_ns=100).graph


def test_what_ifs_say_the_same_of_one_iteration_and_of_several_in_a_row(priced):
    several = {str(answer.request): answer for answer in whatif(priced)}
    one = {str(answer.request): answer for answer in whatif(priced.with_meta(runs_ahead=False))}
    applicable = {name for name, answer in one.items() if answer.is_applicable}

    assert {"vdnn", "gist", "p3", "optimizer-in-backward", "data-parallel"} <= applicable
    assert applicable == {name for name, answer in several.items() if answer.is_applicable}
    for name in applicable:
        assert one[name].speedup == pytest.approx(several[name].speedup, rel=0.1), name
        # where host and device overlap more, other results may be held at once
        assert one[name].peak_bytes == pytest.approx(several[name].peak_bytes, rel=0.05), name
