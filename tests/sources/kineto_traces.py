"""Small Kineto traces made by hand or by hypothesis, as the events of `traceEvents`."""

import gzip
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Event = dict[str, Any]
PID = 100


def op(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op", **args: Any) -> Event:
    """A complete event on a host thread."""
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(name: str, ts: float, dur: float, correlation: int, tid: int = 1, **args: Any) -> Event:
    """A runtime call."""
    return op(name, ts, dur, tid, "cuda_runtime", correlation=correlation, **args)


def kernel(
    name: str, ts: float, dur: float, correlation: int, stream: int = 7, cat: str = "kernel", **args: Any
) -> Event:
    """A device task."""
    device = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": device}


def annotation(name: str, ts: float, dur: float, tid: int = 1) -> Event:
    """A user's annotation."""
    return op(name, ts, dur, tid, "user_annotation")


def write(path: Path, events: list[Event], **top: Any) -> Path:
    """Write a trace as the profiler does; packed if the name says so."""
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, **top}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@st.composite
def nested_events(draw: st.DrawFn, tid: int, begin: int, end: int, depth: int = 3) -> list[Event]:
    """Operators, annotations and calls that nest inside [begin, end] of one thread."""
    events: list[Event] = []
    position = begin
    while position < end and draw(st.booleans()):
        start = draw(st.integers(position, end))
        finish = draw(st.integers(start, end))
        kind = draw(st.sampled_from(["cpu_op", "user_annotation", "cuda_runtime", "unheard_of", "python_function"]))
        names = ["aten::add", "cudaLaunchKernel", "cudaDeviceSynchronize", "autograd::engine::evaluate_function: A"]
        name = draw(
            st.sampled_from(
                [*names, "## forward ##", "ProfilerStep#1", "nn.Module: L_0", "gloo:all_reduce", "c10d::allreduce_"]
            )
        )
        args = {"correlation": draw(st.integers(0, 12)), "Sequence number": draw(st.integers(-1, 3))}
        events.append({**op(name, start, finish - start, tid, kind), "args": args})
        if depth and finish > start:
            events += draw(nested_events(tid, start, finish, depth - 1))
        position = finish + draw(st.integers(0, 2))
    return events


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Events of some threads and streams that a profiler could have written, in any order."""
    events: list[Event] = []
    for tid in range(draw(st.integers(0, 3))):
        events += draw(nested_events(tid, draw(st.integers(0, 20)), 200))
    for number in range(draw(st.integers(0, 8))):
        begin, length = draw(st.integers(0, 200)), draw(st.integers(0, 60))
        stream = draw(st.integers(-1, 2))
        name = draw(st.sampled_from(["gemm", "Memcpy DtoH (Device -> Pageable)", "ncclKernel_AllReduce_RING"]))
        events.append(kernel(name, begin, length, draw(st.integers(0, 12)), stream))
        if draw(st.booleans()):
            kind = draw(st.sampled_from(["Stream Wait Event", "Stream Sync", "Context Sync", "Event Sync"]))
            waits = {
                "wait_on_stream": draw(st.integers(-1, 2)),
                "wait_on_cuda_event_record_corr_id": draw(st.integers(0, 12)),
            }
            sync = kernel(kind, begin, length, number, stream, "cuda_sync", **waits)
            events.append(sync)
    for _ in range(draw(st.integers(0, 4))):
        size, address = draw(st.integers(-64, 64)), draw(st.integers(0, 2))
        held = {
            "Bytes": size,
            "Addr": address,
            "Total Allocated": draw(st.integers(0, 99)),
            "Device Type": draw(st.integers(0, 1)),
        }
        where = {"pid": PID, "tid": draw(st.integers(0, 2)), "ts": draw(st.integers(0, 250))}
        events.append({"ph": "i", "name": "[memory]", **where, "args": held})
    return draw(st.permutations(events))
