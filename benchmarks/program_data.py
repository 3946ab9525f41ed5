"""The measured tensor programs that the bars of learned prices read.

The set that the package ships, or the file named by ``WINDTUNNEL_PROGRAMS``. Where there is none, bars of errors are
skipped with that reason; bars of speed take programs whose times are a formula, and say so.
"""

import os
from dataclasses import replace

from windtunnel.systems.tensor_programs.model.shipped import load_shipped_programs
from windtunnel.systems.tensor_programs.program_set import ProgramSet

MISSING = "no set of measured programs is shipped yet: windtunnel models sample, then WINDTUNNEL_PROGRAMS=FILE"


def shipped_set() -> ProgramSet | None:
    """The set of the package, or the one that the environment names."""
    given = os.environ.get("WINDTUNNEL_PROGRAMS")
    return ProgramSet.load(given) if given else load_shipped_programs()


def first_host(programs: ProgramSet) -> ProgramSet:
    """The set with the devices of the host that it was begun on."""
    return programs.on(programs.columns("@"))


def imagined_set(num_tasks: int, per_task: int) -> ProgramSet:
    """Programs of many trees whose times are a formula: for speed alone."""
    from tests.systems.tensor_programs.model.small_set import small_set

    return small_set(num_tasks, per_task)


def default_predictor(programs: ProgramSet, split, budget_s: float):
    """The default recipe, trained on a split for at most so long."""
    from windtunnel.systems.tensor_programs.model.predictor import RECIPES, train

    recipe = RECIPES["code"]
    return train(programs, split, replace(recipe, training=replace(recipe.training, budget_s=budget_s)))[0]


def device_here(programs: ProgramSet, target) -> str:
    """Which device of a set is a target of this host; the first of the target's name where none was measured here."""
    from windtunnel.systems.tensor_programs.run.description import name_after_host

    own = name_after_host(target.name)
    return own if own in programs.device_names else target.name
