"""A lane within this process: a step function that is called when it is its turn.

In: a step function, its live program, and the flights to fly. Out: turns. The flights are entered before a turn and
left after it, so that baseline and changed program can be one and the same: same weights, same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from windtunnel.base.gpu_failures import gpu_advice
from windtunnel.cost.rerun import lacks_kernel
from windtunnel.errors import FlightError, NotApplicableError, WindtunnelError
from windtunnel.flights.proof import LossWatch, Witness
from windtunnel.measure.devices import IterationClock
from windtunnel.measure.turns import Turn
from windtunnel.sources.torch.live import LiveProgram

__all__ = ["Flying", "StepLane"]

Flying = Callable[[LiveProgram], AbstractContextManager[None]]


class StepLane:
    """Runs ``step`` under the given flights; with none of them it is the baseline."""

    def __init__(
        self,
        step: Callable[[], Any],
        program: LiveProgram,
        flights: Sequence[Flying] = (),
        *,
        loader: Any = None,
        sees_operators: bool = True,
    ) -> None:
        self._step = step
        self._program = program
        self._flights = flights
        self._losses = LossWatch()
        self._witness: Witness | None = Witness(
            program, [loader] if loader is not None else [], sees_operators=sees_operators
        )
        self.iterations_per_sample = 1
        with self._flying():
            self.iterations_per_sample = program.iterations_per_sample

    @contextmanager
    def _flying(self) -> Iterator[None]:
        with ExitStack() as stack:
            for flight in self._flights:
                stack.enter_context(flight(self._program))
            yield

    def turn(self, num_iterations: int) -> Turn:
        """Run one iteration to settle and then ``num_iterations``.

        Raises
        ------
        NotApplicableError
            This processor has no kernel for the changed step.
        FlightError
            The step raised.
        """
        try:
            with self._flying(), self._losses.watching():
                seen = self._settle()
                clock = IterationClock()  # by now it is seen whether the program uses a GPU
                clock.begin()
                for _ in range(num_iterations):
                    self._step()
                    clock.mark()
                durations_ns = clock.durations_ns()
        except WindtunnelError:
            raise
        except Exception as error:
            if self._flights and lacks_kernel(error):
                raise NotApplicableError(
                    f"this processor has no kernel for it: {error}", where=repr(self._step)
                ) from error
            which = "changed step" if self._flights else "step"
            raise FlightError(
                f"the {which} raised {type(error).__name__}: {error}",
                where=repr(self._step),
                fix=gpu_advice(f"{type(error).__name__}: {error}"),
            ) from error
        return Turn(durations_ns, self._losses.read(), seen)

    def _settle(self) -> dict[str, float]:
        """The iterations that do not count; before the first turn they are run twice, and watched once learnt."""
        seen: dict[str, float] = {}
        witness, self._witness = self._witness, None
        for _ in range(self.iterations_per_sample if witness is not None else 0):
            self._step()
        with witness.watching(self.iterations_per_sample, seen) if witness is not None else nullcontext():
            for _ in range(self.iterations_per_sample):
                self._step()
        return seen

    def log_tail(self) -> str:
        """A step function prints where its caller prints."""
        return ""
