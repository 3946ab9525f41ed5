"""``windtunnel calibrate --links``: bandwidth and latency of links between processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.files import open_graph, require_free
from windtunnel.units import format_duration, format_rate, format_ratio, format_size, parse_duration, parse_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windtunnel.comm.links import LinkFit, LinkSample
    from windtunnel.measure import ProfileDatabase

__all__ = ["calibrate_links"]

_SHOWN = 20


def calibrate_links(
    num_ranks: int,
    bandwidth: str,
    latency: str,
    learn: Sequence[Path],
    output: Path | None,
    kept: ProfileDatabase,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Measure links between processes, or learn them from the collectives of captures; write the link as a sheet."""
    from windtunnel.comm.links import fit_link, measure_link, samples_of
    from windtunnel.hardware.sheet import write_link

    target = require_free(
        output or Path(learn[0].with_suffix(".link.json").name if learn else "link.json"), force=force
    )
    rate = parse_rate(bandwidth) if bandwidth else None
    with Progress("measuring links") as progress:
        if learn:
            samples = [item for path in learn for item in samples_of(open_graph(path, progress=progress))]
            fit = fit_link(samples, target.name.removesuffix(".json"), ", ".join(map(str, learn)))
        else:
            sweep = measure_link(
                num_ranks, rate, parse_duration(latency) if latency else 0, database=kept, progress=progress
            )
            fit, samples = sweep.fit, list(sweep.samples)
    write_link(fit.link, target)
    show(_as_dict(fit, samples, target), _lines(fit, samples), as_json=as_json)
    advise(f"wrote {target}; use it as a link: data-parallel:link={target.name}")


def _as_dict(fit: LinkFit, samples: Sequence[LinkSample], target: Path) -> dict[str, object]:
    rows = [
        {
            "op": sample.op,
            "num_ranks": sample.num_ranks,
            "size_bytes": sample.size_bytes,
            "duration_ns": sample.duration_ns,
        }
        for sample in samples
    ]
    numbers = {"sum_bytes_per_s": fit.link.sum_bytes_per_s, "error": fit.error}
    return {"schema": "windtunnel.links/1", "path": str(target), "link": fit.link.json(), **numbers, "samples": rows}


def _lines(fit: LinkFit, samples: Sequence[LinkSample]) -> Iterator[str | Table]:
    sums = fit.link.sum_bytes_per_s
    summed = "" if sums is None else f", reduction {format_rate(sums)}"
    rate = format_rate(fit.link.bandwidth_bytes_per_s)
    yield f"{fit.link.name}: {rate}, {format_duration(fit.link.latency_ns)} per message{summed}"
    yield f"  expected error for other message sizes: {format_ratio(fit.error)}"
    yield ""
    columns = {"collective": str, "ranks": "{}", "size": format_size, "duration": format_duration}
    rows = [(sample.op, sample.num_ranks, sample.size_bytes, sample.duration_ns) for sample in samples[:_SHOWN]]
    yield Table(columns, rows)
