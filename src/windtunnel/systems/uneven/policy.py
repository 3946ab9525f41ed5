"""The interface of synchronization strategies: a state machine per worker, and optionally one of a server.

In: events (a finished step, a message, a sum over all workers, a timer). Out: a list of actions of the node. Two
drivers call the handlers, in virtual time and in real processes; a strategy cannot tell them apart. Not here: any
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
"""Size on a link of a message without values."""


@dataclass(frozen=True, slots=True)
class Step:
    """Begin the next local step with the current weights."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send values to another node; messages from one node to another arrive in order.

    Attributes
    ----------
    target : int
        A worker, or ``Node.server``.
    tag : str
    values : tensor, optional
        They must not be changed after the send.
    size_bytes : int
        Size on the link.
    about : mapping
        Numbers that accompany the values.
    """

    target: int
    tag: str
    values: Any = None
    size_bytes: int = CONTROL_BYTES
    about: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum a vector over all workers; ``on_reduce`` is called with the sum, and no worker blocks until then.

    Every worker starts the sum with the same tag, which is used once.
    """

    tag: str
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Timer:
    """Call ``on_timer(tag)`` after ``delay_ns``."""

    delay_ns: int
    tag: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Use ``num_samples`` samples per step from the next step on."""

    num_samples: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Evaluate weights on ``num_samples`` of this worker's training samples, between two steps, then call ``on_probe``.

    A probe takes a third of the time of steps on as many samples, as it runs the forward pass only. ``buffers`` belong
    to the weights, such as the statistics of batch norms.
    """

    weights: torch.Tensor
    buffers: torch.Tensor
    num_samples: int
    tag: str


Action = Step | Send | Reduce | Timer | Batch | Probe


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished local step whose gradient is not applied yet.

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
    """A message that arrived; see ``Send``."""

    source: int
    tag: str
    values: Any
    size_bytes: int
    about: Mapping[str, float]
    sent_ns: int


@dataclass
class Node:
    """The state of one worker or of the server that a strategy works on.

    Attributes
    ----------
    rank : int
        The server has rank ``num_workers``.
    num_workers : int
    weights : float32 tensor [n]
        Changed in place.
    buffers : float32 tensor
        Buffers of the model, such as the statistics of batch norms; training changes them in place.
    optimizer : torch.optim.Optimizer
        The local update rule, over ``weights`` alone.
    batch_size : int
        Initial number of samples per step.
    shapes : sequence of int
        Number of entries of each parameter, in order.
    schedule : learning-rate scheduler, optional
    warnings : list of str
    num_samples : int
        Size of this worker's partition.
    sum_ratio : float
        Bytes per worker that a sum over all workers takes on the links, over the size of its vector.
    lost_workers : set of int
        Workers that left the run.
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
        """The current learning rate of the local update rule."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def alive(self) -> list[int]:
        """All workers that are not lost."""
        return [index for index in range(self.num_workers) if index not in self.lost_workers]

    @property
    def peers(self) -> list[int]:
        """All other workers that are not lost."""
        return [item for item in self.alive if item != self.rank]

    def apply(self, gradient: torch.Tensor, scale: float = 1.0) -> None:
        """Apply the local update rule to ``weights`` with ``scale`` times its learning rate."""
        # The optimizer has one parameter, the flat vector of all weights, so that momentum and decay work on it
        # as on any model.
        group = self.optimizer.param_groups[0]
        group["params"][0].grad = gradient
        rate = group["lr"]
        group["lr"] = rate * scale
        self.optimizer.step()
        group["lr"] = rate
        if self.schedule is not None:
            self.schedule.step()

    def warn(self, text: str) -> None:
        """Add a warning to the run unless it is already there."""
        if text not in self.warnings:
            self.warnings.append(text)

    def size_bytes(self) -> int:
        """Return the size of all weights on a link."""
        return dense_bytes(self.weights)

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        """Return a copy whose optimizer updates the weights of the copy."""
        created = replace(self, **{field_.name: deepcopy(getattr(self, field_.name), memo) for field_ in fields(self)})
        # A copied optimizer still points at the weights of the original.
        created.optimizer.param_groups[0]["params"][0].data = created.weights
        return created


