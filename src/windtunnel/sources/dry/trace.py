"""One rank of a job, traced through one steady iteration.

In: boundaries between iterations of a running script. Out: a ``Trace``: the calls of one iteration, its groups, its
memory, models and optimizers. Iterations before it run unrecorded, as optimizers and sharded models set themselves up
in them. Not here: the script's surroundings (``run``), graphs (``build``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.dry.batches import Batches, batches_of, pipeline_samples
from windtunnel.sources.dry.groups import Groups
from windtunnel.sources.dry.host_side import HostSide
from windtunnel.sources.dry.recorder import Call, Recorder
from windtunnel.sources.dry.streams import Streams, patch_attributes
from windtunnel.sources.dry.thread import ThreadCall, ThreadProfile
from windtunnel.sources.dry.values import Values
from windtunnel.sources.memory.host_data import HostData
from windtunnel.sources.memory.profile import MemoryProfile
from windtunnel.sources.memory.watch import Watch
from windtunnel.sources.torch.annotate import Discovery
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.program import keep_models, keep_optimizers
from windtunnel.sources.torch.script import EndOfScript
from windtunnel.sources.torch.shapes import shapes_of

__all__ = ["Trace", "Tracing"]

_WARMUP = 1  # whole iterations after the loop has been recognized


@dataclass
class Trace:
    """What one iteration of one rank does."""

    rank: int
    calls: list[Call]
    groups: list[ProcessGroup]
    ways: list[tuple[int, int, bool]]
    layers: list[str]
    memory: MemoryProfile
    base_bytes: int
    models: list[str]
    optimizers: list[dict[str, Any]]
    parameters: frozenset[int]
    read_lines: dict[str, int]
    thread: list[ThreadCall]
    num_workers: int  # of its loaders
    inputs: list[tuple[int, ...]] = field(default_factory=list)  # shapes of what its models were called with
    batches: Batches | None = None

    @property
    def peers(self) -> set[int]:
        """Ranks that it sends messages to, or gets them from."""
        return {call.message.peer for call in self.calls if call.message is not None and call.message.peer >= 0}


@dataclass
class Tracing:
    """Leads the recorder through a script (a ``Pilot``)."""

    rank: int
    trace: Trace | None = None
    values: Values = field(default_factory=Values)
    streams: Streams = field(default_factory=Streams)
    groups: Groups = field(default_factory=Groups)
    host: HostSide = field(default_factory=HostSide)
    recorder: Recorder | None = None
    _watch: Watch | None = None
    _profile: ThreadProfile = field(default_factory=ThreadProfile)
    _pattern: tuple[Any, ...] = ()
    _seen: int = 0
    _parameters: frozenset[int] = frozenset()
    _inputs: list[tuple[int, ...]] = field(default_factory=list)
    _model_calls: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    _hooks: list[Any] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Messages arrive at once, waits for them are noted, and what only learns a shape is no work."""
        self.recorder = Recorder(self.streams, self.groups)
        original = dist.Work.wait

        def wait(work: Any, *args: Any) -> Any:
            if self.recorder is not None and self.recorder.places is not None:
                self.recorder.wait_for(_result(work))
            return original(work, *args)

        shapes = ShardingPropagator._propagate_tensor_meta_non_cached
        meanings: dict[Any, dict[str, Any]] = {
            dist.Work: {"wait": wait},
            # torch waits at once for tensors that are fake, as if it compiled
            functional: {"_maybe_wrap_tensor": functional._wrap_tensor_autograd},
            ShardingPropagator: {shapes.__name__: _unseen(shapes)},
        }
        with patch_attributes(meanings), self.recorder:
            yield

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        """Count whole iterations, record one."""
        pattern = hooks.finder.pattern
        is_steady = bool(pattern) and pattern == self._pattern and is_regular
        if self._watch is not None:
            if is_steady:
                self._finish()
                raise EndOfScript
            self._stop()
        self._seen = self._seen + 1 if is_steady else 0
        self._pattern = pattern
        if pattern and self._seen >= _WARMUP:
            self._begin(hooks)

    def _begin(self, hooks: StepHooks) -> None:
        assert self.recorder is not None
        watch = Watch(is_fake=True, host_data=HostData(self.host, imagines_device=False))
        watch.discovery.add(hooks.models, hooks.optimizers)
        self._watch = watch.__enter__()
        self._inputs, self._model_calls = [], []
        self._hooks = [
            model.register_forward_pre_hook(self._note_inputs, with_kwargs=True) for model in watch.discovery.models
        ]
        if self._pattern[0].kind == "next":
            watch.expect_data()
        assert watch.tracker is not None
        self.streams.begin()
        self.groups.begin()
        self.values.lines.clear()
        self.recorder.begin(watch.tracker.places)
        tensors = [*watch.discovery.parameters().values(), *watch.discovery.state().values()]
        self._parameters = frozenset(self.recorder.numbers(tensors))
        self._profile = ThreadProfile()
        self._profile.start()

    def _note_inputs(self, module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        shapes = list(shapes_of((positional, named)))
        self._inputs.extend(shapes)
        self._model_calls.append((id(module), next(iter(shapes), ())))

    def _stop(self) -> None:
        assert self._watch is not None
        assert self.recorder is not None
        self._profile.stop()
        self._watch.__exit__(None, None, None)
        self._watch = None
        for hook in self._hooks:
            hook.remove()
        self.recorder.end()

    def _finish(self) -> None:
        watch, recorder = self._watch, self.recorder
        assert watch is not None
        assert recorder is not None
        assert watch.tracker is not None
        self._stop()
        discovery: Discovery = watch.discovery
        self.trace = Trace(
            self.rank,
            recorder.calls,
            list(self.groups.known),
            list(self.streams.ways),
            list(watch.tracker.places.layers.texts),
            watch.profile(),
            discovery.resident_bytes(),
            keep_models(discovery),
            keep_optimizers(discovery),
            self._parameters,
            dict(self.values.lines),
            self._profile.calls([call.node["name"] for call in recorder.calls]),
            self.host.num_workers,
            list(self._inputs),
            batches_of(discovery.models, recorder.calls, self.groups.known, self.rank, dist.get_world_size())
            if dist.is_initialized()
            else None,
        )
        if self.trace.batches is not None and self.trace.peers:
            num_samples = pipeline_samples(self._model_calls)
            self.trace.batches = replace(self.trace.batches, num_samples=num_samples)

    def close(self) -> None:
        """Take everything away, in the middle of an iteration too."""
        if self._watch is not None:
            self._stop()


def _unseen(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose operators belong to no rank: DTensor runs each operator on global shapes to learn its result."""

    @functools.wraps(original)
    def call(*args: Any) -> Any:
        with _disable_current_modes():
            return original(*args)

    return call


def _result(work: Any) -> Any:
    try:
        return work.get_future().value()
    except RuntimeError:  # of a message that was sent before
        return ()
