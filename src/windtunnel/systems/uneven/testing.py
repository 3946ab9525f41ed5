"""The contract that a synchronization strategy keeps, as tests to inherit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from windtunnel.errors import InputError
from windtunnel.systems.uneven.fleet import read_fleet
from windtunnel.systems.uneven.goal import Goal
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.model import train_virtually
from windtunnel.testing import PluginContract

__all__ = ["StrategyContract"]


class StrategyContract(PluginContract):
    """A synchronization strategy of ``training``; override ``job``, a text as of ``train plan --job``, if needed.

    Two unequal workers with a server train for two seconds of virtual time.
    """

    kind = "strategy"
    parameters: ClassVar[dict[str, Any]] = {}

    def job(self, folder: Path) -> str:  # noqa: ARG002
        """What is trained."""
        return "mlp:hidden=8"

    def train_fleet(self, folder: Path, speeds: Sequence[float] = (1.0, 0.5), first: str = "") -> Any:
        """A ``Run`` in virtual time; ``first`` is more about the first worker."""
        path = folder / "cluster.toml"
        card = 'up = "10 MB/s"\ndown = "10 MB/s"\n'
        workers = "".join(f"[[workers]]\nspeed = {speed}\n{card}" for speed in speeds)
        workers = workers.replace("[[workers]]", f"[[workers]]\n{first}", 1)
        path.write_text(f'step_time = "100 ms"\n[server]\n{card}{workers}', encoding="utf-8")
        policy = self.plugin.function(**self.parameters)
        goal = Goal(2 * 10**9, every_ns=10**9)
        return train_virtually(train_job(self.job(folder)), read_fleet(path), self.name, policy, goal)

    def test_it_trains_and_says_the_same_twice(self, tmp_path: Path) -> None:
        """No worker stands still from the beginning, no loss is lost, and equal seeds give equal runs, bit for bit."""
        first, second = self.train_fleet(tmp_path), self.train_fleet(tmp_path)
        assert set(first.steps[:, 0].tolist()) == {0, 1}
        assert all(math.isfinite(point.loss) for point in first.points)
        assert first.weights.tobytes() == second.weights.tobytes()
        assert first.steps.tobytes() == second.steps.tobytes()
        assert first.messages.tobytes() == second.messages.tobytes()

    def test_it_goes_on_without_a_worker_or_says_that_it_cannot(self, tmp_path: Path) -> None:
        """Where the first of three workers is lost, the others learn on; nothing that it sent keeps them waiting."""
        speeds, lost_ns = (1.0, 0.8, 0.5), 730_000_000
        if self.plugin.function(**self.parameters).goes_on == "never":
            with pytest.raises(InputError, match=r"w0.*lost at 730 ms"):
                self.train_fleet(tmp_path, speeds, 'lost_at = "730 ms"')
            return
        run = self.train_fleet(tmp_path, speeds, 'lost_at = "730 ms"')
        last_ns = [int(run.steps[run.steps[:, 0] == rank, 2].max()) for rank in range(3)]
        assert last_ns[0] <= lost_ns
        assert min(last_ns[1:]) > 1_600_000_000
        assert all(math.isfinite(point.loss) for point in run.points)
        assert run.lost_workers == ((0, lost_ns),)
