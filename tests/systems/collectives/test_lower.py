"""Plans compute what programs mean, in every schedule, for every rank."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.systems.collectives.programs import random_program
from windtunnel.systems.collectives.build import Builder
from windtunnel.systems.collectives.grouping import overlap
from windtunnel.systems.collectives.interpret import interpret
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.plan import Call, MatMul, Send, Signal
from windtunnel.systems.collectives.reference import assemble, random_inputs, run_reference
from windtunnel.systems.collectives.schedules import Step, apply_steps, closure
from windtunnel.systems.collectives.workloads import adam, lamb, tensor_parallel, workload

SMALL = {"batch": 1, "sequence": 9, "hidden": 12}


def full_values(program, values):
    """Full arrays of all outputs and inputs."""
    return {name: assemble(program.types[name], values[name]) for name in (*program.outputs, *program.inputs)}


def check_schedules(program, schedules, num_pieces=2):
    """All schedules agree with the reference in double precision, and bit for bit among themselves in single one."""
    for dtype in ("float64", "float32"):
        first = None
        for schedule in schedules:
            inputs_of = {name: replace(item, dtype=dtype) for name, item in schedule.program.inputs.items()}
            scheduled = replace(schedule.program, inputs=inputs_of)
            inputs = random_inputs(scheduled, seed=5)
            result = interpret(lower(scheduled, num_pieces), scheduled, inputs)
            actual = full_values(scheduled, result)
            if dtype == "float64":
                for name, expected in full_values(scheduled, run_reference(scheduled, inputs)).items():
                    np.testing.assert_allclose(actual[name], expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
                continue
            # a schedule may name its outputs otherwise
            bits = [actual[name].tobytes() for name in (*scheduled.outputs, *program.inputs)]
            first = first or bits
            assert first == bits, schedule.steps


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_every_schedule_of_a_random_program_has_the_same_bits(seed, num_ranks):
    program = random_program(seed, num_ranks)
    schedules = closure(program, 1500)
    some = random.Random(seed).sample(schedules[1:], min(5, len(schedules) - 1))

    check_schedules(program, [schedules[0], *some])


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ["adam", "lamb", "sgd", "pipeline", "tensor-parallel"])
def test_every_schedule_of_a_workload_has_the_same_bits(name, num_ranks):
    sizes = SMALL if name in ("pipeline", "tensor-parallel") else {"num_parameters": 37}
    program = workload(name, num_ranks=num_ranks, **sizes)

    check_schedules(program, closure(program), num_pieces=3)


@pytest.mark.parametrize("name", ["lamb", "tensor-parallel"])
def test_the_fullest_schedule_of_a_workload_is_right_whatever_the_pieces(name):
    sizes = SMALL if name == "tensor-parallel" else {"num_parameters": 37}
    program = workload(name, num_ranks=3, **sizes)
    last = max(closure(program), key=lambda schedule: len(schedule.steps))
    for num_pieces in (1, 4, 50):
        check_schedules(program, [last], num_pieces)


def test_a_tensor_with_fewer_elements_than_ranks_leaves_ranks_without_a_slice():
    for program in (adam(num_ranks=4, num_parameters=2), lamb(num_ranks=4, num_parameters=3)):
        schedules = closure(program)

        check_schedules(program, [schedules[0], schedules[-1]])


def test_every_schedule_of_empty_tensors_ends():
    program = adam(num_ranks=2, num_parameters=0)
    for schedule in closure(program):
        interpret(lower(schedule.program), schedule.program, random_inputs(program, 0))


def test_one_rank_sends_nothing():
    program = adam(num_ranks=1, num_parameters=5)
    for schedule in closure(program)[:8]:
        check_schedules(program, [schedule])

        assert 0 == lower(schedule.program).ranks[0].traffic_bytes()


def test_columns_are_scattered_and_gathered():
    builder = Builder("columns", 3)
    total = builder.reduce_scatter(builder.declare_local("g", (4, 7)), dim=1)
    bias = builder.declare_replicated("b", (7,))
    program = builder.program(builder.all_gather(builder.dropout(total + bias, 0.3, seed=2)))
    inputs = random_inputs(program, 1)

    actual = full_values(program, interpret(lower(program), program, inputs))

    np.testing.assert_array_equal(full_values(program, run_reference(program, inputs))["t5"], actual["t5"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_single_precision(dtype):
    builder = Builder("half", 4)
    gradient = builder.declare_local("g", (9,), dtype)
    program = builder.program(builder.all_reduce(gradient))
    inputs = random_inputs(program, 3)

    actual = interpret(lower(program), program, inputs)["t1"]

    for part, expected in zip(actual, run_reference(program, inputs)["t1"], strict=True):
        assert expected.tobytes() == part.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_of_half_precision_take_two_bytes_and_their_sums_four(dtype):
    program = adam(num_ranks=2, num_parameters=64, dtype=dtype)

    plan = lower(program)

    assert 2 * 64 * 2 == plan.ranks[0].resident_bytes(["m", "v"])
    assert 32 * 4 + 32 * 2 == plan.ranks[0].traffic_bytes()  # a half of the sums, a half of the result
    actual, expected = (
        interpret(plan, program, random_inputs(program, 3)),
        run_reference(program, random_inputs(program, 3)),
    )
    assert [part.tobytes() for part in expected["w"]] == [part.tobytes() for part in actual["w"]]


def test_a_product_of_half_precision_is_added_in_single_precision():
    builder = Builder("half", 1)
    x, w = (builder.declare_replicated(name, shape, "bfloat16") for name, shape in (("x", (2, 512)), ("w", (512, 2))))
    program = builder.program(builder.apply("matmul", x, w))
    inputs = {"x": np.full((2, 512), 0.01), "w": np.ones((512, 2))}

    result = interpret(lower(program), program, inputs)["t1"][0]

    np.testing.assert_allclose(512 * 0.01, result.astype(np.float32), rtol=1 / 128)


def test_an_update_does_not_overwrite_a_slice_that_is_read_later():
    builder = Builder("versions", 2)
    weights = builder.declare_sliced("w", (6,), 0)
    full = builder.declare_replicated("v", (6,))
    part = builder.slice(full, name="part")
    new = builder.update(full, builder.slice(builder.declare_replicated("x", (6,))) * 2.0, name="new")
    program = builder.program(builder.all_gather(new), part + weights)
    inputs = random_inputs(program, 3)

    actual = full_values(program, interpret(lower(program), program, inputs))

    for name, expected in full_values(program, run_reference(program, inputs)).items():
        np.testing.assert_array_equal(expected, actual[name])


def test_weights_are_not_overwritten_while_a_product_still_reads_them():
    builder = Builder("weights", 2)
    x, w = builder.declare_sliced("x", (8, 8), 1), builder.declare_sliced("w", (8, 8), 0)
    total = builder.reduce_scatter(builder.apply("matmul", x, w, name="product"), name="total")
    program = builder.program(builder.update(w, total, name="w_new"))
    scheduled = overlap(program, ("product", "total", "w_new"))
    inputs = random_inputs(program, 3)

    assert all(list(rank.threads) == ["compute"] for rank in lower(scheduled, 2).ranks)
    np.testing.assert_array_equal(
        full_values(program, interpret(lower(program, 2), program, inputs))["w"],
        full_values(program, interpret(lower(scheduled, 2), scheduled, inputs))["w"],
    )


# --- order and memory -----------------------------------------------------------------------------------------


def overlapped(order, num_ranks=4):
    program = tensor_parallel(num_ranks=num_ranks, batch=1, sequence=16, hidden=12)
    steps = [Step("split", ("total",)), Step("overlap", (("product", "total_rs"), order))]
    return apply_steps(program, steps)


def rows_made(rank_plan):
    return [item.target.start // 12 for item in rank_plan.threads["compute"] if isinstance(item, MatMul)]


def test_a_rank_makes_rows_in_the_order_in_which_the_ring_takes_them():
    plan = lower(overlapped("ring"), num_pieces=2)

    # rank 1 of 4: chunks 0, 3, 2, 1 of four rows each, two pieces of two rows
    assert [0, 12, 8, 4, 2, 14, 10, 6] == rows_made(plan.ranks[1])
    assert list(range(0, 16, 2)) == rows_made(lower(overlapped("natural"), num_pieces=2).ranks[1])


def test_the_first_message_waits_for_the_first_rows_only():
    plan = lower(overlapped("ring"), num_pieces=2)
    rank = plan.ranks[1]
    first_send = next(item for item in rank.threads["communication"] if isinstance(item, Send))
    compute = rank.threads["compute"]
    first_rows = next(i for i, item in enumerate(compute) if isinstance(item, MatMul))

    assert first_send.source == compute[first_rows].target.part(0, first_send.source.size)
    assert isinstance(compute[first_rows + 1], Signal)


def test_optimizer_state_takes_one_kth_of_the_memory():
    program = adam(num_ranks=4, num_parameters=1024)
    whole = lower(program).ranks[0].resident_bytes(["m", "v"])
    sliced = next(
        schedule.program
        for schedule in closure(program)
        if all(schedule.program.inputs[name].layout.is_sliced for name in "mv")
    )

    assert whole == 4 * lower(sliced).ranks[0].resident_bytes(["m", "v"])


def test_a_fused_pass_is_one_kernel_that_stores_what_is_needed():
    program = adam(num_ranks=2, num_parameters=64)
    names = tuple(stage.name for stage in program.stages if not stage.communicates)
    plan = lower(apply_steps(program, [Step("fuse", (names, "compute"))]))

    assert 1 == sum(isinstance(item, Call) for item in plan.ranks[0].threads["compute"])
    assert {"lr", "g", "w", "m", "v", "c1", "c2", "g_sum"} == {
        name for name in plan.ranks[0].buffers if not name.startswith("work")
    }
    assert "w[i] = w_new" in plan.source()


def test_an_all_reduce_sends_what_a_ring_sends():
    plan = lower(adam(num_ranks=4, num_parameters=1000))

    assert [2 * 3 * 250 * 4] * 4 == [rank.traffic_bytes() for rank in plan.ranks]


def test_the_published_pipeline_sends_one_kth_between_groups_piece_by_piece():
    schedules = {item.label: item.program for item in closure(workload("pipeline", num_ranks=4, **SMALL))}
    between = {}
    for label in ("AR - C - P2P", "overlap(RS, fuse(C-P2P), AG)"):
        plan = lower(schedules[label], num_pieces=3)
        sends = [item for item in plan.ranks[0].threads["compute"] if isinstance(item, Send) and item.peer == 4]
        between[label] = (len(sends), sum(item.source.size for item in sends))

    assert {"AR - C - P2P": (1, 9 * 12), "overlap(RS, fuse(C-P2P), AG)": (3, 3 * 12)} == between
