"""Processes that play, and what they send.

In: an environment's size, a policy's network and a seed. Out: rollouts, in the order in which they are ready. Actors
are plain child processes (no fork of a process with threads, no second import of a user's script); each reads the
learner's weights from shared memory before a rollout and sends it through a socket, which holds it back while the
learner is behind. An actor ends when its socket closes: by ``close``, by garbage collection, by the parent's death.
Not here: learning.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from windtunnel.errors import InputError
from windtunnel.systems.suite.workloads.catch import Court, catch

__all__ = ["NUM_FRAMES", "Actors", "Play", "Rollouts", "act", "join_rollouts", "policy"]

NUM_FRAMES = 4
"""Frames that the policy sees at once."""

# B environments, R steps of a rollout, F frames of a stack, P pixels


@dataclass(frozen=True)
class Play:
    """The setup of actors: number of processes, environments per process, and the width of the policy."""

    court: Court
    num_actors: int
    num_environments: int
    num_steps: int
    width: int


@dataclass(frozen=True)
class Rollouts:
    """What an actor saw and did.

    Parameters
    ----------
    frames : uint8 [R + 1, B, F, P, P]
        The last are those after the last action.
    actions : int64 [R, B]
    rewards : float32 [R, B]
    goes_on : float32 [R, B]
        0 where the episode ended with this action.
    returns : list of float
        Of the episodes that ended meanwhile.
    """

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float32]
    goes_on: npt.NDArray[np.float32]
    returns: list[float]


def join_rollouts(parts: list[Rollouts]) -> Rollouts:
    """Rollouts of several actors, side by side."""

    def side_by_side(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts], axis=1)

    return Rollouts(
        side_by_side("frames"),
        side_by_side("actions"),
        side_by_side("rewards"),
        side_by_side("goes_on"),
        [value for part in parts for value in part.returns],
    )


class Actors:
    """The learner's side: started at once, ended by ``close`` or by garbage collection."""

    def __init__(self, play: Play, weights: npt.NDArray[np.float32], seed: int) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(weights.nbytes)
            memory = mmap.mmap(file.fileno(), weights.nbytes)
            self._weights = np.frombuffer(memory, dtype=np.float32)
            self.publish(weights)
            started = [_start(play, seed + number, file.fileno()) for number in range(play.num_actors)]
        self._waiting = deque(connection for connection, _ in started)
        self._end = weakref.finalize(self, _end, started)

    def publish(self, weights: npt.NDArray[np.float32]) -> None:
        """Let the actors see new weights; without a lock, as in A3C: an actor may read some old and some new."""
        self._weights[:] = weights

    def receive(self, num_messages: int) -> Rollouts:
        """The next rollouts that are ready, those of the actor that waits longest first.

        Raises
        ------
        InputError
            An actor has ended.
        """
        return join_rollouts([self._next() for _ in range(num_messages)])

    def _next(self) -> Rollouts:
        if not self._end.alive:
            raise InputError("the actors of this workload have ended", fix="make a new workload")
        ready = wait(list(self._waiting))
        connection = next(item for item in self._waiting if item in ready)
        self._waiting.remove(connection)
        self._waiting.append(connection)
        try:
            return Rollouts(*connection.recv())
        except (EOFError, ConnectionError) as error:
            self.close()
            raise InputError("an actor process has died", fix="its own message is on standard error") from error

    def close(self) -> None:
        """End all actors; twice does no harm."""
        self._end()


def _start(play: Play, seed: int, weights_file: int) -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    words = json.dumps({**asdict(play), "seed": seed, "connection": theirs.fileno(), "weights": weights_file})
    command = [sys.executable, "-c", "from windtunnel.systems.suite.workloads.actors import act; act()", words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with theirs:
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(), weights_file), env=environment)
    return ours, process


def _end(started: list[tuple[Connection, subprocess.Popen[bytes]]]) -> None:
    for connection, process in started:
        connection.close()
        process.terminate()
    for _, process in started:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def act() -> None:
    """An actor's life; its orders are the last word of the command line."""
    orders: dict[str, Any] = json.loads(sys.argv[-1])
    connection, seed, weights_file = (orders.pop(name) for name in ("connection", "seed", "weights"))
    play = Play(Court(**orders.pop("court")), **orders)
    with Connection(connection) as learner, contextlib.suppress(ConnectionError, KeyboardInterrupt):
        _play(play, seed, mmap.mmap(weights_file, 0), learner)


def _play(play: Play, seed: int, memory: mmap.mmap, learner: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = policy(play)
    weights = torch.frombuffer(memory, dtype=torch.float32)
    environments = _environments(play)
    frames, _ = environments.reset(seed=1000 * seed)
    totals = np.zeros(play.num_environments)
    while True:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(weights.clone(), network.parameters())
            frames, message = _rollout(play, network, environments, frames, totals)
        learner.send(message)


def _environments(play: Play) -> Any:
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from gymnasium.wrappers import FrameStackObservation

    def make() -> Any:
        return FrameStackObservation(catch(play.court), NUM_FRAMES)

    return SyncVectorEnv([make] * play.num_environments, autoreset_mode=AutoresetMode.SAME_STEP)


def _rollout(
    play: Play, network: Any, environments: Any, frames: npt.NDArray[np.uint8], totals: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.uint8], tuple[Any, ...]]:
    """The last frames and the fields of ``Rollouts``; ``totals`` are the returns of running episodes."""
    import torch

    seen, returns = [frames], list[float]()
    moves: list[tuple[Any, Any, Any]] = []
    for _ in range(play.num_steps):
        scores, _ = network(torch.from_numpy(frames))
        actions = torch.distributions.Categorical(logits=scores).sample().numpy()
        frames, reward, ended, _, _ = environments.step(actions)
        frames = frames.copy()
        totals += reward
        returns += totals[ended].tolist()
        totals[ended] = 0.0
        seen.append(frames)
        moves.append((actions, np.float32(reward), np.float32(~ended)))
    return frames, (np.stack(seen), *(np.stack(part) for part in zip(*moves, strict=True)), returns)


def policy(play: Play) -> Any:
    """The network of the A3C paper: two convolutions and a hidden layer; scores of the actions, and a value."""
    import torch
    from torch import nn

    sides = play.court.num_pixels
    for kernel, stride in ((8, 4), (4, 2)):
        sides = (sides - kernel) // stride + 1

    class Policy(nn.Module):
        """Frames uint8 [B, F, P, P] to scores [B, 3] and values [B]."""

        def __init__(self) -> None:
            super().__init__()
            self.see = nn.Sequential(
                nn.Conv2d(NUM_FRAMES, play.width, 8, 4),
                nn.ReLU(),
                nn.Conv2d(play.width, 2 * play.width, 4, 2),
                nn.ReLU(),
            )
            self.think = nn.Sequential(nn.Linear(2 * play.width * sides**2, 16 * play.width), nn.ReLU())
            self.act, self.value = nn.Linear(16 * play.width, 3), nn.Linear(16 * play.width, 1)

        def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.think(self.see(frames.float() / 255).flatten(1))
            return self.act(hidden), self.value(hidden).squeeze(-1)

    return Policy()
