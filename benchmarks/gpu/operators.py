"""Times of operators over the range of their sizes, as a data set of our own (stage ``operators``).

In: cases by number. Out: one line per case in a journal, so that a stage that is cut off goes on where it was, and at
the end of every call the whole set as CSV in the columns of ``models train tile``, a folder for each form of
arithmetic, with a data sheet. Needs torch and numpy alone.

``latency_ms`` is what the device needs: calls in a row, replayed as one CUDA graph, between two events; ``eager_ms``
is the same calls from Python. On the host both are one.
"""

from __future__ import annotations

import csv
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu import case_kernels as kernels
from benchmarks.gpu import training_cases
from benchmarks.gpu.cases import DTYPES, NUM_CASES, NUM_SMALL, PRODUCT_FORMS, Case, case
from benchmarks.gpu.check import device as facts_of
from benchmarks.gpu.datasheet import datasheet
from benchmarks.gpu.stages import Job, Row
from windtunnel import hardware
from windtunnel.base.outputs import whole
from windtunnel.measure.devices import IterationClock, time_with_sync_ns, uses_gpu
from windtunnel.measure.turns import quiet, rounds, spread_ratio

IS_APART = False
UNIT_S = 10.0  # on an H200
PART, FIRST_PARTS = 256, 16  # the parts of the first list that every device is measured with
TRAINING = "training-"
NUM_SMALL_TRAINING, MAX_TENSORS = 132, 6
FEWEST, MOST, ROUND_NS, CASE_S = 5, 9, 1_000_000, 0.012  # rounds; about so long each, and all of them
MOST_CALLS, EAGER_ROUNDS = 50, 3  # calls from Python stand beside what is learned from, and are most of the time
MOST_TRIES = 2  # a stage that is cut off ends in some case; the same one twice has the blame
HEAD = ("device", "op", "latency_ms", "tile1", "tile2", "B", "M", "N", "K", "H")
CONV_HEAD = ("device", "latency_ms", "batch", "in_channels", "out_channels", "kernel", "image", "stride", "padding")
MORE = ("dtype", "eager_ms", "spread", "rounds", "number")
FILES = {"linear": "matmul", "bmm": "matmul", "norm": "norm", "pointwise": "vector", "reduction": "vector"}
NEUSIGHT_OPS = ("ln", "softmax", "linear", "bmm", "add", "addu", "div", "divu", "mul", "mulu", "pow", "powu")
NEUSIGHT_OPS = (*NEUSIGHT_OPS, "relu", "gelu", "tanh")


def units(job: Job) -> Sequence[str]:
    """Parts of both lists: first what most devices are measured with, then what training steps run, then the rest."""
    parts = [f"part-{first // PART:03d}" for first in range(0, _num_cases(job), PART)]
    training = [f"{TRAINING}{first // PART:03d}" for first in range(0, _num_training_cases(job), PART)]
    return [*parts[:FIRST_PARTS], *training, *parts[FIRST_PARTS:]]


def _num_cases(job: Job) -> int:
    return NUM_SMALL if job.is_small else NUM_CASES


def _num_training_cases(job: Job) -> int:
    return NUM_SMALL_TRAINING if job.is_small else training_cases.NUM_CASES


def numbers_of(unit: str, job: Job) -> range:
    """Numbers of the cases of a part."""
    if unit.startswith(TRAINING):
        first = int(unit.removeprefix(TRAINING)) * PART
        return range(training_cases.FIRST + first, training_cases.FIRST + min(first + PART, _num_training_cases(job)))
    first = int(unit.removeprefix("part-")) * PART
    return range(first, min(first + PART, _num_cases(job)))


def case_of(number: int, job: Job) -> Case:
    """The case of that number, of either list."""
    is_training = number >= training_cases.FIRST
    return (training_cases.training_case if is_training else case)(number, is_small=job.is_small)


