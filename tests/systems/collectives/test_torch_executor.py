"""Programs that PyTorch runs, on CPUs over gloo: the same code runs on GPUs over NCCL."""

import signal
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.systems.collectives.programs import random_program
from windtunnel.errors import FlightError, InputError
from windtunnel.hardware import Link
from windtunnel.simulate import replay
from windtunnel.systems.collectives.dropout import keep_mask, keep_tensor
from windtunnel.systems.collectives.reference import assemble, random_inputs, run_reference
from windtunnel.systems.collectives.schedules import closure
from windtunnel.systems.collectives.torch_executor import TorchExecutor, make_executor
from windtunnel.systems.collectives.torch_prices import TorchPrices
from windtunnel.systems.collectives.workloads import adam, lamb, pipeline, sgd, tensor_parallel

MAX_SCHEDULES = 80
needs_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")


@pytest.fixture(scope="module")
def two_ranks():
    with TorchExecutor(2, num_pieces=2) as running:
        yield running


@pytest.fixture(scope="module")
def four_ranks():
    with TorchExecutor(4, num_pieces=2) as running:
        yield running


def largest_error(executor, schedules, inputs):
    """Largest relative difference of any schedule's results from the meaning of the first one, the program."""
    base = schedules[0].program
    values = run_reference(base, inputs)
    expected = [assemble(base.types[name], values[name]) for name in (*base.outputs, *base.updates)]
    worst = 0.0
    for schedule in schedules:
        program = schedule.program
        got = executor.run_program(executor.load_program(program), program, inputs)
        for right, name in zip(expected, (*program.outputs, *program.updates), strict=True):
            result = assemble(program.types[name], got[name])
            assert right.dtype == result.dtype
            difference = np.abs(right.astype(np.float64) - result.astype(np.float64)).max(initial=0)
            worst = max(worst, float(difference) / max(float(np.abs(right).max(initial=0)), 1e-300))
    return worst


def in_double(program):
    return replace(program, inputs={name: replace(item, dtype="float64") for name, item in program.inputs.items()})


def test_programs_that_need_more_memory_than_there_is_are_refused(two_ranks):
    with pytest.raises(InputError, match=r"sgd needs .* of memory, and .* are free"):
        two_ranks.load_program(sgd(num_ranks=2, num_parameters=1 << 44))


@pytest.mark.parametrize(
    "program",
    [
        sgd(num_parameters=48, dtype="float64"),
        adam(num_parameters=51, dtype="float64"),
        tensor_parallel(sequence=6, hidden=16, dtype="float64"),
        pytest.param(lamb(num_parameters=52, dtype="float64"), marks=pytest.mark.slow),  # 256 schedules
    ],
    ids=lambda program: program.name,
)
def test_all_schedules_of_the_paper_compute_what_the_program_means(two_ranks, program):
    schedules = closure(program)

    assert largest_error(two_ranks, schedules, random_inputs(program, 1)) <= 1e-12
    assert len(schedules) > 20


def test_all_schedules_of_a_pipeline_agree_on_two_groups(four_ranks):
    program = pipeline(sequence=6, hidden=16, dtype="float64")

    assert largest_error(four_ranks, closure(program), random_inputs(program, 1)) <= 1e-12


@pytest.mark.parametrize("seed", [1, 3, 6, 9, 12])  # products, two all-reduces, norms, dropout, updates that are read
def test_all_schedules_of_random_programs_agree_on_four_ranks(four_ranks, seed):
    """Sizes that four ranks do not divide leave slices of other sizes, and empty ones."""
    has_send = len(random_program(seed, 4).group_sizes) > 1
    program = in_double(random_program(seed, 2 if has_send else 4))
    schedules = closure(program, MAX_SCHEDULES)

    assert largest_error(four_ranks, schedules, random_inputs(program, seed)) <= 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_other_element_types_agree_up_to_their_rounding(two_ranks, dtype, tolerance):
    program = tensor_parallel(sequence=6, hidden=16, dtype=dtype)

    assert largest_error(two_ranks, closure(program), random_inputs(program, 2)) <= tolerance


