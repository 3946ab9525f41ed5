"""``windtunnel cost transfer``: latencies on a new device from a handful of measurements."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, print_table, say
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json

if TYPE_CHECKING:
    import numpy as np

    from windtunnel.systems.utilization.cells.latencies import LatencyTable
    from windtunnel.systems.utilization.cells.transfer import Transfer, Transferred

__all__ = ["transfer"]

_SCHEMA = "windtunnel.cost.transfer/1"
_SHOWN = 10
_MOST_CANDIDATES = 1500  # drawn from larger tables


@registry.verb("cost transfer", source="CDMPP")
def transfer(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV file: net, then a column of ms per device.")],
    measured: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Nets measured on the new device: net, latency_ms.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Of the table: take it for new, and compare.")] = "",
    num_samples: Annotated[int, typer.Option("--samples", min=1, help="Nets to measure on the new device.")] = 10,
    output: Annotated[
        Path | None, typer.Option("--out", "--output", "-o", metavar="CSV", help="What was found.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel cost transfer latencies.csv --out to_measure.csv

    Say which nets to measure on a new device; and with those measured, what all others take there.

    Without --measured, the nets to measure go to --out with an empty column; fill it in and give it back.
    """
    from windtunnel.errors import InputError
    from windtunnel.systems.utilization.cells.latencies import read_latencies

    if output is not None:
        require_free(output, force=force)
    if measured is not None and device:
        raise InputError("--measured is of a new device, --device of one in the table", fix="give one of them")
    known = read_latencies(table)
    if measured is not None:
        _predict(known, *_read_measured(measured, known), output, as_json=as_json)
    elif device:
        _compare(known, device, num_samples, seed, as_json=as_json)
    else:
        _choose(known, num_samples, seed, output, as_json=as_json)


def _chosen(known: LatencyTable, without: list[str], num_samples: int, seed: int) -> tuple[Transfer, np.ndarray]:
    """What all other devices tell, its settings from them alone, and the nets to measure."""
    from windtunnel.systems.utilization.cells.transfer import Transfer

    with Progress("learning from the known devices", heartbeat=True):
        learned = Transfer.of(known.without(without), known.features, num_samples=num_samples, seed=seed)
    return learned, learned.choose(num_samples, num_candidates=_MOST_CANDIDATES, seed=seed)


def _choose(known: LatencyTable, num_samples: int, seed: int, output: Path | None, *, as_json: bool) -> None:
    _, rows = _chosen(known, [], num_samples, seed)
    names = [known.names[row] for row in rows.tolist()]
    if output is not None:
        _write(output, ["net", "latency_ms"], [[name, ""] for name in names])
    if as_json:
        print_json({"schema": _SCHEMA, "nets": names, "num_devices": len(known.devices)})
        return
    say(f"measure these {len(names)} of {len(known.names):,} nets, the most telling first:")
    for name in names:
        say(f"  {name}")
    advise(f"next: windtunnel cost transfer TABLE --measured {output or 'MEASURED.csv'}")


def _read_measured(path: Path, known: LatencyTable) -> tuple[list[int], list[float]]:
    """Rows of the table and what they took.

    Raises
    ------
    InputError
        It is no such file, or a net is not in the table or has no number; names its line.
    """
    from windtunnel.errors import InputError

    places = {name: row for row, name in enumerate(known.names)}
    found: list[tuple[int, float]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for line, row in enumerate(csv.DictReader(lines), start=2):
                name = row.get("net")
                if name not in places:
                    raise InputError(f"{name!r} is not in the table", where=f"{path}, line {line}", fix="column net")
                found.append((places[name], float(row["latency_ms"])))
    except OSError as error:
        raise InputError(f"the measurements cannot be read: {error}", where=str(path)) from error
    except (KeyError, TypeError, ValueError) as error:
        fix = "columns: net, latency_ms; every latency filled in"
        raise InputError(f"a row cannot be read: {error}", where=f"{path}, line {line}", fix=fix) from error
    return [row for row, _ in found], [latency for _, latency in found]


def _predict(
    known: LatencyTable, rows: list[int], latency_ms: list[float], output: Path | None, *, as_json: bool
) -> None:
    learned, _ = _chosen(known, [], min(len(rows), len(known.names)) or 1, 0)
    found = learned.predict(rows, latency_ms)
    columns = (found.mean_ms.tolist(), found.low_ms.tolist(), found.high_ms.tolist())
    document = [
        dict(zip(("net", "latency_ms", "low_ms", "high_ms"), row, strict=True))
        for row in zip(known.names, *columns, strict=True)
    ]
    if output is not None:
        _write(output, list(document[0]), [list(one.values()) for one in document])
    if as_json:
        how = {"method": found.method, "errors": found.errors}
        print_json({"schema": _SCHEMA, "level": 0.9, "num_samples": len(rows), **how, "nets": document})
        return
    fastest = sorted(document, key=lambda one: one["latency_ms"])
    shown = fastest[:_SHOWN]
    cells = [[one["net"], f"{one['latency_ms']:.3f}", f"{one['low_ms']:.3f} to {one['high_ms']:.3f}"] for one in shown]
    say(f"{len(document):,} nets from {len(rows)} measured ones by {_named(found)}; the fastest:")
    print_table(["net", "ms", "90 % interval"], cells, numbers=(1, 2), gives_way=0)
    if output is not None:
        advise(f"wrote {output}")


def _compare(known: LatencyTable, device: str, num_samples: int, seed: int, *, as_json: bool) -> None:
    import numpy as np

    from windtunnel.systems.utilization.cells.model import rank_correlation

    truth = known.on(device)
    learned, rows = _chosen(known, [device], num_samples, seed)
    found = learned.predict(rows, truth[rows])
    is_new = np.ones(len(truth), dtype=bool)
    is_new[rows] = False
    off = np.abs(found.mean_ms / truth - 1.0)
    errors = {
        "rank_correlation": rank_correlation(found.mean_ms[is_new], truth[is_new]),
        "median_ape": float(np.median(off[is_new])),
        "mean_ape": float(np.mean(off[is_new])),
        "coverage_of_90": float(((found.low_ms <= truth) & (truth <= found.high_ms))[is_new].mean()),
    }
    if as_json:
        how = {"method": found.method, "errors": found.errors}
        print_json({"schema": _SCHEMA, "device": device, "num_samples": num_samples, **how, **errors})
        return
    say(f"{device} from {num_samples} nets by {_named(found)}, {int(is_new.sum()):,} others compared:")
    rows_ = [
        ["rank correlation (Spearman)", f"{errors['rank_correlation']:.3f}"],
        ["median |error|", f"{100 * errors['median_ape']:.1f} %"],
        ["mean |error|", f"{100 * errors['mean_ape']:.1f} %"],
        ["inside the 90 % interval", f"{100 * errors['coverage_of_90']:.0f} %"],
    ]
    print_table(["measure", "value"], rows_, numbers=(1,))


def _named(found: Transferred) -> str:
    """The method that won, and how far off it was on measured nets that were left out."""
    import numpy as np

    off = found.errors.get(found.method)
    return found.method + (f" ({100 * np.expm1(off):.0f} % off on nets left out)" if off is not None else "")


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    from windtunnel.reports.page import write_text

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue(), overwrite=True)
