"""``windtunnel predict``: a captured job on hardware that is not at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.cheapest import show_cheapest
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import open_graph, require_free
from windtunnel.cli.options import Force, GraphPath, Json
from windtunnel.cli.predict_targets import HOST_NAMES, Predicted, lines_of_whole, predict_speed, targets_of, with_types
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_per_s, format_ratio, format_size, parse_duration

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.hardware import Fabric, Target
    from windtunnel.whatifs.forecast import Forecast

__all__ = ["predict"]

_UNSURE = 0.05
_MIN_SHOWN = 0.005  # of the device time: less changes no digit that is shown
_NUMBERS = (
    *("device", "device_kind", "dtype", "batch_size", "device_ns", "device_low_ns", "device_high_ns"),
    *("host_ns", "loading_ns", "host_factor", "is_host_measured"),
    *(
        "communication_ns",
        "exposed_ns",
        "makespan_ns",
        "low_ns",
        "high_ns",
        "bound_ns",
        "limit",
        "idle_ratio",
        "unsure_ratio",
        "at_bound_ratio",
    ),
)


@registry.verb("predict", source="windtunnel")
def predict(
    graph: GraphPath,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="DEVICE,DEVICE",
            help="Hardware: h100, 8xh100, dgx-h100, tpu-v4-like, this-host, or a device sheet (.json); with "
            "--cheapest, machines of the catalog (default: all).",
        ),
    ] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="TYPE", help="Compute type, such as tf32 or bf16 (default: as captured).")
    ] = "",
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=0, metavar="N", help="Batch size per device (default: as captured).")
    ] = 0,
    batch_dim: Annotated[
        int | None, typer.Option("--batch-dim", metavar="DIM", help="Dimension of the inputs that holds the samples.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME,NAME", help="Cost models by name; auto selects per operator.")
    ] = "auto",
    launch: Annotated[
        str,
        typer.Option(
            "--launch",
            metavar="TIME",
            help="Launch overhead of an operator on the host (default: 5us; never run: timed).",
        ),
    ] = "",
    host_factor: Annotated[
        float,
        typer.Option(
            "--host-factor", metavar="F", help="Ratio of host time to that of the captured host; 0: ignore the host."
        ),
    ] = 1.0,
    link: Annotated[
        str,
        typer.Option(
            "--link",
            metavar="NAME",
            help="Link between devices of a host, by its name in the catalog (default: that of the machine).",
        ),
    ] = "",
    network: Annotated[
        str,
        typer.Option(
            "--network",
            metavar="NAME",
            help="Network link between hosts, by its name in the catalog (default: that of the machine).",
        ),
    ] = "",
    cheapest: Annotated[
        bool, typer.Option("--cheapest", help="Find the cheapest machine of the catalog for a training of --samples.")
    ] = False,
    samples: Annotated[int, typer.Option(min=0, metavar="N", help="Cheapest: number of samples per epoch.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Cheapest: number of epochs.")] = 1,
    deadline: Annotated[
        str,
        typer.Option(metavar="TIME", help="Cheapest: maximum duration of the training, such as 24h (default: none)."),
    ] = "",
    max_cost: Annotated[
        float, typer.Option("--max-cost", min=0, metavar="USD", help="Cheapest: maximum cost in USD; 0: none.")
    ] = 0.0,
    max_machines: Annotated[
        int,
        typer.Option("--max-machines", min=1, metavar="N", help="Cheapest: maximum number of machines of one type."),
    ] = 4,
    dataset_size: Annotated[
        str,
        typer.Option("--dataset-size", metavar="SIZE", help="Cheapest: size of the data set on disk, such as 150GB."),
    ] = "",
    disk_bandwidth: Annotated[
        str,
        typer.Option(
            "--disk-bandwidth", metavar="RATE", help="Cheapest: bandwidth of reading data that does not fit in memory."
        ),
    ] = "",
    prep: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="N",
            help="Cheapest: samples that one core preprocesses per second; 0: preprocessing is free.",
        ),
    ] = 0.0,
    billing: Annotated[
        str, typer.Option(metavar="UNIT", help="Cheapest: billing unit: second (minimum one minute) or hour.")
    ] = "second",
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="Cheapest: measured times (CSV: instance,count,compute_ms,interconnect_ms,network_ms)."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PATH", help="Write the priced graph (.wt).")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel predict train.wt --on h100,a100,l4 --dtype bf16

    Predict a captured job on other hardware, or find the cheapest machine for a training.
    """
    # A search over machines is another answer with other options; the rest of this command is about
    # named devices.
    if cheapest:
        if not samples:
            raise InputError("the number of samples is not given", where="--cheapest", fix="add --samples N")
        show_cheapest(
            graph,
            on=on,
            samples=samples,
            epochs=epochs,
            deadline=deadline,
            max_cost=max_cost,
            max_machines=max_machines,
            batch_size=batch_size,
            dtype=dtype,
            host_factor=host_factor,
            dataset_size=dataset_size,
            disk_bandwidth=disk_bandwidth,
            prep=prep,
            billing=billing,
            measured=measured,
            as_json=as_json,
        )
        return
    if not on:
        raise InputError("no hardware is named", where="--on", fix="add --on h100; windtunnel list devices names more")
    from windtunnel.cost.pricing import comparable
    from windtunnel.graph import save
    from windtunnel.whatifs.forecast import changes, forecast, rank_forecasts
    from windtunnel.whatifs.placing import LAUNCH_NS, select_unpriced

    if output is not None:
        _require_one(on)
        require_free(output, force=force)
    given: dict[str, Any] = {"launch_ns": parse_duration(launch) if launch else None, "batch_dim": batch_dim}
    with Progress(f"predicting {graph.name}", heartbeat=True) as progress:
        asked_for, captured = targets_of(on), open_graph(graph, progress=progress, needs_times=False)
        targets, left_out = with_types(captured, asked_for, dtype)
        given["model"] = comparable(model, [item.device for item in targets])
        numbers: dict[str, Any] = {"dtype": dtype, "batch_size": batch_size, "host_factor": host_factor}
        created, answers = [], {}
        for target in targets:
            fabric = _fabric(captured, target, link, network)
            created.append(forecast(captured, target.device, **numbers, **given, fabric=fabric))
            answers[id(created[-1])] = predict_speed(target, created[-1], fabric, batch_dim)
        result, ranked_by = rank_forecasts(created)
        others = changes(captured, targets[0].device, created[0], **given, fabric=fabric) if len(created) == 1 else []
        if output is not None:
            save(created[0].graph, output, overwrite=force)
    chips = registry.get("page", "predict-chips").function(result, [item.device for item in targets])
    ordered = [answers[id(item)] for item in result]
    for note in [*left_out, *_too_large(captured, targets)]:
        advise(f"note: {note}")
    is_single = len(result) == 1
    lines = _lines(ordered[0], others, chips.lines()) if is_single else _ranking(ordered, ranked_by, chips.lines())
    never_ran = bool(select_unpriced(captured).any())
    launch_ns = given["launch_ns"] or (None if never_ran else LAUNCH_NS)
    show(_document(ordered, others, ranked_by, launch_ns, chips.json()), lines, as_json=as_json)
    # What-ifs need times: a dry run that was never priced has none, unless the priced graph was written.
    requested = output or (None if never_ran else graph)
    _advise_next(graph, on, result[0], others, requested)
    if not result[0].batch_size:
        advise("note: the batch size is not known from the graph; name the dimension of the samples with --batch-dim")


