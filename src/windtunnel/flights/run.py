"""Predict, really run, keep the receipt: the verb ``verify``.

In: a program, the name of a what-if. Out: a ``Receipt`` in the ledger. Not here: how the program is changed (one
file per flight), how turns are taken (``measure.turns``), what the prediction is (room whatifs).
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.rerun import device_names
from windtunnel.errors import FlightError, NotApplicableError
from windtunnel.flights.ledger import Ledger
from windtunnel.flights.paused_processes import LaneConfig, ProcessLane
from windtunnel.flights.proof import unproven
from windtunnel.flights.receipt import Receipt, conditions_of, model_fingerprint
from windtunnel.flights.step_variant import StepLane
from windtunnel.graph import Graph
from windtunnel.hardware.host import available_bytes, free_gpu_bytes
from windtunnel.measure import fingerprint
from windtunnel.measure.deadline import OutOfTimeError, interrupt_after
from windtunnel.measure.devices import require_captured_device, stream_clock
from windtunnel.measure.disturbance import disturbance_line
from windtunnel.measure.turns import Measurement, StopRule, Turn, measure
from windtunnel.sources.targets import Script, StepFunction, Target, WorkloadName, build_workload, discover, target_of
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.units import format_size
from windtunnel.whatifs import Answer, Request, parse_request, whatif
from windtunnel.whatifs.device_tasks import lies_on_device

__all__ = ["capture_baseline", "fly", "remaining_time", "require_flights", "require_memory", "verify"]

CAPTURE_ITERATIONS = 20
_AMPLE = 8.0  # times the baseline's peak: no change that keeps the batch needs more, its baseline included
Flights = list[tuple[Any, dict[str, Any]]]


def verify(
    target: Any,
    name: str | Request,
    *,
    graph: Graph | None = None,
    argv: Sequence[str] = (),
    model: Any = (),
    optimizer: Any = (),
    rounds: int | None = None,
    rule: StopRule | None = None,
    time_limit_s: float | None = None,
    prices: str = "auto",
    database: Any = None,
    ledger: Ledger | Path | str | None = None,
    progress: Progress | None = None,
) -> Receipt:
    """Predict a what-if from a capture, run it interleaved with the baseline, and store the result.

    Parameters
    ----------
    target : path, str, callable, Workload or Graph
        A training script, the name of a workload, a function that does one iteration, or a graph that knows its
        program.
    name : str or Request
        ``"fused-optimizer"``, ``"batch-size:factor=2"``, ``"amp+channels-last"``.
    graph : Graph, optional
        A capture of the baseline; captured now if not given.
    argv : sequence of str
        The script's arguments.
    model, optimizer
        Of a step function; found by themselves if they are not given.
    rounds : int, optional
        Maximum number of rounds; fewer are flown when the speed-up is known well enough before.
    rule : StopRule, optional
        The full stop rule, such as the time limit of the turns.
    time_limit_s : float, optional
        Of capture, prediction and flight together. Without it, a flight alone is given up, after ``rule.give_up_s``.
    prices, database : optional
        Of the prediction; see :func:`windtunnel.whatif`.
    ledger : Ledger or path, optional
        Where the receipt is kept; ``~/.windtunnel/receipts.db`` by default.
    progress : callable, optional
        Called with (what, done, total).

    Returns
    -------
    Receipt

    Raises
    ------
    NotApplicableError
        The what-if has nothing to act on in this program.
    FlightError
        The program could not be run, is not comparable with its baseline, or was not done in time.
    AbsentDeviceError
        The graph was captured on a GPU, and here is none, or another one.
    """
    request = name if isinstance(name, Request) else parse_request(name)
    subject = target_of(target, argv=argv, model=model, optimizer=optimizer)
    require_flights(request)  # before anything runs
    left_s = remaining_time(time_limit_s)
    _require_captured_device(graph or target)
    if graph is None:
        graph = target if isinstance(target, Graph) else capture_baseline(subject, left_s(), progress)
    with interrupt_after(left_s(), f"the prediction of {request}"):
        answer = whatif(graph, [request], prices=prices, database=database)[0]
    if not answer.is_applicable:
        raise NotApplicableError(
            f"{request} does not apply here: {answer.reason}", where=str(subject), fix=answer.advice
        )
    require_memory(answer, subject)
    rule = rule or (StopRule() if time_limit_s is None else StopRule(time_limit_s=time_limit_s))
    measured = fly(
        subject,
        _adapt(request, graph),
        rule=replace(rule, rounds=rounds or rule.rounds),
        time_limit_s=None if time_limit_s is None else left_s(),
        progress=progress,
    )
    receipt = receipt_of(answer, measured, graph, str(subject))
    (ledger if isinstance(ledger, Ledger) else Ledger(ledger)).add(receipt)
    return receipt


def _adapt(request: Request, graph: Graph) -> Request:
    """The request with the parameters that its flights take for the program of a graph."""
    changes = [getattr(registry.get("flight", step.name).function, "adapt", None) for step in request.steps]
    steps = zip(request.steps, changes, strict=True)
    return Request(
        tuple(replace(step, parameters=change(graph, step.used)) if change else step for step, change in steps)
    )


def _require_captured_device(target: Any) -> None:
    """Refuse to compare a prediction for one GPU with a run on another, or on none."""
    if isinstance(target, Graph) and lies_on_device(target).any():
        require_captured_device(device_names(target), stream_clock("cuda"))


def remaining_time(time_limit_s: float | None) -> Callable[[], float]:
    """Start a limit; returns a function that says how many seconds are left of it."""
    if time_limit_s is None:
        return lambda: math.inf
    deadline_s = time.monotonic() + time_limit_s
    return lambda: deadline_s - time.monotonic()


def capture_baseline(subject: Target, time_limit_s: float, progress: Progress | None) -> Graph:
    """Capture what is flown, unless that takes too long."""
    with interrupt_after(time_limit_s, f"the capture of {subject}"):
        return subject.capture(CAPTURE_ITERATIONS, progress)


def fly(
    target: Any,
    name: str | Request,
    *,
    argv: Sequence[str] = (),
    model: Any = (),
    optimizer: Any = (),
    rule: StopRule | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Really run a program with and without a change, taking turns; nothing is predicted or kept.

    Parameters and errors as in :func:`verify`.
    """
    request = name if isinstance(name, Request) else parse_request(name)
    subject = target_of(target, argv=argv, model=model, optimizer=optimizer)
    _require_captured_device(target)
    flights = _flights_of(request)
    is_apart = _runs_apart(subject, flights)
    rule = rule or StopRule()
    if time_limit_s is None:
        time_limit_s = rule.give_up_s
    elif time_limit_s > 0:
        rule = replace(rule, time_limit_s=min(rule.time_limit_s, time_limit_s))
    else:
        raise OutOfTimeError(f"{request} was not flown: the time was up", where=str(subject))
    deadline_s = time.monotonic() + time_limit_s
    running = (
        _process_lanes(subject, request, flights, deadline_s) if is_apart else _step_lanes(subject, request, flights)
    )
    with running as (baseline, changed):
        check = partial(_require_change, request, flights)
        return measure(baseline, changed, rule, progress, check, deadline_s=deadline_s)


