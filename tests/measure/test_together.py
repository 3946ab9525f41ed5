"""Moments that all processes share."""

from windtunnel.measure.together import moment_in, rate_between, time_since_ns, wait_for

MS = 1_000_000


def test_nothing_begins_before_its_moment():
    moment_ns, begun = moment_in(5 * MS), []
    taken_ns = time_since_ns(moment_ns, lambda: begun.append(moment_in(0)))

    assert begun[0] >= moment_ns
    assert taken_ns >= begun[0] - moment_ns


def test_one_who_waits_is_not_early_and_what_is_over_is_not_waited_for():
    moment_ns = moment_in(5 * MS)
    wait_for(moment_ns)

    assert moment_in(0) >= moment_ns - MS // 10  # as the system's timer has it
    wait_for(moment_in(-(10**15)))


def test_a_rate_is_of_work_between_two_moments():
    done = []
    begin_ns = moment_in(2 * MS)
    rate = rate_between(begin_ns, begin_ns + 20 * MS, lambda: (done.append(moment_in(0)), wait_for(moment_in(MS))))

    assert done[0] >= begin_ns
    assert done[-1] < begin_ns + 20 * MS
    assert 0 < rate <= 1000


def test_work_is_done_once_where_the_time_is_over():
    done = []

    assert rate_between(0, 0, lambda: done.append(1)) > 0
    assert [1] == done