def run(unit: str, job: Job) -> Row:
    """Time the cases of one part that its journal does not hold yet, and note their kernels."""
    numbers = numbers_of(unit, job)
    path = job.folder / "operators" / f"{unit}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = list(journal(path))
    known = {row["number"]: row for row in lines if "begun" not in row}
    tries = Counter(row["number"] for row in lines if "begun" in row)
    with path.open("a") as file:
        if path.stat().st_size:
            file.write("\n")  # a line that was cut off ends here
        for number in numbers:
            if number in known:
                continue
            if job.left_s < 1:
                return {"pending": f"{len(known)} of {len(numbers)} cases are timed"}
            one = case_of(number, job)
            if tries[number] >= MOST_TRIES:
                row: Row = {"number": number, "failed": "the process ended in this case"}
            else:
                _append(file, {"number": number, "begun": True})
                if number % 64 == 0:
                    torch.cuda.empty_cache()  # graphs of operators leave pools of their own
                row = timed(one, job.device)
            known[number] = row
            _append(file, row)
    kernels.note(path.with_suffix(".kernels.json.gz"), [case_of(number, job) for number in numbers], built, job)
    rows = [known[number] for number in numbers]
    return {"num_timed": sum("latency_ms" in row for row in rows), "num_failed": sum("failed" in row for row in rows)}


def _append(file: Any, row: Row) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()


def journal(path: Path) -> Iterator[Row]:
    """Whole lines of a journal, in order: that a case is begun, and what came of it."""
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


# --- timing -------------------------------------------------------------------------------------------------


@functools.cache
def _capture_stream() -> Any:
    """The stream of everything that is timed: autograd runs a backward pass on the stream of its forward."""
    return torch.cuda.Stream()


def timed(one: Case, device: str) -> Row:
    """Time a case; what the device or its library cannot do is said."""
    if not uses_gpu(device):
        return _timed(one, device)
    with torch.cuda.stream(_capture_stream()):
        return _timed(one, device)


def _timed(one: Case, device: str) -> Row:
    row: Row = {"number": one.number, "kind": one.kind, "op": one.op, "dtype": one.form, **one.sizes}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = one.form == "tf32"
    try:
        with torch.no_grad():
            call = built(one, device)
            action = call.run
            for _ in range(3):
                once_ns = time_with_sync_ns(action, device)
            num_calls = min(MOST_CALLS, max(1, int(ROUND_NS / max(once_ns, 1))))
            replayed = replay_of(action, num_calls) if uses_gpu(device) else None
            eager = _rounds_ns(action, device, num_calls, EAGER_ROUNDS if replayed else MOST)
            device_ns = eager if replayed is None else [ns / num_calls for ns in _rounds_ns(replayed, device, 1)]
    except (RuntimeError, NotImplementedError) as error:  # out of memory is one of them
        torch.cuda.empty_cache()
        return row | {"failed": str(error).partition("\n")[0][:200]}
    about = (
        {"aten": call.aten, "tensors": [_about(tensor) for tensor in call.tensors[:MAX_TENSORS]]} if call.aten else {}
    )
    return (
        row
        | about
        | {
            "latency_ms": rounded(quiet(device_ns) / 1e6),
            "eager_ms": rounded(quiet(eager) / 1e6),
            "spread": rounded(spread_ratio(device_ns)),
            "rounds": len(device_ns),
            "is_replayed": replayed is not None,
        }
    )


def rounded(value: float) -> float:
    """Five digits: a timing has no more, and there are thousands."""
    return float(f"{value:.5g}")


def _about(tensor: torch.Tensor) -> list[Any]:
    """Shape and type, and the strides where the elements do not lie one after the other."""
    strides = [] if tensor.is_contiguous() else [list(tensor.stride())]
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), *strides]


def _rounds_ns(action: Callable[[], object], device: str, num_calls: int, most: int = MOST) -> list[float]:
    clock, found = IterationClock(is_on_gpu=uses_gpu(device)), []
    for turn in rounds(min(FEWEST, most), most, CASE_S, warmup=1):
        clock.begin()
        for _ in range(num_calls):
            action()
        clock.mark()
        if (spent := clock.durations_ns()) and turn >= 0:
            found.append(spent[0] / num_calls)
    return found