def _runs_apart(subject: Target, flights: Flights) -> bool:
    """Whether both programs have processes of their own."""
    return isinstance(subject, Script) or any(getattr(flight, "is_apart", False) for flight, _ in flights)


def _num_ranks(flights: Flights) -> int:
    """Processes of the changed program."""
    ranks = [given[flight.ranks_parameter] for flight, given in flights if hasattr(flight, "ranks_parameter")]
    return int(max(ranks, default=1))


def require_memory(answer: Answer, subject: Target) -> None:
    """Refuse a flight whose programs would not fit into the memory that is free.

    Raises
    ------
    FlightError
        They would not; says what is free, and what part of the batch would fit.
    """
    before, is_on_gpu = answer.baseline_peak_bytes, bool(lies_on_device(answer.baseline.graph).any())
    free = free_gpu_bytes() if is_on_gpu else available_bytes()
    flights = _flights_of(answer.request)
    num_ranks = _num_ranks(flights)
    if before is None or free is None or free > _AMPLE * before * num_ranks * max(1.0, answer.samples_ratio):
        return  # the peak of a change takes seconds to predict
    after = answer.peak_bytes
    if after is None:
        return
    # in one process the baseline's memory is taken already, and what is added counts
    needed = before + num_ranks * after if _runs_apart(subject, flights) else after - before
    if needed > free:
        raise FlightError(
            f"both programs together need about {format_size(needed)} {'on the GPU' if is_on_gpu else 'of memory'}, "
            f"and {format_size(free)} are free",
            where=f"{answer.request} of {subject}",
            fix=f"free memory, or fly with a batch of at most {free / needed:.0%} of this one",
        )


def _require_change(request: Request, flights: Flights, baseline: Turn, changed: Turn) -> None:
    """No receipt for a change that did not take place."""
    missing = unproven(baseline.seen, changed.seen, flights)
    if missing:
        raise FlightError(
            f"{request} changed nothing in this program",
            where=missing,
            fix="make this change in the program itself and compare both with `windtunnel suite`, or ask another one",
        )


def require_flights(request: Request) -> None:
    """Refuse a what-if that can be predicted only.

    Raises
    ------
    FlightError
        One of its steps has no flight.
    """
    _flights_of(request)


