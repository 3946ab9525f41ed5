"""The search: the same again under its seed, goes on after any end, and chooses as NSGA-II does."""

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from tests.systems.kernels.texts import SCALE
from windtunnel.errors import InputError
from windtunnel.systems.kernels.assume import hints_for
from windtunnel.systems.kernels.edits import apply, from_json, key
from windtunnel.systems.kernels.flow import Flow
from windtunnel.systems.kernels.ir import parse
from windtunnel.systems.kernels.journal import last_page
from windtunnel.systems.kernels.model import Evaluation
from windtunnel.systems.kernels.nsga2 import rank_and_crowding, select, tournament
from windtunnel.systems.kernels.search import Options, evolve

FUNCTION = parse(SCALE)
COSTS = {"fdiv": 12, "frem": 40, "udiv": 20, "sdiv": 20, "urem": 20, "srem": 20, "call": 8, "load": 4, "store": 3}
TRIPS = 10.0


def static_price(function, edits=frozenset()):
    """Costs of the instructions, those of a loop counted as often as it is deep: an order of candidates, no time."""
    changed = apply(function, edits)
    depth = [0] * len(changed.blocks)
    for _, body in Flow.of(changed).loops():
        for block in body:
            depth[block] += 1
    return float(sum(
        COSTS.get(one.opcode, 1) * TRIPS ** depth[at]
        for at, block in enumerate(changed.blocks) for one in block.instructions if not one.is_anchor
    ))  # fmt: skip


def priced(candidates):
    """A judge without a clock: costs of instructions, and an error that grows with the edits."""
    found = []
    for edits in candidates:
        try:
            ratio = static_price(FUNCTION, edits) / static_price(FUNCTION)
        except InputError:
            found.append(Evaluation("unverifiable"))
            continue
        is_ok = not any("U4" in text.split(",")[0] for edit in edits for _, text in edit)
        found.append(Evaluation("ok" if is_ok else "wrong", ratio, 0.01 * len(edits)))
    return found


def test_equal_seeds_give_equal_searches_and_other_seeds_others():
    options = [Options(8, 5, seed=seed) for seed in (0, 0, 1)]
    found = [[one.key for one in evolve(FUNCTION, priced, one).population] for one in options]

    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_search_that_was_ended_goes_on_as_if_nothing_had_happened(tmp_path):
    whole = evolve(FUNCTION, priced, Options(8, 6))
    evolve(FUNCTION, priced, Options(8, 2), folder=tmp_path)
    rest = evolve(FUNCTION, priced, Options(8, 6), folder=tmp_path)

    assert [one.key for one in whole.population] == [one.key for one in rest.population]
    assert whole.history == rest.history


def test_a_search_that_was_killed_leaves_whole_generations(tmp_path):
    code = f"""
        import time
        from pathlib import Path
        from tests.systems.kernels.test_search import *
        def slow(candidates):
            time.sleep(0.002)
            return priced(candidates)
        evolve(FUNCTION, slow, Options(8, 400), folder=Path({str(tmp_path)!r}),
               progress=lambda *_: print("turned", flush=True))  # killed long before its end
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    for _ in range(3):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    page = last_page(tmp_path)
    whole = evolve(FUNCTION, priced, Options(8, page.generation + 2))
    rest = evolve(FUNCTION, priced, Options(8, page.generation + 2), folder=tmp_path)

    assert page.generation >= 3
    assert [one.key for one in whole.population] == [one.key for one in rest.population]


def test_a_folder_of_another_search_is_refused(tmp_path):
    evolve(FUNCTION, priced, Options(8, 1), folder=tmp_path)
    with pytest.raises(InputError, match="other settings"):
        evolve(FUNCTION, priced, Options(8, 1, seed=3), folder=tmp_path)


def test_the_front_holds_what_nothing_beats():
    found = evolve(FUNCTION, priced, Options(16, 8))
    front = [one.evaluation.fitness for one in found.front]

    assert front == sorted(front)
    assert all(error > later for (_, error), (_, later) in itertools.pairwise(front))


def test_every_individual_applies_again_to_the_same_text():
    for one in evolve(FUNCTION, priced, Options(8, 4)).population:
        assert apply(FUNCTION, one.edits).render() == apply(FUNCTION, one.edits).render()
        assert key(one.edits) == one.key


@given(st.integers(0, 10_000), st.integers(4, 60))
def test_fronts_and_crowding_are_those_of_pymoo(seed, count):
    sorting = pytest.importorskip("pymoo.util.nds.non_dominated_sorting")
    from pymoo.operators.survival.rank_and_crowding.metrics import calc_crowding_distance

    goals = np.random.default_rng(seed).permutation(count * 2).reshape(-1, 2).astype(float)
    front, alone = rank_and_crowding(goals)
    theirs = sorting.NonDominatedSorting().do(goals)
    for number, members in enumerate(theirs):
        mine = np.flatnonzero(front == number)

        assert set(members) == set(mine)
        if len(mine) > 2:  # of two and fewer, pymoo has a convention of its own
            theirs_alone = calc_crowding_distance(goals[mine], filter_out_duplicates=False)
            np.testing.assert_allclose(alone[mine] / 2, theirs_alone)


def test_the_published_populations_are_read_and_ranked():
    path = shared_path("kernels_hw/gevo/nw_population_gen0.json.gz")
    with gzip.open(path, "rt") as file:
        expected = json.load(file)
    goals = [tuple(one["fitness"]) for one in expected]
    edits = [from_json(one["edits"], str(path)) for one in expected]

    assert len(goals) == 64
    assert all(edit[0][0] == "-x" for one in edits for edit in one)
    assert min(goals) in [goals[at] for at in select(goals, 1)]


def test_everyone_takes_part_in_tournaments_equally_often():
    goals = np.asarray([[float(at), 0.0] for at in range(8)])
    winners = tournament(goals, 8, np.random.default_rng(0))

    assert winners.count(0) == 2  # twice drawn, twice better
    assert 7 not in winners


@pytest.mark.parametrize("options", [{"population": 6}, {"population": 0}, {"operators": "z"}])
def test_settings_that_cannot_be_are_refused(options):
    with pytest.raises(InputError):
        Options(**options)


def test_hints_are_tried_alone_first_where_they_are_asked_for():
    seen = []

    def watched(candidates):
        seen.extend(candidates)
        return priced(candidates)

    evolve(FUNCTION, watched, Options(8, 0, operators="ch"))
    alone = {edit[0][1] for one in seen if len(one) == 1 for edit in one if edit[0][0] == "-h"}

    assert set(hints_for(FUNCTION)) <= alone


def test_a_search_ends_once_it_has_enough():
    assert 1 == len(evolve(FUNCTION, priced, Options(8, 50, enough=2.0)).history)
