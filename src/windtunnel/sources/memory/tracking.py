"""Where the memory of a training step goes, exactly.

In: a function that does one training iteration, a script, or what builds a job. Out: a ``MemoryProfile``: every storage
by category (weight, gradient, optimizer state, input, feature map, workspace, temporary), layer and source line, from
birth to death. Under fake tensors nothing is allocated or computed, so that a job can be asked about which does not
fit. Not here: pictures (room reports), what edits would change (room whatifs).

Source: TBD: Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018, section 3.4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.sources.memory.profile import CATEGORIES, MemoryProfile
from windtunnel.units import format_ratio, format_size

if TYPE_CHECKING:
    from windtunnel.hardware import Device
    from windtunnel.sources.memory.watch import Watch

__all__ = ["CATEGORIES", "MemoryProfile", "predict_memory", "require_fit", "track_memory"]

_CUTS = {
    "weight": "use a smaller model, weights in bfloat16, or share them among devices",
    "gradient": "update within the backward pass, use gradients in bfloat16, or share them among devices",
    "optimizer state": "use an optimizer with less state (SGD, Adafactor), or share it among devices",
    "input": "use a smaller batch",
    "feature map": "use a smaller batch, or compute activations again (the what-if activation-checkpointing)",
    "workspace": "use a smaller batch, or an implementation that needs less scratch memory",
    "temporary": "use a smaller batch, or release large tensors before the backward pass",
}


def track_memory(
    step: Callable[[], Any],
    *,
    model: Any = None,
    optimizer: Any = None,
    warmup: int = 2,
    steps: int = 1,
    workspace: bool = True,
    limit_bytes: int | None = None,
) -> MemoryProfile:
    """Run ``step`` and follow every storage through it.

    Parameters
    ----------
    step : callable
        One whole training iteration, without arguments.
    model, optimizer : Module or Optimizer, or several
        Found by themselves during the warm-up if they are not given.
    warmup : int
        Iterations before; at least one, as optimizers make their state in the first. The last of them runs slowly:
        source lines are learnt in it.
    steps : int
        Iterations to follow.
    workspace : bool
        Also show what operators allocate for themselves.
    limit_bytes : int or None
        End with an error before more than this is held in the last iteration of the warm-up.

    Returns
    -------
    MemoryProfile

    Raises
    ------
    InputError
        ``step`` is not callable, ``steps`` or ``warmup`` is not positive, or ``limit_bytes`` would be exceeded.
    MissingExtraError
        PyTorch is not installed.
    """
    _check(step, warmup, steps)
    require("torch", extra="torch")
    from windtunnel.sources.memory.watch import Watch

    watch = Watch(workspace=workspace, limit_bytes=limit_bytes)
    watch.discovery.add(_as_iterable(model), _as_iterable(optimizer))
    return _profile_steps(watch, step, warmup, steps)


def predict_memory(
    build: Callable[[], Any], *, warmup: int = 2, steps: int = 1, chip: Device | None = None
) -> MemoryProfile:
    """Ask what a job would hold, without its memory and without computing anything.

    Parameters
    ----------
    build : callable
        Builds the job and returns its step, or a workload (anything with ``step``, ``models`` and ``optimizers``). It
        is called where every new tensor is fake. Tensors that it brings along are taken as they are.
    warmup, steps
        As in :func:`track_memory`.
    chip : Device, optional
        The GPU that it would run on: attention and dropout keep less there, and cuBLAS keeps scratch memory. All that
        the job builds counts, except what stays on the host of a job that puts other tensors on a device.

    Returns
    -------
    MemoryProfile
        Without workspace: what an operator allocates for itself is known only when it runs.

    Raises
    ------
    InputError
        The job's form hangs on values, which fake tensors do not have.

    Examples
    --------
    A layer of 256 GiB with gradients and the state of Adam:

    >>> def build():
    ...     import torch
    ...     layer = torch.nn.Linear(2**18, 2**18, bias=False)
    ...     adam = torch.optim.Adam(layer.parameters())
    ...     def step():
    ...         adam.zero_grad()
    ...         layer(torch.ones(8, 2**18)).sum().backward()
    ...         adam.step()
    ...     return step
    >>> predict_memory(build).by_category()["optimizer state"] == 2 * 2**38 + 4
    True
    """
    _check(build, warmup, steps)
    require("torch", extra="torch")
    from windtunnel.sources.dry.host_side import HostSide
    from windtunnel.sources.dry.no_compute import skip_compute
    from windtunnel.sources.dry.values import Values
    from windtunnel.sources.memory.host_data import HostData
    from windtunnel.sources.memory.watch import Watch

    host, values = HostSide(), Values(guesses=True)
    watch = Watch(is_fake=True, host_data=HostData(host, imagines_device=False))
    with skip_compute(values, has_device=chip is not None, maps_devices=False, host=host):
        built = build()
        step = getattr(built, "step", built)
        watch.discovery.add(
            _as_iterable(getattr(built, "models", None)), _as_iterable(getattr(built, "optimizers", None))
        )
        profile = _profile_steps(watch, step, warmup, steps, is_fake=True)
        getattr(built, "close", _nothing)()
    profile.meta["num_guessed_scalars"] = sum(values.lines.values())  # type: ignore[index]
    return profile if chip is None else profile.on(chip)


def require_fit(predicted: Mapping[str, Any], limit_bytes: int, job: str, *, reserved: bool = False) -> None:
    """Refuse a job before it runs into the end of memory.

    Parameters
    ----------
    predicted : mapping
        Of :meth:`MemoryProfile.to_dict`.
    limit_bytes : int
        What there is.
    job : str
        Its name, for the message.
    reserved : bool
        The memory is a device's, behind a caching allocator.

    Raises
    ------
    InputError
        It would not fit; says the predicted peak and the category to cut.
    """
    needed = int(predicted["peak_reserved_bytes" if reserved else "peak_bytes"])
    if needed <= limit_bytes:
        return
    largest = max(CATEGORIES, key=lambda name: predicted["by_category"][name])
    share = predicted["by_category"][largest] / max(int(predicted["peak_bytes"]), 1)
    raise InputError(
        f"{job} would need {format_size(needed)} at its peak, and there are {format_size(limit_bytes)}",
        where=f"{format_ratio(share)} of it is {largest} ({format_size(predicted['by_category'][largest])})",
        fix=_CUTS[largest],
    )


def _profile_steps(
    watch: Watch, step: Callable[[], Any], warmup: int, steps: int, *, is_fake: bool = False
) -> MemoryProfile:
    watch.discovery.watch()
    try:
        for _ in range(warmup - 1):
            step()
        with nullcontext() if is_fake else watch.learning():
            step()
    finally:
        watch.discovery.unwatch()
    with watch:
        for done in range(steps):
            if done:
                watch.next_iteration()
            step()
    return watch.profile()


def _check(function: Any, warmup: int, steps: int) -> None:
    if not callable(function) or warmup < 1 or steps < 1:
        raise InputError(
            "memory is followed through a function, after at least one iteration of warm-up",
            where=f"{function!r}, warmup={warmup}, steps={steps}",
            fix="pass a function that does one training iteration; optimizers make their state in the first",
        )


def _as_iterable(value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _nothing() -> None:
    """What needs no ending."""
