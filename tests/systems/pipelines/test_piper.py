"""Piper's planner against trying every plan, and its readers against broken files."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.systems.pipelines.piper import equal_stages, plan_piper, require_memory
from windtunnel.systems.pipelines.piper_format import PiperProblem, is_piper, read_piper
from windtunnel.systems.pipelines.piper_kernels import choose


@st.composite
def problems(draw):
    num, num_variants = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    pairs = list(itertools.combinations(range(num), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    random = np.random.default_rng(draw(st.integers(0, 999)))
    shape = (num, 2, num_variants)
    time = random.integers(1, 9, shape).astype(float)
    time[random.random(shape) < draw(st.sampled_from([0.0, 0.3]))] = math.inf
    edge_shape = (len(edges), 2, num_variants)
    return PiperProblem(
        tuple("abcd"[:num]), (1, 2), ("plain", "again")[:num_variants], time, *random.integers(0, 9, (3, *shape)) * 1.0,
        np.array([a for a, _ in edges], np.int64), np.array([b for _, b in edges], np.int64),
        random.integers(0, 9, len(edges)) * 1.0, random.integers(0, 4, edge_shape) * 1.0,
        random.integers(0, 4, edge_shape) * 1.0, draw(st.integers(1, 4)), float(draw(st.integers(5, 60))),
        float(draw(st.integers(1, 9))), draw(st.sampled_from([2, 4, 6])),
    )  # fmt: skip


def reference_time(problem, inside, degree, data, num_kept):
    """Of one stage: every choice of variants."""
    crossing = [
        e for e, (a, b) in enumerate(zip(problem.src, problem.dst, strict=True)) if (a in inside) != (b in inside)
    ]
    best = math.inf
    for variants in itertools.product(range(len(problem.variants)), repeat=len(inside)):
        of = dict(zip(sorted(inside), variants, strict=True))
        used = sum(problem.kept_NTV[n, degree, v] * num_kept + problem.fixed_NTV[n, degree, v] for n, v in of.items())
        if used > problem.memory_bytes:
            continue
        time = sum(problem.time_s_NTV[n, degree, v] for n, v in of.items()) / data
        for e in crossing:
            into = int(problem.dst[e]) in inside
            sync = (problem.sync_in_ETV[e, degree, of[int(problem.dst[e])]] if into
                    else problem.sync_out_ETV[e, degree, of[int(problem.src[e])]])  # fmt: skip
            time += 2 * (problem.sent_E[e] + sync) / (data * problem.bandwidth_bytes_per_s)
        weights = sum(problem.weights_NTV[n, degree, v] for n, v in of.items())
        time += 4 * (data - 1) * weights / (data * problem.num_microbatches * problem.bandwidth_bytes_per_s)
        best = min(best, time)
    return best


def reference_plan(problem, left, devices, behind):
    """Of the layers that are left, the last stage first."""
    if not left:
        return 0.0
    best = math.inf
    edges = list(zip(problem.src.tolist(), problem.dst.tolist(), strict=True))
    for size in range(1, len(left) + 1):
        for some in map(set, itertools.combinations(sorted(left), size)):
            if any(a in some and b in left - some for a, b in edges):
                continue
            for degree, data in itertools.product(range(2), range(1, devices + 1)):
                used = data * problem.degrees[degree]
                if used > devices or problem.num_microbatches % data:
                    continue
                time = reference_time(problem, some, degree, data, math.ceil(Fraction(behind + data, data)))
                if time < best:
                    best = min(best, max(time, reference_plan(problem, left - some, devices - used, behind + data)))
    return best


@settings(max_examples=60, deadline=None)
@given(problems())
def test_no_plan_is_faster(problem):
    expected = reference_plan(problem, set(range(problem.num_layers)), problem.num_devices, 0)
    plan = plan_piper(problem)

    assert expected == pytest.approx(math.inf if plan is None else plan.time_s, rel=1e-12)
    if plan is not None:
        assert sorted(n for one in plan.stages for n in one.layers) == list(range(problem.num_layers))
        assert sum(one.num_devices for one in plan.stages) <= problem.num_devices
        assert all(one.memory_bytes <= problem.memory_bytes for one in plan.stages)
        baseline = equal_stages(problem)
        assert baseline is None or plan.time_s <= baseline.time_s * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 9999), st.floats(0.0, 1.0))
def test_variants_are_chosen_as_by_trying_all(num, num_variants, seed, share):
    random = np.random.default_rng(seed)
    time, memory = random.integers(1, 30, (num, num_variants)) * 0.1, random.integers(0, 30, (num, num_variants)) * 1.0
    time[random.random(time.shape) < 0.1] = math.inf
    limit = float(np.floor(memory.max(axis=1).sum() * share))
    rows = np.arange(num)
    every = [np.array(one) for one in itertools.product(range(num_variants), repeat=num)]
    expected = min(
        (float(time[rows, one].sum()) for one in every if memory[rows, one].sum() <= limit), default=math.inf
    )
    chosen = np.zeros(num, np.int64)
    found = choose(time, memory, limit, chosen)

    assert expected == pytest.approx(found, rel=1e-12)
    if math.isfinite(found):
        assert memory[rows, chosen].sum() <= limit
        assert found == pytest.approx(time[rows, chosen].sum(), rel=1e-12)


def test_many_layers_of_all_sizes_are_chosen_within_a_moment():
    random = np.random.default_rng(0)
    time = np.sort(random.random((200, 2)), axis=1)
    memory = -np.sort(-random.random((200, 2)), axis=1)
    chosen = np.zeros(200, np.int64)
    limit = float(memory.mean(axis=1).sum())
    found = choose(time, memory, limit, chosen)

    assert time[:, 0].sum() < found < time[:, 1].sum()
    assert memory[np.arange(200), chosen].sum() <= limit


@pytest.mark.parametrize(
    ("devices", "gib", "baseline", "best"),
    [(8, 8, 0.230978, 0.16585575), (8, 80, 0.122007269, 0.122007269), (8, 2, None, None)],
)
def test_the_published_bert_costs_what_the_paper_says(devices, gib, baseline, best):
    path = shared_path("placement/piper/bert32a100.json")
    problem = read_piper(path, num_devices=devices, memory_bytes=gib * 2**30, bandwidth_bytes_per_s=25 * 2**30)
    equal, plan = equal_stages(problem), plan_piper(problem)

    assert is_piper(path)
    assert baseline == (equal and pytest.approx(equal.time_s, rel=1e-6))
    assert best == (plan and pytest.approx(plan.time_s, rel=1e-6))
    assert plan is None or (43, 890) == (plan.num_downsets, plan.num_pairs - plan.num_downsets)


def document(**changes):
    variant = {"id": "vanilla", "timePerSample": 1.0, "parameterSize": 8.0, "memoryUsageA": 2.0, "memoryUsageB": 1.0,
               "syncTimeFw": {}, "syncTimeBw": {}}  # fmt: skip
    made = {
        "maxDevices": 2, "maxMemoryPerDevice": 100, "bandwidth": 1.0, "mbsInBatch": 4,
        "nodes": [{"id": one, "name": f"layer {one}", "TMPCs": {"1": [dict(variant)]}} for one in (0, 1)],
        "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 1.0}],
    }  # fmt: skip
    return {**made, **changes}


def broken(change):
    made = document()
    change(made)
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "no input of Piper"),
        (document(nodes=[]), "no layers"),
        (document(bandwidth=0), "bandwidth is 0"),
        (document(maxDevices=0), "maxDevices is 0"),
        (broken(lambda one: one["nodes"][1].update(id=0)), "two nodes have one id"),
        (broken(lambda one: one["nodes"][1].update(TMPCs={})), "there are no TMPCs"),
        (broken(lambda one: one["nodes"][1].update(TMPCs={"x": []})), "'x' is no tensor degree"),
        (broken(lambda one: one["nodes"][1]["TMPCs"]["1"][0].update(timePerSample=math.nan)), "timePerSample is"),
        (broken(lambda one: one["nodes"][1]["TMPCs"]["1"][0].update(memoryUsageA=-1)), "memoryUsageA is -1"),
        (broken(lambda one: one["nodes"][1]["TMPCs"]["1"][0].update(syncTimeFw=3)), "syncTimeFw is 3"),
        (broken(lambda one: one["edges"][0].update(destId=7)), "destId is 7, which is no node"),
        (broken(lambda one: one["edges"][0].update(destId=0)), "from a layer to itself"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, made, said):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(made))

    with pytest.raises(InputError, match=said):
        read_piper(path)


def test_too_little_memory_names_the_layer_and_by_how_much(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(document(maxMemoryPerDevice=2)))
    problem = read_piper(path)

    assert plan_piper(problem) is None
    with pytest.raises(InputError, match=r"layer layer 0 \(row 0\) takes 3 B on every device, of 2 B: 1 B too much"):
        require_memory(problem)
