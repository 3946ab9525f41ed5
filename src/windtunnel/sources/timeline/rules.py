"""The constants by which waits are read from the times of a timeline (sources, timeline).

What a trace tells (correlations, notes of waits, sequence numbers) needs none of them; what it does not tell
is inferred with these.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from windtunnel.errors import InputError

__all__ = ["TimelineRules"]


@dataclass(frozen=True, slots=True)
class TimelineRules:
    """How near two times must be to be cause and effect.

    Parameters
    ----------
    stream_lag_ns : int
        A stream's own delay between two queued tasks, where the trace shows no typical one.
    noise_ns : int
        A delay up to this much beyond the typical one needs no explanation.
    wait_seen_ns : int
        A task waited for one of another stream that ended at most this long before its start.
    idle_start_ns : int
        A device that is idle, and waits for nothing, starts what was launched within this time.
    return_ns : int
        A call waited for a task if it returned at most this long after the task's end.
    queued_tasks : int
        A call that launches while this number of launched tasks is unfinished may wait for room in the device's queue.
    shortest_gap_ns : int
        Shorter rests of a thread are its own time.
    long_gap_ns : int
        A thread that rests longer waited for the work that ended before it went on (Chakra's rule).
    resume_ns : int
        A thread goes on at most this long after the work that it waited for.
    cover_ratio : float
        A block of work that was handed off fills at least this share of the gap of the thread that waited.
    max_gap_ns : int, optional
        Count gaps of threads that are longer; none by default.
    """

    stream_lag_ns: int = 2_000
    noise_ns: int = 10_000
    wait_seen_ns: int = 25_000  # 5 on GPUs of NVIDIA, 10 to 20 on those of AMD
    idle_start_ns: int = 1_000_000
    return_ns: int = 40_000
    queued_tasks: int = 900  # the queue of NVIDIA's driver holds 1,024
    shortest_gap_ns: int = 30_000
    long_gap_ns: int = 1_000_000
    resume_ns: int = 100_000
    cover_ratio: float = 0.5
    max_gap_ns: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise InputError(
                    f"{field.name} is {value}", where="TimelineRules", fix="times and shares are 0 or more"
                )