def _too_large(graph: Graph, targets: list[Target]) -> list[str]:
    """Devices whose memory does not hold what a rank of a traced job holds at its peak."""
    peak_bytes = max(graph.meta.distributed.get("peak_bytes", {}).values(), default=0)
    return [
        f"the peak of a rank, {format_size(peak_bytes)}, exceeds the "
        f"{format_size(target.device.memory_bytes)} of "
        f"{target.device.name}: out of memory"
        for target in targets
        if peak_bytes > target.device.memory_bytes > 0
    ]


def _require_one(on: str) -> None:
    if "," in on:
        raise InputError(
            f"--out writes one priced graph, but --on names several devices: {on}", where="--out", fix="name one device"
        )


def _advise_next(graph: Path, on: str, found: Forecast, others: list[Forecast], graph_to_ask: Path | None) -> None:
    """``graph_to_ask``: the graph that what-ifs can be asked about; what never ran has no times of its own."""
    if on in HOST_NAMES and found.unsure_ratio > _UNSURE:
        advise("next: windtunnel calibrate --time-limit 5m")
        return
    if not others and "," in on:
        advise(f"next: windtunnel predict {graph} --on {found.device}{_dtype_option(found)}")
        return
    best = min(others, key=_per_sample, default=found)
    if _per_sample(best) < _per_sample(found):
        options = _dtype_option(best)
        options += f" --batch-size {best.batch_size}" if best.batch_size != found.batch_size else ""
        advise(f"next: windtunnel predict {graph} --on {on}{options}")
    elif graph_to_ask is not None:
        advise(f"next: windtunnel whatif {graph_to_ask} --all")
    else:
        kept = _dtype_option(found).split()
        suggest("windtunnel", "predict", graph, "--on", on, *kept, "--out", graph.with_suffix(".priced.wt"))


