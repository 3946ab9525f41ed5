"""Training in virtual time: real gradients, simulated clocks and links.

In: a job, a fleet, a strategy. Out: a ``Run``. A gradient is computed at the weights that its worker held when the step
began, and is handed to the strategy when the step ends; messages share wires max-min fair and keep their order between
two nodes. Equal seeds give equal runs, bit for bit. Not here: any strategy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import numpy as np
import torch

from windtunnel.errors import FlightError, InputError
from windtunnel.simulate import EventClock
from windtunnel.systems.uneven.endpoint import Endpoint, Outward, check_policy
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.goal import Goal, Point, Run
from windtunnel.systems.uneven.job import FlatModel, Samples, TrainJob, step_seed
from windtunnel.systems.uneven.partitions import label_skew, split
from windtunnel.systems.uneven.policy import Finished, Message, Policy, Probe, Send, Step

__all__ = ["VirtualTraining", "mean_model", "train_virtually"]

Heard = Callable[[Point], None]
_MAX_SKEW = 0.2


def train_virtually(
    job: TrainJob, fleet: Fleet, strategy: str, policy: Policy, goal: Goal, *, seed: int = 0, heard: Heard | None = None
) -> Run:
    """Train in virtual time.

    Parameters
    ----------
    strategy : str
        What the run is called.
    heard : callable, optional
        Gets every look at the model.

    Raises
    ------
    InputError
        The fleet lacks a server or a route, or a worker has no samples.
    FlightError
        A gradient is not finite, or all workers wait and no event is left; the message names the worker.
    """
    training = VirtualTraining(job, fleet, strategy, policy, goal, seed=seed, heard=heard)
    training.advance(goal.duration_ns)
    return training.result_so_far()


class VirtualTraining:
    """A training in virtual time that can be advanced and forked; see ``train_virtually``.

    Attributes
    ----------
    is_over : bool
        Its goal is reached.
    """

    def __init__(
        self, job: TrainJob, fleet: Fleet, strategy: str, policy: Policy, goal: Goal, *, seed: int = 0,
        heard: Heard | None = None,
    ) -> None:  # fmt: skip
        check_policy(strategy, policy, fleet)
        self._job, self._fleet, self._strategy, self._goal, self._heard = job, fleet, strategy, goal, heard
        self._seed = seed
        self._flat = FlatModel(job, seed)
        num = fleet.num_workers
        parts = split(job.sample_labels(), num, fleet.partition)
        self._parts = parts
        self._samples = [Samples(part, seed, rank) for rank, part in enumerate(parts)]
        sizes = [*map(len, parts), 0][: fleet.num_nodes]
        self._ends = [
            Endpoint(self._flat.node(rank, num, size), policy, over_server=fleet.has_server)
            for rank, size in enumerate(sizes)
        ]
        self._warn_of_norms()
        self._clock = EventClock([wire.bytes_per_s.value_at(0) for wire in fleet.wires])
        self._queues: dict[tuple[int, int], deque[Send]] = {}
        self._flows: dict[tuple[int, int], int] = {}  # of the message under way
        self._lost: dict[int, int] = {}  # worker: since when
        self._computing: dict[int, int] = {}  # worker: since when
        self._probes: list[deque[Probe]] = [deque() for _ in range(num)]
        self._wants_step = [False] * num
        self._num_steps = [0] * num
        self._steps: list[tuple[int, int, int, int]] = []
        self._messages: list[tuple[int, int, int, int, int]] = []
        self._points: list[Point] = []
        self.is_over = False
        for number, wire in enumerate(self._fleet.wires):
            for time_ns, rate in zip(wire.bytes_per_s.times_ns[1:], wire.bytes_per_s.values[1:], strict=True):
                self._clock.at(time_ns, partial(self._clock.flows.set_rate, number, rate))
        for rank, worker in enumerate(fleet.workers):
            if worker.lost_ns is not None:
                self._clock.at(worker.lost_ns, partial(self._lose, rank))
        for rank, end in enumerate(self._ends):
            self._do(rank, end.start())
        self._look()

    def _warn_of_norms(self) -> None:
        """Warn if batch norms meet skewed labels: the statistics of a worker then differ from those of all data."""
        if not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in self._flat.module.modules()):
            return
        skew = label_skew(self._job.sample_labels(), self._parts)
        if skew > _MAX_SKEW:
            self._ends[0].node.warn(
                f"workers hold other classes than all together (by {skew:.0%}), and batch norms see one worker's "
                "batches: windtunnel whatif STEP.wt group-norm"
            )

    @property
    def now_ns(self) -> int:
        """The current virtual time."""
        return self._clock.now_ns

    def advance(self, until_ns: int) -> None:
        """Train to a time, or to the goal if it comes first.

        Raises
        ------
        FlightError
            A gradient is not finite, or all workers wait and no event is left.
        """
        last_ns = min(until_ns, self._goal.duration_ns)
        while not self.is_over and self.now_ns < last_ns:
            next_look_ns = (self.now_ns // self._goal.every_ns + 1) * self._goal.every_ns
            before = len(self._steps)
            self._clock.run(min(next_look_ns, last_ns))
            self._check_alive(before)
            if self.now_ns in (next_look_ns, self._goal.duration_ns):
                self._look()

    def fork(self) -> VirtualTraining:
        """Return an independent copy of the training; equal forks continue bit for bit alike."""
        kept = (self._job, self._fleet, self._flat, self._goal, self._parts, self._heard)
        return deepcopy(self, {id(item): item for item in kept})

    def retune(self, number: float) -> None:
        """Change the tunable parameter of the strategy on all nodes."""
        for end in self._ends:
            end.retune(number)

    def training_loss(self, num_samples: int) -> float:
        """Return the mean loss of the job's model over evenly spaced training samples."""
        selected = torch.arange(num_samples) * len(self._job.inputs) // num_samples
        buffers = self._mean_buffers()
        inputs, targets = self._job.inputs[selected], self._job.targets[selected]
        return self._flat.evaluate_on(self._model(), buffers, inputs, targets)[0]

    def result_so_far(self) -> Run:
        """Return the run up to the current time."""
        return Run(
            self._strategy, tuple(self._points), self.now_ns,
            np.array(self._steps, np.int64).reshape(-1, 4), np.array(self._messages, np.int64).reshape(-1, 5),
            self._fleet.num_workers, self._model().numpy().copy(),
            tuple(dict.fromkeys(text for end in self._ends for text in end.node.warnings)),
            tuple(self._computing.items()), tuple(self._lost.items()),
        )  # fmt: skip

    def _alive(self) -> list[Endpoint]:
        return [end for rank, end in enumerate(self._ends) if rank not in self._lost]

    def _model(self) -> torch.Tensor:
        return mean_model(self._alive())

    def _mean_buffers(self) -> torch.Tensor:
        return torch.stack([end.node.buffers for end in self._alive() if not end.is_server]).mean(0)

    def _look(self) -> None:
        """Evaluate the model without advancing the clock."""
        loss, accuracy = self._flat.evaluate(self._model(), self._mean_buffers())
        point = Point(self.now_ns, loss, accuracy, len(self._steps))
        self._points.append(point)
        if self._heard is not None:
            self._heard(point)
        self.is_over = self._goal.is_reached(point)

    def _check_alive(self, before: int) -> None:
        if len(self._steps) == before and not self._computing and not len(self._clock):
            raise FlightError(
                f"deadlock under {self._strategy}: every worker waits after {self.now_ns / 1e9:.3f} s",
                where=f"{len(self._steps)} steps had been made",
                fix="this is a defect of the strategy",
            )

    def _lose(self, rank: int) -> None:
        """Remove a worker together with its running step and its unfinished messages."""
        self._lost[rank] = self.now_ns
        self._computing.pop(rank, None)
        for pair in [pair for pair in self._queues if rank in pair]:
            self._clock.flows.cancel(self._flows[pair])
            del self._queues[pair]
        for other, end in enumerate(self._ends):
            if other not in self._lost:
                self._do(other, end.on_worker_lost(rank, self.now_ns))

    # --- what nodes do ---------------------------------------------------------------------------------------

    def _do(self, rank: int, actions: Sequence[Outward]) -> None:
        for action in actions:
            if isinstance(action, Step):
                if self._wants_step[rank]:
                    fix = "a worker has one step"
                    raise InputError(
                        f"the strategy starts a step of worker {rank} while one is running",
                        where=self._strategy,
                        fix=fix,
                    )
                self._wants_step[rank] = True
                self._compute(rank)
            elif isinstance(action, Probe):
                self._probes[rank].append(action)
                self._compute(rank)
            elif isinstance(action, Send):
                self._post(rank, action)
            else:
                self._clock.after(max(action.delay_ns, 0), partial(self._fire, rank, action.tag))

    def _fire(self, rank: int, tag: str) -> None:
        if rank not in self._lost:
            self._do(rank, self._ends[rank].on_timer(tag, self.now_ns))

    def _compute(self, rank: int) -> None:
        """Begin the next activity of an idle worker; probes come before steps."""
        if rank in self._computing:
            return
        if self._probes[rank]:
            self._probe(rank, self._probes[rank].popleft())
        elif self._wants_step[rank]:
            self._step(rank)

    def _probe(self, rank: int, probe: Probe) -> None:
        self._computing[rank] = self.now_ns
        result = self._flat.probe(probe, self._parts[rank])
        ratio = probe.num_samples / self._job.batch_size
        self._clock.at(
            self._fleet.probe_end_ns(rank, self.now_ns, ratio), partial(self._finish_probe, rank, probe.tag, result)
        )

    def _finish_probe(self, rank: int, tag: str, result: tuple[float, float]) -> None:
        if rank in self._lost:
            return
        del self._computing[rank]
        self._do(rank, self._ends[rank].on_probe(tag, *result, self.now_ns))
        self._compute(rank)

    def _step(self, rank: int) -> None:
        end, begun_ns = self._ends[rank], self.now_ns
        self._computing[rank] = begun_ns
        num_samples = end.batch_size
        selected = self._samples[rank].draw(num_samples)
        seed = step_seed(self._seed, rank, self._num_steps[rank])
        gradient, loss = self._flat.gradient(end.node.weights, end.node.buffers, selected, seed)
        self._num_steps[rank] += 1
        finished = Finished(gradient, loss, num_samples, begun_ns)
        end_ns = self._fleet.step_end_ns(rank, begun_ns, num_samples / self._job.batch_size)
        self._clock.at(end_ns, partial(self._finish, rank, finished))

    def _finish(self, rank: int, finished: Finished) -> None:
        if rank in self._lost:
            return
        del self._computing[rank]
        self._wants_step[rank] = False
        self._steps.append((rank, finished.begun_ns, self.now_ns, finished.num_samples))
        self._do(rank, self._ends[rank].on_step(finished, self.now_ns))
        self._compute(rank)

    # --- messages --------------------------------------------------------------------------------------------

    def _post(self, source: int, send: Send) -> None:
        """Send at once, or behind what is on its way to the same node."""
        pair = source, send.target
        if send.target in self._lost:
            return
        waiting = self._queues.get(pair)
        if waiting is not None:
            waiting.append(send)
            return
        self._queues[pair] = deque()
        self._start(pair, send)

    def _start(self, pair: tuple[int, int], send: Send) -> None:
        begun_ns = self.now_ns
        sent = partial(self._finish_sending, pair, send, begun_ns)
        self._flows[pair] = self._clock.flows.start(self._fleet.route(*pair), send.size_bytes, sent)

    def _finish_sending(self, pair: tuple[int, int], send: Send, begun_ns: int) -> None:
        source, target = pair
        latency_ns = self._fleet.latency_ns(source, target)
        self._clock.after(latency_ns, partial(self._arrive, pair, send, begun_ns))
        waiting = self._queues[pair]
        if waiting:
            self._start(pair, waiting.popleft())
        else:
            del self._queues[pair]

    def _arrive(self, pair: tuple[int, int], send: Send, begun_ns: int) -> None:
        source, target = pair
        if target in self._lost:
            return
        self._messages.append((source, target, begun_ns, self.now_ns, send.size_bytes))
        message = Message(source, send.tag, send.values, send.size_bytes, send.about, begun_ns)
        self._do(target, self._ends[target].on_message(message, self.now_ns))


def mean_model(ends: Sequence[Endpoint]) -> torch.Tensor:
    """Return the weights of the server, or the mean over workers if the strategy has no server."""
    last = ends[-1]
    if last.serves:
        return last.model()
    workers = [end.model() for end in ends if end.node.rank < end.node.num_workers]
    return workers[0] if len(workers) == 1 else torch.stack(workers).mean(0)
