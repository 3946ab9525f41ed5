"""Each strategy in a few lines of its own, over plain modules: what the state machines are compared with.

In: a job, workers of given speeds on links that take no time. Out: the weights of each worker, and of the server, after
so many milliseconds. Nothing of ``windtunnel.systems.uneven`` runs here but the job, its partitions and its
order of samples.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from windtunnel.systems.uneven.job import Samples, TrainJob
from windtunnel.systems.uneven.partitions import Partition, split

STEP_MS = 10.0


class Plain:
    """Workers that train one module in turn, each with weights ``w[rank]`` and a local rule of its own."""

    def __init__(self, job: TrainJob, speeds: Sequence[float], seed: int = 0) -> None:
        self.job, self.speeds, self.num = job, speeds, len(speeds)
        self.samples = [
            Samples(part, seed, rank) for rank, part in enumerate(split(job.sample_labels(), self.num, Partition()))
        ]
        torch.manual_seed(seed)
        self.module = job.model()
        self.parameters = list(self.module.parameters())
        self.start = parameters_to_vector(self.parameters).detach()
        self.w = [self.start.clone() for _ in speeds]
        self.server = self.start.clone()
        self.leaves = [torch.nn.Parameter(one) for one in self.w]
        self.rules = [job.optimizer([one]) for one in self.leaves]
        self.later: list[Callable[[], Any]] = []
        self.lr = self.rules[0].param_groups[0]["lr"]

    def gradient(self, rank: int, num_samples: int = 0) -> tuple[torch.Tensor, float]:
        vector_to_parameters(self.w[rank].clone(), self.parameters)
        chosen = self.samples[rank].draw(num_samples or self.job.batch_size)
        loss = self.job.loss(self.module(self.job.inputs[chosen]), self.job.targets[chosen])
        return parameters_to_vector(torch.autograd.grad(loss, self.parameters)), float(loss.detach())

    def step(self, rank: int, gradient: torch.Tensor, scale: float = 1.0) -> None:
        """The local rule, at a multiple of its rate."""
        before = self.w[rank].clone()
        self.leaves[rank].grad = gradient
        self.rules[rank].step()
        self.w[rank].copy_(before + scale * (self.w[rank] - before))

    def in_time(self, until_ms: float, finished: Callable[[float, int, torch.Tensor, float], Sequence[int] | None],
                batches: dict[int, int] | None = None) -> None:  # fmt: skip
        """Steps as they end; ``finished`` says who goes on: that worker where it says nothing."""
        heap = [(STEP_MS / speed, rank, *self.gradient(rank)) for rank, speed in enumerate(self.speeds)]
        heapq.heapify(heap)
        while heap and heap[0][0] <= until_ms:
            now, rank, gradient, loss = heapq.heappop(heap)
            free = finished(now, rank, gradient, loss)
            for one in [rank] if free is None else free:
                ratio = batches[one] / self.job.batch_size if batches else 1.0
                size = batches[one] if batches else 0
                heapq.heappush(heap, (now + STEP_MS * ratio / self.speeds[one], one, *self.gradient(one, size)))
            while self.later:  # what arrives when the next step has begun
                self.later.pop()()


Direct = Callable[..., None]
"""Trains a ``Plain`` for so many milliseconds; its numbers are those of the strategy."""


def alone(plain: Plain, until_ms: float) -> None:
    """Nobody hears of anybody."""
    plain.in_time(until_ms, lambda _, rank, gradient, __: plain.step(rank, gradient))


def bsp(plain: Plain, until_ms: float, reduce: str = "mean") -> None:
    scale = plain.num if reduce == "sum" else 1
    for _ in range(_rounds(plain, until_ms)):
        mean = sum(plain.gradient(rank)[0] for rank in range(plain.num)) / plain.num
        for rank in range(plain.num):
            plain.step(rank, mean, scale)


def batchtune(plain: Plain, until_ms: float) -> None:
    base, now, speeds = plain.job.batch_size, 0.0, plain.speeds
    batches, done = [base] * plain.num, 0
    while (now := now + max(STEP_MS * b / base / v for b, v in zip(batches, speeds, strict=True))) <= until_ms:
        total = sum(plain.gradient(rank, b)[0] * b for rank, b in enumerate(batches))
        for rank in range(plain.num):
            plain.step(rank, total / sum(batches))
        done += 1
        if done == 3:
            batches = [round(plain.num * base * v / sum(speeds)) for v in speeds]


def ssp(plain: Plain, until_ms: float, staleness: float = 3) -> None:
    given, counts, waiting = [plain.start.clone() for _ in plain.w], [0] * plain.num, []

    def finished(_: float, rank: int, gradient: torch.Tensor, __: float) -> list[int]:
        plain.step(rank, gradient)
        plain.server += (plain.w[rank] - given[rank]) / plain.num
        counts[rank] += 1
        waiting.append(rank)
        free = [one for one in waiting if counts[one] - min(counts) <= staleness]
        for one in free:
            waiting.remove(one)
            plain.w[one].copy_(plain.server)
            given[one] = plain.server.clone()
        return free

    plain.in_time(until_ms, finished)


def asp(plain: Plain, until_ms: float) -> None:
    ssp(plain, until_ms, math.inf)


def adsp(plain: Plain, until_ms: float, period_s: float, commits: int) -> None:
    """Commits are due so that all are there at the period's end; each is made when the running batch is done."""
    given, length = [plain.start.clone() for _ in plain.w], 1000 * period_s
    dues, sent, begun = [[] for _ in plain.w], [0] * plain.num, [0] * plain.num

    def finished(now: float, rank: int, gradient: torch.Tensor, _: float) -> None:
        while begun[rank] * length < now:
            at = begun[rank] * length
            overdue = [due for due in dues[rank] if due <= at]
            num = commits * (begun[rank] + 1) - sent[rank] - len(overdue)
            early = STEP_MS / plain.speeds[rank] if at else 0.0  # at first nobody knows how long a step takes
            dues[rank] = [*overdue, *(at + (j + 1) * length / num - early for j in range(num))]
            begun[rank] += 1
        plain.step(rank, gradient)
        if dues[rank] and dues[rank][0] <= now:
            del dues[rank][0]
            sent[rank] += 1
            plain.server += (plain.w[rank] - given[rank]) / plain.num
            given[rank] = plain.server.clone()
            plain.later.append(lambda: plain.w[rank].copy_(plain.server))

    plain.in_time(until_ms, finished)


