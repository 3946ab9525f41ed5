"""Watch which activations and gradients of a training are zero.

In: modules, a step function, or an unmodified script. Out: ``ZeroRecords``. Hooks lie on every convolution of two
dimensions and every linear layer, only in the iterations that are recorded; bits are packed at once, before anything
can change a tensor in place. A layer that is called several times in an iteration is recorded at its last call. Not
here: the file (``records``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base import bitmaps
from windtunnel.base.extras import require
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.script import capture_script
from windtunnel.sources.torch.script_iterations import EndOfScript, RecorderPilot
from windtunnel.sources.zeros.records import LayerRecord, ZeroRecords

__all__ = ["ZeroWatch", "capture_with_zeros"]

_SAMPLES = 4
_ROWS = 64  # of what a linear layer is applied to


class ZeroWatch:
    """Hooks on the layers of models, one iteration long each time.

    Parameters
    ----------
    models : sequence of Module
    samples : int
        Images of a batch whose masks are kept.
    """

    def __init__(self, models: Sequence[Any], *, samples: int = _SAMPLES) -> None:
        require("torch", extra="torch")
        if samples < 1:
            raise InputError(f"masks of {samples} images cannot be kept", where="samples", fix="take 1 or more")
        from windtunnel.sources.torch.annotate import module_paths

        self._samples = samples
        self._layers = {
            path: module for path, module in _iter_named_modules(models, module_paths(models)) if _kind(module)
        }
        self._handles: list[Any] = []
        self._seen: dict[str, dict[str, Any]] = {}
        self._done: list[LayerRecord] = []
        self._skipped: Counter[str] = Counter()
        if not self._layers:
            raise NotApplicableError(
                "there is no convolution and no linear layer whose zeros could be watched",
                where=", ".join(type(model).__name__ for model in models) or "no model",
            )

    def begin(self) -> None:
        """Watch the iteration that comes."""
        self._seen = {}
        self._handles = [
            module.register_forward_hook(self._hook(path, module)) for path, module in self._layers.items()
        ]

    def end(self, iteration: int) -> None:
        """Keep what was seen, as that iteration's."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for path, item in self._seen.items():
            if "dY_bits" in item:
                self._done.append(LayerRecord(layer=path, iteration=iteration, **item))
            else:
                self._skipped["no gradient came"] += 1
        self._skipped["not called"] += len(self._layers) - len(self._seen)

    def records(self, program: str) -> ZeroRecords:
        """All that was kept.

        Raises
        ------
        NotApplicableError
            Nothing was: no layer was called and differentiated.
        """
        if not self._done:
            raise NotApplicableError("no layer was called and differentiated while it was watched", where=program)
        return ZeroRecords(program, tuple(self._done), {key: num for key, num in self._skipped.items() if num})

    def _hook(self, path: str, module: Any) -> Callable[..., None]:
        def look(_: Any, arguments: tuple[Any, ...], output: Any) -> None:
            if not (arguments and output.requires_grad):
                return
            given = arguments[0].detach()
            if _kind(module) == "convolution" and given.dim() != 4:
                self._skipped["without a batch"] += 1
                return
            cut = self._sample_batch(given)
            one = {
                "kind": _kind(module),
                "inputs": tuple(cut.shape),
                "weight": tuple(module.weight.shape),
                "is_masked": bool((given >= 0).all()) and bool((given == 0).any()),
                "is_first": not arguments[0].requires_grad,
                "X_bits": _bits(cut),
                **_sizes(module),
            }
            self._seen[path] = one
            # the gradient comes in the backward pass, long after this call: it is kept with what was seen here
            output.register_hook(lambda gradient: self._keep(one, gradient))

        return look

    def _keep(self, one: dict[str, Any], gradient: Any) -> None:
        cut = self._sample_batch(gradient.detach())
        one["outputs"], one["dY_bits"] = tuple(cut.shape), _bits(cut)

    def _sample_batch(self, tensor: Any) -> Any:
        """What is kept of a batch: some images, or some rows."""
        return tensor[: self._samples] if tensor.dim() == 4 else tensor.reshape(-1, tensor.shape[-1])[:_ROWS]


def _iter_named_modules(models: Iterable[Any], paths: dict[int, str]) -> Iterable[tuple[str, Any]]:
    for model in models:
        for module in model.modules():
            yield paths.get(id(module), type(module).__name__), module


def _kind(module: Any) -> str:
    from torch import nn

    if isinstance(module, nn.Conv2d):
        return "convolution"
    return "linear" if isinstance(module, nn.Linear) else ""


def _sizes(module: Any) -> dict[str, Any]:
    """Steps of a window; padding in words becomes numbers."""
    if _kind(module) == "linear":
        return {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    padding = module.padding
    if isinstance(padding, str):
        sides = zip(module.kernel_size, module.dilation, strict=True)
        padding = tuple(far * (side - 1) // 2 for side, far in sides) if padding == "same" else (0, 0)
    result = {"stride": module.stride, "padding": padding, "dilation": module.dilation}
    return {**{key: (int(item[0]), int(item[1])) for key, item in result.items()}, "groups": int(module.groups)}


def _bits(tensor: Any) -> Any:
    return bitmaps.pack((tensor != 0).cpu().numpy().astype(np.bool_))


class _ZerosPilot(RecorderPilot):
    """Goes on for some iterations after all is measured: bare ones, then one that is watched."""

    def __init__(self, recorder: Any, extra: int) -> None:
        super().__init__(recorder)
        recorder.skip_rows()
        self._left = extra
        self._is_watching = False
        self._num = 0
        self.watch: ZeroWatch | None = None

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        """Count iterations, for the records."""
        self._num += 1
        super().at_boundary(hooks, is_regular)

    def _end(self) -> None:
        if self.watch is None:
            self.recorder.close()  # no recorder would see its own hooks any more
            self.watch = ZeroWatch(self.recorder.recording.discovery.models)
        if self._is_watching:
            self.watch.end(self._num)
            raise EndOfScript
        self._left -= 1
        if self._left <= 0:
            self.watch.begin()
            self._is_watching = True


def capture_with_zeros(
    path: str | Path, argv: Sequence[str] = (), *, extra: int = 1, **given: Any
) -> tuple[Graph, ZeroRecords]:
    """Capture a script as ever, and then the masks of one more iteration; the graph keeps their summary.

    Parameters
    ----------
    path, argv, given
        As of :func:`windtunnel.sources.torch.script.capture_script`.
    extra : int
        Which iteration after the capture is watched: as training goes on, zeros become more.

    Raises
    ------
    InputError
        The script ended before; otherwise as for a capture.
    """
    pilots: list[_ZerosPilot] = []

    def pilot(recorder: Any) -> _ZerosPilot:
        pilots.append(_ZerosPilot(recorder, extra))
        return pilots[-1]

    graph = capture_script(path, argv, pilot=pilot, **given)
    watch = pilots[-1].watch
    if watch is None:
        raise InputError("the script ended before its zeros were watched", where=str(path), fix="let it train longer")
    records = watch.records(str(path))
    return graph.with_meta(own={**graph.meta.own, "zeros": records.summary()}), records
