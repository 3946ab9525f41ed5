"""What a winner rests on: proofs, inputs that nobody wrote, and edits that only work together."""

import numpy as np
import pytest

from tests.systems.kernels.texts import SCALE, scale_cases, scale_kernel
from windtunnel.systems.kernels.cases import Case, Out
from windtunnel.systems.kernels.edits import apply
from windtunnel.systems.kernels.fuzz import BEYOND, fuzz_cases
from windtunnel.systems.kernels.ir import parse
from windtunnel.systems.kernels.model import Candidate, Evaluation, kernel_of
from windtunnel.systems.kernels.post import ladder, minimize_edits
from windtunnel.systems.kernels.run import Bench
from windtunnel.systems.kernels.validation import is_same
from windtunnel.systems.kernels.verdict import _bench, _faithful_part, _Judges, judge

FUNCTION = parse(SCALE)
TWICE = """
define void @twice(ptr noalias %x, ptr noalias %y, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr i32, ptr %x, i64 %i
  %one = load i32, ptr %from, align 4
  %to = getelementptr i32, ptr %y, i64 %i
  store i32 %one, ptr %to, align 4
  %again = getelementptr i32, ptr %y, i64 %i
  %two = load i32, ptr %again, align 4
  %sum = add i32 %two, %one
  store i32 %sum, ptr %to, align 4
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %end, label %loop
end:
  ret void
}
"""


def test_a_program_is_the_same_as_itself():
    assert is_same(FUNCTION, FUNCTION)


def test_what_is_read_back_from_where_it_was_just_stored_is_proven_the_same():
    function = parse(TWICE)
    two = next(one for one in function.instructions() if one.opcode == "add" and "i32" in one.type)
    load = [one for one in function.instructions() if one.opcode == "load"]
    edited = apply(function, [(("-p", f"{two.uid}.OP0,{load[0].uid}"),)])

    assert is_same(function, edited)


def test_a_store_that_is_overwritten_is_proven_to_be_nothing():
    function = parse(TWICE)
    two = next(one for one in function.instructions() if one.opcode == "add" and one.type == "i32")
    loads = [one.uid for one in function.instructions() if one.opcode == "load"]
    store = next(one.uid for one in function.instructions() if one.opcode == "store")
    edits = [(("-c", store),), (("-p", f"{two.uid}.OP0,{loads[0]}"),)]

    assert is_same(function, apply(function, edits))
    assert not is_same(function, apply(function, edits[:1]))


def test_a_dropped_clamp_is_not_proven():
    call = next(one.uid for one in FUNCTION.instructions() if one.opcode == "call")
    twice = next(one.uid for one in FUNCTION.instructions() if one.opcode == "fmul")
    store = next(one.uid for one in FUNCTION.instructions() if one.opcode == "store")

    assert not is_same(FUNCTION, apply(FUNCTION, [(("-c", call), ("-p", f"{store}.OP0,{twice}"))]))


def test_a_load_that_the_original_never_does_is_not_proven():
    """It could reach where nothing is."""
    load = next(one.uid for one in FUNCTION.instructions() if one.opcode == "load")
    first = next(FUNCTION.instructions()).uid

    assert not is_same(FUNCTION, apply(FUNCTION, [(("-i", f"{load},{first}"), ("-p", f"{load}.i1.OP0,A1"))]))


def test_a_proof_and_a_run_never_contradict_one_another():
    """Whatever is shown to be the same gives the same bits."""
    from tests.systems.kernels.test_edits import grown

    kernel = scale_kernel()
    drawn = {grown(seed, 1, "crismp", kernel.function) for seed in range(150)}
    proven = [edits for edits in drawn if edits and is_same(kernel.function, apply(kernel.function, edits))]
    with Bench(kernel, num_workers=1, num_pairs=1, checks=fuzz_cases(scale_cases("fitness"), 3)) as bench:
        outcomes = bench.evaluate(proven)

    assert len(proven) >= 3
    assert {"ok"} == {one.kind for one in outcomes}


def test_drawn_inputs_keep_whole_numbers_within_bounds():
    case = Case("places", (np.arange(10), np.ones(4, np.float32), Out((3,)), 7))
    for one in fuzz_cases([case], 0):
        if BEYOND in one.name:  # the original is asked first
            assert one.arguments[0].min() < 0
            continue
        places, floats, out, number = one.arguments
        assert 0 <= places.min()
        assert places.max() <= 9
        assert floats.dtype == np.float32
        assert out == case.arguments[2]
        assert number == 7


def priced(table):
    """A judge with given ratios by the numbers of the edits."""

    def again(sets):
        found = []
        for edits in sets:
            name = frozenset(int(edit[0][1]) for edit in edits)
            ratio = table(name)
            found.append(Evaluation("ok" if ratio else "wrong", ratio or float("inf"), digest=str(sorted(name))))
        return found

    return again


def numbered(*numbers):
    return frozenset((("-c", str(number)),) for number in numbers)


def test_minimizing_keeps_only_what_pays():
    kept = minimize_edits(numbered(*range(30)), priced(lambda name: 1 - 0.1 * len(name & {3, 17})))

    assert numbered(3, 17) == kept


def test_minimizing_nothing_of_use_leaves_nothing():
    assert frozenset() == minimize_edits(numbered(1, 2, 3), priced(lambda _: 1.0))


