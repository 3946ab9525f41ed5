"""Profile single iterations with torch's own profiler.

In: a level (light: names and times only; rich: shapes, memory and the execution trace too). Out: ``Events``, plain
columns in the order in which the operators began. Torch writes names of modules and of ``record_function`` blocks into
JSON as they are, so quotes, backslashes and control characters are written as ``%22``, and read back. Not here: what
the events mean.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._profiler import _RecordFunctionFast
from torch.autograd.profiler import record_function
from torch.profiler import ExecutionTraceObserver

from windtunnel.errors import TraceError

__all__ = [
    "ITERATION",
    "Events",
    "LightProfiler",
    "RichProfiler",
    "annotate",
    "escape_label",
    "escape_labels",
    "execution_nodes",
    "plain",
    "quiet_native_log",
]

_OF_TORCH = ("Optimizer.", "enumerate(DataLoader)", "Torch-Compiled", "## Call Compiled", "DistributedDataParallel.")
_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f%]')
ITERATION = "wt:iteration"
Int = NDArray[np.int64]
# the profiler's own announcements; everything else that a step writes to stderr is passed on
_NATIVE_LOG = re.compile(
    rb"^(\[rank\d+\]:)?(USDT:|STAGE:|\[W\S* \S+ (CPUAllocator|execution_trace_observer|collection|kineto_shim)\.cpp:)"
)


def escape_label(name: str) -> str:
    """Escape the characters of a name that a JSON string cannot hold."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", name)


def plain(name: str) -> str:
    """The name that was escaped."""
    return unquote(name) if "%" in name else name


@contextmanager
def escape_labels(*, keeps_all: bool = True) -> Iterator[None]:
    """While this lasts, ``record_function`` blocks have escaped names.

    Parameters
    ----------
    keeps_all : bool
        Without it only torch's own blocks are recorded. A block of a script may be open where an iteration begins or
        ends; torch then writes to memory that is gone, and the process crashes at some later time.
    """
    enter, leave = record_function.__enter__, record_function.__exit__

    @functools.wraps(enter)
    def enter_block(block: Any) -> Any:
        block.is_kept = keeps_all or str(block.name).startswith(_OF_TORCH)
        if not block.is_kept:
            return block
        block.name = escape_label(str(block.name))
        return enter(block)

    @functools.wraps(leave)
    def leave_block(block: Any, *failure: Any) -> Any:
        return leave(block, *failure) if getattr(block, "is_kept", True) else None

    record_function.__enter__, record_function.__exit__ = enter_block, leave_block  # type: ignore[method-assign]
    try:
        yield
    finally:
        record_function.__enter__, record_function.__exit__ = enter, leave  # type: ignore[method-assign]


@dataclass(frozen=True)
class Events:
    """Complete events of one profile, sorted as they began: E events, M memory events.

    ``thread`` numbers threads as the profiler does; ``sequence`` is -1 where an operator made no autograd node.
    """

    names: list[str]
    start_ns: Int
    end_ns: Int
    thread: Int
    sequence: Int
    forward_thread: Int
    record_id: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    memory_ns: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    memory_thread: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    memory_bytes: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    memory_address: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    nodes: dict[int, dict[str, Any]] = field(default_factory=dict)

    def markers(self, name: str = ITERATION) -> list[int]:
        """Rows of the iterations' own marks, oldest first."""
        return [row for row, text in enumerate(self.names) if text == name]

    def inside(self, marker: int) -> Int:
        """Rows of the events that lie within the event ``marker``, itself included."""
        keep = (self.start_ns >= self.start_ns[marker]) & (self.end_ns <= self.end_ns[marker])
        return np.flatnonzero(keep)


def annotate(name: str, inputs: list[Any] | None = None) -> Any:
    """A context manager that puts ``name`` into the profile."""
    label = escape_label(name)
    return _RecordFunctionFast(label, inputs) if inputs is not None else _RecordFunctionFast(label)


class LightProfiler:
    """Names and times only: the profile whose durations are believed.

    Parameters
    ----------
    device : str
        Also record the kernels of a device of this type, such as ``cuda``.
    """

    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, device: str = "") -> None:
        self._profile = torch.autograd.profiler.profile(use_kineto=True, use_device=device or None, **self.options)

    def start(self) -> None:
        """Begin to record on this thread."""
        with quiet_native_log():
            self._profile.__enter__()

    def stop(self) -> None:
        """End the recording; the events stay where they are until :meth:`events` is called."""
        with quiet_native_log():
            self._profile.__exit__(None, None, None)

    def events(self) -> Events:
        """What was recorded."""
        return _columns(self._raw(), [], {})

    def save(self, path: Path) -> None:
        """Write what was recorded as a Kineto trace."""
        assert self._profile.kineto_results is not None
        with quiet_native_log():
            self._profile.kineto_results.save(str(path))

    def discard(self) -> None:
        """Forget what was recorded."""

    def _raw(self) -> list[Any]:
        results = self._profile.kineto_results
        return [] if results is None else list(results.events())


