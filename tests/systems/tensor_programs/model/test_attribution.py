"""Why one program is slower than another: the parts sum to the whole, and a known cause is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.attribution import GROUPS, fastest_alike, why_slower
from windtunnel.systems.tensor_programs.model.features import FEATURE_NAMES
from windtunnel.systems.tensor_programs.model.predictor import RECIPES, train
from windtunnel.systems.tensor_programs.model.splits import split_by_task


@pytest.fixture(scope="module", params=["code", "paper-small"])
def trained(request, own_time):
    programs = small_set(num_tasks=12, per_task=12)
    recipe = RECIPES[request.param]
    recipe = replace(recipe, training=replace(recipe.training, max_epochs=24, budget_s=60.0))
    return programs, train(programs, split_by_task(programs, "fast"), recipe)[0]


def pairs(programs):
    for task in np.unique(programs.task):
        rows = np.flatnonzero(programs.task == task)
        yield int(rows[0]), int(rows[-1])


def test_every_feature_is_in_one_group():
    homes = [[name for name, (starts, _) in GROUPS.items() if feature.startswith(starts)] for feature in FEATURE_NAMES]
    assert all(len(home) == 1 for home in homes)


def test_parts_sum_to_the_difference(trained):
    programs, predictor = trained
    for slow, fast in pairs(programs):
        found = why_slower(predictor, programs, slow, fast, "fast")
        whole = np.log(found.seconds / found.reference_s)
        assert sum(found.groups.values()) == pytest.approx(whole, abs=1e-9)
        assert sum(found.leaves) == pytest.approx(whole, abs=1e-9)
        assert len(found.leaves) == programs.num_leaves[slow]


def test_a_program_beside_itself_has_nothing_to_explain(trained):
    programs, predictor = trained
    found = why_slower(predictor, programs, 3, 3, "fast")

    assert set(found.groups.values()) == {0.0}
    assert found.advice == ""


def test_what_lacks_vectors_or_threads_is_told_so(trained):
    """In these programs nothing but vectors and threads differs between those of one task of one store."""
    programs, predictor = trained
    chains = np.flatnonzero(programs.num_leaves == 1)
    slow = int(chains[programs.mean_s[chains, 1].argmax()])
    fast = fastest_alike(predictor, programs, slow, "fast")
    found = why_slower(predictor, programs, slow, fast, "fast")

    assert found.seconds > found.reference_s
    assert found.advice
    assert list(found.groups.values()) == sorted(found.groups.values(), reverse=True)


def test_programs_of_two_tasks_are_refused(trained):
    programs, predictor = trained
    with pytest.raises(InputError, match="cannot be compared"):
        why_slower(predictor, programs, 0, programs.num_programs - 1, "fast")