class Worker:
    """The decisions of one worker; a strategy overrides the handlers that it needs.

    Every handler gets the time and returns actions. A worker waits until a handler returns ``Step``.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def start(self, now_ns: int) -> Sequence[Action]:
        """Handle the start of training; all nodes hold the same weights."""
        return (Step(),)

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        """Handle the end of a local step."""
        raise NotImplementedError

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        """Handle a message."""
        return ()

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        """Handle a complete sum over all workers; the handler may keep and change it."""
        return ()

    def on_timer(self, tag: str, now_ns: int) -> Sequence[Action]:
        """Handle a timer that expired."""
        return ()

    def on_probe(self, tag: str, loss: float, accuracy: float, now_ns: int) -> Sequence[Action]:
        """Handle the result of a probe."""
        return ()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        """Handle the loss of another worker, which is no longer in ``node.peers``."""
        return ()

    def retune(self, number: float) -> None:
        """Change the parameter that ``Policy.tuned`` names."""

    def model(self) -> torch.Tensor:
        """Return the weights to evaluate; without a server the mean over all workers is evaluated."""
        return self.node.weights


class Server:
    """The decisions of a parameter server, which handles messages of workers and its own timers."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def start(self, now_ns: int) -> Sequence[Action]:
        """Handle the start of training."""
        return ()

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        """Handle a message."""
        return ()

    def on_timer(self, tag: str, now_ns: int) -> Sequence[Action]:
        """Handle a timer that expired."""
        return ()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        """Handle the loss of a worker, which is no longer in ``node.alive``."""
        return ()

    def retune(self, number: float) -> None:
        """Change the parameter that ``Policy.tuned`` names."""

    def model(self) -> torch.Tensor:
        """Return the weights to evaluate."""
        return self.node.weights


@dataclass(frozen=True)
class Shape:
    """The exchange pattern of a strategy that exchanges all weights, sufficient to price it without gradients.

    Attributes
    ----------
    every : int
        Local steps between two exchanges.
    max_ahead : float
        Number of exchanges that a worker may be ahead of the slowest: 0 waits for all, infinity for none.
    keeps_training : bool
        Whether a worker continues before its exchange is done.
    per_period : int
        Number of exchanges in each ``period_ns``, by timers; replaces ``every`` if it is above 0.
    """

    every: int = 1
    max_ahead: float = 0.0
    keeps_training: bool = False
    per_period: int = 0
    period_ns: int = 0


@dataclass(frozen=True)
class Policy:
    """A strategy with its parameters.

    Attributes
    ----------
    worker : callable
        Creates the state machine of a worker from its ``Node``.
    server : callable, optional
        Creates the state machine of the parameter server; None if the strategy needs none.
    shape : Shape, optional
        None if the traffic depends on gradients.
    tuned : str
        Name of the parameter that may change during training; empty if there is none.
    goes_on : str
        Whether training continues when a worker is lost: ``never``, ``over-server`` (if sums go over a server, which
        then sums over the remaining workers) or ``always``.
    """

    worker: Callable[[Node], Worker]
    server: Callable[[Node], Server] | None = None
    shape: Shape | None = None
    tuned: str = ""
    goes_on: str = "never"


def spans(sizes: Sequence[int]) -> list[slice]:
    """Return the slice of each parameter in a flat vector of all parameters.

    Examples
    --------
    >>> spans([2, 3])
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def dense_bytes(values: torch.Tensor) -> int:
    """Return the size on a link of a dense vector."""
    return values.numel() * values.element_size()


def sparse_bytes(num_sent: int, num_all: int, value_bytes: int = 4) -> int:
    """Return the size on a link of a sparse vector: 4-byte indices or a bit mask, whichever is smaller.

    Examples
    --------
    >>> sparse_bytes(10, 1000), sparse_bytes(100, 1000)
    (80, 525)
    """
    # Few entries: an index of 4 bytes each. Many: one bit per entry of the whole vector.
    return num_sent * value_bytes + min(4 * num_sent, -(-num_all // 8))