def _dtype_option(found: Forecast) -> str:
    return f" --dtype {found.dtype}" if found.dtype != "as captured" else ""


def _fabric(graph: Graph, target: Target, link: str, network: str) -> Fabric | None:
    """What carries messages: those that were never sent, or all where the links are named."""
    from windtunnel.hardware import fabric_of
    from windtunnel.whatifs.messages import has_messages, select_sized_messages

    per_host = int(graph.meta.distributed.get("devices_per_host", 0))
    is_named = bool(link or network)
    if is_named and target.count == 1 and not (has_messages(graph) or select_sized_messages(graph).any()):
        option = "--link" if link else "--network"
        fix = "leave it out, or name several devices, which average their gradients: --on 8xh100"
        raise InputError("the graph has no message of a known size that could use this link", where=option, fix=fix)
    if not (is_named or has_messages(graph)):
        return None
    if not (per_host or has_messages(graph)):
        per_host = _num_ranks(target)
    result = fabric_of(target.owner, link, network, per_host)
    return dataclasses.replace(result, num_ranks=_num_ranks(target), replaces_measured=is_named)


def _num_ranks(target: Target) -> int:
    return target.count if target.count > 1 else 0


def _per_sample(found: Forecast) -> float:
    return found.makespan_ns / max(found.batch_size, 1)


