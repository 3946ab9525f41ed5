"""How the ranks of a distributed script are started on this host.

In: how many, and how fast the link between them shall be. Out: what ``measure.workers`` needs to start them as
``torchrun`` would: environment, commands in front, an address to meet at. Not here: what the processes then do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from windtunnel.errors import InputError
from windtunnel.measure.links import KERNEL, ShapedLink, shape_link

__all__ = ["Meeting", "Ranks", "is_one_of_several", "join_job", "launch", "num_ranks_here", "rank_here"]

_LOCAL = "127.0.0.1"
_UNLIMITED = 1e11  # bytes per second, where only a latency is asked for


class Ranks(msgspec.Struct, frozen=True):
    """How many processes a script runs in, and the link that each has to a common switch.

    Parameters
    ----------
    num_ranks : int
    bandwidth_bytes_per_s : float or None
        None: the loopback as it is.
    latency_ns : int
        One way.
    """

    num_ranks: int = 1
    bandwidth_bytes_per_s: float | None = None
    latency_ns: int = 0

    @property
    def is_shaped(self) -> bool:
        """Whether the link is slower than the loopback."""
        return self.bandwidth_bytes_per_s is not None or self.latency_ns > 0

    def nonzero_fields(self) -> dict[str, float]:
        """Return the fields that differ from 0, for ``meta.origin``, from which the job can be started again."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}

    @classmethod
    def of(cls, document: Mapping[str, float]) -> Ranks:
        """The job that ``document`` described."""
        return cls(
            int(document.get("num_ranks", 1)), document.get("bandwidth_bytes_per_s"), int(document.get("latency_ns", 0))
        )


class Meeting(msgspec.Struct, frozen=True):
    """Where the ranks of a job find each other."""

    address: str
    port: int


@contextmanager
def launch(ranks: Ranks) -> Iterator[tuple[ShapedLink, Meeting, dict[str, str]]]:
    """The link between the ranks, where they meet, and the environment that all of them share.

    Raises
    ------
    InputError
        There are no ranks, or the kernel does not let this process shape links.
    """
    if ranks.num_ranks < 1:
        raise InputError(f"a script cannot run in {ranks.num_ranks} processes", fix="give at least one (--nproc 2)")
    with _link(ranks) as link:
        # as torchrun does, where the user says nothing
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        yield link, Meeting(link.addresses[0], _free_port()), {**threads, **link.environment}


@contextmanager
def _link(ranks: Ranks) -> Iterator[ShapedLink]:
    if not ranks.is_shaped:
        count = ranks.num_ranks
        yield ShapedLink("loopback", ((),) * count, (_LOCAL,) * count, {}, float("inf"))
        return
    with shape_link(ranks.num_ranks, ranks.bandwidth_bytes_per_s or _UNLIMITED, ranks.latency_ns) as link:
        if link.how != KERNEL or link.delay_ns:
            what = "delay messages" if link.how == KERNEL else "shape links"
            raise InputError(
                f"the kernel does not let this process {what}, and an unmodified script cannot be held back otherwise",
                fix="run as root with iproute2 (tc), or leave out --bandwidth and --latency",
            )
        yield link


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((_LOCAL, 0))
        return int(one.getsockname()[1])


def join_job(rank: int, num_ranks: int, meeting: Meeting) -> None:
    """Set the variables by which ``torch.distributed`` knows this process, as ``torchrun`` does."""
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
        "GROUP_RANK": 0,
        "MASTER_PORT": meeting.port,
    }
    os.environ.update({"MASTER_ADDR": meeting.address, **{name: str(number) for name, number in numbers.items()}})


def rank_here() -> int:
    """Which process of its job this is, as launchers report it; 0 where there is no job."""
    return _env_int("RANK") if is_one_of_several() else 0


def num_ranks_here() -> int:
    """Processes of the job that this one is of, as launchers report it; 0 where they do not."""
    return _env_int("WORLD_SIZE")


def is_one_of_several() -> bool:
    """Whether a launcher started this process as one of several."""
    return num_ranks_here() > 1


def _env_int(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0
