"""Averages that travel while the workers train on: Overlap Local-SGD, its siblings, DiLoCo.

In: weights every ``period`` steps. Out: sums over all workers. No worker waits unless the next round comes before the
sum. One engine: fragments of the weights in turn, a proposal for the common anchor from each worker, a delay after
which its mean lands, a rule for what the worker makes of it. Sources: Wang, Liang, Joshi, Overlap Local-SGD, ICASSP
2020; Chen, Huo, BMUF, ICASSP 2016; Wang et al., SlowMo, ICLR 2020; Shen et al., CoCoD-SGD, IJCAI 2019; Zhang,
Choromanska, LeCun, EASGD, NIPS 2015; Douillard et al., DiLoCo, 2023, and Streaming DiLoCo, 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import Action, Finished, Node, Policy, Reduce, Shape, Step, Worker

if TYPE_CHECKING:
    import torch

__all__ = ["bmuf", "cocod", "diloco", "easgd", "overlap_local_sgd", "slowmo", "streaming_diloco"]

_AT_ONE = {
    "alpha": ("every worker would go back to the anchor", "0.6 is usual"),
    "beta": ("the anchor would never slow down", "0.7 is usual"),
    "momentum": ("the anchor would never slow down", "0.9 is usual"),
    "blend": ("no worker would ever take the anchor", "0.5 is usual"),
}


@dataclass
class Fragment:
    """A part of the weights of one worker, with its anchor that all workers share.

    Attributes
    ----------
    weights : tensor
        A view of the worker's.
    anchor : tensor
        The last mean that has landed, equal on all workers.
    velocity : tensor
    proposed : tensor
        The weights when the last proposal was made.
    """

    weights: torch.Tensor
    anchor: torch.Tensor
    velocity: torch.Tensor
    proposed: torch.Tensor


Propose = Callable[[Node, Fragment], "torch.Tensor"]
Land = Callable[[Fragment], None]


@dataclass(frozen=True)
class Setting:
    """The parameters of one member of the family.

    Attributes
    ----------
    period : int
        Steps between two proposals of a fragment.
    delay : int
        Steps after which the mean lands: 0 waits for it, ``period`` at the next proposal.
    propose : callable
        What a worker adds to the mean, from its fragment; the new anchor is the mean over workers.
    land : callable
        What becomes of the weights when an anchor has landed.
    num_fragments : int
        They take turns within a period.
    """

    period: int
    delay: int
    propose: Propose
    land: Land
    num_fragments: int = 1


class _Overlap(Worker):
    def __init__(self, node: Node, setting: Setting) -> None:
        super().__init__(node)
        self._setting = setting
        self._fragments = [
            Fragment(part, part.clone(), part.new_zeros(part.shape), part.clone()) for part in _parts(node, setting)
        ]
        self._count = 0
        self._todo: list[tuple[str, int]] = []
        self._under_way: set[int] = set()
        self._means: dict[int, torch.Tensor] = {}
        self._is_waiting = False

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.node.apply(step.gradient)
        self._count += 1
        self._todo = [item for index in range(len(self._fragments)) for item in self._due(index)]
        return self._go_on()

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        self._means[int(tag.partition(":")[0])] = total.div_(self.node.num_workers)
        return self._go_on() if self._is_waiting else ()

    def _due(self, index: int) -> list[tuple[str, int]]:
        """Return the actions of a fragment after the current step."""
        setting = self._setting
        # Fragments take turns: fragment i proposes i * period / fragments steps after the first one.
        #      delay 0        propose, then wait for the mean and land it at once
        #      delay period   land the mean of a period ago, then propose anew
        #      between        propose, go on, and land it ``delay`` steps later
        since = self._count - index * setting.period // setting.num_fragments
        proposes = since > 0 and since % setting.period == 0
        if setting.delay in (0, setting.period):
            order = ["propose", "land"] if setting.delay == 0 else ["land", "propose"]
            return [(what, index) for what in order] if proposes else []
        lands = since > setting.period and since % setting.period == setting.delay
        return [("propose", index)] if proposes else [("land", index)] if lands else []

    def _go_on(self) -> list[Action]:
        self._is_waiting = False
        actions: list[Action] = []
        while self._todo:
            what, index = self._todo[0]
            fragment = self._fragments[index]
            if what == "land":
                # The mean is still on its way: the worker blocks here, and ``on_reduce`` comes back to this entry.
                if index in self._under_way and index not in self._means:
                    self._is_waiting = True
                    return actions
                if index in self._under_way:
                    fragment.anchor = self._means.pop(index)
                    self._under_way.remove(index)
                self._setting.land(fragment)
            else:
                self._under_way.add(index)
                actions.append(Reduce(f"{index}:{self._count}", self._setting.propose(self.node, fragment)))
                fragment.proposed = fragment.weights.clone()
            del self._todo[0]
        return [*actions, Step()]


def _parts(node: Node, setting: Setting) -> list[torch.Tensor]:
    """Divide the parameters into consecutive fragments of about equal size."""
    num = setting.num_fragments
    if num == 1:
        return [node.weights]
    if num > len(node.shapes):
        raise InputError(
            f"{len(node.shapes)} parameters make no {num} fragments", where="fragments", fix="take fewer fragments"
        )
    ends: list[int] = []
    total = 0
    for index, size in enumerate(node.shapes):
        total += size
        left = len(node.shapes) - index - 1
        # A fragment ends at the parameter that reaches its share of all weights, or where every parameter that is
        # left is needed for a fragment of its own.
        if total >= (len(ends) + 1) * len(node.weights) / num or left < num - len(ends):
            ends.append(total)
    ends = [*ends[: num - 1], len(node.weights)]
    return [node.weights[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


# --- proposals and landings ----------------------------------------------------------------------------------------


def _heavy_ball(momentum: float, *, in_gradient_units: bool = False) -> Propose:
    """Return a proposal with momentum: ``v = momentum v + (anchor - weights)``, the anchor moves by ``-v``."""

    def propose(node: Node, fragment: Fragment) -> torch.Tensor:
        unit = node.learning_rate if in_gradient_units else 1.0
        if unit == 0:
            raise InputError(
                "the learning rate is 0, by which velocities in gradient units are divided",
                where="velocity=grad",
                fix="velocity=param",
            )
        fragment.velocity.mul_(momentum).add_((fragment.anchor - fragment.weights) / unit)
        return fragment.anchor - unit * fragment.velocity

    return propose


def _nesterov(rate: float, momentum: float) -> Propose:
    """Return a proposal by Nesterov's step of the anchor against ``anchor - weights``."""

    def propose(node: Node, fragment: Fragment) -> torch.Tensor:
        delta = fragment.anchor - fragment.weights
        fragment.velocity.mul_(momentum).add_(delta)
        return fragment.anchor - rate * (delta + momentum * fragment.velocity)

    return propose


