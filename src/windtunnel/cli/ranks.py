"""Options of a script that runs in several processes, each said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.sources.torch.launch import Ranks

__all__ = ["Bandwidth", "Latency", "NumProcesses", "ranks_of"]

NumProcesses = Annotated[
    int,
    typer.Option("--nproc", min=1, metavar="N", help="Number of processes to launch the script in, as torchrun does."),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        "--bandwidth", metavar="RATE", help="Bandwidth of the emulated link of each process, such as 125MB/s."
    ),
]
Latency = Annotated[
    str, typer.Option("--latency", metavar="TIME", help="One-way latency of the emulated link, such as 100us.")
]


def ranks_of(nproc: int, bandwidth: str, latency: str) -> Ranks:
    """What the options say.

    Raises
    ------
    InputError
        A link for one process, or no rate or time.
    """
    from windtunnel.sources.torch.launch import Ranks
    from windtunnel.units import parse_duration, parse_rate

    if nproc == 1 and (bandwidth or latency):
        raise InputError("--bandwidth and --latency need several processes", fix="add --nproc 2, or leave them out")
    rate = parse_rate(bandwidth) if bandwidth else None
    return Ranks(nproc, rate, parse_duration(latency) if latency else 0)
