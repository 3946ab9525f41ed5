"""What a synchronization strategy is: a state machine per worker, and perhaps one of a server.

In: a step that ended, a message, a sum over all workers, a timer. Out: what the node does next, as a list of actions.
The drivers (virtual time, real processes) call the handlers; a strategy never knows which of them does. Not here: any
strategy, any driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "CONTROL_BYTES",
    "Action",
    "Batch",
    "Finished",
    "Message",
    "Node",
    "Policy",
    "Probe",
    "Reduce",
    "Send",
    "Server",
    "Shape",
    "Step",
    "Timer",
    "Worker",
    "dense_bytes",
    "spans",
    "sparse_bytes",
]

CONTROL_BYTES = 64
"""What a message without values takes on a link."""


@dataclass(frozen=True, slots=True)
class Step:
    """Begin the next local step, with the weights as they are now."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send values to another node; messages from one node to another arrive in order.

    Attributes
    ----------
    target : int
        A worker, or ``Node.server``.
    tag : str
    values : tensor, optional
        They must not change from now on.
    size_bytes : int
        What it takes on the link.
    about : mapping
        Numbers that go with it.
    """

    target: int
    tag: str
    values: Any = None
    size_bytes: int = CONTROL_BYTES
    about: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add a vector up over all workers, each of which asks for it; nobody waits until ``on_reduce`` is called.

    The tag is the same on all workers, and new each time.
    """

    tag: str
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Timer:
    """Call ``on_timer(tag)`` when so much time has gone by."""

    delay_ns: int
    tag: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Use so many samples from the next step on."""

    num_samples: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Judge weights on so many of this worker's training samples, between two steps; ``on_probe(tag, ...)`` is called.

    It takes a third of the time that steps on as many samples take: they go forward only. ``buffers`` go with the
    weights, such as the statistics of batch norms.
    """

    weights: torch.Tensor
    buffers: torch.Tensor
    num_samples: int
    tag: str


Action = Step | Send | Reduce | Timer | Batch | Probe


@dataclass(frozen=True, slots=True)
class Finished:
    """A local step that ended; nothing is applied yet.

    Attributes
    ----------
    gradient : float32 tensor [n]
        Mean over the batch, at the weights that the worker held when the step began.
    loss : float
    num_samples : int
    begun_ns : int
    """

    gradient: torch.Tensor
    loss: float
    num_samples: int
    begun_ns: int


@dataclass(frozen=True, slots=True)
class Message:
    """What arrived; see ``Send``."""

    source: int
    tag: str
    values: Any
    size_bytes: int
    about: Mapping[str, float]
    sent_ns: int


@dataclass
class Node:
    """What a strategy holds of one worker or of the server.

    Attributes
    ----------
    rank : int
        The server's is ``num_workers``.
    num_workers : int
    weights : float32 tensor [n]
        Changed in place.
    buffers : float32 tensor
        Of the model, such as the statistics of batch norms; training changes them in place.
    optimizer : torch.optim.Optimizer
        Over ``weights`` alone: the local rule.
    batch_size : int
        Samples of a step at the beginning.
    shapes : sequence of int
        Number of entries of each parameter, in order.
    schedule : learning-rate scheduler, optional
    warnings : list of str
    num_samples : int
        Of this worker's partition.
    sum_ratio : float
        What a sum over all workers takes on the links for each of them, over the size of its vector.
    lost_workers : set of int
        Workers that are gone.
    """

    rank: int
    num_workers: int
    weights: torch.Tensor
    buffers: torch.Tensor
    optimizer: torch.optim.Optimizer
    batch_size: int
    shapes: Sequence[int] = ()
    schedule: Any = None
    warnings: list[str] = field(default_factory=list)
    num_samples: int = 0
    sum_ratio: float = 0.0
    lost_workers: set[int] = field(default_factory=set)

    @property
    def server(self) -> int:
        """The rank of the server."""
        return self.num_workers

    @property
    def learning_rate(self) -> float:
        """Of the local rule, now."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def alive(self) -> list[int]:
        """All workers that are not lost."""
        return [index for index in range(self.num_workers) if index not in self.lost_workers]

    @property
    def peers(self) -> list[int]:
        """All others of them."""
        return [item for item in self.alive if item != self.rank]

    def apply(self, gradient: torch.Tensor, scale: float = 1.0) -> None:
        """One step of the local rule on ``weights``, at ``scale`` times its rate."""
        group = self.optimizer.param_groups[0]
        group["params"][0].grad = gradient
        rate = group["lr"]
        group["lr"] = rate * scale
        self.optimizer.step()
        group["lr"] = rate
        if self.schedule is not None:
            self.schedule.step()

    def warn(self, text: str) -> None:
        """Tell whoever reads the run, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def size_bytes(self) -> int:
        """Of all weights on a link."""
        return dense_bytes(self.weights)

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        """A copy whose optimizer goes on changing its weights."""
        created = replace(self, **{field_.name: deepcopy(getattr(self, field_.name), memo) for field_ in fields(self)})
        created.optimizer.param_groups[0]["params"][0].data = created.weights
        return created