def _weights_alone(node: Node, fragment: Fragment) -> torch.Tensor:
    return fragment.weights.clone()


def _elastic(alpha: float) -> Propose:
    """Return a proposal whose sum over workers is ``anchor + alpha * sum(weights before the pull - anchor)``."""

    def propose(node: Node, fragment: Fragment) -> torch.Tensor:
        share = node.num_workers * alpha / (1 - alpha)
        return (1 - share) * fragment.anchor + share * fragment.weights

    return propose


def _pull(alpha: float) -> Land:
    """Return a rule that pulls the weights towards the anchor by a fraction ``alpha``."""

    def land(fragment: Fragment) -> None:
        fragment.weights.mul_(1 - alpha).add_(fragment.anchor, alpha=alpha)

    return land


def _replace(fragment: Fragment) -> None:
    fragment.weights.copy_(fragment.anchor)


def _shift(fragment: Fragment) -> None:
    """Apply what was learned since the proposal to the new anchor."""
    fragment.weights.copy_(fragment.anchor + (fragment.weights - fragment.proposed))


# --- strategies ----------------------------------------------------------------------------------------------------


def _policy(setting: Setting) -> Policy:
    if setting.period < 1 or not 0 <= setting.delay <= setting.period or setting.num_fragments < 1:
        raise InputError(
            f"no average is made every {setting.period} steps of {setting.num_fragments} fragments and lands after "
            f"{setting.delay}",
            where="tau, fragments, delay",
            fix="take tau of 1 or more, a delay from 0 to tau, 1 fragment or more",
        )
    waits = setting.delay == 0 and setting.num_fragments == 1
    shape = Shape(every=setting.period) if waits else None
    return Policy(lambda node: _Overlap(node, setting), shape=shape, goes_on="over-server")


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        why, fix = _AT_ONE[name]
        raise InputError(f"{name} must be from 0 to below 1, not {value}: at 1 {why}", where=name, fix=fix)