def test_an_overlap_works_on_pieces_and_a_round_begins_with_the_same_contents(two_ranks):
    program = sgd(num_parameters=48, dtype="float64")
    inputs = random_inputs(program, 3)
    overlapped = next(item.program for item in closure(program) if item.program.overlaps)
    number = two_ranks.load_program(overlapped)
    first = two_ranks.run_program(number, overlapped, inputs)

    times = two_ranks.time([number], rounds=3)
    second = two_ranks.run_program(number, overlapped, inputs)

    assert (3, 1, 2) == times.shape
    np.testing.assert_array_equal(first["w"][0], second["w"][0])
    assert any(len(label.split()) > 1 for label in two_ranks.programs[number][1][0])


def test_the_dropout_mask_is_that_of_all_executors():
    indices = np.arange(1000).reshape(10, 100)
    for seed, step in ((0, 0), (7, 3), (2**40, 123456)):
        mask = keep_tensor(seed, torch.from_numpy(indices), 0.3, torch.tensor(step))

        np.testing.assert_array_equal(keep_mask(seed, indices, 0.3, step), mask.numpy())


def test_a_rank_that_dies_is_one_error_that_names_it():
    program = adam(num_parameters=50)
    with TorchExecutor(2) as running:
        number = running.load_program(program)
        running._workers._processes[1].kill()
        with pytest.raises(FlightError, match="rank 1 was killed by SIGKILL"):
            running.time([number], rounds=3)


def test_the_watchdog_names_the_stage_of_each_rank():
    program = adam(num_parameters=50)
    with TorchExecutor(2) as running:
        number = running.load_program(program)
        running.patience_s = 1.0
        running._workers._processes[1].send_signal(signal.SIGSTOP)
        with pytest.raises(FlightError, match="did not end in 1 s") as caught:
            running.time([number], rounds=3)

    assert "rank 0: g_sum; rank 1: g_sum" == caught.value.where


@pytest.mark.parametrize(("num_cores", "hides_messages"), [(0, True), (1, False)])
def test_a_price_counts_each_stage_once_and_an_overlap_at_its_longest(num_cores, hides_messages):
    """Every stage and every piece take 1,000 ns; where messages use the only core, nothing is hidden."""
    prices = TorchPrices(defaultdict(lambda: 1000.0), num_cores)
    program = tensor_parallel(sequence=512, hidden=512)
    overlapped = next(item.program for item in closure(program) if item.label == "overlap(MM, fuse(RS-C-AG))")

    plain, pieces = (prices.build_graph(item) for item in (program, overlapped))

    assert 1000 * len(program.stages) == replay(plain).makespan_ns
    assert hides_messages == (replay(pieces).makespan_ns < 1000 * pieces.num_tasks)


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="here are GPUs")
def test_ranks_without_gpus_are_refused_before_anything_is_started():
    with pytest.raises(InputError, match=r"2 ranks over NCCL need 2 GPUs, and this host has [01]") as caught:
        make_executor(2, "nccl")

    assert 2 == caught.value.exit_code
    assert "transport torch" in caught.value.fix


def test_what_pytorch_cannot_run_is_refused(two_ranks):
    with pytest.raises(InputError, match="cannot be slowed down"):
        make_executor(2, "torch", Link("slow", bandwidth_bytes_per_s=1e6))
    with pytest.raises(InputError, match="has 3 ranks, not 2"):
        two_ranks.load_program(sgd(num_ranks=3))


@needs_gpus
@pytest.mark.parametrize("make", [adam, lamb, tensor_parallel], ids=lambda make: make.__name__)
def test_nccl_computes_what_the_program_means(make):
    program = make(dtype="float64", **({} if make is tensor_parallel else {"num_parameters": 52}))
    with TorchExecutor(2, "nccl", num_pieces=2) as running:
        assert largest_error(running, closure(program), random_inputs(program, 1)) <= 1e-12