class Worker:
    """The decisions of one worker; a strategy overrides what it needs.

    Every handler gets the time and returns actions. A worker that is not told to ``Step`` waits.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def start(self, now_ns: int) -> Sequence[Action]:
        """Training begins; all nodes hold the same weights."""
        return (Step(),)

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        """A local step ended."""
        raise NotImplementedError

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        """A message arrived."""
        return ()

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        """A sum over all workers is known; it may be kept and changed."""
        return ()

    def on_timer(self, tag: str, now_ns: int) -> Sequence[Action]:
        """A timer ran out."""
        return ()

    def on_probe(self, tag: str, loss: float, accuracy: float, now_ns: int) -> Sequence[Action]:
        """Weights were judged."""
        return ()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        """Another worker is gone for good, and no longer among ``node.peers``."""
        return ()

    def retune(self, number: float) -> None:
        """Another value from now on of what ``Policy.tuned`` names."""

    def model(self) -> torch.Tensor:
        """The weights that this worker would be judged by; the mean over workers is, where there is no server."""
        return self.node.weights


class Server:
    """The decisions of a parameter server: what workers send it, and its timers."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def start(self, now_ns: int) -> Sequence[Action]:
        """Training begins."""
        return ()

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        """A message arrived."""
        return ()

    def on_timer(self, tag: str, now_ns: int) -> Sequence[Action]:
        """A timer ran out."""
        return ()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        """A worker is gone for good, and no longer among ``node.alive``."""
        return ()

    def retune(self, number: float) -> None:
        """Another value from now on of what ``Policy.tuned`` names."""

    def model(self) -> torch.Tensor:
        """The weights that the job would be judged by."""
        return self.node.weights


@dataclass(frozen=True)
class Shape:
    """When a strategy exchanges all weights and who waits for it: enough to price it without a gradient.

    Attributes
    ----------
    every : int
        Local steps between two exchanges.
    max_ahead : float
        A worker goes on when it is at most so many exchanges ahead of the slowest: 0 waits for all, infinity for none.
    keeps_training : bool
        It goes on before its exchange is done.
    per_period : int
        So many exchanges in each ``period_ns`` instead, by timers.
    """

    every: int = 1
    max_ahead: float = 0.0
    keeps_training: bool = False
    per_period: int = 0
    period_ns: int = 0


@dataclass(frozen=True)
class Policy:
    """A strategy with its numbers.

    Attributes
    ----------
    worker : callable
        Makes the state machine of a worker from its ``Node``.
    server : callable, optional
        The same for the parameter server; None where the strategy needs none.
    shape : Shape, optional
        None where what is sent, and when, hangs on gradients.
    tuned : str
        The one of its numbers that may change while it trains; empty where none may.
    goes_on : str
        Without a worker that is lost: ``never``, ``over-server`` where sums go over a server, which then takes them
        over those that are left, or ``always``.
    """

    worker: Callable[[Node], Worker]
    server: Callable[[Node], Server] | None = None
    shape: Shape | None = None
    tuned: str = ""
    goes_on: str = "never"


def spans(sizes: Sequence[int]) -> list[slice]:
    """Where each parameter lies in a vector of all of them.

    Examples
    --------
    >>> spans([2, 3])
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def dense_bytes(values: torch.Tensor) -> int:
    """Size on a link of all entries in order."""
    return values.numel() * values.element_size()


def sparse_bytes(num_sent: int, num_all: int, value_bytes: int = 4) -> int:
    """Size on a link of some entries: an index of 4 bytes each, or one bit for each entry where that is smaller.

    Examples
    --------
    >>> sparse_bytes(10, 1000), sparse_bytes(100, 1000)
    (80, 525)
    """
    return num_sent * value_bytes + min(4 * num_sent, -(-num_all // 8))
