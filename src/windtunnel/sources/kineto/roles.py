"""What the categories and names of Kineto events mean (sources, Kineto).

In: a `Trace`. Out: the role of every row, and tables over its distinct strings: phases, collectives, waiting calls.
Names are looked at once per distinct string, never per event.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.sources.kineto.trace import COMPLETE, MISSING, Trace, is_string

__all__ = ["COLLECTIVES", "STEP", "Role", "collective_of", "dtype_bytes", "matching", "phase_of", "roles"]

STEP = r"^(ProfilerStep|wt:step)"


class Role(IntEnum):
    """What a row of a trace is to us."""

    IGNORED = 0
    ANNOTATION = 1  # covers other events, has no work of its own
    MODULE = 2  # an annotation that names a layer
    OP = 3
    CALL = 4  # runtime or driver call
    DEVICE = 5
    SYNC = 6  # what a waiting call waited for
    UNKNOWN = 7


_CATEGORIES = {
    "": Role.UNKNOWN,
    "user_annotation": Role.ANNOTATION,
    "cpu_op": Role.OP,
    "operator": Role.OP,
    "kernel": Role.DEVICE,
    "concurrent_kernel": Role.DEVICE,
    "gpu_memcpy": Role.DEVICE,
    "gpu_memset": Role.DEVICE,
    "memcpy": Role.DEVICE,
    "memset": Role.DEVICE,
    "cuda_sync": Role.SYNC,
    **dict.fromkeys(
        (
            *("gpu_user_annotation", "python_function", "overhead", "trace", "cpu_instant_event"),
            *("external_correlation", "cuda_profiler_range", "gpu_pm_counter", "mtia_insight", "critical_path"),
        ),
        Role.IGNORED,
    ),
}
_HOST_COLLECTIVE = re.compile(r"(gloo|mpi|ucc):")


def _category_role(category: str) -> Role:
    name = category.lower()
    if name.endswith(("runtime", "driver")):
        return Role.CALL
    return _CATEGORIES.get(name, Role.UNKNOWN)


def matching(trace: Trace, pattern: str) -> NDArray[np.bool_]:
    """Which distinct strings hold the regular expression."""
    found = re.compile(pattern).search
    return np.array([found(text) is not None for text in trace.strings], bool)


def roles(trace: Trace) -> NDArray[np.uint8]:
    """Role of every row [N]; a category that no one knows is told by its arguments and its neighbors on the thread."""
    table = np.array([_category_role(text) for text in trace.strings], np.uint8)
    role = table[trace.cat]
    role[trace.letter != COMPLETE] = Role.IGNORED
    is_python = np.array([text == "python_function" for text in trace.strings])[trace.cat]
    role[is_python & matching(trace, r"^nn\.Module: ")[trace.name]] = Role.MODULE
    role[(role == Role.ANNOTATION) & matching(trace, _HOST_COLLECTIVE.pattern)[trace.name]] = Role.OP
    # before there were annotations, profilers wrote the marks of steps as operators
    role[((role == Role.OP) | (role == Role.UNKNOWN)) & matching(trace, STEP)[trace.name]] = Role.ANNOTATION
    unknown = np.flatnonzero(role == Role.UNKNOWN)
    if len(unknown):
        stream = trace.argument("stream")[unknown]
        host_threads = np.unique(trace.thread[(role == Role.OP) | (role == Role.CALL)])
        launched = np.isin(trace.correlation[unknown], trace.correlation[role == Role.CALL])
        launched &= trace.correlation[unknown] != MISSING
        on_device = (stream != MISSING) | (launched & ~np.isin(trace.thread[unknown], host_threads))
        on_host = np.where(trace.correlation[unknown] != MISSING, Role.CALL, Role.OP)
        role[unknown] = np.where(on_device, Role.DEVICE, on_host)
    return role


# Innermost wins. Optimizers first: "Optimizer.step" inside "## backward ##" is an update.
_PHASES = (
    (Phase.UPDATE, re.compile(r"^Optimizer\.|\boptimi[sz]er\b|\bzero_grad\b")),
    (Phase.BACKWARD, re.compile(r"^autograd::engine::evaluate_function|\bbackward\b|Backward\d*$|_backward\b")),
    (Phase.FORWARD, re.compile(r"\bforward\b")),
    (Phase.DATA, re.compile(r"DataLoader|\b(load_batch|data_load|wait_for_batch|copy_batch_to_gpu)\b", re.IGNORECASE)),
)


def phase_of(name: str) -> int:
    """The phase that an event's name announces, or -1."""
    return next((int(phase) for phase, pattern in _PHASES if pattern.search(name)), -1)


# Names in kernels, annotations and `Collective name`, without case and separators -> our name.
COLLECTIVES = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
_COMMUNICATION = re.compile(r"nccl|rccl|oneccl|xccl|hccl|^(gloo|mpi|ucc):", re.IGNORECASE)


def collective_of(name: str, *, is_collective: bool = False) -> str:
    """The collective that a kernel, annotation or argument names; empty if it names none."""
    if not (is_collective or _COMMUNICATION.search(name)):
        return ""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((ours for theirs, ours in COLLECTIVES.items() if theirs in plain), "collective")


_DTYPES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2", "uint8", "int8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "complexfloat"), 8),
}


def dtype_bytes(trace: Trace, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of one element for `dtype` arguments [R]; 0 where it is not known."""
    size = {int(v): _DTYPES.get(trace.text(int(v)).lower(), 0) for v in np.unique(values) if is_string(int(v))}
    return np.array([size.get(int(value), 0) for value in values], np.int64)
