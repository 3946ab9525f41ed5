import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.systems.collectives.plans import all_reduce, plan_of
from windtunnel.errors import FlightError, InputError
from windtunnel.hardware import Link
from windtunnel.systems.collectives.executor import Executor
from windtunnel.systems.collectives.interpret import interpret
from windtunnel.systems.collectives.kernels import Kernel
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.plan import Call, MatMul, Receive, Send, Signal, View, Wait
from windtunnel.systems.collectives.reference import random_inputs
from windtunnel.systems.collectives.workloads import adam

X = View("x", 0, (4,))


@pytest.fixture(scope="module", params=[2, 3, 4])
def executor(request):
    with Executor(request.param) as running:
        yield running


def fill(num_ranks, size, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [{"g": rng.standard_normal(size).astype(dtype)} for _ in range(num_ranks)]


def ring_sum(memory, size):
    """Sum of all ranks, each chunk in the order of the ring."""
    num_ranks, result = len(memory), np.empty_like(memory[0]["g"])
    length = -(-size // num_ranks)
    for chunk in range(num_ranks):
        block = slice(chunk * length, (chunk + 1) * length)
        parts = [memory[(chunk + 1 + step) % num_ranks]["g"][block] for step in range(num_ranks)]
        result[block] = functools.reduce(np.add, parts)
    return result


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 40), dtype=st.sampled_from(["float32", "float64"]))
def test_a_ring_adds_in_its_order_whatever_the_size(executor, size, dtype):
    """Sizes below the number of ranks leave chunks empty."""
    memory = fill(executor.num_ranks, size, dtype)

    result = executor.run(executor.load(all_reduce(executor.num_ranks, size, dtype)), memory)

    for buffers in result:
        np.testing.assert_array_equal(ring_sum(memory, size), buffers["g"])


def test_more_ranks_or_memory_than_the_host_has_are_refused_before_anything_is_started(executor):
    with pytest.raises(InputError, match="5000 processes are too many"):
        Executor(5000)
    with pytest.raises(InputError, match=r"needs .* of memory, and .* are free"):
        executor.load(all_reduce(executor.num_ranks, 1 << 44))


def test_plans_take_turns_and_begin_each_round_with_the_same_contents(executor):
    memory = fill(executor.num_ranks, 1000, "float32")
    numbers = [executor.load(all_reduce(executor.num_ranks, 1000)) for _ in range(2)]
    for number in numbers:
        executor.fill(number, memory)

    times = executor.time(numbers, rounds=3)

    assert times.shape == (3, 2, executor.num_ranks)
    assert times.min() > 0
    np.testing.assert_array_equal(ring_sum(memory, 1000), executor.run(numbers[1])[0]["g"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_lowered_program_computes_what_one_process_computes(executor, dtype):
    program = adam(num_ranks=executor.num_ranks, num_parameters=50, dtype=dtype)
    inputs = random_inputs(program, seed=1)
    plan = lower(program)

    result = executor.run_program(executor.load(plan), program, inputs)

    expected = interpret(plan, program, inputs)
    assert expected.keys() == result.keys()
    for name, parts in expected.items():
        for part, other in zip(parts, result[name], strict=True):
            np.testing.assert_array_equal(part, other)


def test_a_timeline_has_every_instruction_after_what_it_waits_for(executor):
    plan = plan_of(
        *(
            {"compute": (MatMul(View("x", 0, (1, 2)), View("x", 2, (2, 1)), View("x", 4, (1, 1))), Signal(0)),
             "communication": (Wait(0),)}
            for _ in range(executor.num_ranks)
        )
    )  # fmt: skip

    spans = executor.timeline(executor.load(plan))

    assert len(spans) == 3 * executor.num_ranks
    by_rank = {(span.rank, span.thread, span.index): span for span in spans}
    for rank in range(executor.num_ranks):
        assert by_rank[rank, "compute", 1].start_ns <= by_rank[rank, "communication", 0].end_ns


def test_a_message_arrives_when_its_link_has_carried_it():
    """Two messages of 4,000 bytes at 1 MB/s: the second one is due 8 ms and one latency after the first was sent."""
    send, receive = (
        tuple(kind(peer, 0, View("x", 0, (1000,))) for _ in range(2)) for kind, peer in ((Send, 1), (Receive, 0))
    )
    plan = plan_of({"compute": send}, {"compute": receive}, size=1000)
    with Executor(2, link=Link("slow", bandwidth_bytes_per_s=1e6, latency_ns=3_000_000)) as running:
        spans = running.timeline(running.load(plan))

    sends, receives = ([span for span in spans if span.rank == rank] for rank in range(2))
    assert receives[0].end_ns - sends[0].start_ns >= 7_000_000
    assert receives[1].end_ns - sends[0].start_ns >= 11_000_000


@pytest.mark.slow
def test_gloo_gives_the_same_bits():
    with Executor(2, "gloo", Link("slow", bandwidth_bytes_per_s=1e8, latency_ns=1000)) as running:
        memory = fill(2, 33, "float32")
        number = running.load(all_reduce(2, 33))
        for _ in range(2):
            result = running.run(number, memory)

            np.testing.assert_array_equal(ring_sum(memory, 33), result[1]["g"])


def test_the_watchdog_names_the_instruction_of_each_thread():
    forever = Kernel("forever", "def forever(first, base):\n    while base == 0:\n        pass\n", ())
    threads = [
        {"compute": (Call(forever, ()), Signal(0)), "communication": (Wait(0), Send(1, 0, X))},
        {"compute": (Receive(0, 0, X),)},
    ]
    with Executor(2, patience_s=1.0) as running:
        number = running.load(plan_of(*threads))
        with pytest.raises(FlightError, match="did not end in 1 s") as caught:
            running.run(number)

    assert caught.value.where == (
        "rank 0, communication 0: wait 0; rank 0, compute 0: forever(, first=0); "
        "rank 1, compute 0: receive x[0:4] from rank 0 (tag 0)"
    )


def test_a_plan_that_would_wait_for_ever_is_not_loaded():
    with Executor(2) as running, pytest.raises(InputError, match="wait for each other"):
        running.load(plan_of({"compute": (Receive(1, 0, X),)}, {}))


def test_other_transports_are_refused():
    with pytest.raises(InputError, match="no transport 'mpi'"):
        Executor(2, "mpi")