def _check_rate(rate: float) -> None:
    if not 0 < rate < float("inf"):
        raise InputError(f"the anchor does not move at a rate of {rate}", where="rate", fix="0.7 is usual")


@registry.strategy("overlap-local-sgd", source="Wang, Liang, Joshi, ICASSP 2020")
def overlap_local_sgd(alpha: float = 0.6, beta: float = 0.7, tau: int = 2, velocity: str = "param") -> Policy:
    """Pull each worker towards an anchor every ``tau`` steps; the anchor's mean travels while they train on."""
    _check_share("alpha", alpha)
    _check_share("beta", beta)
    if velocity not in ("param", "grad"):
        raise InputError(f"a velocity is in param or grad units, not {velocity!r}", where="velocity", fix="param")
    return _policy(Setting(tau, tau, _heavy_ball(beta, in_gradient_units=velocity == "grad"), _pull(alpha)))


@registry.strategy("slowmo", source="BMUF, Chen and Huo, ICASSP 2016; SlowMo, Wang et al., ICLR 2020")
def slowmo(tau: int = 8, beta: float = 0.7) -> Policy:
    """Average every ``tau`` steps and wait for it; the average moves with momentum."""
    _check_share("beta", beta)
    return _policy(Setting(tau, 0, _heavy_ball(beta), _replace))


@registry.strategy("bmuf", source="Chen and Huo, ICASSP 2016")
def bmuf(tau: int = 8, beta: float = 0.7) -> Policy:
    """``slowmo`` by its first name: blockwise model updates that are filtered."""
    return slowmo(tau, beta)


@registry.strategy("cocod", source="CoCoD-SGD, Shen et al., IJCAI 2019")
def cocod(tau: int = 8) -> Policy:
    """Put what a worker learned meanwhile on the mean of where all were ``tau`` steps ago."""
    return _policy(Setting(tau, tau, _weights_alone, _shift))


@registry.strategy("easgd", source="Zhang, Choromanska, LeCun, NIPS 2015")
def easgd(alpha: float = 0.1, tau: int = 4) -> Policy:
    """Pull workers and anchor towards each other every ``tau`` steps."""
    _check_share("alpha", alpha)
    plain = _policy(Setting(tau, tau, _elastic(alpha), _pull(alpha)))

    def worker(node: Node) -> Worker:
        if node.num_workers * alpha > 1:
            raise InputError(
                f"{node.num_workers} workers that each pull by {alpha} throw the anchor beyond their mean",
                where="alpha",
                fix=f"take at most {1 / node.num_workers:.3g}, one over the number of workers",
            )
        return plain.worker(node)

    return replace(plain, worker=worker)


@registry.strategy("diloco", source="DiLoCo, Douillard et al., 2023")
def diloco(tau: int = 20, rate: float = 0.7, momentum: float = 0.9) -> Policy:
    """Step the anchor by Nesterov's momentum against what ``tau`` steps of all workers moved; wait for it."""
    _check_share("momentum", momentum)
    _check_rate(rate)
    return _policy(Setting(tau, 0, _nesterov(rate, momentum), _replace))


@registry.strategy("streaming-diloco", source="Streaming DiLoCo, Douillard et al., 2025")
def streaming_diloco(
    tau: int = 20, fragments: int = 2, delay: int = 2, blend: float = 0.5, rate: float = 0.7, momentum: float = 0.9
) -> Policy:
    """DiLoCo by fragments in turn, whose anchors land ``delay`` steps later and are blended with the weights."""
    _check_share("momentum", momentum)
    _check_rate(rate)
    _check_share("blend", blend)
    if blend == 0 and delay == tau:
        raise InputError(
            "what a worker learned would be thrown away: with blend 0 it goes back to an anchor from before",
            where="blend, delay",
            fix="take a blend above 0, or a shorter delay",
        )
    return _policy(Setting(tau, delay, _nesterov(rate, momentum), _pull(1 - blend), fragments))
