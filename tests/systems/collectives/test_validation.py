import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.systems.collectives.plans import all_reduce, plan_of
from windtunnel.errors import InputError
from windtunnel.systems.collectives.plan import Copy, Receive, ReceiveReduce, Send, Signal, View, Wait
from windtunnel.systems.collectives.validation import validate

X = View("x", 0, (4,))


@given(st.integers(1, 5), st.integers(0, 20))
def test_each_send_of_a_ring_has_its_receive(num_ranks, size):
    messages = validate(all_reduce(num_ranks, size))

    assert {edge: len(sends) for edge, sends in messages.sends.items()} == {
        edge: len(receives) for edge, receives in messages.receives.items() if receives
    }


def test_threads_that_wait_for_each_other_are_named_with_their_instructions():
    ranks = [(Receive(1 - rank, 0, X), Send(1 - rank, 0, X)) for rank in range(2)]

    with pytest.raises(InputError) as caught:
        validate(plan_of(*({"compute": items} for items in ranks)))

    assert caught.value.where == (
        "rank 0, compute 0: receive x[0:4] from rank 1 (tag 0); rank 1, compute 0: receive x[0:4] from rank 0 (tag 0)"
    )


def test_events_that_wait_for_each_other_across_threads_are_found():
    threads = {"compute": (Wait(0), Signal(1)), "communication": (Wait(1), Signal(0))}

    with pytest.raises(InputError, match="threads of test wait for each other"):
        validate(plan_of(threads))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([(Send(1, 0, X),), ()], "never received"),
        ([(), (Receive(0, 0, X),)], "wait for each other"),
        ([(Send(1, 0, X),), (Receive(0, 7, X),)], "tag 0, 16 bytes, meets a receive of tag 7, 16 bytes"),
        ([(Send(1, 0, X),), (ReceiveReduce(0, 0, X, View("x", 0, (3,))),)], "meets a receive of tag 0, 12 bytes"),
        ([(Send(0, 0, X),), ()], "no peer 0"),
        ([(Send(2, 0, X),), ()], "no peer 2"),
        ([(Signal(3), Signal(3))], "event 3 is signaled 2 times"),
        ([(Wait(3),)], "event 3 is signaled 0 times"),
        ([(Copy(X, View("x", 6, (4,))),)], "elements 6 to 10 of x are not there"),
        ([(Copy(X, View("x", 1, (2, 2), (6, 1))),)], "elements 1 to 9 of x are not there"),
        ([(Copy(X, View("y", 0, (4,))),)], "no buffer 'y'"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(ranks, message):
    with pytest.raises(InputError, match=message):
        validate(plan_of(*({"compute": items} for items in ranks)))


def test_a_strided_view_may_end_with_its_buffer():
    validate(plan_of({"compute": (Copy(X, View("x", 0, (2, 2), (6, 1))),)}))


def test_a_message_takes_the_memory_of_one_that_has_been_received_for_sure():
    """When a rank sends its third message it has the second one of the other rank, which had received its first."""
    plan = plan_of(*({"compute": (Send(1 - rank, 0, X), Receive(1 - rank, 0, X)) * 3} for rank in range(2)))

    assert [(0, 16), (64, 16), (0, 16)] == validate(plan).layout(plan).slots[0, 1]


def test_data_that_stay_until_they_are_received_are_sent_where_they_lie():
    """Rank 0 overwrites the first elements after an answer, the next ones before."""
    first, second = View("x", 0, (4,)), View("x", 4, (4,))
    sender = (Send(1, 0, first), Send(1, 0, second), Copy(first, second), Receive(1, 0, first), Copy(second, first))
    receiver = (Receive(0, 0, first), Receive(0, 0, second), Send(0, 0, first))
    plan = plan_of({"compute": sender}, {"compute": receiver})
    messages = validate(plan)

    assert {(0, "compute", 0), (1, "compute", 2)} == messages.find_direct(plan)
    assert [(0, 16), (64, 16)] == messages.layout(plan).slots[0, 1]
    assert [(128, 16)] == messages.layout(plan).slots[1, 0]
    assert {(0, "x"): 0, (1, "x"): 128} == messages.layout(plan).regions


def test_what_another_thread_may_write_is_not_sent_where_it_lies():
    threads = {"compute": (Send(1, 0, X),), "communication": (Copy(View("x", 4, (4,)), X),)}
    plan = plan_of(threads, {"compute": (Receive(0, 0, X),)})

    assert set() == validate(plan).find_direct(plan)
