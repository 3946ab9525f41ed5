"""Operators of recorded training steps with the time of their kernels: shapes that networks really have.

In: traces of ``torch.profiler`` with operators' shapes, recorded on an H200. Out: ``Timings`` as of ``timings``, one
row for each distinct operator and shape of matrix work and normalization. Sizes drawn at random are rarely multiples of
64 in all dimensions; those of networks mostly are. Needs no GPU.
"""

from __future__ import annotations

import ast
import bisect
import gzip
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.shared_data import find_shared

from benchmarks.gpu.timings import Timings
from windtunnel.cost.operators.facts import plain_name
from windtunnel.cost.work import Work, dtype_of

__all__ = ["read_traces", "traces"]

PAIRS = Path(__file__).parent / "h200" / "pairs"
SCRIPTS = ("decoder_lm", "residual_net", "attention_by_hand", "perceptron")
STEPS = ("resnet50-paper", "vit-paper")
CHIP = "h200-sxm5-141g"
GAP_NS = 700.0  # until the next kernel starts, which the timings of calls in a row hold
# operators whose bytes their shapes determine; composite ones call these
TAKEN = (
    "mm", "addmm", "bmm", "convolution", "convolution_backward", "native_layer_norm", "native_layer_norm_backward",
    "cudnn_batch_norm", "cudnn_batch_norm_backward", "softmax", "softmax_backward_data", "log_softmax",
    "log_softmax_backward_data", "scaled_dot_product_efficient_attention", "scaled_dot_product_cudnn_attention",
    "foreach_add", "foreach_mul", "foreach_lerp", "foreach_addcmul", "foreach_addcdiv", "foreach_sqrt",
    "foreach_div", "scaled_dot_product_efficient_attention_backward", "scaled_dot_product_cudnn_attention_backward",
)  # fmt: skip

Event = dict[str, Any]


def traces() -> dict[str, Path]:
    """Traces with shapes by the name of the step; those of the shared data where they are."""
    found = {name: PAIRS / f"{name}-rich.json.gz" for name in SCRIPTS}
    folder = find_shared("gpu_h200/steps/traces")
    if folder is not None:
        found |= {name: folder / f"{name}-shapes.json.gz" for name in STEPS}
    return found


def read_traces(names: Iterable[str] | None = None) -> Timings:
    """Timings of the given steps, by default of all."""
    known = traces()
    rows: dict[tuple[str, ...], list[float]] = {}
    for name in known if names is None else names:
        for key, took_ns in _operators(json.loads(gzip.decompress(known[name].read_bytes()))["traceEvents"]):
            rows.setdefault(key, []).append(took_ns)
    keys = list(rows)
    columns = [np.array([key[index] for key in keys], dtype=object) for index in range(5)]
    # PyTorch computes convolutions of fp32 in tf32 unless a program forbids it, and products in fp32
    dtypes = np.array([_form(key[0], key[2]) for key in keys], dtype=object)
    zeros = np.zeros(len(keys))
    work = Work(*columns, dtypes, zeros, zeros, np.ones(len(keys), dtype=np.int64))
    took = np.array([statistics.median(rows[key]) for key in keys])
    shape = np.array([f"{key[0]} {key[1]}" for key in keys], dtype=object)
    return Timings(work, took, np.full(len(keys), CHIP, dtype=object), shape)


def _form(operator: str, dtypes: str) -> str:
    dtype = dtype_of(dtypes) or ("fp32" if "_foreach" in operator else "")  # lists state no type; parameters are fp32
    return "tf32" if dtype == "fp32" and "convolution" in operator else dtype


def _operators(events: Sequence[Event]) -> Iterable[tuple[tuple[str, ...], float]]:
    """Operator, shapes, types, strides and arguments of each call, and what its kernels took together."""
    calls = [event for event in events if event.get("cat") == "cpu_op"]
    by_id = {event["args"]["External id"]: event for event in calls if "External id" in event["args"]}
    taken: dict[int, list[Event]] = {}
    for event in calls:
        if plain_name(event["name"]) in TAKEN and event["name"].startswith("aten::"):
            taken.setdefault(event["tid"], []).append(event)
    starts = {}
    for thread, rows in taken.items():
        rows.sort(key=lambda event: event["ts"])
        starts[thread] = [event["ts"] for event in rows]
    took: dict[int, float] = {}
    for kernel in events:
        leaf = by_id.get(kernel.get("args", {}).get("External id"))
        if kernel.get("cat") not in ("kernel", "gpu_memset") or leaf is None or leaf["tid"] not in taken:
            continue
        index = bisect.bisect_right(starts[leaf["tid"]], leaf["ts"]) - 1
        call = taken[leaf["tid"]][index] if index >= 0 else None
        if call is not None and leaf["ts"] < call["ts"] + call["dur"]:
            took[id(call)] = took.get(id(call), 0.0) + 1000.0 * kernel["dur"]
    for rows in taken.values():
        for call in rows:
            if id(call) in took and "Input Dims" in call["args"]:
                yield _key(call), took[id(call)] + GAP_NS


def _key(call: Event) -> tuple[str, ...]:
    args = call["args"]
    shapes, strides = args["Input Dims"], args.get("Input Strides", [])
    types = [f"Tensor({text})" if shape else text for text, shape in zip(args["Input type"], shapes, strict=True)]
    values = [_value(text) for text in args.get("Concrete Inputs", [])]
    return call["name"], *(json.dumps(item) for item in (shapes, types, strides, values))


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