def replay_of(action: Callable[[], object], num_calls: int) -> Callable[[], object] | None:
    """The calls as one CUDA graph on the current stream; None where the operator cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        action()  # libraries make their workspaces for this stream
        torch.cuda.current_stream().synchronize()
        graph.capture_begin()
        try:
            for _ in range(num_calls):
                action()
        finally:
            graph.capture_end()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def built(one: Case, device: str) -> training_cases.Call:
    """The operator on tensors of its own."""
    if one.number >= training_cases.FIRST:
        return training_cases.call_of(one, device)
    return training_cases.Call(_forward(one, device), "", [])


def _forward(one: Case, device: str) -> Callable[[], object]:
    dtype = DTYPES[one.form]

    def tensor(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device=device, dtype=torch.float32).to(dtype)

    return _BUILDERS[one.kind](one, tensor)


def _linear(one: Case, tensor: Any) -> Callable[[], object]:
    rows, middle, columns = (one.sizes[name] for name in "MNK")
    left, weight, bias = tensor(rows, middle), tensor(columns, middle), tensor(columns)
    return lambda: functional.linear(left, weight, bias)


def _bmm(one: Case, tensor: Any) -> Callable[[], object]:
    batch, rows, middle, columns = (one.sizes[name] for name in "BMNK")
    left, right = tensor(batch, rows, middle), tensor(batch, middle, columns)
    return lambda: torch.bmm(left, right)


def _attention(one: Case, tensor: Any) -> Callable[[], object]:
    batch, rows, keys, head = (one.sizes[name] for name in "BMNK")
    query, key, value = tensor(batch, 1, rows, head), tensor(batch, 1, keys, head), tensor(batch, 1, keys, head)
    causal = bool(one.sizes["causal"])
    return lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def _conv(one: Case, tensor: Any) -> Callable[[], object]:
    sizes = one.sizes
    images = tensor(sizes["batch"], sizes["in_channels"], sizes["image"], sizes["image"])
    weight = tensor(sizes["out_channels"], sizes["in_channels"], sizes["kernel"], sizes["kernel"])
    return lambda: functional.conv2d(images, weight, stride=sizes["stride"], padding=sizes["padding"])


def _norm(one: Case, tensor: Any) -> Callable[[], object]:
    rows, width = one.sizes["B"], one.sizes["H"]
    values, weight, bias = tensor(rows, width), tensor(width), tensor(width)
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    found: dict[str, Callable[[], object]] = {
        "ln": lambda: functional.layer_norm(values, (width,), weight, bias),
        "rms": lambda: functional.rms_norm(values, (width,), weight),
        "bn": lambda: functional.batch_norm(values, mean, variance, weight, bias),
        "gn": lambda: functional.group_norm(values, 1, weight, bias),
    }
    return found[one.op]


def _pointwise(one: Case, tensor: Any) -> Callable[[], object]:
    left, right = tensor(one.sizes["B"], one.sizes["H"]), tensor(one.sizes["B"], one.sizes["H"])
    found: dict[str, Callable[[], object]] = {
        "add": lambda: left + right,
        "addu": lambda: left + 1.5,
        "mul": lambda: left * right,
        "mulu": lambda: left * 1.5,
        "div": lambda: left / right,
        "divu": lambda: left / 1.5,
        "pow": lambda: left**right,
        "powu": lambda: left**1.5,
        "relu": lambda: functional.relu(left),
        "gelu": lambda: functional.gelu(left),
        "tanh": lambda: torch.tanh(left),
    }
    return found[one.op]


def _reduction(one: Case, tensor: Any) -> Callable[[], object]:
    values = tensor(one.sizes["B"], one.sizes["H"])
    found: dict[str, Callable[[], object]] = {
        "softmax": lambda: functional.softmax(values, dim=-1),
        "sum": lambda: values.sum(dim=-1),
        "max": lambda: values.amax(dim=-1),
        "argmax": lambda: values.argmax(dim=-1),
    }
    return found[one.op]


_BUILDERS: dict[str, Callable[[Case, Any], Callable[[], object]]] = {
    "linear": _linear,
    "bmm": _bmm,
    "attention": _attention,
    "conv": _conv,
    "norm": _norm,
    "pointwise": _pointwise,
    "reduction": _reduction,
}


# --- the set ------------------------------------------------------------------------------------------------


def summary(_rows: Mapping[str, Row], job: Job) -> Row:
    """Write what is there as a set, and say what it holds."""
    folder = job.folder / "operators"
    found = {row["number"]: row for path in sorted(folder.glob("part-*.jsonl")) for row in journal(path)}
    training = {row["number"]: row for path in sorted(folder.glob(f"{TRAINING}*.jsonl")) for row in journal(path)}
    counts = {
        "num_training_timings": sum("latency_ms" in row for row in training.values()),
        "num_failed_training_cases": sum("failed" in row for row in training.values()),
    }
    good = [row for row in found.values() if "latency_ms" in row]
    failed = [row for row in found.values() if "failed" in row]
    if not good:
        return {"num_timings": 0, **counts}
    facts = facts_of(job.device)
    name = facts.get("in_catalog") or str(facts["name"]).lower().replace(" ", "-")
    for form in PRODUCT_FORMS:
        write_form(folder / form, [row for row in good if row["dtype"] == form], name)
    _write(folder / "devices.csv", tuple(sheet(name, facts)), [sheet(name, facts)])
    about = datasheet(facts, name, good, failed, NUM_SMALL if job.is_small else NUM_CASES)
    with whole(folder / "DATASHEET.md") as scratch:
        scratch.write_text(about)
    return {"num_timings": len(good), "num_failed_cases": len(failed), **counts, "set": str(folder)}


def write_form(folder: Path, rows: Sequence[Row], name: str) -> None:
    """The rows of one form of arithmetic, in files that ``models train tile`` reads or, without a model, leaves.

    Its files begin with ``train_``; convolutions have columns of their own, as published.
    """
    split: dict[str, list[Row]] = {}
    for row in rows:
        kind = "conv" if row["kind"] == "conv" else FILES.get(row["kind"], row["kind"])
        kind = "vector" if row["op"] == "ln" else kind
        is_known = kind == "conv" or row["op"] in NEUSIGHT_OPS
        split.setdefault(f"train_{kind}" if is_known else "other", []).append(row | {"device": name})
    for file, chosen in split.items():
        head = CONV_HEAD if file == "train_conv" else (*HEAD, "causal") if file == "other" else HEAD
        _write(folder / f"{file}.csv", (*head, *MORE), chosen)


def _write(path: Path, head: Sequence[str], rows: Sequence[Row]) -> None:
    with whole(path) as scratch, scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, head, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(rows)


def sheet(name: str, facts: Row) -> Row:
    """The device's row of ``devices.csv``: what the driver says, and peaks of the catalog where it has the chip."""
    known = hardware.recognize(str(facts["name"]), int(facts.get("memory_bytes", 0)))
    peaks = known.peak_flops_per_s if known else {}
    rate = known.bandwidth_bytes_per_s / 1e9 if known else ""
    return {
        "device": name,
        "kind": "gpu" if facts["is_gpu"] else "cpu",
        "num_units": facts.get("num_units", ""),
        "fp32_tflops": peaks["fp32"] / 1e12 if "fp32" in peaks else "",
        "mem_gb": facts.get("memory_bytes", 0) / 2**30,
        "mem_bw_gbs": rate,
        "l2_mb": facts.get("l2_bytes", 0) / 2**20,
        "source": "driver; peaks of the catalog" if known else "driver",
    }