def _flights_of(request: Request) -> Flights:
    """Flights with their parameters; what only the what-if knows is about prices, not the program, and stays behind."""
    flights: Flights = []
    for step in request.steps:
        known = registry.all("flight")
        if step.name not in known:
            raise FlightError(
                f"{step.name} can be predicted, but not flown on this machine",
                fix=f"flights exist for {', '.join(known)}",
            )
        flight = known[step.name].function
        accepted = inspect.signature(flight).parameters
        defaults = {
            key: parameter.default
            for key, parameter in _whatif_parameters(step.name).items()
            if parameter.default is not inspect.Parameter.empty
        }
        given = {key: value for key, value in {**defaults, **step.parameters}.items() if key in accepted}
        flights.append((flight, given))
    return flights


def _whatif_parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Of the what-if of this name; a flight of another package may have none."""
    known = registry.all("whatif").get(name)
    return known.parameters if known is not None else {}


@contextmanager
def _step_lanes(subject: Target, request: Request, flights: Flights) -> Iterator[tuple[StepLane, StepLane]]:
    """Both lanes in this process; one program serves both unless a flight must be there when it is built."""
    entering = [partial(flight, **parameters) for flight, parameters in flights]
    sees = _sees_operators(flights)
    is_at_start = any(getattr(flight, "is_at_start", False) for flight, _ in flights)
    if isinstance(subject, StepFunction):
        if is_at_start:
            raise FlightError(
                f"{request} changes how the program is built, and a step function is built already",
                fix="fly a script or a workload",
            )
        program = LiveProgram(subject.models, subject.optimizers)
        discover(subject.step, program)
        yield (
            StepLane(subject.step, program, sees_operators=sees),
            StepLane(subject.step, program, entering, sees_operators=sees),
        )
        return
    assert isinstance(subject, WorkloadName)
    program = LiveProgram()
    built = build_workload(subject.name, subject.parameters, program)
    discover(built.step, program)
    other, other_program = built, program
    # such a flight has to be there while the model is made, so the changed lane has a model of its own
    if is_at_start:
        other_program = LiveProgram()
        with ExitStack() as stack:
            for flight in entering:
                stack.enter_context(flight(other_program))
            other = build_workload(subject.name, subject.parameters, other_program)
        discover(other.step, other_program)
    yield (
        StepLane(built.step, program, loader=built.loader, sees_operators=sees),
        StepLane(other.step, other_program, entering, loader=other.loader, sees_operators=sees),
    )


@contextmanager
def _process_lanes(
    subject: Target, request: Request, flights: Flights, deadline_s: float
) -> Iterator[tuple[ProcessLane, ProcessLane]]:
    """Each lane in processes of its own."""
    config = _lane_config(subject, request, sees_operators=_sees_operators(flights))
    steps = tuple((step.name, given) for step, (_, given) in zip(request.steps, flights, strict=True))
    changed_config = LaneConfig(**{**_fields(config), "steps": steps})
    num_ranks = _num_ranks(flights)
    with (
        ProcessLane(config, title="baseline", deadline_s=deadline_s) as baseline,
        ProcessLane(
            changed_config, title=f"program with {request}", num_ranks=num_ranks, deadline_s=deadline_s
        ) as changed,
    ):
        for lane in (baseline, changed):
            lane.wait_until_ready()
        yield baseline, changed


def _sees_operators(flights: Flights) -> bool:
    return all(getattr(flight, "sees_operators", True) for flight, _ in flights)


def _lane_config(subject: Target, request: Request, *, sees_operators: bool) -> LaneConfig:
    torch = require("torch", extra="torch")
    threads = torch.get_num_threads()  # as in this process, where the capture was made
    if isinstance(subject, Script):
        is_alone = subject.ranks.num_ranks == 1
        return LaneConfig(
            script=str(subject.path),
            argv=subject.argv,
            threads=threads if is_alone else 0,
            sees_operators=sees_operators,
            ranks=subject.ranks,
            keeps_files=subject.keeps_files,
        )
    if isinstance(subject, WorkloadName):
        return LaneConfig(
            workload=subject.name,
            workload_parameters=dict(subject.parameters),
            threads=threads,
            device=str(torch.get_default_device()),
            sees_operators=sees_operators,
        )
    raise FlightError(
        f"{request} needs processes of its own, and a step function lives in this one",
        fix="fly a script or a workload",
    )


def _fields(config: LaneConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def receipt_of(answer: Answer, measured: Measurement, graph: Graph, target: str) -> Receipt:
    """Join a prediction with its measurement."""
    return Receipt(
        whatif=answer.name,
        parameters=answer.given,
        predicted_baseline_ns=float(answer.baseline_ns),
        predicted_ns=float(answer.predicted_ns),
        samples_ratio=float(answer.samples_ratio),
        baseline=measured.baseline,
        changed=measured.changed,
        speedup=measured.speedup,
        target=target,
        model_fingerprint=model_fingerprint(graph),
        hardware_fingerprint=fingerprint.machine(),
        conditions=conditions_of(graph),
        num_rounds=measured.num_rounds,
        confidence=measured.confidence,
        notes=(*measured.notes, *filter(None, [disturbance_line(graph.meta.disturbance)])),
        neighbors_ratio=measured.neighbors_ratio,
    )
