"""ADSP: no worker waits; workers of any speed commit equally often, at a rate that is searched during training.

In: steps, losses, timers. Out: commits to a server. Source: Hu, Wang, Wu, Distributed Machine Learning
through Heterogeneous Edge Systems, AAAI 2020. The timer of a commit is set from the beginning of its period, so that
waiting for the running batch does not add up, a batch early, so that the commit is there when the period ends; what a
worker learns while a commit travels is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import (
    Action,
    Finished,
    Message,
    Node,
    Policy,
    Send,
    Server,
    Shape,
    Step,
    Timer,
    Worker,
)
from windtunnel.systems.uneven.rewards import Window, reward_pair
from windtunnel.systems.uneven.strategies.server import Commits

if TYPE_CHECKING:
    import torch

__all__ = ["adsp"]


class _Adsp(Worker):
    """A worker that never waits; it commits when a timer has expired and the running batch is done."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._period = 0
        self._num_due = self._num_sent = 0
        self._at_commit: torch.Tensor | None = None
        self._sent_ns = 0
        self._travel_ns = self._step_ns = 0
        self._losses: list[float] = []

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.node.apply(step.gradient)
        self._step_ns = now_ns - step.begun_ns
        self._losses.append(step.loss)
        if not self._num_due or self._at_commit is not None:
            return (Step(),)
        self._num_due -= 1
        self._num_sent += 1
        self._at_commit, self._sent_ns = self.node.weights.clone(), now_ns
        about = {"loss": sum(self._losses) / len(self._losses), "steps": len(self._losses)}
        self._losses.clear()
        return (Step(), Send(self.node.server, "commit", self._at_commit, self.node.size_bytes(), about))

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        if message.tag == "period":
            return self._new_period(int(message.about["target"]), message.about["period_ns"])
        assert self._at_commit is not None
        self._travel_ns = now_ns - self._sent_ns
        # double: what was learned meanwhile is kept exactly
        learned = self.node.weights.double() - self._at_commit
        self.node.weights.copy_(message.values + learned)
        self._at_commit = None
        return ()

    def on_timer(self, tag: str, now_ns: int) -> Sequence[Action]:
        if int(tag) == self._period:
            self._num_due += 1
        return ()

    def _new_period(self, target: int, period_ns: float) -> Sequence[Action]:
        """Set timers for the commits missing to ``target``, without those that are due or under way."""
        self._period += 1
        num_commits = target - self._num_sent - self._num_due
        if num_commits <= 0:
            return ()
        gap_ns = period_ns / num_commits
        if gap_ns < self._travel_ns:
            self.node.warn(
                f"worker {self.node.rank}: the commit rate exceeds the link "
                f"(a commit each {gap_ns / 1e9:.3g} s takes {self._travel_ns / 1e9:.3g} s)"
            )
        # a batch earlier: it commits when the running batch is done, and is to be there in time
        early_ns = self._travel_ns + self._step_ns
        dues_ns = (max(0, round((index + 1) * gap_ns) - early_ns) for index in range(num_commits))
        return [Timer(due_ns, str(self._period)) for due_ns in dues_ns]


class _AdspServer(Server):
    """A server that applies commits at once and, once per epoch, searches the commit rate that learns fastest."""

    def __init__(self, node: Node, period_ns: int, epoch_periods: int, fixed: int) -> None:
        super().__init__(node)
        self._commits = Commits(node)
        self._period_ns, self._epoch_periods, self._fixed = period_ns, epoch_periods, fixed
        self._increment = fixed or 1
        self._period = self._target = 0
        self._window: list[tuple[float, float, float]] = []
        self._tried: Window | None = None
        self._is_searching = not fixed

    def start(self, now_ns: int) -> Sequence[Action]:
        return self._new_period(now_ns)

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        self._commits.add(message.source, message.values)
        self._window.append((now_ns / 1e9, message.about["loss"], message.about["steps"]))
        return (self._commits.answer(message.source),)

    def on_timer(self, tag: str, now_ns: int) -> Sequence[Action]:
        self._period += 1
        if self._is_searching:
            self._search()
        if not self._fixed and self._period % self._epoch_periods == 0:
            self._is_searching, self._tried = True, None
        return self._new_period(now_ns)

    def retune(self, number: float) -> None:
        """Fix the number of commits per period from the next period on."""
        self._fixed = self._increment = int(number)
        self._is_searching = False

    def _search(self) -> None:
        """Try one more commit per period as long as this learns faster."""
        tried = Window(self._increment, tuple(self._window))
        before, self._tried = self._tried, tried
        if before is None:
            self._increment += 1
            return
        slower, faster = reward_pair(before, tried)
        if faster > slower:
            self._increment += 1
        else:
            self._increment = before.num_commits
            self._is_searching = False

    def _new_period(self, now_ns: int) -> Sequence[Action]:
        self._window = []
        most = max(self._commits.counts)  # what is on its way is not counted yet, and not asked for twice
        self._target = target = min(max(self._target, most), most + self._increment) + self._increment
        orders: list[Action] = [
            Send(worker, "period", about={"target": target, "period_ns": self._period_ns}) for worker in self.node.alive
        ]
        return [*orders, Timer(self._period_ns, "period")]


@registry.strategy("adsp", source="Hu, Wang, Wu, AAAI 2020")
def adsp(period_s: float = 60.0, epoch_periods: int = 20, commits: int = 0) -> Policy:
    """Train without waiting; commit equally often, ``commits`` times per period, or as often as learns fastest (0)."""
    if not period_s > 0 or epoch_periods < 1 or commits < 0:
        raise InputError(
            f"ADSP needs a period above 0, 1 period or more per epoch and 0 commits or more, not "
            f"{period_s} s, {epoch_periods} and {commits}",
            where="adsp",
            fix="period_s=60,epoch_periods=20,commits=0",
        )
    period_ns = round(period_s * 1e9)
    shape = Shape(keeps_training=True, per_period=commits, period_ns=period_ns) if commits else None
    return Policy(
        _Adsp, lambda node: _AdspServer(node, period_ns, epoch_periods, commits), shape, tuned="commits",
        goes_on="always",
    )  # fmt: skip
