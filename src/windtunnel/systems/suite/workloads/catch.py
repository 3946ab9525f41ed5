"""A ball to catch, seen as pixels: the environment of the reinforcement workload.

In: sizes and, at reset, a seed. Out: a ``gymnasium.Env`` whose observation is a grey picture, as of an Atari game.
Not here: learning, stacking of frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windtunnel.base.extras import require

if TYPE_CHECKING:
    import gymnasium

__all__ = ["Court", "catch"]

LEFT, STAY, RIGHT = range(3)


@dataclass(frozen=True)
class Court:
    """A square of ``num_cells`` x ``num_cells`` cells, drawn on ``num_pixels`` x ``num_pixels``.

    Parameters
    ----------
    num_pixels, num_cells : int
    paddle : int
        Its width in cells.
    num_balls : int
        Balls per episode; Pong ends after at most 21 points.
    """

    num_pixels: int
    num_cells: int
    paddle: int
    num_balls: int


def catch(court: Court) -> gymnasium.Env[npt.NDArray[np.uint8], np.int64]:
    """A ball falls at a slant and rebounds from the walls; a paddle on the ground should be where it lands.

    Actions are left, stay, right. The reward is +1 for a ball caught, -1 for one missed, else 0, so the return of an
    episode is between ``-num_balls`` and ``num_balls``.
    """
    gymnasium = require("gymnasium", extra="suite")

    class Catch(gymnasium.Env):  # type: ignore[misc, name-defined]
        """See ``catch``."""

        def __init__(self) -> None:
            shape = (court.num_pixels, court.num_pixels)
            self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
            self.action_space = gymnasium.spaces.Discrete(3)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed, options=options)
            self.paddle = (court.num_cells - court.paddle) // 2
            self.num_left = court.num_balls
            self._serve()
            return self._picture(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.paddle = min(max(self.paddle + int(action) - STAY, 0), court.num_cells - court.paddle)
            self._fall()
            reward = 0.0
            if self.row == court.num_cells - 1:
                reward = 1.0 if 0 <= self.column - self.paddle < court.paddle else -1.0
                self.num_left -= 1
                if self.num_left:
                    self._serve()
            return self._picture(), reward, self.num_left == 0, False, {}

        def _serve(self) -> None:
            self.row, self.column = 0, int(self.np_random.integers(court.num_cells))
            self.drift = int(self.np_random.integers(-1, 2))

        def _fall(self) -> None:
            # A wall reverses the drift before the ball would leave the court.
            if not 0 <= self.column + self.drift < court.num_cells:
                self.drift = -self.drift
            self.row, self.column = self.row + 1, self.column + self.drift

        def _picture(self) -> npt.NDArray[np.uint8]:
            cells = np.zeros((court.num_cells, court.num_cells), dtype=np.uint8)
            cells[-1, self.paddle : self.paddle + court.paddle] = 128
            cells[self.row, self.column] = 255
            scale = court.num_pixels // court.num_cells
            return cells.repeat(scale, axis=0).repeat(scale, axis=1)

    return Catch()
