"""The planner of PipeDream-2BW: blocks of a graph, memory of a worker, cost functions, replays."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.pipelines.block_models import BLOCK, SCORES, WORDS, block_graph
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import GraphBuilder, Phase
from windtunnel.hardware import Fabric
from windtunnel.search.blocks import blocks_of, cut_evenly
from windtunnel.systems.pipelines.profiles import profiles_of, sizes_of
from windtunnel.systems.pipelines.replayed import (
    batch_ns,
    rank_by_replay,
    side_by_side,
    stage_times,
    table_of,
    tile_stage_times,
)
from windtunnel.systems.pipelines.stage_memory import Running, memory_of_stage
from windtunnel.systems.pipelines.timed import StageTimes
from windtunnel.systems.pipelines.two_bw import Job, PlanRow, plan_2bw

ONE_SERVER = Fabric.of_rates(1e9, 1e8, 8)


def profiles(num_blocks=4, sizes=(1, 2, 4)):
    return profiles_of(block_graph(num_blocks), 4, sizes)


def job(**changes):
    given = {"num_workers": 4, "memory_bytes": math.inf, "batch": 16, "links": ONE_SERVER} | changes
    return Job(**given)


def test_blocks_are_found_with_what_lies_around_them():
    blocks = blocks_of(block_graph(4), 4)

    assert ("words", *(f"blocks.{at}" for at in range(4)), "scores", "loss") == blocks.names
    assert [WORDS, *[BLOCK] * 4, SCORES, 0] == blocks.weight_bytes.tolist()
    assert [500, *[1000] * 4, 500, 500] == blocks.forward_ns.tolist()
    assert [1000, *[2000] * 4, 1000, 1000] == blocks.backward_ns.tolist()
    assert 700 == pytest.approx(blocks.update_ns.sum())
    assert 4 == blocks.num_blocks


def test_a_stage_keeps_what_it_makes_and_what_it_gets():
    blocks = blocks_of(block_graph(4), 4)

    assert [0, 100, 100, 100, 100, 100, 100] == [blocks.crossing_bytes(unit) for unit in range(7)]
    assert 300 == blocks.activation_bytes(1, 2)  # both layers of a block, and its input
    assert 11 * 100 == blocks.activation_bytes(0, 7)


def test_what_an_optimizer_keeps_is_what_was_captured():
    sizes = {f"blocks.{i}.first.weight": BLOCK for i in range(4)}
    optimizers = [{"groups": [], "state_bytes": 6 * BLOCK}]
    captured = block_graph(4).with_meta(parameters=sizes, optimizers=optimizers)

    assert 1.5 == blocks_of(captured, 4).state_ratio
    assert 2.0 == blocks_of(block_graph(4), 4).state_ratio  # as of Adam where it is not known


def test_a_model_without_equal_blocks_is_refused():
    builder = GraphBuilder()
    for name, size in (("0", 4), ("1", 8)):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            builder.task(name, phase=phase, layer=name, duration_ns=5, param_bytes=size)

    with pytest.raises(NotApplicableError, match="no two blocks"):
        blocks_of(builder.build(), 1)
    with pytest.raises(NotApplicableError, match="no backward pass"):
        blocks_of(block_graph().remove(block_graph().select(phase=Phase.BACKWARD)), 1)


@given(st.integers(1, 24), st.integers(1, 24))
def test_an_even_cut_covers_all_units_once(num_blocks, depth):
    if num_blocks % depth:
        with pytest.raises(InputError, match=f"do not divide by a depth of {depth}"):
            cut_evenly(num_blocks, depth)
    else:
        cuts = cut_evenly(num_blocks, depth)

        assert [(0, *range(1, num_blocks + 3))] == [tuple(itertools.chain(*(range(*cut) for cut in cuts)))]
        assert depth == len(cuts)


def test_memory_follows_the_table_of_the_paper():
    """2BW: two versions, d microbatches under way on the first stage; emptied: one; recomputed: inputs only."""
    blocks = blocks_of(block_graph(4), 4)
    cuts = cut_evenly(4, 4)
    whole = float(blocks.weight_bytes[slice(*cuts[1])].sum())

    def held(*, emptied, again, stage=1, count=8):
        return memory_of_stage(blocks, cuts[stage], stage, Running(4, 1, count, 32, emptied, again))

    kept, got = blocks.activation_bytes(*cuts[1]), 100
    assert 2 * whole == held(emptied=False, again=False).weights
    assert whole == held(emptied=True, again=False).weights
    assert 3 * kept == held(emptied=True, again=False).activations
    assert kept + 2 * (got + 100) == held(emptied=True, again=True).activations
    assert 2 * kept == held(emptied=True, again=False, count=2).activations
    assert 2 * whole == held(emptied=True, again=False).moments
    assert whole == held(emptied=True, again=False).gradients


def test_mixed_precision_keeps_master_weights_of_both_versions():
    blocks = blocks_of(block_graph(4), 4)
    cut = cut_evenly(4, 2)[0]
    whole = float(blocks.weight_bytes[slice(*cut)].sum())
    held = memory_of_stage(blocks, cut, 0, Running(2, 1, 4, 16, False, False, "mixed"))

    assert (whole, 2 * whole, 2 * whole, whole / 2) == (held.weights, held.master, held.moments, held.gradients)


def reference_ns(blocks, width, depth, count, again, links):
    """The published cost functions, written out."""
    compute = [f + b + (f if again else 0) for f, b in zip(blocks.forward_ns, blocks.backward_ns, strict=True)]
    compute[-1] -= blocks.forward_ns[-1] if again else 0  # the loss
    rate = (links.inner if width < links.devices_per_host else links.outer).bandwidth_bytes_per_s
    exchange = [2 * (width - 1) / width * size / rate * 1e9 / count for size in blocks.weight_bytes]
    if depth == 1:
        return sum(map(max, zip(compute, exchange, strict=True)))
    rate = (links.inner if depth < links.devices_per_host else links.outer).bandwidth_bytes_per_s
    slowest = 0.0
    for stage, (first, last) in enumerate(cut_evenly(blocks.num_blocks, depth)):
        received = 2 * blocks.crossing_bytes(first) / rate * 1e9 if stage else 0.0
        slowest = max(slowest, sum(compute[first:last]) + received, sum(exchange[first:last]))
    return slowest


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([2, 4, 6]), st.integers(1, 6), st.sampled_from([8, 12, 16]), st.integers(1, 9))
def test_the_table_holds_every_combination_with_the_published_cost(num_blocks, num_workers, batch, per_server):
    links = Fabric.of_rates(2e9, 3e8, per_server)
    given = profiles(num_blocks)
    table = plan_2bw(given, job(num_workers=num_workers, batch=batch, links=links))
    shapes = [(w, d) for w in range(1, num_workers + 1) for d in range(1, num_workers // w + 1)]

    assert sum(3 * 2 * (1 if d == 1 else 2) for _, d in shapes) == len(table.rows)
    for row in table.rows:
        fits = not num_blocks % row.depth and not batch % (row.width * row.microbatch)
        fits = fits and batch // (row.width * row.microbatch) >= row.depth
        assert fits == row.is_feasible, row.reason
        if fits:
            count = batch // (row.width * row.microbatch)
            expected = reference_ns(given[row.microbatch], row.width, row.depth, count, row.recomputes, links)
            turns = count + row.depth - 1 if row.schedule == "1f1b" else count
            assert expected == pytest.approx(row.microbatch_ns)
            assert turns * expected == pytest.approx(row.step_ns)
    assert [row.step_ns for row in table.feasible] == sorted(row.step_ns for row in table.feasible)


def test_the_factor_of_recomputing_can_be_the_published_one():
    plain, again = (
        plan_2bw(profiles(), job(recompute_factor=4 / 3), depths=[2], widths=[1], recomputes=[one]).best.microbatch_ns
        for one in (False, True)
    )

    assert plain < again < 4 / 3 * plain


def test_what_does_not_fit_names_stage_and_layer_and_what_is_missing():
    short = job(memory_bytes=20_000.0)
    table = plan_2bw(profiles(), short, schedules=["2bw"])
    barred = next(row for row in table.rows if row.missing_bytes and row.depth == 2)

    assert f"microbatch {barred.microbatch}: needs" in barred.reason
    assert "of 19.5 KiB, tightest at stage 0 layer words" in barred.reason
    assert barred.missing_bytes == barred.peak_bytes - 20_000
    with pytest.raises(InputError, match="no plan fits into memory; the nearest"):
        _ = plan_2bw(profiles(), job(memory_bytes=1.0)).best


def test_a_depth_that_does_not_divide_is_an_error_when_it_is_asked_for():
    with pytest.raises(InputError, match="4 blocks do not divide by a depth of 3"):
        plan_2bw(profiles(), job(), depths=[3])
    with pytest.raises(InputError, match="no plan is possible"):
        _ = (
            plan_2bw(profiles(), job(batch=7, num_workers=1), depths=[1]).best
            if False
            else plan_2bw(profiles(sizes=(2,)), job(batch=7), widths=[1], depths=[1]).best
        )


def test_sizes_of_microbatches_divide_the_batch():
    assert [1, 2, 4] == sizes_of(12)
    assert [3, 6] == sizes_of(12, [6, 3])
    with pytest.raises(InputError, match="microbatches of 5 do not divide a batch of 12"):
        sizes_of(12, [5])


def test_a_graph_of_several_ranks_or_of_unknown_size_is_refused():
    with pytest.raises(InputError, match="2 ranks"):
        profiles_of(block_graph(num_ranks=2), 4, [1])
    with pytest.raises(InputError, match="--samples"):
        profiles_of(block_graph(), 0, [1])


@given(st.integers(1, 4), st.integers(4, 9), st.integers(1, 20), st.integers(1, 20))
def test_equal_stages_replay_as_the_formulas_say(depth, count, forward_ns, backward_ns):
    """Emptied: m + d - 1 turns; never emptied: m."""
    times = StageTimes(forward_ns=forward_ns, backward_ns=backward_ns)
    emptied = PlanRow("1f1b", 1, depth, 1, False, count)
    never = PlanRow("2bw", 1, depth, 1, False, count)

    assert (count + depth - 1) * (forward_ns + backward_ns) == batch_ns(emptied, times)
    assert count * (forward_ns + backward_ns) == batch_ns(never, times)


def test_pipelines_beside_each_other_take_the_time_of_one():
    row = PlanRow("1f1b", 3, 2, 1, False, 4)
    one, three = side_by_side(table_of(row), 1), side_by_side(table_of(row), 3)
    times = stage_times(row, profiles()[1], ONE_SERVER)
    wide = tile_stage_times(times, 2, 3)

    assert [25.0, 0.0] * 2 + [25.0] == wide.message_ns.tolist()
    assert np.tile(times.exchange_ns, 3).tolist() == wide.exchange_ns.tolist()
    assert (one.num_ranks * 3, one.num_stages * 3) == (three.num_ranks, three.num_stages)
    assert batch_ns(row, times) == batch_ns(row, wide, width=3)


def test_a_replay_counts_what_the_cost_functions_leave_out():
    given, asked = profiles(), job()
    rows = plan_2bw(given, asked).feasible
    played = rank_by_replay(rows, given, asked)

    assert [one.step_ns for one in played] == sorted(one.step_ns for one in played)
    assert all(one.step_ns >= one.row.step_ns for one in played if one.row.depth == 1)
    assert {id(row) for row in rows} == {id(one.row) for one in played}
