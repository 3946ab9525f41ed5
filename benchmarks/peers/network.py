"""A network as the chain of its tasks (benchmarks): priced by a model, replayed, and really run.

In: a network's name. Out: its tasks in the order in which they are called; a graph of them; the seconds that compiled
programs of these tasks take one after another. Every call has arguments of its own, as every layer has its weights:
what one leaves in the caches is not what the next one reads. Not here: which program of a task is the best
(``programs.pricer``).

Source: CDMPP (EuroSys 2024), section 5.3 and its end-to-end experiment.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence

from windtunnel.errors import FlightError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, ResourceKind, Strings
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.build import Target
from windtunnel.systems.tensor_programs.run.captured import TENSOR
from windtunnel.systems.tensor_programs.run.tasks import Task
from windtunnel.systems.tensor_programs.run.worker import Worker
from windtunnel.systems.tensor_programs.search import Candidate, build_candidates, draw_candidates, make_unmeasured_set

__all__ = ["call_ns", "chain", "fly", "library_of"]

_TINY = Task("elementwise", {"b": 1, "c": 1, "s": 16}, ("relu",))
_OTHER = Task("elementwise", {"b": 1, "c": 1, "s": 2**18}, ("relu",))
_NUM_TINY, _OTHERS_PER_TINY, _TINY_ROUNDS = 20, 4, 9


def library_of(
    worker: Worker, tasks: Sequence[Task], count: int, *, seed: int = 0
) -> tuple[ProgramSet, list[Candidate]]:
    """Candidates of every distinct task as a set without times, and the same as a list, row by row."""
    distinct = list({task.name: task for task in tasks}.values())
    found = [
        (place, one) for place, task in enumerate(distinct) for one in draw_candidates(worker, task, count, seed=seed)
    ]
    return make_unmeasured_set(distinct, [(place, one.sampled) for place, one in found]), [one for _, one in found]


def chain(tasks: Sequence[Task], call_ns: int) -> Graph:
    """Calls of tasks, one after another on one thread; the times of the tasks themselves are to be priced."""
    builder = GraphBuilder()
    thread = builder.resource("thread", ResourceKind.HOST_THREAD)
    last: int | None = None
    for task in tasks:
        call = builder.task("call", kind=Kind.HOST, resource=thread, duration_ns=call_ns, op="", flops=0, bytes_read=0)
        if last is not None:
            builder.edge(last, call, kind=EdgeKind.ORDER)
        last = builder.task(
            task.name,
            resource=thread,
            duration_ns=0,
            op=f"{TENSOR}{task.kind}",
            flops=round(task.flops),
            bytes_read=task.size_bytes,
        )
        builder.edge(call, last, kind=EdgeKind.ORDER)
    arguments = [text for task in tasks for text in ("", json.dumps(task.to_dict()))]
    return builder.build().with_columns(input_args=Strings.of(arguments))


def call_ns(worker: Worker, target: Target) -> int:
    """What calling a program takes beside what it computes: of one that does nearly nothing, visited among others.

    Its code and its arguments have left the core's caches by then, as those of a network's programs have.
    """
    tasks = (_TINY, *[_OTHER] * _OTHERS_PER_TINY) * _NUM_TINY
    programs = {task.name: draw_candidates(worker, task, 1)[0] for task in (_TINY, _OTHER)}
    return round(1e9 * fly(worker, tasks, programs, target, repeats=_TINY_ROUNDS)[1][_TINY.name])


def fly(
    worker: Worker,
    tasks: Sequence[Task],
    programs: Mapping[str, Candidate],
    target: Target,
    *,
    repeats: int = 30,
) -> tuple[tuple[float, ...], dict[str, float]]:
    """Really run the chain.

    Parameters
    ----------
    worker : Worker
    tasks : sequence of Task
        In the order of their calls.
    programs : mapping
        The program of each task, by the task's name.
    target : Target
    repeats : int
        Passes that are counted; before each runs one that is not.

    Returns
    -------
    tuple of float
        Seconds of each pass.
    dict
        Seconds of each program, its calls visited among all others in random order and in turn with the passes, by the
        task's name: what a call of it takes where its caches are as cold as they are in a network.

    Raises
    ------
    FlightError
        A program could not be built, or computes something else.
    """
    by_name = {task.name: task for task in tasks}
    keys = {}
    for number, (name, task) in enumerate(by_name.items()):
        one = Candidate(number, programs[name].sampled)
        if not build_candidates(worker, task, [one], target.isa, 1):
            raise FlightError("its chosen program could not be built", where=name)
        keys[name] = number
    order = [keys[task.name] for task in tasks]
    passes, visits = worker.ask("fly", order, target.isa, target.num_threads, repeats)
    worker.ask("forget", list(keys.values()))
    return passes, {name: statistics.median(visits[key]) for name, key in keys.items()}