# --- averages every tau steps -------------------------------------------------------------------------------------

Rule = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


def every(plain: Plain, until_ms: float, tau: int, rule: Rule) -> None:
    """Equal workers; ``rule`` makes new weights of theirs."""
    for count in range(1, _rounds(plain, until_ms) + 1):
        for rank in range(plain.num):
            plain.step(rank, plain.gradient(rank)[0])
        if count % tau == 0:
            for one, new in zip(plain.w, rule([w.clone() for w in plain.w]), strict=True):
                one.copy_(new)


def local_sgd(plain: Plain, until_ms: float, tau: int = 8) -> None:
    every(plain, until_ms, tau, lambda xs: [sum(xs) / plain.num] * plain.num)


def fedavg(plain: Plain, until_ms: float, local: int = 50) -> None:
    local_sgd(plain, until_ms, local)


def adacomm(plain: Plain, until_ms: float, tau: int, interval_s: float, decay: float = 0.5) -> None:
    now, first, left, next_s, local = 0.0, None, tau, interval_s, tau
    losses: list[float] = []
    while (now := now + STEP_MS) <= until_ms:
        for rank in range(plain.num):
            gradient, loss = plain.gradient(rank)
            plain.step(rank, gradient)
            losses.append(loss)
        if left := left - 1:
            continue
        mean, loss = sum(plain.w) / plain.num, sum(losses) / len(losses)
        for one in plain.w:
            one.copy_(mean)
        first, losses = first or loss, []
        if now / 1000 >= next_s:
            wanted, next_s = math.ceil(tau * math.sqrt(loss / first)), now / 1000 + interval_s
            local = max(1, wanted if wanted < local else math.floor(local * decay))
        left = local