def test_edits_that_pay_only_together_are_a_cluster_with_stepping_stones():
    """Edit 1 alone is wrong and 2 alone gains nothing; 5 helps by itself."""

    def table(name):
        if 1 in name and 2 not in name:
            return 0.0
        return (0.7 if {1, 2} <= name else 1.0) - (0.1 if 5 in name else 0)

    found = ladder(numbered(1, 2, 5), priced(table))

    assert tuple(numbered(5)) == found.independent
    assert [edit[0][1] for edit in found.cluster] == ["1", "2"]
    assert [0, 1] == found.stepping_stones
    assert {(): "ok", (0,): "wrong", (1,): "ok", (0, 1): "ok"} == {key: one.kind for key, one in found.subsets.items()}


def test_a_large_cluster_is_walked_greedily():
    found = ladder(numbered(*range(10)), priced(lambda name: 1 - 0.3 * (len(name) == 10)))

    assert len(found.cluster) == 10
    assert len(found.subsets) < 100
    assert tuple(range(10)) in found.subsets


@pytest.mark.slow
def test_a_clamp_that_only_the_tests_do_not_need_is_no_faithful_edit():
    kernel = kernel_of(SLOW_CLAMP, slow_cases)
    edit = _clamp_dropped(kernel.function)
    candidates = [Candidate(frozenset([edit]), Evaluation("ok", 0.5, 0.0))]
    with Bench(kernel, num_workers=1) as bench:
        faithful = judge(kernel, bench, candidates, is_faithful=True)
        on_tests = judge(kernel, bench, candidates, is_faithful=False)

    assert faithful.is_original
    assert "drawn inputs" in faithful.discarded[0]
    assert ["tests"] == [gene.rests_on for gene in on_tests.genes]
    assert "clamp" in on_tests.genes[0].words
    assert on_tests.speedup.low > 1


SLOW_CLAMP = SCALE.replace(
    "%capped = call float @llvm.minnum.f32(float %twice, float 1000.0)",
    "%root = call float @llvm.sqrt.f32(float %value)\n  %slow = fdiv float 10000.0, %root\n"
    "  %capped = call float @llvm.minnum.f32(float %twice, float %slow)",
).replace("declare", "declare float @llvm.sqrt.f32(float)\ndeclare")


def slow_cases(split):
    draw = np.random.default_rng(0 if split == "fitness" else 1)
    sizes = (4000,) if split == "fitness" else (4001, 7)
    return [Case(f"{n}", (draw.uniform(0.1, 2, n).astype(np.float32), Out((n,)), n)) for n in sizes]


def _clamp_dropped(function):
    call = next(one.uid for one in function.instructions() if one.opcode == "call" and "minnum" in one.callee)
    twice = next(one.uid for one in function.instructions() if one.opcode == "fmul")
    users = [(one.uid, at) for one in function.instructions() for at, value in enumerate(one.operands)
             if value.uid == call]  # fmt: skip
    return (("-c", call), *(("-p", f"{user}.OP{at},{twice}") for user, at in users))


def test_an_edit_that_needs_numbers_not_to_be_negative_is_found_by_inputs_beyond():
    """An index of Python may be negative; no test here has one."""
    from windtunnel.systems.kernels.from_numba import flatten_arguments, module_of
    from windtunnel.systems.kernels.model import Kernel

    def gather(x, index, out):
        for i in range(index.shape[0]):
            out[i] = x[index[i]]

    draw = np.random.default_rng(0)
    values = draw.normal(size=500).astype(np.float32), draw.integers(0, 500, 300), Out((300,))
    cases = [Case("places", flatten_arguments(values))]
    kernel = Kernel("gather", parse(module_of(gather, values)), lambda _: cases,
                    module_of(gather, values, is_simplified=False))  # fmt: skip
    load = next(one.uid for one in kernel.function.instructions() if one.opcode == "load" and one.type == "float")
    places = [one.uid for one in kernel.function.instructions() if one.opcode == "getelementptr"]
    edits = frozenset([(("-p", f"{load}.OP0,{places[1]}"),)])  # the one before the length is added where it is negative
    with Bench(kernel, num_workers=1, num_pairs=1) as bench:
        on_tests = bench.evaluate([edits])[0]
    with Bench(kernel, num_workers=1, num_pairs=1, checks=fuzz_cases(cases, 0)) as bench:
        drawn = bench.evaluate([edits])[0]

    assert "ok" == on_tests.kind, on_tests.detail
    assert drawn.kind in ("wrong", "crash")


def test_what_is_faithful_of_a_winner_is_kept_where_the_rest_is_not():
    kernel = kernel_of(SLOW_CLAMP, slow_cases)
    loop = next(one.uid for one in kernel.function.instructions() if one.opcode == "br" and one.operands)
    hint, clamp = (("-h", f"{loop},unpredictable="),), _clamp_dropped(kernel.function)
    cases = slow_cases("held-out")
    with _bench(kernel, cases, (), 0.0) as unseen, _bench(kernel, cases, fuzz_cases(cases, 1), 0.0) as drawn:
        judges = _Judges(kernel, unseen, drawn)

        assert frozenset([hint]) == _faithful_part(judges, frozenset([hint, clamp]))
        assert frozenset() == _faithful_part(judges, frozenset([hint]))
