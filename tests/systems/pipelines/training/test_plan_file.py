"""A planned pipeline is written, read again, and is the one that runs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.systems.pipelines.block_models import block_graph
from windtunnel.errors import InputError, WindtunnelError
from windtunnel.hardware import Fabric
from windtunnel.search.blocks import cut_evenly
from windtunnel.systems.pipelines.profiles import profiles_of
from windtunnel.systems.pipelines.replayed import rank_by_replay
from windtunnel.systems.pipelines.training.job import PipelineSpec, PlannedPipeline
from windtunnel.systems.pipelines.training.plan_file import PLAN_SCHEMA, plan_fields, read_plan
from windtunnel.systems.pipelines.training.profiled import pipeline_of
from windtunnel.systems.pipelines.two_bw import Job, plan_2bw

SPEC = PipelineSpec("mlp", {"batch_size": 16, "depth": 3}, 2, 4, "1f1b", num_replicas=2, recomputes=True)
PLANNED = PlannedPipeline(SPEC, {"0": 0, "2": 0, "4": 1}, 1.5e6, 2.5e6)


def written(folder, planned=PLANNED, **changed):
    fields = plan_fields(planned)
    fields["pipeline"] |= changed
    path = folder / "plan.json"
    path.write_text(json.dumps({"schema": PLAN_SCHEMA, "rows": [], **fields}))
    return path


@given(
    schedule=st.sampled_from(["1f1b", "2bw", "gpipe", "zbv", "interleaved"]),
    ranks=st.integers(1, 4),
    rounds=st.integers(1, 3),
    width=st.integers(1, 3),
    recomputes=st.booleans(),
    step_ns=st.one_of(st.none(), st.floats(1, 1e12)),
)
def test_what_is_read_is_what_was_written(tmp_path_factory, schedule, ranks, rounds, width, recomputes, step_ns):
    spec = PipelineSpec("mlp", {"batch_size": 48}, ranks, ranks * rounds, schedule, None, width, recomputes)
    stage_of = {f"layer {stage}": stage for stage in range(spec.table(1).num_stages)}
    planned = PlannedPipeline(spec, stage_of, step_ns, None)
    found = read_plan(written(tmp_path_factory.mktemp("plan"), planned))

    assert (spec, stage_of, step_ns, None) == (
        found.spec, found.stage_of, found.predicted_ns, found.predicted_alone_ns,
    )  # fmt: skip
    assert spec.table(2).actions == found.spec.table(2).actions


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stage_of": {"0": 0, "2": 2}}, "leaves stage 1 empty"),
        ({"stage_of": {"0": 0, "2": 1, "4": 2}}, "the plan has 3 stages, 1f1b on 2 ranks has 2"),
        ({"stage_of": {"0": "first"}}, "instead of a number"),
        ({"stage_of": []}, "names no modules"),
        ({"ranks": 1.5}, "instead of a whole number"),
        ({"width": 0}, "0 pipelines"),
        ({"microbatches": None}, "instead of a number"),
        ({"schedule": "fast"}, "no schedule is called 'fast'"),
        ({"workload": "nothing"}, "nothing"),
        ({"parameters": None}, "parameters or schedule are missing"),
        ({"predicted_step_ns": "soon"}, "instead of a number"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(tmp_path, changed, message):
    with pytest.raises(WindtunnelError, match=message):
        read_plan(written(tmp_path, **changed))


def test_other_documents_are_no_plans(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema": PLAN_SCHEMA, "rows": []}))
    with pytest.raises(InputError, match="of a graph, which cannot be trained"):
        read_plan(path)
    for text in ('{"schema": "windtunnel.place/1"}', "[]", "{"):
        path.write_text(text)
        with pytest.raises(InputError):
            read_plan(path)


def test_a_planned_row_runs_with_its_own_cut():
    """Stages, replicas, microbatches, schedule and recomputing are those of the row; the cut is the planner's."""
    profiles = profiles_of(block_graph(4, 1_000_000), 4, [2, 4])
    job = Job(4, float("inf"), 16, Fabric.of_rates(1e9, 1e9, 5))
    for one in rank_by_replay(plan_2bw(profiles, job).feasible, profiles, job):
        row, blocks = one.row, profiles[one.row.microbatch]
        found = pipeline_of(one, profiles, "mlp", {"width": 8}, 16)
        ends = cut_evenly(blocks.num_blocks, row.depth)

        assert (row.depth, row.width, row.num_microbatches, row.recomputes) == (
            found.spec.num_ranks, found.spec.num_replicas, found.spec.num_microbatches, found.spec.recomputes,
        )  # fmt: skip
        assert ("1f1b" if row.schedule == "none" else row.schedule) == found.spec.schedule
        assert {"width": 8, "batch_size": 16} == found.spec.parameters
        assert one.step_ns == found.predicted_ns
        assert all(ends[stage][0] <= blocks.unit_of[name] < ends[stage][1] for name, stage in found.stage_of.items())
        assert set(range(row.depth)) == set(found.stage_of.values())