def _document(
    answers: list[Predicted],
    others: list[Forecast],
    ranked_by: str,
    launch_ns: int | None,
    facts: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    from windtunnel.cost.roofline import BOUND_ERROR

    common = {"launch_ns": launch_ns, "bound_error": BOUND_ERROR}
    if len(answers) > 1:
        forecasts = [{**_as_dict(answer.found, facts), **answer.json()} for answer in answers]
        return {"schema": "windtunnel.forecasts/1", "ranked_by": ranked_by, "forecasts": forecasts, **common}
    changed = [_as_dict(item) for item in others]
    result = {**_as_dict(answers[0].found, facts), **answers[0].json()}
    return {"schema": "windtunnel.forecast/2", **result, **common, "changes": changed}


def _as_dict(found: Forecast, facts: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> dict[str, Any]:
    shares = {name: [dataclasses.asdict(item) for item in getattr(found, name)] for name in ("sources", "bindings")}
    classes = [dataclasses.asdict(cls) for cls in found.classes]
    chip = {"chip": facts[found.device]} if found.device in facts else {}
    return {name: getattr(found, name) for name in _NUMBERS} | shares | {"classes": classes} | chip


def _lines(answer: Predicted, others: list[Forecast], chips: Iterable[str | Table]) -> Iterator[str | Table]:
    from windtunnel.whatifs.speed import num_ranks_of_job, why_no_samples

    result = answer.found
    batch = f", batch {result.batch_size}" if result.batch_size else ""
    part = f" (1 of {answer.target.count} of {answer.target.name})" if answer.is_one_of_several else ""
    num_ranks = num_ranks_of_job(result.graph)
    who = f"{num_ranks:,} ranks" if num_ranks > 1 else "one iteration"
    yield f"{who} on {result.device}{part}, {result.dtype}{batch}"
    yield f"  device  {format_duration(result.device_ns)}{_between(result.device_low_ns, result.device_high_ns)}"
    yield f"  host    {_host(result)}"
    if result.loading_ns:
        yield f"  loader  {format_duration(result.loading_ns)}: its workers load a batch on threads of their own"
    if result.communication_ns:
        exposed = format_duration(result.exposed_ns)
        yield f"  network {format_duration(result.communication_ns)}, {exposed} of it exposed"
    yield f"  step    {format_duration(result.makespan_ns)}{_between(result.low_ns, result.high_ns)}"
    if str(answer.speed):
        yield f"  speed   {answer.speed}"
    if why := why_no_samples(result.graph):
        yield f"  samples {why}"
    yield from lines_of_whole(answer)
    yield f"  {_limit(result)}"
    yield from _how_sure(result)
    yield from chips
    for title, whole, shares in (
        ("priced by", "of the step", result.sources),
        ("bound by", "of device time", result.bindings),
    ):
        if shares:
            columns = {title: str, "time": format_duration, whole: format_ratio, "tasks": "{:,}"}
            yield ""
            yield Table(columns, [(item.name, item.duration_ns, item.ratio, item.num_tasks) for item in shares])
    if result.classes:
        columns = {"operator class": str, "time": format_duration, "of device time": format_ratio, "tasks": "{:,}",
                   "efficiency": format_ratio}  # fmt: skip
        names = ("name", "duration_ns", "ratio", "num_tasks", "efficiency")
        yield ""
        yield Table(columns, [[getattr(item, name) for name in names] for item in result.classes])
    if others:
        columns = {"alternative": str, "batch size": "{}", "device": format_duration, "step": format_duration,
                   "speed-up per sample": "{:.2f}x"}  # fmt: skip
        rows = [
            (item.dtype, item.batch_size or "", item.device_ns, item.makespan_ns,
             _per_sample(result) / max(_per_sample(item), 1e-9))
            for item in others
        ]  # fmt: skip
        yield ""
        yield Table(columns, rows)


def _host(found: Forecast) -> str:
    from windtunnel.cost.host_times import HOST_TABLE

    if not found.host_factor:
        return "ignored (--host-factor 0)"
    if HOST_TABLE in found.graph.tasks.strings("cost_source").values:
        times = f"; scaled by {found.host_factor:g} (--host-factor)" if found.host_factor != 1 else ""
        return f"{format_duration(found.host_ns)}: calls and Python as timed on the host of an H200{times}"
    python = "Python as measured at capture" if found.is_host_measured else "without Python"
    times = f"; scaled by {found.host_factor:g} (--host-factor)" if found.host_factor != 1 else ""
    return f"{format_duration(found.host_ns)}: {python}, launch overhead of --launch{times}"


def _between(low_ns: int, high_ns: int) -> str:
    return f" ({format_duration(low_ns)} to {format_duration(high_ns)}, 90 %)" if high_ns > low_ns else ""


def _limit(found: Forecast) -> str:
    other = "host" if found.limit == "device" else "device"
    text = f"{found.limit}-bound: the {other} is idle for {format_ratio(found.idle_ratio)} of the step"
    helps = {
        "host": "; a faster device would hardly help",
        "loader": "; faster loading would help, a faster device hardly",
    }
    return text + helps.get(found.limit, "")


def _how_sure(found: Forecast) -> Iterator[str]:
    from windtunnel.cost.roofline import BOUND_ERROR

    if found.graph.meta.is_uncompiled and found.device_kind == "gpu":
        yield (
            "  the script uses torch.compile: kernels between products are taken as fused, by an estimate; "
            "a capture on a GPU has the real ones"
        )
    if found.unsure_ratio - found.at_bound_ratio >= _MIN_SHOWN:
        share = format_ratio(found.unsure_ratio - found.at_bound_ratio)
        yield f"  {share} of the device time is priced by a model without an error estimate"
    if found.at_bound_ratio < _MIN_SHOWN:
        return
    yield (
        f"  lower bound: no measured or learned price covers {format_ratio(found.at_bound_ratio)} of the device time; "
        "the real step takes longer"
    )
    if found.device_kind == "gpu":
        yield (
            f"  error of bounds on published GPU runs: {format_ratio(BOUND_ERROR['operators'])} for single operators, "
            f"{format_ratio(BOUND_ERROR['models'])} for whole models"
        )


def _ranking(answers: list[Predicted], ranked_by: str, chips: Iterable[str | Table]) -> Iterator[str | Table]:
    result = [item.found for item in answers]
    columns = {"on": str, "device": format_duration, "step": format_duration, "samples/s": _number, "limit": str,
               "longer": "{:.2f}x"}  # fmt: skip
    rows = [
        (answer.name, answer.found.device_ns, answer.found.makespan_ns,
         answer.speed.samples_per_s if answer.speed.num_samples else None, f"{answer.found.limit}-bound",
         getattr(answer.found, ranked_by) / max(getattr(result[0], ranked_by), 1))
        for answer in answers
    ]  # fmt: skip
    yield f"one iteration, {result[0].dtype}" + (f", batch {result[0].batch_size}" if result[0].batch_size else "")
    yield Table(columns, rows)
    for answer in answers:
        if answer.target.count > 1:
            yield f"{answer.name}: the row is of one {answer.target.device.name}"
            yield from lines_of_whole(answer)
    if ranked_by == "device_ns":
        yield "ranked by the device's time: the host makes all steps alike"
    at_bound = max(item.at_bound_ratio for item in result)
    if at_bound >= _MIN_SHOWN:
        yield f"up to {format_ratio(at_bound)} of the device's time is priced by a bound: the truth is longer"
    yield from chips


def _number(samples_per_s: float) -> str:
    return format_per_s(samples_per_s, "").removesuffix(" /s")
