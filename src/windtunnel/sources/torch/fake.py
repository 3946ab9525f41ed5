"""A training step -> a graph without running it: on fake tensors, so a large model takes seconds.

In: what builds a job, or a script. Out: a ``Graph`` with the operators, shapes, flops, bytes, phases, layers and
parameters of one iteration, whose tasks take no time: it is there to be priced for a device. Operators are those below
autograd, as every device has them; kernels that only this processor's libraries would call within do not show. Not
here: prices, capturing what really runs (``step``, ``script``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.graph import Graph, Strings

__all__ = ["NOT_RUN", "fake_capture", "fake_capture_script"]

NOT_RUN = "torch step, not run"
"""``meta.source`` of such a graph."""
_TIMES = ("samples_ns", "duration_std_ns", "start_ns")
_MEMORY = ("output_bytes", "workspace_bytes", "freed_bytes")


def fake_capture(build: Callable[[], Any], *, has_device: bool = False, progress: Progress | None = None) -> Graph:
    """Build a job on fake tensors and take down one iteration.

    Parameters
    ----------
    build : callable
        Makes the model, the optimizer and the data, and returns a step function or a registered workload; whatever is
        made before or outside is real, and is allocated.
    has_device : bool
        Let the job find a CUDA device, and use the operators for attention, dropout and updates that it has there.
    progress : callable
        Called with (what, done, total) after every iteration.

    Returns
    -------
    Graph
        All durations are 0, ``cost_source`` is "not run".

    Raises
    ------
    InputError
        The job needs values to go on.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    import torch

    from windtunnel.sources.dry.host_side import HostSide
    from windtunnel.sources.dry.no_compute import skip_compute
    from windtunnel.sources.dry.streams import patch_attributes
    from windtunnel.sources.dry.values import Values
    from windtunnel.sources.torch.device_operators import recurrent_functions
    from windtunnel.sources.torch.recorder import Recorder

    recorder = Recorder(iterations=0, warmup=1, progress=progress, is_fake=True)
    values, host = Values(guesses=True), HostSide()
    with (
        patch_attributes({torch._VF: recurrent_functions()}),
        skip_compute(values, has_device=has_device, maps_devices=False, host=host),
    ):
        built = build()
        models, optimizers = (list(getattr(built, name, ())) for name in ("models", "optimizers"))
        recorder.recording.discovery.add(models, optimizers)
        recorder.begin()
        try:
            while not recorder.is_complete:
                host.start_iteration()
                getattr(built, "step", built)()
                recorder.boundary()
        finally:
            recorder.close()
            getattr(built, "close", lambda: None)()
    return _graph(recorder.recording, values, host)


def fake_capture_script(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    guesses: bool = False,
    has_device: bool = False,
    progress: Progress | None = None,
) -> Graph:
    """The same of an unmodified script, whose loop is recognized as by a capture.

    Parameters
    ----------
    path : path
    argv : sequence of str
    guesses : bool
        Let the script decide by values that only a real run has; all of them are 1.
    has_device : bool
        Let the script find a CUDA device at once, as of ``fake_capture``.
    progress : callable

    Raises
    ------
    InputError
        The file is not there or is no Python; the script needs values; it ended before an iteration was whole.
    """
    require("torch", extra="torch")
    import torch

    from windtunnel.sources.dry.host_side import HostSide
    from windtunnel.sources.dry.no_compute import run_without_compute
    from windtunnel.sources.dry.streams import patch_attributes
    from windtunnel.sources.dry.values import Values
    from windtunnel.sources.torch.device_operators import recurrent_functions
    from windtunnel.sources.torch.recorder import Recorder
    from windtunnel.sources.torch.script import RecorderPilot, check_script

    script = check_script(path)

    values, host = Values(), HostSide()

    class Pilot(RecorderPilot):
        """What happens between iterations is not the script's."""

        def at_boundary(self, hooks: Any, is_regular: bool) -> None:
            super().at_boundary(hooks, is_regular)
            host.start_iteration()

    def make_host() -> HostSide:
        nonlocal host
        host = HostSide()
        return host

    def make_pilot(requested: Values) -> RecorderPilot:
        nonlocal values
        values = requested
        return Pilot(Recorder(iterations=0, warmup=1, progress=progress, is_fake=True))

    # every time step of a packed sequence would be a dozen of operators, which no device runs
    with patch_attributes({torch._VF: recurrent_functions()}):
        ended, pilot = run_without_compute(
            script, argv, make_pilot, has_device=has_device, guesses=guesses, make_host=make_host
        )
    recorder = pilot.recorder
    if recorder.recording.rich is None:
        message, fix = ended.reason("iterations")
        raise InputError(f"{message}; no iteration was whole", where=ended.place(), fix=fix) from ended.failure
    graph = _graph(recorder.recording, values, host)
    return graph.with_meta(origin={"script": str(script.resolve()), "argv": list(argv)})


def _graph(recording: Any, values: Any, host: Any) -> Graph:
    from windtunnel.sources.torch.annotate import asks_to_compile
    from windtunnel.sources.torch.build import MARKS, build_graph
    from windtunnel.sources.torch.fake_events import as_if_real
    from windtunnel.sources.torch.host_work import with_host_work

    graph = build_graph(replace(recording, rich=as_if_real(recording.rich, MARKS)))
    nothing = np.zeros(graph.num_tasks, dtype=np.int64)
    # fake tensors allocate nothing: what an allocator saw is no memory of the job (`memory --fake` predicts that)
    untimed = graph.drop_columns([*_TIMES, *_MEMORY]).set_columns(
        {"duration_ns": nothing, "cost_source": Strings.repeat("not run", graph.num_tasks)}
    )
    captured = with_host_work(untimed, host.num_workers).with_meta(
        source=NOT_RUN,
        iteration_ns={},
        profiled_iteration_ns={},
        overhead={},
        is_uncompiled=asks_to_compile(),
        has_default_device=values.has_default_device,
    )
    return replace(captured, edits=(), root=None)  # what made the capture is no edit of it