class RichProfiler(LightProfiler):
    """Shapes, memory and the execution trace: the profile whose structure is believed, but not its times."""

    options = {"record_shapes": True, "profile_memory": True}  # noqa: RUF012

    def __init__(self, device: str = "") -> None:
        super().__init__(device)
        self._folder = tempfile.TemporaryDirectory(prefix="windtunnel-")
        self._trace_path = Path(self._folder.name) / "execution-trace.json"
        self._observer = ExecutionTraceObserver()
        self._quiet = quiet_native_log()

    def start(self) -> None:
        """Begin to record on this thread."""
        self._quiet.__enter__()
        self._observer.register_callback(str(self._trace_path))
        self._profile.__enter__()
        self._observer.start()

    def stop(self) -> None:
        """End the recording."""
        self._observer.stop()
        self._profile.__exit__(None, None, None)
        self._observer.unregister_callback()
        self._quiet.__exit__(None, None, None)

    def events(self) -> Events:
        """What was recorded, joined with the execution trace on the record-function id.

        Raises
        ------
        TraceError
            The two recordings do not belong together.
        """
        try:
            nodes = execution_nodes(self._trace_path)
            exported = self._export_rows()
        finally:
            self.discard()
        events = _columns(self._raw(), exported, nodes)
        missing = [row for row in events.record_id.tolist() if row > 0 and row not in nodes]
        if len(missing) * 2 > len(events.names):
            raise TraceError(
                f"{len(missing)} of {len(events.names)} operators are not in the execution trace",
                where=str(self._trace_path),
                fix="another execution trace observer may be active in this program; stop it before capturing",
            )
        return events

    def save_execution_trace(self, path: Path) -> None:
        """Write the execution trace."""
        path.write_bytes(self._trace_path.read_bytes())

    def discard(self) -> None:
        """Forget what was recorded."""
        self._folder.cleanup()

    def _export_rows(self) -> list[dict[str, Any]]:
        path = self._trace_path.with_name("profile.json")
        self.save(path)
        document = msgspec.json.decode(path.read_bytes())
        rows: list[dict[str, Any]] = [
            event["args"] | {"name": event["name"], "when": (event["ts"], -event.get("dur", 0))}
            for event in document["traceEvents"]
            if "Ev Idx" in event.get("args", {})
        ]
        return rows


def execution_nodes(path: Path) -> dict[int, dict[str, Any]]:
    """Nodes of an execution trace by their record-function ids."""
    data = path.read_bytes()
    document = msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data)
    nodes = {}
    for node in document["nodes"]:
        attributes = {item["name"]: item["value"] for item in node.pop("attrs")}
        node["name"] = plain(node["name"])
        node["schema"] = attributes.get("op_schema", "")
        nodes[int(attributes.get("rf_id", 0))] = node
    return nodes


def _columns(raw: list[Any], exported: list[dict[str, Any]], nodes: dict[int, dict[str, Any]]) -> Events:
    by_index = {int(row["Ev Idx"]): row for row in exported}
    is_memory = [event.name() == "[memory]" for event in raw]
    calls = [event for event, memory in zip(raw, is_memory, strict=True) if not memory]
    memory = [event for event, memory in zip(raw, is_memory, strict=True) if memory]
    # memory events have no duration; the exporter numbers them after the calls, in the same order
    exported_memory = [by_index[index] for index in sorted(by_index) if "Addr" in by_index[index]]
    exported_calls = _in_order_of(calls, [by_index[i] for i in sorted(by_index) if "Addr" not in by_index[i]])
    order = sorted(range(len(calls)), key=lambda row: (calls[row].start_ns(), -calls[row].end_ns(), row))
    has_ids = len(exported_calls) == len(calls)
    return Events(
        names=[plain(calls[row].name()) for row in order],
        start_ns=_int64(calls[row].start_ns() for row in order),
        end_ns=_int64(calls[row].end_ns() for row in order),
        thread=_int64(calls[row].start_thread_id() for row in order),
        sequence=_int64(calls[row].sequence_nr() for row in order),
        forward_thread=_int64(calls[row].fwd_thread_id() for row in order),
        record_id=_int64(exported_calls[row].get("Record function id", 0) for row in order if has_ids),
        memory_ns=_int64(event.start_ns() for event in memory),
        memory_thread=_int64(event.start_thread_id() for event in memory),
        memory_bytes=_int64(event.nbytes() for event in memory),
        memory_address=_int64(row["Addr"] for row in exported_memory),
        nodes=nodes,
    )


def _in_order_of(calls: list[Any], exported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The exported rows of these calls; the exporter numbers them by thread where there are several: then by time."""
    if len(calls) != len(exported) or all(
        call.name() == row["name"] for call, row in zip(calls, exported, strict=True)
    ):
        return exported
    by_time = sorted(exported, key=lambda row: (*row["when"], row["name"]))
    places = sorted(
        range(len(calls)), key=lambda row: (calls[row].start_ns(), -calls[row].duration_ns(), calls[row].name())
    )
    placed = dict(zip(places, by_time, strict=True))
    return [placed[row] for row in range(len(calls))]


def _int64(values: Iterator[int] | Any) -> Int:
    return np.fromiter(values, dtype=np.int64)


@contextmanager
def quiet_native_log() -> Iterator[None]:
    """Hold back what the profiler itself prints to stderr; pass on all else afterwards."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # the program closed its stderr
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held:
                if not _NATIVE_LOG.match(line):
                    os.write(2, line)
