"""Which iteration is measured how.

In: a call at every boundary between iterations. Out: a ``Recording``: times of bare iterations, light profiles of
others interleaved with them (bare bare light light bare bare ...), one rich profile for the structure, and the memory
of one more, after a slow one that teaches what only Python knows of it. Before the first profile the heap is held, so
that profiled and bare iterations find the allocator in the same state; a few iterations before show what that changes.
Iterations whose models are called with other shapes than usual are measured again: one graph is one form of the step.
So are iterations that waited for a core because other programs ran, as often again as there are iterations.
After every change of instrument one iteration is let pass, since the switch itself disturbs the caches and the
allocator. A step that turns out to compute on a GPU is recorded by the same instruments in another order; the device's
own clock times its bare iterations, and the traces of profiled ones hold its kernels (``device_traces``).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from windtunnel.base.progress import Progress
from windtunnel.graph import Graph
from windtunnel.measure.devices import finish
from windtunnel.measure.disturbance import MAX_WAITED_RATIO
from windtunnel.measure.host_state import CollectorClock, hold_heap, page_faults
from windtunnel.sources.memory.watch import Watch, profile_of_tracker
from windtunnel.sources.torch.annotate import Annotator, Discovery, is_compiling, module_paths, require_host
from windtunnel.sources.torch.compile_boundaries import run_eagerly
from windtunnel.sources.torch.compiled import CompiledRegions, Mode
from windtunnel.sources.torch.device_traces import DeviceTraces, lies_on_device
from windtunnel.sources.torch.lines import lines_of, mark_lines, without_lines
from windtunnel.sources.torch.loader import LoaderMeter
from windtunnel.sources.torch.messages import MessageLog, WaitMarks, is_distributed
from windtunnel.sources.torch.profile import ITERATION, LightProfiler, RichProfiler, annotate
from windtunnel.sources.torch.recording import (
    OF_ONE_FORM,
    PROFILED,
    SLOWED,
    TIMED,
    WITHOUT_TIMES,
    BareIteration,
    QuietWatch,
    Recording,
    Slot,
    schedule,
    schedule_in_a_row,
    schedule_on_device,
)
from windtunnel.sources.torch.shapes import ShapeSorter
from windtunnel.sources.torch.timeline_points import PhaseClock

__all__ = ["Recorder"]

SETTLING = "wt:settling"
_MAX_ROW_REPEATS = 4


class Recorder:
    """Turn instruments on and off at the boundaries between iterations.

    Call :meth:`begin` before the first iteration, :meth:`boundary` after each, :meth:`close` at the end.
    """

    def __init__(
        self,
        *,
        iterations: int,
        warmup: int,
        discovery: Discovery | None = None,
        progress: Progress | None = None,
        is_fake: bool = False,
    ) -> None:
        self.recording = Recording(discovery=discovery or Discovery())
        self._planned = WITHOUT_TIMES if is_fake else list(schedule(iterations, warmup))
        self._slots = list(self._planned)
        self._iterations = iterations
        self._sorter = ShapeSorter(iterations)
        self._position = 0
        self._progress = progress
        self._profiler: LightProfiler | None = None
        self._valid: list[bool] = []
        self._annotator: Annotator | None = None
        self._watch: Watch | None = None
        self._following: AbstractContextManager[Watch] | None = None
        self._marker: Any = None
        self._log: MessageLog | None = None
        self._waits = WaitMarks()
        self._clock = PhaseClock()
        self._loader = LoaderMeter()
        self._loader.install()
        self._regions = CompiledRegions()
        self._regions.install()
        self._num_regions = 0
        self._stance, self._lines = ExitStack(), ExitStack()
        self._begun_ns = 0
        self._begun_faults = 0
        self._collector = CollectorClock()
        self._quiet = QuietWatch(iterations)
        self._running = False
        self._row_repeats_left = _MAX_ROW_REPEATS
        self._has_rows = not is_fake
        self._is_fake = is_fake

    def skip_rows(self) -> None:
        """Run no short steps in a row, as what comes after the capture needs the script's iterations."""
        self._has_rows = False

    @property
    def is_complete(self) -> bool:
        """Whether every planned iteration has been measured."""
        return self._position >= len(self._slots)

    @property
    def instrument(self) -> str:
        """What the running iteration is measured with, in a word."""
        if self.is_complete:
            return "none"
        slot = self._slots[self._position]
        if slot in PROFILED:
            return "light"
        is_bare = slot in (Slot.AS_IS, Slot.SETTLE_BARE, Slot.BARE, Slot.IN_A_ROW, Slot.UNMARKED)
        return "bare" if is_bare else slot.value

    @property
    def num_measured(self) -> int:
        """Bare and profiled iterations measured so far."""
        return len(self.recording.bare_ns) + len(self.recording.light_ns)

    def begin(self) -> None:
        """Start the instruments of the next iteration."""
        slot, device = self._slots[self._position], self.recording.device
        if slot is Slot.UNMARKED:
            self._clock.remove()
            self._quiet.begin()
            self._running = True
            self._sorter.begin()
            self._begun_ns = time.perf_counter_ns()
            return
        if slot is Slot.BARE and device is not None:
            device.begin_bare()
            self._running = True
            return
        if slot is Slot.DISCOVER:
            self._stance.enter_context(run_eagerly())
            self.recording.discovery.watch()
            self._begin_messages()
        elif slot is Slot.RICH:
            if device is None:
                require_host(self.recording.discovery.parameters().values())
                self._clock.install()
            self.recording.is_heap_held = hold_heap()
            self._begin_rich()
        elif slot is Slot.OPERATORS:
            self._begin_rich(Mode.UNCOMPILED)
        elif slot in (Slot.LEARN_MEMORY, Slot.MEMORY):
            self._begin_memory(slot)
        elif slot in PROFILED and self._profiler is None:
            self._profiler, self._valid = LightProfiler(self._device_kind), []
            self._regions.set_mode(Mode.MARKED)
            finish(self._device_kind)
            self._profiler.start()
        self._running = True
        self._num_regions = len(self._regions)
        if slot in (Slot.BARE, Slot.IN_A_ROW):
            self._collector.watch()
        self._sorter.begin()
        if slot in TIMED or (slot is Slot.IN_A_ROW and self._slots[self._position - 1] is not slot):
            self._quiet.begin()  # of all in a row: reading the kernel's counters takes as long as a short step
        if slot in (Slot.RICH, Slot.OPERATORS) or slot in PROFILED:
            self._put_marker(SETTLING if slot in (Slot.PRIME, Slot.SETTLE_LIGHT) else ITERATION)
        self._begun_faults = page_faults()
        self._clock.begin(time.perf_counter_ns())
        self._begun_ns = time.perf_counter_ns()

    def boundary(self, *, is_regular: bool = True) -> None:
        """End the running iteration and begin the next one; an irregular iteration is measured again."""
        if self._is_timed_on_device:
            self._end_timed_on_device(is_regular)
            return
        elapsed_ns = time.perf_counter_ns() - self._begun_ns
        if not self.is_complete and self._slots[self._position] is Slot.UNMARKED:
            self._end_row_iteration(elapsed_ns, is_regular)
            return
        self._end_marker()
        is_regular &= len(self._regions) == self._num_regions  # nothing was compiled meanwhile
        self._end(elapsed_ns, is_regular and self._is_of_the_form(elapsed_ns))
        self._continue()

    def _continue(self) -> None:
        if self.is_complete and not self.recording.is_complete:
            self.recording.is_complete = True  # what follows makes times of short steps truer; a script may end before
            if self._has_rows and self.recording.device is None and not is_distributed():
                self._slots += schedule_in_a_row(self.recording.bare_ns)
        if self._progress is not None and self._slots[self._position - 1] is not Slot.IN_A_ROW:
            self._progress("capturing", self._position, len(self._slots))
        if not self.is_complete:
            self.begin()
        else:
            self.close()

    @property
    def _is_timed_on_device(self) -> bool:
        """Whether the running iteration is one of several on a device between which the host does nothing else."""
        return self.recording.device is not None and not self.is_complete and self._slots[self._position] in TIMED

    def _end_timed_on_device(self, is_regular: bool) -> None:
        slot, device = self._slots[self._position], self.recording.device
        assert device is not None
        if slot is Slot.BARE:
            device.mark_bare(is_regular=is_regular)
        else:
            self._end_marker()
            self._valid.append(is_regular)
            self.recording.light_ns += [time.perf_counter_ns() - self._begun_ns] * is_regular
        self.recording.num_dropped += not is_regular
        self._position += is_regular
        if not self.is_complete and self._slots[self._position] is slot:
            if slot is Slot.LIGHT:
                self._begun_ns = time.perf_counter_ns()
                self._put_marker(ITERATION)
            return
        if slot is Slot.BARE:
            self.recording.bare_ns = device.end_bare()
        else:
            self._close_light()
        self._running = False
        self._continue()

    def _end_row_iteration(self, elapsed_ns: int, is_regular: bool) -> None:
        """Between such iterations next to nothing runs, as anything that does cools the caches of a short step."""
        if is_regular and self._is_of_the_form(elapsed_ns):
            self.recording.unmarked_ns.append(elapsed_ns)
        self._position += 1
        if self.is_complete:
            self._running = False
            lost_ratio = self.recording.unmarked_lost = self._quiet.end()
            if self._goes_back(Slot.UNMARKED, lost_ratio):
                self.recording.unmarked_ns.clear()
            self._continue()
            return
        self._sorter.begin()
        self._begun_ns = time.perf_counter_ns()

    def _goes_back(self, slot: Slot, lost_ratio: float) -> bool:
        """Whether a row that others disturbed is run again, from its first iteration on."""
        if lost_ratio <= MAX_WAITED_RATIO or not self._row_repeats_left:
            return False
        self._row_repeats_left -= 1
        self._position = self._slots.index(slot)
        return True

    def graph(self) -> Graph:
        """What was measured, as a graph."""
        if self.recording.device is not None:
            from windtunnel.sources.torch.device_build import build_device_graph

            return build_device_graph(self.recording)
        from windtunnel.sources.torch.build import build_graph

        return build_graph(self.recording)

    def _is_of_the_form(self, elapsed_ns: int) -> bool:
        """Whether the iteration counts, by the shapes of its inputs; what does not is held out with its time.

        Iterations that settle are looked at, too: a form that comes in every so many may fall on no others.
        """
        slot = self._slots[self._position]
        is_unseen = slot is Slot.LEARN_MEMORY and len(self._regions) > 0  # no compiled code runs that could show any
        shapes = self._sorter.end(is_seen=not is_unseen)
        if slot in (Slot.IN_A_ROW, Slot.UNMARKED):
            is_common = self._sorter.is_chosen(shapes)
        else:
            is_common = slot not in OF_ONE_FORM or is_unseen or self._sorter.is_common(shapes)
        if slot not in SLOWED:
            self._sorter.set_aside(shapes, elapsed_ns)
        return is_common

    def restart(self) -> None:
        """Drop everything: the iterations so far were of another kind."""
        self.abort()
        self._sorter.remove()
        self._sorter = ShapeSorter(self._iterations)
        self.recording = Recording()
        self._quiet = QuietWatch(self._iterations)
        self._slots = list(self._planned)
        self._position = 0

    def abort(self) -> None:
        """End the instruments in the middle of an iteration and keep what is whole."""
        device = self.recording.device
        if self._running and device is not None and self._is_timed_on_device:
            if self._slots[self._position] is Slot.BARE:
                self.recording.bare_ns = device.end_bare()
            else:
                self._end_marker()
                self._valid.append(False)
            self._running = False
            self._close_light()
        if self._running and not self.is_complete:
            self._end(0, is_regular=False)
            self._close_light()

    def close(self) -> None:
        """Take every instrument away, in the middle of an iteration too; what is whole stays in the recording."""
        self.abort()
        self._clock.remove()
        self._waits.remove()
        self._sorter.remove()
        self.recording.shapes = self._sorter.as_meta()
        self.recording.compiled = {"num_regions": len(self._regions), "failures": self._regions.failures}
        self._stance.close()
        self._regions.remove()
        self._loader.remove()
        self.recording.num_workers, self.recording.fetch_ns = self._loader.num_workers, self._loader.fetch_ns()

    @property
    def _device_kind(self) -> str:
        return "" if self.recording.device is None else self.recording.device.kind

    def _begin_memory(self, slot: Slot) -> None:
        if slot is Slot.LEARN_MEMORY or self._watch is None:
            self._watch = Watch(workspace=True)
            self._watch.discovery = self.recording.discovery
        self._following = self._watch if slot is Slot.MEMORY else self._watch.learning()
        self._following.__enter__()

    def _end_memory(self, slot: Slot, is_regular: bool) -> None:
        if self._watch is None or self._following is None:
            return
        device = self.recording.device
        if device is not None and is_regular and self._watch.tracker is not None:
            # the log of the allocator is the host's: on a device storages are followed operator by operator
            self.recording.memory = profile_of_tracker(self._watch.tracker, is_fake=False, device=device.kind)
        self._following.__exit__(None, None, None)
        self._following = None
        if slot is Slot.MEMORY and is_regular:
            self.recording.memory = self._watch.profile()

    def _begin_messages(self) -> None:
        if is_distributed():
            self._waits.install()
            self._log = MessageLog()
            self._log.__enter__()

    def _end_messages(self) -> None:
        if self._log is not None:
            self._log.__exit__(None, None, None)
            self.recording.messages, self._log = self._log.messages, None

    def _begin_rich(self, mode: Mode = Mode.MARKED) -> None:
        self._profiler = RichProfiler(self._device_kind)
        self._annotator = Annotator(self.recording.discovery)
        self._regions.set_mode(mode)
        finish(self._device_kind)
        self._profiler.start()
        self._annotator.roll_call()
        self._annotator.watch(self._regions.modules_in_regions(self._annotator.paths) if len(self._regions) else None)
        # compiled code would be compiled anew, and fake tensors compute in Python, by functions of torch
        if not (len(self._regions) or is_compiling() or self._is_fake):
            self._lines.enter_context(mark_lines())

    def _put_marker(self, name: str) -> None:
        self._marker = annotate(name)
        self._marker.__enter__()

    def _end_marker(self) -> None:
        """The profiled iteration ends before anything is looked up about it: that would seem to be its own time."""
        if self._marker is not None:
            self._marker.__exit__(None, None, None)
            self._marker = None

    def _end(self, elapsed_ns: int, is_regular: bool) -> None:
        # The plan of a capture is a list of slots, one per iteration. An iteration that is irregular or was
        # disturbed does not advance the plan: its slot is taken again by the next one. A row goes on, and lacks it.
        slot = self._slots[self._position]
        is_last_in_row = slot is Slot.IN_A_ROW and self._slots[self._position + 1] is not slot
        lost_ratio = self._quiet.end() if slot in TIMED or is_last_in_row else 0.0
        num_faults = page_faults() - self._begun_faults
        waited_ns = self._loader.take_wait_ns()
        pauses_ns = self._collector.unwatch()
        self._running = False
        self._end_marker()
        if slot is Slot.DISCOVER:
            self._stance.close()
        self._position += slot is Slot.IN_A_ROW or (is_regular and not self._quiet.wants_again(lost_ratio))
        self.recording.num_repeated = self._quiet.num_repeated
        self.recording.num_dropped += not is_regular
        if slot is Slot.DISCOVER:
            self.recording.discovery.unwatch()
            self._end_messages()
            if not self._is_fake and lies_on_device(self.recording.discovery):
                self.recording.device = DeviceTraces()
                self._slots[self._position :] = schedule_on_device(self._iterations)
            if is_regular:
                self._watch_shapes()
        elif slot is Slot.AS_IS and is_regular:
            self.recording.as_is_ns.append(elapsed_ns)
            self.recording.as_is_faults.append(num_faults)
        elif slot is Slot.BARE and is_regular:
            self.recording.bare_ns.append(elapsed_ns)
            self.recording.bare_lost.append(lost_ratio)
            self.recording.bare_faults.append(num_faults)
            self.recording.bare_marks.append(self._clock.marks())
            self.recording.bare_waits_ns.append(waited_ns)
            self.recording.bare_pauses_ns.append(pauses_ns)
        elif slot is Slot.IN_A_ROW:
            if is_regular:
                iteration = BareIteration(elapsed_ns, self._clock.marks(), waited_ns, pauses_ns, num_faults)
                self.recording.row.append(iteration)
            self.recording.row_lost = lost_ratio
            if is_last_in_row and self._goes_back(slot, lost_ratio):
                self.recording.row.clear()
        elif slot in (Slot.RICH, Slot.OPERATORS):
            self._end_rich(slot, elapsed_ns, is_regular)
        elif slot in (Slot.LEARN_MEMORY, Slot.MEMORY):
            self._end_memory(slot, is_regular)
        elif slot is Slot.LIGHT:
            self._valid.append(is_regular)
            if is_regular:
                self.recording.light_ns.append(elapsed_ns)
                self.recording.light_lost.append(lost_ratio)
                self.recording.light_marks.append(self._clock.marks())
                self.recording.light_waits_ns.append(waited_ns)
        if slot in (Slot.SETTLE_BARE, Slot.SETTLE_LIGHT, Slot.PRIME) and not is_regular:
            self._position += 1  # settling needs no regular iteration
        if slot in PROFILED and (self.is_complete or self._slots[self._position] not in PROFILED):
            self._close_light()

    def _watch_shapes(self) -> None:
        """Of what is compiled no hook may ask: it would be compiled anew."""
        if len(self._regions):
            discovery = self.recording.discovery
            self._regions.learn(discovery, module_paths(discovery.models))
            self._slots.insert(self._position + self._slots[self._position :].index(Slot.RICH) + 1, Slot.OPERATORS)
            self._sorter.watch_compiled_regions(self._regions)
        elif not is_compiling():
            self._sorter.watch(self.recording.discovery.models)

    def _end_rich(self, slot: Slot, elapsed_ns: int, is_regular: bool) -> None:
        assert self._profiler is not None
        assert self._annotator is not None
        self._lines.close()
        self._annotator.unwatch()
        self._annotator.roll_call_gradients()
        self._profiler.stop()
        self._regions.set_mode(Mode.BARE)
        device = self.recording.device
        if is_regular and device is not None:
            assert isinstance(self._profiler, RichProfiler)
            device.keep_rich(self._profiler, "rich" if slot is Slot.RICH else "operators")
            self.recording.rich_ns = elapsed_ns
        elif is_regular and slot is Slot.OPERATORS:
            self.recording.operators = self._profiler.events()
        elif is_regular:
            events = self._profiler.events()
            self.recording.lines, self.recording.rich = lines_of(events), without_lines(events)
            self.recording.rich_ns = elapsed_ns
        self._profiler.discard()
        self._profiler = None

    def _close_light(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._regions.set_mode(Mode.BARE)
            if self._valid and self.recording.device is not None:
                self.recording.device.keep_light(self._profiler, self._valid)
            elif self._valid:
                self.recording.light.append((self._profiler.events(), self._valid))
            self._profiler = None
