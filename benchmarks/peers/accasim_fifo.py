"""First come, first fit in AccaSim, on a workload in the standard format; run by a Python that has ``accasim``.

In: an .swf of jobs, machines, processors of each. Out: one line of JSON with the mean completion time and the seconds
of processor time of the simulation, without reading of modules. A job that does not fit lets those behind it pass.
"""

import collections
import collections.abc
import json
import sys
import time
from pathlib import Path

PATH, NUM_MACHINES, PER_MACHINE = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


# AccaSim 1.1.3 takes names from there that Python has had in collections.abc alone since 3.10
for name in ("Mapping", "MutableMapping", "Iterable"):
    setattr(collections, name, getattr(collections.abc, name))


def main() -> None:
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    system = PATH.with_suffix(".json")
    system.write_text(
        json.dumps(
            {
                "groups": {"g": {"core": PER_MACHINE}},
                "resources": {"g": NUM_MACHINES},
                "equivalence": {"processor": {"core": 1}},
                "start_time": 0,
            }
        )
    )
    results = PATH.parent / "results"
    results.mkdir(exist_ok=True)
    dispatcher = FirstInFirstOut(FirstFit(), skip_jobs_on_allocation=True)
    simulator = Simulator(
        str(PATH), str(system), dispatcher, statistics_output=False, show_statistics=False, LOG_LEVEL="ERROR",
        RESULTS_FOLDER_PATH=str(results),
        SCHEDULE_OUTPUT={
            "format": "{job_id};{queued};{end}",
            "attributes": {"job_id": ("id", "str"), "queued": ("queued_time", "int"), "end": ("end_time", "int")},
        },
    )  # fmt: skip
    before = time.process_time()
    simulator.start_simulation()
    seconds = time.process_time() - before
    (written,) = [one for one in results.iterdir() if one.name.startswith("sched")]
    rows = [line.split(";") for line in written.read_text().split()]
    mean_s = sum(int(end) - int(queued) for _, queued, end in rows) / len(rows)
    print(json.dumps({"mean_jct_s": mean_s, "jobs": len(rows), "seconds": seconds}))


if __name__ == "__main__":
    main()
