"""Programs on a processor of another maker, from those measured on one (beside A7, whose devices are of one host).

What the first host's devices teach prices those of the second: as it is, and trained on with 20 tasks that KMeans
chose, six programs of each, measured on all devices of the second; with CMD and without. The verdict is on tasks of the
second host that nothing has touched. Beside it, for programs whose times on the first host are known: those times,
shifted by the median of what the 20 tasks took more or less.
``--budget SECONDS`` of the first training, ``--tune`` of each after it, ``--verbose`` for the table.
"""

import argparse
import statistics
import sys
from dataclasses import replace

import numpy as np

from benchmarks.bar import is_verbose, report, table
from benchmarks.program_data import MISSING, default_predictor, shipped_set
from windtunnel.systems.tensor_programs.program_set import parts_of

NUM_TASKS = 20
WATCHED = 0.15
MOST_OF_ZERO_SHOT = 0.85


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=150.0)
    parser.add_argument("--tune", type=float, default=30.0)
    return parser.parse_known_args()[0]


def profiled_split(programs, split, columns):
    """What was profiled on the second host, and a split of that alone; three of the tasks say when to stop."""
    from windtunnel.systems.tensor_programs.model.sampling import members_of, program_vectors, select_tasks
    from windtunnel.systems.tensor_programs.model.splits import keep, samples_of

    rows = np.unique(split.target[:, 0])
    task = programs.task[rows]
    chosen = select_tasks(program_vectors(programs, rows), task, NUM_TASKS)
    profiled = samples_of(rows[members_of(task, chosen)], columns, keep(programs))
    watched = np.random.default_rng(0).permutation(chosen)[: round(WATCHED * NUM_TASKS)]
    is_watched = np.isin(programs.task[profiled[:, 0]], watched)
    kind = f"{split.kind}+{NUM_TASKS}"
    return profiled, replace(split, train=profiled[~is_watched], validation=profiled[is_watched], kind=kind)


def shifted(programs, split, profiled) -> float:
    """Error of the first host's times of the same target, shifted by a factor."""
    from windtunnel.cost.metrics import mape

    column = int(split.test[0, 1])
    twin = programs.column(parts_of(programs.device_names[column])[0])

    def both(samples):
        times = programs.mean_s[samples[:, 0]][:, [column, twin]].astype(float)
        return times[np.isfinite(times).all(axis=1)].T

    here, there = both(profiled[profiled[:, 1] == column])
    truth, known = both(split.test)
    return mape(known * np.median(here / there), truth)


def main() -> int:
    from windtunnel.cost.metrics import mape
    from windtunnel.systems.tensor_programs.model.predictor import RECIPES, going_on, train
    from windtunnel.systems.tensor_programs.model.samples import labels_of
    from windtunnel.systems.tensor_programs.model.splits import split_by_device

    asked = options()
    claim = f"{NUM_TASKS} tasks measured on the other host leave <= {MOST_OF_ZERO_SHOT:.0%} of the error in the median"
    programs = shipped_set()
    others = [] if programs is None else [name for name in programs.device_names if parts_of(name)[1]]
    if not others:
        report("cdmpp_cross_host", float("nan"), claim, holds=False, reason=MISSING)
        return 1
    splits = {name: split_by_device(programs, name, of_other_hosts=True) for name in others}
    split = replace(splits[others[0]], target=np.concatenate([one.target for one in splits.values()]))
    start = default_predictor(programs, split, asked.budget)
    profiled, tuning_split = profiled_split(programs, split, [programs.column(name) for name in others])
    recipe = going_on(RECIPES["code"], start)
    recipe = replace(recipe, training=replace(recipe.training, budget_s=asked.tune))
    tuned, with_cmd = (
        train(programs, tuning_split, replace(recipe, domain=domain), start=start)[0] for domain in ("none", "cmd")
    )

    def error(predictor, name: str) -> float:
        test = splits[name].test
        return mape(predictor.predict(programs, test), labels_of(programs, test))

    rows = [
        {
            "device": name,
            "zero_shot": error(start, name),
            "tuned": error(tuned, name),
            "tuned_cmd": error(with_cmd, name),
            "shifted": shifted(programs, splits[name], profiled),
        }
        for name in others
    ]
    if is_verbose():
        print(table(rows))
    left = [row["tuned"] / row["zero_shot"] for row in rows]
    holds = statistics.median(left) <= MOST_OF_ZERO_SHOT
    report(
        "cdmpp_cross_host",
        statistics.median(row["tuned"] for row in rows),
        claim,
        holds,
        of_zero_shot=statistics.median(left),
        worst_of_zero_shot=max(left),
        num_profiled=len(np.unique(profiled[:, 0])),
        num_test=len(np.unique(splits[others[0]].test[:, 0])),
        cmd_wins=sum(row["tuned_cmd"] < row["tuned"] for row in rows),
        **{name: {row["device"]: row[name] for row in rows} for name in ("zero_shot", "tuned", "tuned_cmd", "shifted")},
    )
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
