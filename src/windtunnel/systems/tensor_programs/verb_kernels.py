"""``windtunnel cost train kernels`` and ``cost eval kernels``: nets by the sum of their kernels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, print_table, say
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json

if TYPE_CHECKING:
    from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel
    from windtunnel.systems.tensor_programs.runtimes.learned import Net, RuntimeModel

__all__ = ["eval_kernels", "train_kernels"]

Nets = Annotated[str, typer.Option("--nets", metavar="NAMES", help="Vision nets, with commas (pytorchcv's names).")]
Size = Annotated[int, typer.Option("--size", min=8, metavar="PIXELS", help="Height and width of the images.")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Images at once.")]
_SCHEMA = "windtunnel.cost.kernels/1"


@registry.verb("cost train kernels", source="CDMPP")
def train_kernels(
    output: Annotated[Path, typer.Option("--out", "--output", "-o", metavar="FILE", help="The model (.safetensors).")],
    nets: Nets = "",
    prior: Annotated[
        list[str] | None, typer.Option("--prior", metavar="KIND=CSV", help="More kernels: conv-bn-relu=prior_conv.csv.")
    ] = None,
    runtime: Annotated[str, typer.Option(help="eager, or onednn.")] = "onednn",
    num_threads: Annotated[int, typer.Option("--threads", min=1)] = 1,
    num_kernels: Annotated[int, typer.Option("--kernels", min=20, help="Measured at first; up to 3/4 more.")] = 300,
    size: Size = 224,
    batch_size: Batch = 1,
    preset: Annotated[str, typer.Option(help="efficiency, or paper: nn-Meter's own forests.")] = "efficiency",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel cost train kernels --nets resnet18,mobilenet_w1 --out kernels.safetensors

    Find which layers a runtime of this host fuses, measure such kernels, and learn what others would take.
    """
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.runtimes.learned import learn_runtime, save_runtime_model
    from windtunnel.systems.tensor_programs.runtimes.model import PRESETS

    path = require_free(output, force=force)
    if preset not in PRESETS:
        raise InputError(f"no preset is called {preset!r}", where="--preset", fix=", ".join(PRESETS))
    extra = [kernel for one in prior or () for kernel in _read_prior(one)]
    chosen = list(_nets(nets, size, batch_size).values())
    if not chosen and not extra:
        raise InputError("there are no kernels to learn from", fix="name --nets, or a table of kernels by --prior")
    with Progress("measuring") as progress:
        model = learn_runtime(
            chosen,
            runtime,
            extra=extra,
            num_threads=num_threads,
            num_first=num_kernels,
            settings=PRESETS[preset],
            seed=seed,
            progress=progress,
        )
    save_runtime_model(model, path, overwrite=force)
    if as_json:
        print_json({"path": str(path), **_summary(model)})
        return
    say(f"measured {model.num_measured} kernels of {model.runtime} on {model.num_threads} thread(s)")
    say(f"fused: {', '.join(sorted('-'.join(pair) for pair in model.fused)) or 'nothing'}")
    say(f"mean error of single kernels held out: {100 * model.test_errors[-1]:.0f} %")
    advise(f"wrote {path}")
    advise(f"next: windtunnel cost eval kernels {path} --nets {nets or 'resnet18'}")


def _read_prior(given: str) -> list[LayerKernel]:
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.runtimes.layer_kernels import read_prior

    kind, sign, path = given.partition("=")
    if not sign:
        raise InputError(f"{given!r} does not say what its rows are", where="--prior", fix="--prior conv-relu=FILE.csv")
    return read_prior(path, kind)


def _nets(names: str, size: int, batch_size: int) -> dict[str, Net]:
    """Nets with an input each."""
    from windtunnel.base.extras import require
    from windtunnel.workloads.vision import vision_model

    torch = require("torch", extra="torch")
    chosen = [name for name in names.split(",") if name]
    return {name: (vision_model(name, size=size), [torch.rand(batch_size, 3, size, size)]) for name in chosen}


def _summary(model: RuntimeModel) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "runtime": model.runtime,
        "num_threads": model.num_threads,
        "fused": sorted(model.fused),
        "num_measured": model.num_measured,
        "kernel_error": model.test_errors[-1],
        "machine": model.machine,
        "libraries": model.libraries,
    }


@registry.verb("cost eval kernels", source="CDMPP")
def eval_kernels(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What cost train kernels wrote.")],
    nets: Nets,
    is_run: Annotated[bool, typer.Option("--run/--no-run", help="Run the nets here too, and compare.")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each net, in turn.")] = 7,
    size: Size = 224,
    batch_size: Batch = 1,
    as_json: Json = False,
) -> None:
    """Example: windtunnel cost eval kernels kernels.safetensors --nets densenet121,vovnet39

    Say what nets take as the sum of their kernels, and how far that is from running them.
    """
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.runtimes.learned import load_runtime_model

    found = load_runtime_model(model)
    if is_run and not found.is_of_this_host:
        raise InputError(
            f"this model is of {found.machine}, {found.libraries}", where=str(model), fix="predict only: --no-run"
        )
    chosen = _nets(nets, size, batch_size)
    if not chosen:
        raise InputError("no nets are named", where="--nets", fix="--nets resnet18,mobilenet_w1")
    rows = [{"net": name, **_price(found, net)} for name, net in chosen.items()]
    if is_run:
        for row, measured_ns in zip(rows, _flown(found, list(chosen.values()), rounds), strict=True):
            row |= {"measured_ns": measured_ns, "error": row["predicted_ns"] / measured_ns - 1}
    if as_json:
        print_json({"model": str(model), **_summary(found), "nets": rows})
        return
    _print_nets(rows)


def _price(model: RuntimeModel, net: Net) -> dict[str, Any]:
    kernels = model.kernels(net)
    return {"num_kernels": len(kernels), "predicted_ns": model.forests.net_ns(kernels)}


def _flown(model: RuntimeModel, nets: list[Net], rounds: int) -> list[float]:
    """Nanoseconds of each net, each once per round."""
    from windtunnel.measure.threads import threads
    from windtunnel.systems.tensor_programs.runtimes.run import compile_for, in_turn

    clock = time.thread_time_ns if model.num_threads == 1 else time.perf_counter_ns
    with threads(model.num_threads):
        return in_turn([compile_for(model.runtime, *net) for net in nets], rounds, clock)


def _print_nets(rows: list[dict[str, Any]]) -> None:
    def cells(row: dict[str, Any]) -> list[str]:
        head = [row["net"], str(row["num_kernels"]), f"{row['predicted_ns'] / 1e6:.2f} ms"]
        if "error" not in row:
            return head
        return [*head, f"{row['measured_ns'] / 1e6:.2f} ms", f"{100 * row['error']:+.1f} %"]

    names = ["net", "kernels", "predicted", "measured", "error"][: len(cells(rows[0]))]
    print_table(names, [cells(row) for row in rows], numbers=tuple(range(1, len(names))))
