"""Actors and a learner: asynchronous advantage actor-critic.

In: a size and a seed. Out: a ``Workload`` whose step takes experience from real actor processes, improves a
convolutional policy, and hands the weights back through shared memory. Which weights an actor played with depends on
timing, so a seed fixes the first weights and the games but not the losses. Under fake tensors no games are played.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.suite.workloads.actors import NUM_FRAMES, Actors, Play, Rollouts, policy
from windtunnel.systems.suite.workloads.catch import Court
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "a3c"]

DISCOUNT, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.99, 0.5, 0.01
NUM_RECENT = 200
"""Episodes whose mean return is the objective."""

# B rollouts, R steps of a rollout, F frames of a stack, P pixels, A actions


@dataclass(frozen=True)
class Preset:
    """``batch_size`` counts rollouts."""

    batch_size: int
    play: Play
    learning_rate: float


PRESETS = {
    "tiny": Preset(16, Play(Court(24, 8, paddle=3, num_balls=1), 2, 8, num_steps=10, width=16), 3e-3),
    "small": Preset(16, Play(Court(56, 14, paddle=3, num_balls=3), 2, 8, num_steps=10, width=16), 1e-3),
    "paper": Preset(16, Play(Court(84, 21, paddle=3, num_balls=21), 16, 1, num_steps=5, width=16), 7e-4),
}
"""``paper`` has sixteen actors, 4 x 84 x 84 frames, 16 and 32 filters, 256 hidden units and five steps."""


@registry.workload("a3c", source="Mnih et al., A3C, ICML 2016; Zhu et al., IISWC 2018", domain="reinforcement learning")
def a3c(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Learn to catch a ball from pixels, with actors in processes of their own; close it when done.

    A batch counts rollouts, a multiple of the environments of one actor. Parameters and errors are those of
    :meth:`Training.of`.
    """
    require("torch", extra="torch")
    require("gymnasium", extra="suite")
    import torch
    from torch import nn

    training = Training.of("a3c", PRESETS, size, batch_size, seed)
    preset = training.preset
    play, num_rollouts = preset.play, training.batch_size
    num_messages = _num_messages(play, num_rollouts)
    model = policy(play)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=preset.learning_rate, alpha=0.99, eps=1e-5)
    receive, publish, close = _players(play, model, num_messages, seed)
    returns: deque[float] = deque(maxlen=NUM_RECENT)
    num_frames = 0

    # Actors play with the parameters of the last ``publish`` while the learner works on their rollouts:
    # asynchronous, as published.
    def step() -> torch.Tensor:
        nonlocal num_frames
        rollouts = receive()
        returns.extend(rollouts.returns)
        num_frames += rollouts.rewards.size
        optimizer.zero_grad()
        loss = _loss(model, rollouts)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        publish()
        return loss.detach()

    return training.workload(
        (model,),
        (optimizer,),
        step,
        data="generated: an environment in which a ball is caught, played by actor processes",
        unit="frames",
        units=lambda: num_frames,
        objective=lambda: -statistics.fmean(returns) if returns else float("nan"),
        close=close,
    )


def _num_messages(play: Play, num_rollouts: int) -> int:
    if num_rollouts < 1 or num_rollouts % play.num_environments:
        raise InputError(
            f"{num_rollouts} rollouts are not a multiple of the {play.num_environments} that an actor sends at once",
            where="batch_size",
            fix=f"choose {play.num_environments} or a multiple of it",
        )
    return num_rollouts // play.num_environments


def _loss(model: torch.nn.Module, rollouts: Rollouts) -> torch.Tensor:
    """Policy gradient with an n-step advantage, squared error of the value, entropy (section 4 of the paper)."""
    import torch
    from torch import nn

    frames = torch.from_numpy(rollouts.frames)
    actions, rewards, goes_on = (
        torch.from_numpy(part) for part in (rollouts.actions, rollouts.rewards, rollouts.goes_on)
    )
    scores, values = (part.unflatten(0, frames.shape[:2]) for part in model(frames.flatten(0, 1)))
    returns = n_step_returns(rewards, goes_on, values[-1].detach())
    log_chances = scores[:-1].log_softmax(dim=-1)
    advantages = returns - values[:-1]
    used = log_chances.gather(-1, actions[..., None]).squeeze(-1)
    policy_loss = -(used * advantages.detach()).mean()
    entropy = -(log_chances.exp() * log_chances).sum(dim=-1).mean()
    value_loss = nn.functional.mse_loss(values[:-1], returns)
    return policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy  # type: ignore[no-any-return]


def n_step_returns(rewards: torch.Tensor, goes_on: torch.Tensor, last_values: torch.Tensor) -> torch.Tensor:
    """Discounted rewards until the episode or the rollout ends, there with the value: [R, B].

    Parameters
    ----------
    rewards, goes_on : Tensor [R, B]
    last_values : Tensor [B]
        The critic's opinion of the frames after the rollout.
    """
    import torch

    following, returns = last_values, []
    for reward, has_next in zip(reversed(rewards.unbind()), reversed(goes_on.unbind()), strict=True):
        following = reward + DISCOUNT * has_next * following
        returns.append(following)
    return torch.stack(returns[::-1])


def _players(
    play: Play, model: torch.nn.Module, num_messages: int, seed: int
) -> tuple[Callable[[], Rollouts], Callable[[], None], Callable[[], None]]:
    """How to receive experience, to publish the model's weights, and to end."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nn.utils import parameters_to_vector

    if isinstance(next(model.parameters()), FakeTensor):
        # Rollouts of the right shapes, in which nothing happens.
        num_rollouts = num_messages * play.num_environments
        shape, pixels = (play.num_steps, num_rollouts), play.court.num_pixels
        frames = np.zeros((play.num_steps + 1, num_rollouts, NUM_FRAMES, pixels, pixels), dtype=np.uint8)
        nothing = np.zeros(shape, dtype=np.float32)
        blank = Rollouts(frames, np.zeros(shape, dtype=np.int64), nothing, nothing, [])
        return (lambda: blank), (lambda: None), (lambda: None)

    def weights() -> np.typing.NDArray[np.float32]:
        return parameters_to_vector(model.parameters()).detach().numpy()

    actors = Actors(play, weights(), seed)
    return (lambda: actors.receive(num_messages)), (lambda: actors.publish(weights())), actors.close