def overlap_local_sgd(plain: Plain, until_ms: float, alpha: float = 0.6, beta: float = 0.7, tau: int = 2) -> None:
    z, v = plain.start.clone(), [0.0] * plain.num

    def rule(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal z
        xs = [(1 - alpha) * x + alpha * z for x in xs]
        for at, x in enumerate(xs):
            v[at] = beta * v[at] - (x - z)
        z = sum(z - one for one in v) / plain.num
        return xs

    every(plain, until_ms, tau, rule)


def slowmo(plain: Plain, until_ms: float, tau: int = 8, beta: float = 0.7) -> None:
    z, u = plain.start.clone(), 0.0

    def rule(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal z, u
        u = beta * u + (sum(xs) / plain.num - z)
        z = z + u
        return [z] * plain.num

    every(plain, until_ms, tau, rule)


def cocod(plain: Plain, until_ms: float, tau: int = 8) -> None:
    z = plain.start.clone()
    last = [z] * plain.num

    def rule(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal z, last
        xs = [z + (x - before) for x, before in zip(xs, last, strict=True)]
        z, last = sum(xs) / plain.num, xs
        return xs

    every(plain, until_ms, tau, rule)


def easgd(plain: Plain, until_ms: float, alpha: float = 0.1, tau: int = 4) -> None:
    z = plain.start.clone()

    def rule(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal z
        pulled = [x - alpha * (x - z) for x in xs]
        z = z + alpha * sum(x - z for x in xs)
        return pulled

    every(plain, until_ms, tau, rule)


def diloco(plain: Plain, until_ms: float, tau: int, rate: float = 0.7, momentum: float = 0.9) -> None:
    z, v = plain.start.clone(), 0.0

    def rule(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal z, v
        delta = z - sum(xs) / plain.num
        v = momentum * v + delta
        z = z - rate * (delta + momentum * v)
        return [z] * plain.num

    every(plain, until_ms, tau, rule)


def streaming_diloco(plain: Plain, until_ms: float, tau: int, fragments: int, delay: int, blend: float,
                     rate: float = 0.7, momentum: float = 0.9) -> None:  # fmt: skip
    """Fragment f, of whole parameters, is sent after f tau / F + k tau steps, and lands ``delay`` steps later."""
    sums, size = list(accumulate(one.numel() for one in plain.parameters)), len(plain.start)
    ends = [next(one for one in sums if one >= (at + 1) * size / fragments) for at in range(fragments)]
    cuts = [0, *ends[:-1]]
    z, v, mean = plain.start.clone(), torch.zeros_like(plain.start), {}
    for count in range(1, _rounds(plain, until_ms) + 1):
        for rank in range(plain.num):
            plain.step(rank, plain.gradient(rank)[0])
        for at, (begin, end) in enumerate(zip(cuts, ends, strict=True)):
            part, since = slice(begin, end), count - at * tau // fragments
            if at in mean and since % tau == delay % tau:
                z[part] = mean.pop(at)
                for one in plain.w:
                    one[part] = blend * one[part] + (1 - blend) * z[part]
            if since > 0 and since % tau == 0:
                delta = z[part] - sum(one[part] for one in plain.w) / plain.num
                v[part] = momentum * v[part] + delta
                mean[at] = z[part] - rate * (delta + momentum * v[part])


# --- what only matters -------------------------------------------------------------------------------------


@dataclass
class Histories:
    """Of each worker, what was learned and not sent yet."""

    plain: Plain
    kept: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = [torch.zeros_like(one) for one in self.plain.w]

    def learned(self, rank: int, scale: float) -> torch.Tensor:
        """A local step; returns the weights before it."""
        before = self.plain.w[rank].clone()
        self.plain.step(rank, self.plain.gradient(rank)[0], scale)
        self.kept[rank] += self.plain.w[rank] - before
        return before


def gaia(plain: Plain, until_ms: float, threshold: float = 0.2, reduce: str = "sum") -> None:
    all_kept, scale = Histories(plain), 1.0 if reduce == "sum" else 1 / plain.num
    for _ in range(_rounds(plain, until_ms)):
        sent = []
        for rank in range(plain.num):
            all_kept.learned(rank, scale)
            kept = all_kept.kept[rank]
            mask = (plain.w[rank] == 0) | ((kept / plain.w[rank]).abs() > threshold)
            sent.append(kept * mask)
            kept[mask] = 0
        for rank in range(plain.num):
            plain.w[rank] += sum(sent[other] for other in range(plain.num) if other != rank)


def dgc(plain: Plain, until_ms: float, sparsity: float, warm_up: int = 0, masks_momentum: bool = True) -> None:
    all_kept, shapes = Histories(plain), [one.numel() for one in plain.parameters]
    levels = [one for one in (0.75, 0.9375, 0.984375, 0.996, 0.999) if one < sparsity] if warm_up else []
    for count in range(_rounds(plain, until_ms)):
        level = levels[count // warm_up] if warm_up and count // warm_up < len(levels) else sparsity
        sent = []
        for rank in range(plain.num):
            plain.w[rank].copy_(all_kept.learned(rank, 1.0))
            kept = all_kept.kept[rank]
            parts = torch.zeros_like(kept).split(shapes)
            for part, mine in zip(parts, kept.split(shapes), strict=True):
                part[mine.abs().topk(max(1, int(len(mine) * (1 - level) + 1e-9))).indices] = 1
            mask = torch.cat(parts) > 0
            sent.append(kept * mask)
            kept[mask] = 0
            state = plain.rules[rank].state[plain.leaves[rank]].get("momentum_buffer")
            if masks_momentum and state is not None:
                state[mask] = 0
        for one in plain.w:
            one += sum(sent)


# --- among peers -------------------------------------------------------------------------------------


def all_to_all(plain: Plain, until_ms: float, staleness: int = 0) -> None:
    """Where nobody waits, a gradient counts everywhere at the moment at which it is done."""

    def finished(_: float, __: int, gradient: torch.Tensor, ___: float) -> None:
        for one in plain.w:
            one -= plain.lr / plain.num * gradient

    if staleness < 0:
        plain.in_time(until_ms, finished)
        return
    for _ in range(_rounds(plain, until_ms)):
        for gradient in [plain.gradient(rank)[0] for rank in range(plain.num)]:
            finished(0, 0, gradient, 0)


def dlion(plain: Plain, until_ms: float, **_: Any) -> None:
    """On links that carry all, with equal batches: the gradient of all samples together."""
    all_to_all(plain, until_ms)


def ako(plain: Plain, until_ms: float, partitions: int = 4) -> None:
    gathered, counts = [torch.zeros_like(one) for one in plain.w], [0] * plain.num

    def finished(_: float, rank: int, gradient: torch.Tensor, __: float) -> None:
        plain.w[rank] -= plain.lr / plain.num * gradient
        gathered[rank] += gradient
        at, size = counts[rank] % partitions, len(gradient)
        part = slice(at * size // partitions, (at + 1) * size // partitions)
        counts[rank] += 1
        for other in range(plain.num):
            if other != rank:
                plain.w[other][part] -= plain.lr / plain.num * gathered[rank][part]
        gathered[rank][part] = 0

    plain.in_time(until_ms, finished)


def hop(plain: Plain, until_ms: float, staleness: int = -1) -> None:
    """Nobody waits; what neighbors sent last is mixed in before each gradient is applied."""
    assert staleness == -1
    last: dict[int, torch.Tensor] = {}

    def finished(_: float, rank: int, gradient: torch.Tensor, __: float) -> None:
        near = {(rank + 1) % plain.num, (rank - 1) % plain.num} - {rank}
        heard = [plain.w[rank], *(last[one] for one in near if one in last)]
        plain.w[rank].copy_(sum(heard) / len(heard))
        plain.step(rank, gradient)
        last[rank] = plain.w[rank].clone()

    plain.in_time(until_ms, finished)


def _rounds(plain: Plain, until_ms: float) -> int:
    """Steps of workers that all wait for the slowest."""
    return int(until_ms / (STEP_MS / min(plain.speeds)))


EQUAL, UNEQUAL = (1.0, 1.0, 1.0), (0.97, 0.83, 0.61)
CASES: dict[str, tuple[str, dict[str, Any], Direct, dict[str, Any], tuple[float, ...]]] = {
    "bsp": ("bsp", {}, bsp, {}, UNEQUAL),
    "bsp, sum": ("bsp", {"reduce": "sum"}, bsp, {"reduce": "sum"}, EQUAL),
    "batchtune": ("batchtune", {}, batchtune, {}, (1.0, 1.0, 0.4)),
    "ssp": ("ssp", {"staleness": 1}, ssp, {"staleness": 1}, UNEQUAL),
    "asp": ("asp", {}, asp, {}, UNEQUAL),
    "adsp": ("adsp", {"period_s": 0.2, "commits": 4}, adsp, {"period_s": 0.2, "commits": 4}, UNEQUAL),
    "local-sgd": ("local-sgd", {"tau": 4}, local_sgd, {"tau": 4}, EQUAL),
    "fedavg": ("fedavg", {"local": 5}, fedavg, {"local": 5}, EQUAL),
    "fedavg of every step": ("fedavg", {"local": 1}, bsp, {}, EQUAL),
    "adacomm": ("adacomm", {"tau": 8, "interval_s": 0.1}, adacomm, {"tau": 8, "interval_s": 0.1}, EQUAL),
    "overlap-local-sgd": ("overlap-local-sgd", {}, overlap_local_sgd, {}, EQUAL),
    "overlap-local-sgd, no momentum": (
        "overlap-local-sgd", {"alpha": 0.3, "beta": 0.0, "tau": 4}, overlap_local_sgd,
        {"alpha": 0.3, "beta": 0.0, "tau": 4}, EQUAL,
    ),
    "overlap-local-sgd, no pull": ("overlap-local-sgd", {"alpha": 0.0}, alone, {}, EQUAL),
    "slowmo": ("slowmo", {"tau": 4, "beta": 0.5}, slowmo, {"tau": 4, "beta": 0.5}, EQUAL),
    "bmuf": ("bmuf", {"tau": 4}, slowmo, {"tau": 4}, EQUAL),
    "slowmo, no momentum": ("slowmo", {"tau": 4, "beta": 0.0}, local_sgd, {"tau": 4}, EQUAL),
    "cocod": ("cocod", {"tau": 4}, cocod, {"tau": 4}, EQUAL),
    "easgd": ("easgd", {"tau": 4}, easgd, {"tau": 4}, EQUAL),
    "diloco": ("diloco", {"tau": 4}, diloco, {"tau": 4}, EQUAL),
    "streaming-diloco, whole": (
        "streaming-diloco", {"tau": 4, "fragments": 1, "delay": 0, "blend": 0.0}, diloco, {"tau": 4}, EQUAL,
    ),
    "streaming-diloco": (
        "streaming-diloco", {"tau": 6, "delay": 2, "blend": 0.4}, streaming_diloco,
        {"tau": 6, "fragments": 2, "delay": 2, "blend": 0.4}, EQUAL,
    ),
    "gaia": ("gaia", {"threshold": 0.05}, gaia, {"threshold": 0.05}, EQUAL),
    "gaia, mean": ("gaia", {"threshold": 0.05, "reduce": "mean"}, gaia, {"threshold": 0.05, "reduce": "mean"}, EQUAL),
    "gaia of all": ("gaia", {"threshold": 0.0}, bsp, {"reduce": "sum"}, EQUAL),
    "dgc": ("dgc", {"sparsity": 0.9, "warm_up": 7}, dgc, {"sparsity": 0.9, "warm_up": 7}, EQUAL),
    "dgc of all": ("dgc", {"sparsity": 0.0, "masks_momentum": False}, bsp, {"reduce": "sum"}, EQUAL),
    "all-to-all": ("all-to-all", {}, all_to_all, {}, EQUAL),
    "all-to-all, no waiting": ("all-to-all", {"staleness": -1}, all_to_all, {"staleness": -1}, UNEQUAL),
    "dlion of all": ("dlion", {"adjust_every": 0, "transfer_every": 0}, dlion, {}, EQUAL),
    "ako": ("ako", {}, ako, {}, UNEQUAL),
    "hop": ("hop", {"staleness": -1}, hop, {"staleness": -1}, UNEQUAL),
}  # fmt: skip
"""Name: strategy, its numbers, its direct form, that one's numbers, the workers' speeds."""

NO_MOMENTUM = ("all-to-all", "dlion", "ako")
"""Strategies that apply gradients as plain SGD."""
