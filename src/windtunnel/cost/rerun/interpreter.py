"""Run a program again, in a given form, and time its calls.

In: a ``Program`` and a ``Form``. Out: ``Lap``: nanoseconds per call, forward and backward. Tensors get random values
of the recorded shapes; tensors die after their last use, so that the allocator is in the state that it has in the
step; the backward pass is autograd's own. What it takes to get from here into an operator is measured and left out, as
the captured durations begin within it; entering and leaving autocast counts, as the step does both. A call that cannot
be run so (own autograd functions, results whose shapes or use as an index depend on values) is replaced by fresh
tensors of its recorded shapes and keeps its captured duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.cost.rerun.arguments import DTYPES, Prepared, Replaced, fill, prepare
from windtunnel.cost.rerun.form import Form
from windtunnel.cost.rerun.inputs import bounds_of, make_inputs
from windtunnel.cost.rerun.program import NOT_FLOWN, Program
from windtunnel.cost.rerun.resize import resize
from windtunnel.cost.rerun.segments import Segment, build_segments
from windtunnel.cost.rerun.stopwatch import NOTHING, Stopwatch
from windtunnel.measure.devices import HostClock, StreamClock
from windtunnel.measure.threads import threads

__all__ = ["CANNOT_RUN", "Interpreter", "Lap"]

_LOW_PRECISION = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_MIN_HOLD_NS, _HOLD_MARGIN = 1e6, 1.5  # of what the host took to launch a window, without events
_CALLS_PER_PROBE = 8  # often enough for a median, and in the state of the caches that the calls find
_MIN_LEFT = 0.1  # of the time of a call, once the way into it is taken off
# what an operator raises that does not like its drawn arguments
CANNOT_RUN = (
    RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, KeyError, AttributeError, ArithmeticError
)  # fmt: skip


@dataclass
class Lap:
    """What one run of a program took, on the host or on its device: C calls."""

    forward_ns: NDArray[np.float64]  # [C]
    backward_ns: NDArray[np.float64]  # [C], by the call that made the autograd node; zero unless in detail
    passes_ns: list[float] = field(default_factory=list)  # every backward pass as a whole

    @property
    def forward_total_ns(self) -> float:
        """All calls."""
        return float(self.forward_ns.sum())

    @property
    def backward_total_ns(self) -> float:
        """All backward passes."""
        return float(sum(self.passes_ns))


class Interpreter:
    """A program made ready to run in one form.

    Parameters
    ----------
    program : Program
    form : Form
    opaque : set of int
        Calls not to be run; :meth:`rehearse` adds those that fail.
    device_clock : StreamClock or HostClock, optional
        Of the device that the program runs on, if that is not the host.
    """

    def __init__(
        self,
        program: Program,
        form: Form,
        opaque: set[int] | None = None,
        device_clock: StreamClock | HostClock | None = None,
    ) -> None:
        self.program, self.form = program, form
        self._device_clock = device_clock
        self.opaque: set[int] = set() if opaque is None else opaque
        self.failures: dict[int, str] = {}
        self._is_model = [bool(call.layer) and not call.mark for call in program.calls]
        for first, last in program.compiled:  # runs as one
            self._is_model[first:last] = [any(self._is_model[first:last])] * (last - first)
        self._prepared: list[Prepared] = prepare(program, form)
        self._bounds = bounds_of(program, self._prepared)
        self._parameters, self._inputs = make_inputs(program, self._prepared, form, self._bounds)
        self.output_bytes = np.zeros(len(program.calls))
        self._segments: dict[int, Segment] = {}
        self._inside: set[int] = set()
        self._build_segments(is_compiled=True)
        self._values: dict[int, Any] = {}
        self._stopwatch = Stopwatch(HostClock())
        self._probe = torch.zeros(1)
        self._num_entries, self._num_entered = np.zeros(len(program.calls)), 0
        self._roots: list[torch.Tensor] = []

    @property
    def input_bytes(self) -> int:
        """Bytes of all that comes from outside and is no parameter."""
        own = {id(parameter) for parameter in self._parameters}
        storages = {
            id(value.untyped_storage()): value.untyped_storage().nbytes()
            for value in self._inputs.values()
            if isinstance(value, torch.Tensor) and id(value) not in own
        }
        return sum(storages.values())

    def rehearse(self) -> None:
        """Run once and learn which calls cannot be run; they are opaque from then on."""
        if self.program.compiled:  # call by call, to learn which fail, and sizes; then as compiled code
            self._build_segments(is_compiled=False)
            self._learn()
        self._build_segments(is_compiled=True)
        self._learn()

    def _learn(self) -> None:
        # a stand-in has other values than a result, so what reads it may fail next: run until no further call fails
        while True:
            known = len(self.opaque)
            self._run(detail=False, learn=True)
            if len(self.opaque) == known:
                return

    def run(self, detail: bool = False) -> Lap:
        """Run once. ``detail`` also times every autograd node, which slows the backward pass a little.

        A call that fails only now, by other drawn values than in the rehearsal, is opaque from then on: laps before and
        after that are not of the same calls.
        """
        return self._run(detail=detail, learn=False)

    def run_on_device(self) -> tuple[Lap, Lap]:
        """Run twice in detail; what the host took, and what the device took."""
        clock = self._device_clock
        assert clock is not None
        on_host = Stopwatch(HostClock(), paused_by=clock)
        host = self._run(detail=True, learn=False, stopwatch=on_host)
        hold_ns = max(_MIN_HOLD_NS, _HOLD_MARGIN * on_host.slowest_window_ns)
        on_device = Stopwatch(clock, paused_by=clock, hold_ns=hold_ns)
        return host, self._run(detail=True, learn=False, stopwatch=on_device)

    def _build_segments(self, *, is_compiled: bool) -> None:
        """Make the ranges that run as one; without ``is_compiled`` what the program compiled runs call by call."""
        form = self.form
        recomputed = form.ranges_to_recompute(self.program.recomputed)
        compiled = (*form.compiled, *(self.program.compiled if is_compiled else ()))
        ranges = (*recomputed, *compiled, *((first, last) for first, last, _ in form.chunked))
        stand_ins = {
            index: self._make_outputs(self._prepared[index])
            for index in self.opaque
            if any(first <= index < last for first, last in ranges)
        }
        # what generated code depends on beyond its calls, or is generated anew for, up to a limit
        how = (form.threads or self.program.threads, form.autocast, form.batch, form.memory_format, form.frozen)
        setting = (self.program.fingerprint, *how)
        self._segments = build_segments(self._prepared, recomputed, compiled, form.chunked, stand_ins, setting)
        self._inside = {
            index for segment in self._segments.values() for index in range(segment.first + 1, segment.last)
        }

    # --- one run ------------------------------------------------------------------------------------------

    def _run(self, *, detail: bool, learn: bool, stopwatch: Stopwatch | None = None) -> Lap:
        count = len(self.program.calls)
        # the probes of a run follow its calls
        lap = Lap(np.zeros(count + (count * self.form.num_passes) // _CALLS_PER_PROBE + 1), np.zeros(count))
        self._stopwatch = stopwatch or Stopwatch(HostClock())
        self._num_entries, self._num_entered = np.zeros(count), 0
        self._forget_gradients()
        with threads(self.form.threads or self.program.threads):
            for turn in range(self.form.num_passes):
                watch = _NodeWatch(self._stopwatch) if detail else None
                self._pass(lap, watch, learn, is_last=turn == self.form.num_passes - 1)
                self._stopwatch.settle(lap.forward_ns)
        self._forget_gradients()
        self._values = {}
        lap.forward_ns = _without_entries(lap.forward_ns, self._num_entries)
        return lap

    def _pass(self, lap: Lap, watch: _NodeWatch | None, learn: bool, *, is_last: bool) -> None:
        self._values, self._roots = dict(self._inputs), []
        calls = self.program.calls
        # groups, not single calls: entering autocast costs more than a small call, and leaving it empties its cache of
        # cast weights, which the model keeps for the whole of its forward pass
        for is_model, group in groupby(range(len(calls)), key=lambda i: self._is_model[i]):
            indices = list(group)
            with self._autocast(indices) if is_model else nullcontext():
                for index in indices:
                    if calls[index].mark:
                        self._at_mark(calls[index].mark, lap, watch, is_last)
                    elif index in self._segments:
                        self._segment(self._segments[index], watch)
                    elif self._is_run(index):
                        self._call(index, watch, learn)

    def _is_run(self, index: int) -> bool:
        return index not in self._inside and self.program.calls[index].phase not in NOT_FLOWN

    @contextmanager
    def _autocast(self, indices: Sequence[int]) -> Iterator[None]:
        """Autocast around calls within modules: the user of a model gets full precision back.

        Entering and leaving it is part of the first call that runs.
        """
        if not self.form.autocast:
            yield
            return
        stopwatch = self._stopwatch
        first = next((i for i in indices if i not in self.opaque and self._is_run(i)), NOTHING)
        stopwatch.begin(first)
        with torch.autocast(self.program.device, dtype=_LOW_PRECISION[self.form.autocast]):
            stopwatch.begin(NOTHING)
            yield
            stopwatch.begin(first)
        stopwatch.begin(NOTHING)

    def _at_mark(self, mark: str, lap: Lap, watch: _NodeWatch | None, is_last: bool) -> None:
        if mark == "update" and is_last:
            self._forget_gradients()
        if mark != "backward" or not self._roots:
            return
        roots, self._roots = self._roots, []
        gradients = [torch.ones_like(root) for root in roots]
        stopwatch = self._stopwatch
        # what is still open belongs to the forward calls: read it before the backward pass begins its own windows
        stopwatch.settle(lap.forward_ns)
        stopwatch.begin(NOTHING)
        torch.autograd.backward(roots, gradients)
        stopwatch.begin(NOTHING)
        lap.passes_ns.append(stopwatch.settle(lap.backward_ns if watch is not None else None))

    def _call(self, index: int, watch: _NodeWatch | None, learn: bool) -> None:
        prepared = self._prepared[index]
        if index in self.opaque:
            self._stand_in(prepared)
            return
        try:
            if learn:
                self._fit(index, prepared)
            result = self._time_call(index, prepared)
            if learn:
                self._require_as_captured(index, prepared, result)
        except CANNOT_RUN as error:
            self.opaque.add(index)
            self.failures[index] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self._stand_in(prepared)
            return
        self._keep(prepared, result)
        if learn:
            self.output_bytes[index] = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(result))
        if watch is not None and prepared.grad:
            watch.see(index, result)

    def _segment(self, segment: Segment, watch: _NodeWatch | None) -> None:
        self._stopwatch.begin(segment.first)
        results = segment.run(self._values)
        for version in segment.dies:
            self._values.pop(version, None)
        self._stopwatch.begin(NOTHING)
        for slot, value in zip(segment.leaves, results, strict=True):
            self._values[slot.version] = value
            if slot.is_root and value.requires_grad:
                self._roots.append(value)
        if watch is not None:
            watch.see(segment.first, results)

    def _time_call(self, index: int, prepared: Prepared) -> Any:
        stopwatch = self._stopwatch
        with nullcontext() if prepared.grad else torch.no_grad():
            if self.form.autocast and not self._is_model[index]:
                stopwatch.begin(index)
                # Give results of a model that are read outside of it back in their captured type.
                for slot in prepared.inputs:
                    value, requested = self._values[slot.version], DTYPES[slot.spec.dtype]
                    if value.dtype != requested and value.dtype in _LOW_PRECISION.values():
                        self._values[slot.version] = value.to(requested)
                stopwatch.begin(NOTHING)
            # Getting the arguments is not the call's work, dropping what dies with it is: the step frees it there as
            # well. The names go first, or they would keep the tensors alive.
            arguments, keywords = prepared.arguments(self._values)
            self._time_entry(index)
            stopwatch.begin(index)
            result = prepared.function(*arguments, **keywords)
            del arguments, keywords
            for version in prepared.dies:
                self._values.pop(version, None)
            stopwatch.begin(NOTHING)
        return result

    def _time_entry(self, index: int) -> None:
        """Now and then time an operator that does nothing: what it takes is the way into an operator and back."""
        number, self._num_entered = self._num_entered, self._num_entered + 1
        self._num_entries[index] += 1
        if number % _CALLS_PER_PROBE == 0:
            self._stopwatch.begin(len(self.program.calls) + number // _CALLS_PER_PROBE)
            torch.ops.aten.is_same_size.default(self._probe, self._probe)
            self._stopwatch.begin(NOTHING)

    def _fit(self, index: int, prepared: Prepared) -> None:
        """Give sizes among the arguments their new values, now that the shapes of the inputs are known."""
        if self.form.batch[0] == self.form.batch[1] or prepared.is_fitted:
            return
        shapes = [tuple(self._values[slot.version].shape) for slot in prepared.inputs]
        resize(self.program.calls[index], prepared, shapes, self.form.batch)
        prepared.is_fitted = True

    def _stand_in(self, prepared: Prepared) -> None:
        """Fresh tensors instead of results."""
        for version in prepared.dies:
            self._values.pop(version, None)
        self._keep(prepared, self._make_outputs(prepared))

    def _make_outputs(self, prepared: Prepared) -> list[torch.Tensor]:
        # without a known bound 0 and 1 are in range of nearly every index
        created = [fill(slot.spec, slot.shape, bound=self._bounds.get(slot.version, 2)) for slot in prepared.outputs]
        return [value.requires_grad_(prepared.grad and value.is_floating_point()) for value in created]

    def _require_as_captured(self, index: int, prepared: Prepared, result: Any) -> None:
        """Refuse what drawn values made of another shape, or such that it indexes beyond what its readers have."""
        # Python code fills an empty tensor, which the capture does not record
        is_filled_later = self.program.calls[index].operator == "aten::empty"
        for slot, value in zip(prepared.outputs, _tensors(result), strict=False):
            if is_filled_later and not (value.is_floating_point() or value.is_complex()):
                raise ValueError("what it was filled with is not known")
            if self.form.batch[0] != self.form.batch[1]:
                continue
            if value.shape != slot.spec.shape:
                raise ValueError(f"its result has the shape {tuple(value.shape)}, and had {slot.spec.shape}")
            bound = self._bounds.get(slot.version)
            if bound is not None and value.numel():
                low, high = int(value.min()), int(value.max())
                if low < 0 or high >= bound:
                    raise ValueError(f"its result is an index from 0 to below {bound}, and goes from {low} to {high}")

    def _keep(self, prepared: Prepared, result: Any) -> None:
        for slot, value in zip(prepared.outputs, _tensors(result), strict=False):
            if slot.is_used:
                self._values[slot.version] = value
            if slot.is_root and value.requires_grad:
                self._roots.append(value)

    def _forget_gradients(self) -> None:
        own = [item for row in self._prepared if isinstance(row.function, Replaced) for item in row.function.parameters]
        for parameter in (*self._parameters, *own):
            parameter.grad = None


def _without_entries(times_ns: NDArray[np.float64], num_entries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times of calls, float [C], less the way into each; ``times_ns`` has those of the probes behind the calls."""
    calls_ns, probes_ns = np.split(times_ns, [len(num_entries)])
    probes_ns = probes_ns[probes_ns > 0]
    entry_ns = float(np.median(probes_ns)) if probes_ns.size else 0.0
    result: NDArray[np.float64] = np.maximum(calls_ns - entry_ns * num_entries, _MIN_LEFT * calls_ns)
    return result


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors(item)


class _NodeWatch:
    """Tells a stopwatch when each autograd node begins; a node belongs to the call after which it was first seen."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._seen: dict[int, Any] = {}
        self._stopwatch = stopwatch

    def see(self, index: int, result: Any) -> None:
        """Watch the nodes that the call ``index`` made."""
        waiting = [tensor.grad_fn for tensor in _tensors(result) if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if id(node) in self._seen:
                continue
            self._seen[id(node)] = node  # kept alive, so that its identity is not used again
            node.register_prehook(self._begin(index))
            waiting += [parent for parent, _ in node.next_functions if parent is not None]

    def _begin(self, index: int) -> Callable[[Any], None]:
        begin = self._stopwatch.begin

        def prehook(_gradients: Any) -> None:
            begin(index)

        return prehook
