"""What lost time costs: by hand on small traces of two ranks, and against replays of what is left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command import windtunnel
from tests.shared_data import shared_path
from tests.sources.kineto_traces import annotation, call, kernel, op, write
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.reports.losses import loss_lines
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.whatifs.balance import balance_ranks
from windtunnel.whatifs.cuda_graphs import cuda_graphs
from windtunnel.whatifs.losses import Loss, find_losses


def rank_events(compute, arrive, begin=0):
    """A rank that computes so long, meets the others from ``arrive`` to 560, and updates."""
    return [
        op("aten::mm", begin, 8),
        call("cudaLaunchKernel", begin + 2, 5, 1),
        kernel("gemm", begin + 10, compute, 1),
        call("cudaLaunchKernel", begin + 10, 5, 2),
        kernel("ncclKernel_AllReduce_RING", arrive, 560 - arrive, 2),
        call("cudaLaunchKernel", begin + 20, 5, 3),
        kernel("update", 560, 10, 3),
    ]


@pytest.fixture
def two_ranks(tmp_path):
    """Rank 1 computes 400 µs longer; the collective itself takes 48 µs."""
    for rank, events in enumerate((rank_events(100, 112), rank_events(500, 512))):
        write(tmp_path / f"trace{rank}.json", events, distributedInfo={"rank": rank})
    return tmp_path


def by_cause(graph):
    return {(loss.cause, loss.rank): loss for loss in find_losses(graph)}


def test_a_straggler_costs_what_a_replay_with_the_median_rank_saves(two_ranks):
    """The median of 100 and 500 is 300: both end 200 µs sooner."""
    losses = by_cause(load_kineto(two_ranks))

    assert 200_000 == losses["stragglers", -1].cost_ns
    assert (200_000, "balance-ranks:rank=1") == (losses["straggler", 1].cost_ns, losses["straggler", 1].whatif)
    assert ("straggler", 0) not in losses
    assert 200 / 570 == losses["stragglers", -1].ratio


def test_communication_costs_its_transfer_and_not_the_wait_for_peers(two_ranks):
    loss = by_cause(load_kineto(two_ranks))["communication", -1]

    assert (48_000, "faster-link") == (round(loss.cost_ns, -2), loss.whatif)


def test_of_one_rank_alone_the_waits_are_in_its_collectives_and_that_is_said(two_ranks):
    losses = by_cause(load_kineto(two_ranks / "trace0.json"))

    assert 448_000 == round(losses["communication and peers", -1].cost_ns, -2)
    assert ("communication", -1) not in losses


def test_a_rank_that_begins_later_holds_up_the_others_until_it_is_balanced(tmp_path):
    for rank, events in enumerate((rank_events(100, 112), rank_events(100, 512, begin=400))):
        write(tmp_path / f"trace{rank}.json", events, distributedInfo={"rank": rank})
    graph = load_kineto(tmp_path)

    assert 570_000 == replay(graph).makespan_ns
    assert 170_000 == replay(balance_ranks(graph)).makespan_ns


def test_a_device_that_waits_for_its_launches_loses_what_the_host_takes(tmp_path):
    """Three launches of 30 µs for kernels of 5 µs: without a host only the kernels and their launch delays are left."""
    events = []
    for number in range(3):
        events += [call("cudaLaunchKernel", 30 * number, 30, number), kernel("relu", 30 * number + 32, 5, number)]
    graph = load_kineto(write(tmp_path / "trace.json", events))

    loss = by_cause(graph)["host", -1]

    assert ("faster-cpu", 97_000) == (loss.whatif, replay(graph).makespan_ns)
    assert 97_000 - (32_000 + 3 * 5_000) == round(loss.cost_ns, -2)


def test_a_step_that_loads_its_batch_first_loses_the_load():
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    load = builder.task("load", duration_ns=300, resource=cpu, phase=Phase.DATA, kind=Kind.HOST)
    train = builder.task("train", duration_ns=700, resource=cpu, phase=Phase.FORWARD)
    builder.edge(load, train)

    assert [("loading", 300, 0.3)] == [(one.cause, one.cost_ns, one.ratio) for one in find_losses(builder.build())]


def test_of_many_ranks_the_one_that_began_last_is_found(tmp_path):
    """Rank 18 of 20 begins 300 µs late and works no more than the others."""
    for rank in range(20):
        begin = 300 if rank == 18 else 0
        write(tmp_path / f"trace{rank}.json", rank_events(100, 112 + begin, begin), distributedInfo={"rank": rank})

    losses = by_cause(load_kineto(tmp_path))

    assert 300_000 == losses["straggler", 18].cost_ns == losses["stragglers", -1].cost_ns


def test_a_message_that_comes_late_costs_what_its_receiver_waits():
    """Rank 0 computes 500 before it sends; rank 1 receives from then on, and then computes 100."""
    builder = GraphBuilder()
    threads = [builder.resource(f"rank {rank}", ResourceKind.HOST_THREAD) for rank in range(2)]
    compute = builder.task("compute", duration_ns=500, resource=threads[0], rank=0)
    send = builder.task("send", duration_ns=10, resource=threads[0], rank=0, kind=Kind.COMM, op="send")
    receive = builder.task("recv", duration_ns=10, resource=threads[1], rank=1, kind=Kind.COMM, op="recv")
    after = builder.task("after", duration_ns=100, resource=threads[1], rank=1)
    builder.edge(compute, send, kind=EdgeKind.ORDER)
    builder.edge(receive, after, kind=EdgeKind.ORDER)
    builder.edge(send, receive, kind=EdgeKind.MESSAGE, from_start=True)

    loss = by_cause(builder.build())["late senders", -1]

    assert (100, 100 / 610) == (loss.cost_ns, loss.ratio)


def test_a_graph_is_launched_no_sooner_than_its_rank_began(tmp_path):
    """Rank 1 begins 400 µs after rank 0, and launches do not change that."""
    for rank, begin in enumerate((0, 400)):
        events = [annotation("ProfilerStep#1", begin, 150), annotation("forward", begin, 150)]
        events += [*rank_events(100, 512, begin)]
        write(tmp_path / f"trace{rank}.json", events, distributedInfo={"rank": rank})

    timeline = replay(cuda_graphs(load_kineto(tmp_path)))

    assert [8_000, 408_000] == timeline.start_ns[timeline.graph.select(name="gemm")].tolist()


def test_balance_is_for_several_unlike_ranks(two_ranks):
    graph = load_kineto(two_ranks)
    with pytest.raises(NotApplicableError, match="one worker"):
        balance_ranks(load_kineto(two_ranks / "trace0.json"))
    with pytest.raises(NotApplicableError, match="same time"):
        balance_ranks(balance_ranks(graph))
    with pytest.raises(InputError, match="no rank 7"):
        balance_ranks(graph, rank=7)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=2, max_size=5))
def test_a_balanced_task_takes_what_the_median_rank_takes(durations):
    """The slow reference: sort the ranks' durations of each task by hand."""
    builder = GraphBuilder()
    for rank, own in enumerate(durations):
        thread = builder.resource(f"rank {rank}")
        for number, duration_ns in enumerate(own):
            builder.task(f"task {number}", duration_ns=duration_ns, resource=thread, rank=rank)
    graph = builder.build()

    medians = []
    for column in zip(*durations, strict=True):
        column = sorted(column)
        low, high = column[(len(column) - 1) // 2], column[len(column) // 2]
        medians.append(low + (high - low) // 2)
    if all(own == medians for own in durations):
        with pytest.raises(NotApplicableError):
            balance_ranks(graph)
    else:
        assert medians * len(durations) == balance_ranks(graph).duration_ns.tolist()


def test_explain_says_what_each_loss_costs_and_which_what_if_removes_it(two_ranks):
    said = windtunnel("explain", two_ranks)

    assert 0 == said.code
    words = " ".join(said.stdout.split())
    assert "200 µs (35 %), whatif balance-ranks: ranks are unlike" in words
    assert "whatif balance-ranks:rank=1: rank 1 is slower than the median one" in words


def test_no_loss_says_nothing():
    assert [] == loss_lines([])
    assert 2 == len(loss_lines([Loss("host", 1.0, 0.5, "")]))


def test_the_losses_of_eight_real_ranks_are_what_their_what_ifs_replay_to():
    graph = load_kineto(shared_path("replay/kineto_dlrm_8ranks"))
    losses = find_losses(graph)
    before_ns = replay(graph).makespan_ns

    assert {"host", "stragglers"} <= {loss.cause for loss in losses}
    stragglers = next(loss for loss in losses if loss.cause == "stragglers")
    assert before_ns - replay(balance_ranks(graph)).makespan_ns == stragglers.cost_ns
    assert list(losses) == sorted(losses, key=lambda loss: -loss.cost_ns)
