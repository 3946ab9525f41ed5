"""Transformations keep the meaning of a program, refuse what would not, and reach the published schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.collectives.programs import random_program
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.systems.collectives.build import Builder
from windtunnel.systems.collectives.dropout import keep_mask, stays
from windtunnel.systems.collectives.grouping import fuse, overlap
from windtunnel.systems.collectives.layouts import FLAT, numpy_dtype, slice_layout
from windtunnel.systems.collectives.reference import assemble, random_inputs, ring_order, run_reference
from windtunnel.systems.collectives.schedules import (
    Step,
    apply_steps,
    canonical_form,
    certify,
    closure,
    difference,
    shrink,
)
from windtunnel.systems.collectives.transforms import as_slice, dead, movable, norms_of_slices, reorder, split
from windtunnel.systems.collectives.workloads import WORKLOADS, adam, lamb, pipeline, tensor_parallel, workload


def _sliced_adam(num_ranks: int = 2):
    program = split(adam(num_ranks, 64), "g_sum")
    return reorder(program, movable(program, "g_sum_ag"), "g_sum_ag")


# --- meaning ------------------------------------------------------------------------------------------------------


def test_adam_is_torchs_adam():
    torch = pytest.importorskip("torch")
    program, rng = adam(2, 10), np.random.default_rng(0)
    gradients = rng.standard_normal((3, 2, 10))
    weights = torch.nn.Parameter(torch.tensor(rng.standard_normal(10)))
    arrays = {"w": weights.detach().numpy().copy(), "m": np.zeros(10), "v": np.zeros(10), "lr": np.array(0.01)}
    optimizer = torch.optim.Adam([weights], lr=0.01)

    for step in range(3):
        weights.grad = torch.tensor(gradients[step].mean(axis=0))
        optimizer.step()
        scalars = {"c1": np.array(1 / (1 - 0.9 ** (step + 1))), "c2": np.array(1 / (1 - 0.999 ** (step + 1)))}
        values = run_reference(program, {**arrays, **scalars, "g": gradients[step]}, "float64")
        arrays |= {name: values[name][0] for name in ("w", "m", "v")}

    np.testing.assert_allclose(weights.detach().numpy(), arrays["w"], rtol=1e-12)


def test_lamb_scales_by_global_norms_and_by_one_where_a_norm_is_zero():
    program = lamb(2, 6)
    inputs = random_inputs(program, 1, "float64")
    values = run_reference(program, inputs, "float64")
    step = values["t18"][0]

    expected = inputs["w"] - inputs["lr"] * np.linalg.norm(inputs["w"]) / np.linalg.norm(step) * step
    np.testing.assert_allclose(expected, values["w"][0], rtol=1e-12)
    zero = run_reference(program, {**inputs, "w": np.zeros(6)}, "float64")
    np.testing.assert_allclose(-inputs["lr"] * zero["t18"][0], zero["w"][0], rtol=1e-12)


def test_a_ring_adds_a_chunk_in_the_order_in_which_it_travels():
    builder = Builder("p", 3)
    program = builder.program(builder.all_reduce(builder.declare_local("g", (3,)), name="y"))
    parts = np.array([[1e8, 1.0, 3.0], [1.0, 1e8, -1e8], [-1e8, -1e8, 1e8]], dtype=np.float32)

    result = run_reference(program, {"g": parts})["y"][0]

    assert [[1, 2, 0], [2, 0, 1], [0, 1, 2]] == [ring_order(chunk, 3) for chunk in range(3)]
    expected = [
        (parts[a, c] + parts[b, c]) + parts[d, c] for c, (a, b, d) in enumerate([(1, 2, 0), (2, 0, 1), (0, 1, 2)])
    ]
    assert expected == result.tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_are_made_in_single_precision(dtype):
    builder = Builder("p", 4)
    program = builder.program(builder.all_reduce(builder.declare_local("g", (4,), dtype), name="y"))
    half = numpy_dtype(dtype).type
    parts = np.full((4, 4), 0.0004 if dtype == "float16" else 0.003, dtype=half)
    parts[0] = 1.0

    result = run_reference(program, {"g": parts})["y"][0]

    assert half == result.dtype
    assert half(np.float32(1) + 3 * np.float32(parts[1, 0])) == result[0] != 1


def test_sliced_dropout_is_the_slice_of_replicated_dropout():
    for dim, shape in ((0, (8, 6)), (1, (8, 6)), (FLAT, (5, 7))):
        results = []
        for layout in (slice_layout(dim), None):
            builder = Builder("p", 3)
            value = builder.tensor("x", shape, *([layout] if layout else []))
            step = builder.declare_replicated("step", ())
            program = builder.program(builder.dropout(value, 0.4, seed=3, step=step))
            full = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
            values = run_reference(program, {"x": full, "step": np.float32(5)})
            results.append(assemble(program.types[program.outputs[0]], values[program.outputs[0]]))

        np.testing.assert_array_equal(*results)


@given(st.integers(0, 2**31), st.integers(0, 2**24), st.integers(0, 2**40), st.floats(0, 0.99))
@settings(max_examples=50, deadline=None)
def test_the_compiled_mask_is_the_mask(seed, step, index, probability):
    kept = keep_mask(seed, np.array([index]), probability, step)[0]

    assert bool(kept) == bool(stays(seed, step, index, round((1 - probability) * 2**32)))


def test_masks_of_two_steps_are_unrelated():
    first, second = (keep_mask(11, np.arange(200_000), 0.3, step) for step in (3, 4))

    assert abs(second.mean() - 0.7) < 0.005
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01


def test_dropout_keeps_as_many_as_it_should():
    kept = keep_mask(11, np.arange(200_000), 0.3)

    assert abs(kept.mean() - 0.7) < 0.005
    assert abs(np.corrcoef(kept[:-1], kept[1:])[0, 1]) < 0.01


# --- transformations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_of_a_random_program_computes_the_same(seed):
    program = random_program(seed)
    schedules = [schedule for schedule in closure(program) if schedule.steps][:40]

    for num_ranks in (2, 3, 4):
        base = random_program(seed, num_ranks)
        for schedule in schedules:
            assert difference(base, apply_steps(base, schedule.steps), seed) <= 1e-12


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_certificates_of_the_workloads_hold_and_derive_layouts(name):
    program = workload(name, num_ranks=4)

    for schedule in closure(program):
        certificate = certify(program, schedule.steps)

        assert certificate.holds
        assert bool(certificate.derivation) == any(
            step.transform in ("split", "reorder", "as_slice") for step in schedule.steps
        )


def test_a_wrong_schedule_is_found_by_its_difference():
    """Each planted mistake is one that a careless transformation makes."""
    program = shrink(adam(2, 64), 3)
    right = apply_steps(
        program,
        [Step("split", ("g_sum",)), Step("reorder", (movable(split(program, "g_sum"), "g_sum_ag"), "g_sum_ag"))],
    )
    assert difference(program, right, 0) <= 1e-12

    for index, stage in enumerate(right.stages):
        for wrong in _mutations(stage):
            stages = (*right.stages[:index], wrong, *right.stages[index + 1 :])
            assert difference(program, replace(right, stages=stages), 0) > 1e-12, wrong


def _mutations(stage):
    constants = [item for item in stage.operands if isinstance(item, float)]
    if constants:
        yield replace(
            stage, operands=tuple(item + 0.25 if isinstance(item, float) else item for item in stage.operands)
        )
    if stage.op in ("sub", "div") and not constants:
        yield replace(stage, operands=stage.operands[::-1])
    swaps = {"add": "sub", "sub": "add", "mul": "add", "div": "mul", "sqrt": "square"}
    if stage.op in swaps:
        yield replace(stage, op=swaps[stage.op])
    if stage.op == "reduce_scatter":
        yield replace(stage, settings=(("reduction", "max"), *stage.settings[1:]))


def test_splitting_needs_an_all_reduce():
    with pytest.raises(NotApplicableError, match="t2 is no all-reduce"):
        split(adam(2, 8), "t2")
    with pytest.raises(NotApplicableError, match="no stage nothing"):
        split(adam(2, 8), "nothing")


def test_an_all_gather_that_is_read_elsewhere_stays():
    builder = Builder("p", 2)
    total = builder.all_reduce(builder.declare_local("g", (4, 4)), name="s")
    product = total @ builder.declare_replicated("w", (4, 3))
    program = split(builder.program(product, total * 2.0), "s")

    after = reorder(program, movable(program, "s_ag"), "s_ag")

    assert ["all_gather", "all_gather", "matmul", "mul", "reduce_scatter"] == sorted(stage.op for stage in after.stages)
    assert difference(program, after, 0) <= 1e-12


def test_reordering_refuses_a_path_that_leaves_the_computations():
    builder = Builder("p", 2)
    total = builder.all_reduce(builder.declare_local("g", (4, 4)), name="s")
    doubled = builder.apply("mul", total, 2.0, name="a")
    outside = doubled @ builder.declare_replicated("w", (4, 4))
    program = split(builder.program(builder.apply("add", doubled, outside, name="b")), "s")

    with pytest.raises(NotApplicableError, match="leaves them"):
        reorder(program, ["a", "b"], "s_ag")
    assert ("a",) == movable(program, "s_ag")


def test_reordering_refuses_local_operands_and_flat_slices_of_a_bias():
    builder = Builder("p", 3)
    total = builder.all_reduce(builder.declare_local("g", (2, 4)), name="s")
    program = split(builder.program(builder.apply("add", total, builder.declare_replicated("b", (4,)), name="y")), "s")

    with pytest.raises(NotApplicableError, match="no flat slice"):
        reorder(program, ["y"], "s_ag")
    builder = Builder("q", 2)
    total = builder.all_reduce(builder.declare_local("g", (4,)), name="s")
    program = split(builder.program(builder.apply("mul", total, builder.declare_local("h", (4,)), name="y")), "s")
    with pytest.raises(NotApplicableError, match="h is local"):
        reorder(program, ["y"], "s_ag")


def test_states_are_stored_in_slices_of_one_kth():
    program = _sliced_adam(2)
    after = as_slice(as_slice(program, "m"), "v")

    assert [32 * 4, 32 * 4, 64 * 4] == [after.inputs[name].local_bytes(0, 2) for name in ("m", "v", "w")]
    assert 1 == sum(stage.op == "all_gather" for stage in after.stages)
    assert difference(program, after, 0) <= 1e-12


def test_as_slice_refuses_what_is_read_as_a_whole():
    with pytest.raises(NotApplicableError, match="not sliced"):
        as_slice(adam(2, 8), "m")
    with pytest.raises(NotApplicableError, match="c1 is not updated"):
        as_slice(adam(2, 8), "c1")
    program = split(lamb(2, 8), "g_sum")
    plain = [name for name in movable(program, "g_sum_ag") if name in program.reach(["g_sum_ag"])]
    with pytest.raises(NotApplicableError, match="w is read as a whole"):
        as_slice(reorder(program, plain, "g_sum_ag"), "w")


def test_norms_of_slices_are_summed_over_ranks_by_a_visible_stage():
    program = split(lamb(4, 64), "g_sum")
    after = reorder(program, movable(program, "g_sum_ag"), "g_sum_ag")

    totals = [stage for stage in after.stages if stage.op == "all_reduce"]
    assert ["t19_total", "t21_total"] == [stage.name for stage in totals]
    assert after.types["t21_total"].is_scalar


def test_a_norm_of_weights_is_summed_in_slices_where_the_update_reads_slices_of_them():
    program = split(lamb(4, 64), "g_sum")
    names = movable(program, "g_sum_ag")
    after = reorder(program, names, "g_sum_ag")

    moved = [name for name in names if name in program.reach(["g_sum_ag"])]
    assert ("t19", "t20") == norms_of_slices(program, moved)  # the sum of squares, and its root
    assert "w_slice" == after.by_name["t19"].reads[0]
    assert difference(program, after, 0) <= 1e-12


def test_stages_that_nothing_needs_are_dropped():
    builder = Builder("p", 2)
    kept = builder.all_reduce(builder.declare_local("g", (4,)), name="s")
    builder.apply("mul", kept, 3.0, name="unused")

    assert ["s"] == [stage.name for stage in dead(builder.program(kept)).stages]


def test_a_fusion_around_an_outside_stage_is_refused():
    """The published check of this was inverted, so that it never failed."""
    program = tensor_parallel(2)
    with pytest.raises(NotApplicableError, match="no pass over elements"):
        fuse(program, ["product", "t3"], "compute")
    builder = Builder("p", 2)
    first = builder.apply("mul", builder.declare_replicated("x", (4, 4)), 2.0, name="a")
    outside = first @ builder.declare_replicated("w", (4, 4))
    program = builder.program(builder.apply("add", first, outside, name="b"))
    with pytest.raises(NotApplicableError, match="runs between the stages"):
        fuse(program, ["a", "b"], "compute")


def test_two_fusions_that_need_each_other_are_refused():
    builder = Builder("p", 2)
    x, y = builder.declare_replicated("x", (4,)), builder.declare_replicated("y", (4,))
    a, b = builder.apply("mul", x, 2.0, name="a"), builder.apply("mul", y, 2.0, name="b")
    c, d = builder.apply("add", a, 1.0, name="c"), builder.apply("add", b, 1.0, name="d")
    program = fuse(builder.program(c, d), ["a", "d"], "compute")

    with pytest.raises(NotApplicableError, match="runs between the stages"):
        fuse(program, ["b", "c"], "compute")


def test_a_pass_does_not_wait_for_its_own_sum():
    program = lamb(2, 16)
    with pytest.raises(NotApplicableError, match="after a whole pass only"):
        fuse(program, ["t19", "t20", "t23", "t25", "t26", "t27", "t28"], "compute")


def test_fused_stages_are_rewritten_no_more():
    program = fuse(
        _sliced_adam(),
        ["g_sum_rs", *(stage.name for stage in _sliced_adam().stages if stage.name != "g_sum_rs")],
        "collective",
    )
    with pytest.raises(NotApplicableError, match="is fused"):
        as_slice(program, "m")


def test_overlap_takes_chains_that_pass_chunks_on():
    program = tensor_parallel(2)

    assert ("product", "total") == overlap(program, ["product", "total"]).overlaps[0].items
    with pytest.raises(NotApplicableError, match="does not read"):
        overlap(program, ["total", "product"])
    with pytest.raises(NotApplicableError, match="nothing of it communicates"):
        overlap(program, ["t3", "t4"])
    rooted = split(program, "total", "reduce-broadcast")
    with pytest.raises(NotApplicableError, match="needs all of its operand"):
        overlap(rooted, ["product", "total_rd"])


# --- closure ------------------------------------------------------------------------------------------------------


def test_the_closure_has_the_published_schedules():
    labels = {name: {item.label for item in closure(workload(name, num_ranks=4))} for name in WORKLOADS}

    for name in ("adam", "lamb", "sgd"):
        assert any(label.endswith("fuse(RS-C-AG)") for label in labels[name])
        assert any(label.startswith("AR - ") for label in labels[name])
    assert "RS - fuse(C) - AG" in labels["adam"]
    assert {"MM - AR - C", "MM - RS - C - AG", "MM - fuse(RS-C-AG)", "overlap(MM, fuse(RS-C-AG))"} <= labels[
        "tensor-parallel"
    ]
    assert {"AR - C - P2P", "RS - fuse(C-P2P) - AG", "overlap(RS, fuse(C-P2P), AG)"} <= labels["pipeline"]


def test_no_schedule_is_listed_twice_and_names_do_not_count():
    schedules = closure(adam(2, 64))
    forms = [canonical_form(schedule.program) for schedule in schedules]

    assert len(set(forms)) == len(forms)
    builder = Builder("p", 2)
    g, w = builder.declare_local("g", (8,)), builder.declare_replicated("w", (8,))
    total = builder.all_reduce(g)
    first = builder.program(total * w)
    builder = Builder("p", 2)
    w, g = builder.declare_replicated("w", (8,)), builder.declare_local("g", (8,))
    second = builder.program(w * builder.all_reduce(g, name="other"))
    assert canonical_form(first) == canonical_form(second)
    assert canonical_form(first) != canonical_form(split(first, "t1"))


def test_a_closure_that_is_too_large_says_so():
    with pytest.raises(InputError, match="more than 5 schedules"):
        closure(adam(2, 64), max_schedules=5)


def test_the_pipeline_sends_one_kth_between_groups():
    program = pipeline(4)
    program = split(program, "total")
    after = reorder(program, movable(program, "total_ag"), "total_ag")

    sent = {name: item.types["sent"].local_bytes(0, 4) for name, item in (("before", program), ("after", after))}
    assert 4 == sent["before"] / sent["after"]
