"""Candidates really run, and whatever they do ends in a class."""

import math

import numpy as np
import pytest

from tests.systems.kernels.texts import SCALE, scale_kernel
from windtunnel.errors import InputError
from windtunnel.measure.sandbox import Limits
from windtunnel.systems.kernels.cases import Case, Out
from windtunnel.systems.kernels.model import Candidate, Evaluation, kernel_of
from windtunnel.systems.kernels.run import Bench


@pytest.fixture(scope="module")
def bench():
    with Bench(scale_kernel(), num_workers=1, limits=Limits(wall_s=20)) as found:
        yield found


def one(bench, *edits):
    return bench.evaluate([frozenset(edits)])[0]


def uid(bench, opcode):
    return next(each.uid for each in bench.kernel.function.instructions() if each.opcode == opcode)


def test_the_original_is_right_and_as_fast_as_itself(bench):
    found = one(bench)

    assert ("ok", True, 0.0) == (found.kind, found.is_exact, found.error)
    assert 0.5 < found.time_ratio < 2


def test_dropping_a_clamp_that_no_test_needs_passes(bench):
    call = uid(bench, "call")
    twice = uid(bench, "fmul")
    store = uid(bench, "store")
    found = one(bench, (("-c", call), ("-p", f"{store}.OP0,{twice}")))

    assert ("ok", True) == (found.kind, found.is_exact)


def test_outputs_that_nobody_writes_are_wrong(bench):
    found = one(bench, (("-c", uid(bench, "store")),))

    assert "wrong" == found.kind
    assert "argument 2" in found.detail


def far_bench(distance):
    """A kernel with one more argument, which an edit can make the place where it writes."""
    text = SCALE.replace("i64 %n)", "i64 %n, i64 %far)")

    def cases(split):
        return [Case("far", (np.ones(1008, np.float32), Out((1008,)), 1008, distance))]

    return Bench(kernel_of(text, cases), num_workers=1)


def writes_far(found):
    stored = next(each for each in found.kernel.function.instructions() if each.opcode == "store").operands[1].uid
    return (("-p", f"{stored}.OP1,A4"),)


@pytest.mark.parametrize(("distance", "kinds"), [(1008, {"crash"}), (10**12, {"crash"}), (-1, {"wrong"})])
def test_writing_beyond_the_end_is_found_from_one_element_on(distance, kinds):
    with far_bench(distance) as found:
        outcome = one(found, writes_far(found))

    assert outcome.kind in kinds


def test_a_loop_without_end_is_stopped():
    with far_bench(-5) as found:
        last = [each for each in found.kernel.function.instructions() if each.opcode == "icmp"][-1]
        slot = next(at for at, value in enumerate(last.operands) if value.uid == "A3")
        outcome = one(found, (("-p", f"{last.uid}.OP{slot},A4"),))

    assert outcome.kind in ("timeout", "crash")


def test_edits_that_do_not_fit_are_unverifiable(bench):
    assert "unverifiable" == one(bench, (("-c", "U77"),)).kind


def test_the_same_set_runs_once_and_the_same_program_is_not_compiled_on(bench):
    before = bench.counts.repeated, bench.counts.same_program
    edit = (("-i", f"{uid(bench, 'fmul')},{uid(bench, 'store')}"),)
    one(bench, edit)
    one(bench, edit)

    assert before[0] + 1 == bench.counts.repeated
    assert before[1] + 1 == bench.counts.same_program


def test_a_killed_process_loses_one_candidate_only():
    with Bench(scale_kernel(), num_workers=1) as found:
        found._workers[0]._processes[0].kill()
        outcomes = [one(found, (("-c", uid(found, "store")),)), one(found)]

    assert "ok" == outcomes[1].kind
    assert outcomes[0].kind in ("crash", "wrong")


def test_a_candidate_is_timed_anew_in_a_fresh_process(bench):
    found = bench.time(frozenset(), 11)

    assert found.evaluation.kind == "ok"
    assert found.speedup.low <= found.speedup.value <= found.speedup.high
    assert 11 == found.num_pairs


@pytest.mark.parametrize(("change", "message"), [
    (("fmul float %value, 2.0", "fdiv float %value, %value"), "no number"),
    (("i64 %i\n  store", "i64 -100000000\n  store"), "fails its own tests"),
])  # fmt: skip
def test_an_original_that_fails_its_own_tests_is_refused(change, message):
    def cases(split):
        return [Case("zeros", (np.zeros(8, np.float32), Out((8,)), 8))]

    text = SCALE.replace(*change)
    text = text.replace("@llvm.minnum.f32(float %twice", "@llvm.minimum.f32(float %twice")
    text = text.replace("declare float @llvm.minnum.f32", "declare float @llvm.minimum.f32")
    with pytest.raises(InputError, match=message), Bench(kernel_of(text, cases), num_workers=1):
        pass


def test_a_case_of_other_arguments_is_refused():
    def cases(split):
        return [Case("short", (np.zeros(8, np.float32), 8))]

    with pytest.raises(InputError, match="takes 3 arguments"), Bench(kernel_of(SCALE, cases), num_workers=1):
        pass


def test_a_kernel_of_less_than_the_clock_can_tell_is_called_more_than_once():
    def cases(split):
        return [Case("tiny", (np.ones(4, np.float32), Out((4,)), 4))]

    with Bench(kernel_of(SCALE, cases), num_workers=1) as found:
        outcome = one(found)

    assert "ok" == outcome.kind
    assert all(before < 2000 for before, _ in outcome.times_ns)
    assert math.isfinite(outcome.time_ratio)


def test_what_an_earlier_search_found_is_not_run_again(bench):
    edits = frozenset({(("-c", uid(bench, "fmul")), ("-p", f"{uid(bench, 'call')}.OP0,C1"))})
    before = dict(bench.counts.kinds)
    bench.remember([Candidate(edits, Evaluation("ok", 0.25, 0.0))])

    assert 0.25 == bench.evaluate([edits])[0].time_ratio
    assert before == bench.counts.kinds
