"""Which tasks networks are made of.

In: networks of the suite, really run once. Out: ``Task`` values with the networks that contain them and how often. What
an inference compiler would fuse is one task: a normalization behind a convolution becomes its bias, and up to six
operators on each element go with what they follow. Not here: operators that no kind of task covers; they are counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.systems.tensor_programs.run.recognition import START, Found, pointwise
from windtunnel.systems.tensor_programs.run.tasks import KINDS, MAX_OPS, Task
from windtunnel.workloads.vision import vision_model

__all__ = ["NETWORKS", "Harvest", "choose", "harvest", "record"]

PIXELS = (64, 96)
MIN_BYTES = 48 * 2**10
MAX_BYTES = 6 * 10**6
MAX_FLOPS = 2.4e7
NETWORKS: tuple[str, ...] = (
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "preresnet18",
    "mobilenet_w1",
    "mobilenetv2_w1",
    "mobilenetv3_small_w1",
    "efficientnet_b0",
    "mnasnet_b1",
    "densenet121",
    "vovnet39",
    "darknet53",
    "shufflenetv2_w1",
    "hardnet39ds",
    "vit",
    "swinv2",
    "convnext",
    "poolformer",
    "segformer",
    "regnet",
    "bert:tiny",
    "bert:small",
    "decoder-lm:tiny",
    "translation-transformer:tiny",
    "diffusion-unet:tiny",
    "deep-speech-2:tiny",
    "dlrm:tiny",
    "moe-lm:tiny",
    "seq2seq:tiny",
    "gan",
    "transformer",
    "lstm",
    "mlp",
    "recommender",
)
"""Images: inference of one picture of each size. ``workload:size``: one whole training step without its optimizer."""
_SAME_VALUES = ("view", "_unsafe_view", "reshape", "detach", "alias", "unsqueeze", "squeeze", "flatten")
_CLOSED = ("softmax", "layer_norm", "transpose", "max_pool2d", "avg_pool2d", "global_avg_pool", "reduce_sum")
_ONE_SIZE = ("gan", "transformer", "lstm", "mlp", "recommender")


@dataclass(frozen=True)
class Harvest:
    """What was found.

    Parameters
    ----------
    tasks : tuple of Task
        Every task within the limits of size, most contained first.
    num_too_large, num_too_small : int
        Tasks beyond the limits.
    uncovered : Counter
        Operators that no kind of task covers, with their calls.
    """

    tasks: tuple[Task, ...]
    num_too_large: int
    num_too_small: int
    uncovered: Counter[str]


def harvest(networks: Iterable[str] = NETWORKS, progress: Progress | None = None) -> Harvest:
    """Run networks once and collect their tasks.

    Parameters
    ----------
    networks : iterable of str
        Names of ``workloads.vision``, or ``workload`` or ``workload:size``.
    progress : callable or None
        Called with (what, done, total).
    """
    names = list(networks)
    result: dict[str, Counter[str]] = defaultdict(Counter)
    tasks: dict[str, Task] = {}
    uncovered: Counter[str] = Counter()
    for done, name in enumerate(names):
        if progress is not None:
            progress(name, done, len(names))
        for pixels in PIXELS if _is_of_images(name) else PIXELS[:1]:
            recorded, unknown = record(name, pixels)
            uncovered += unknown
            tasks |= {task.name: task for task in recorded}
            for task, count in Counter(task.name for task in recorded).items():
                result[task][name] = max(result[task][name], count)
    whole = [Task(task.kind, task.shape, task.ops, dict(result[name])) for name, task in tasks.items()]
    too_large = [task for task in whole if task.flops > MAX_FLOPS or task.size_bytes > MAX_BYTES]
    too_small = [task for task in whole if task.size_bytes < MIN_BYTES]
    kept = [task for task in whole if task not in too_large and task not in too_small]
    kept.sort(key=lambda task: (-sum(task.networks.values()), task.name))
    return Harvest(tuple(kept), len(too_large), len(too_small), uncovered)


def choose(tasks: Sequence[Task], count: int) -> tuple[Task, ...]:
    """So many tasks, of all kinds and networks: in turn the next of each kind, from the network that has fewest.

    Examples
    --------
    >>> choose([], 3)
    ()
    """
    left: dict[str, list[Task]] = defaultdict(list)
    selected: list[Task] = []
    for task in tasks:
        left[task.kind].append(task)
    seen: Counter[str] = Counter()
    while len(selected) < count and any(left.values()):
        for kind in [kind for kind in KINDS if left[kind]]:
            # convolutions and products have many more shapes than the rest, and most of the time
            for _ in range(min(4 if kind in ("conv2d", "dense", "depthwise_conv2d") else 1, len(left[kind]))):
                task = min(left[kind], key=lambda task: min(seen[network] for network in task.networks))
                left[kind].remove(task)
                selected.append(task)
                seen.update(task.networks.keys())
    return tuple(selected[:count])


def record(name: str, pixels: int = PIXELS[0]) -> tuple[list[Task], Counter[str]]:
    """Tasks of one network in the order of their calls, and the operators that no kind of task covers."""
    torch = require("torch", extra="torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    recorder = _recorder(torch)
    workload, _, size = name.partition(":")
    with sdpa_kernel(SDPBackend.MATH):
        if not _is_of_images(name):
            built = registry.get("workload", workload).function(**({"size": size} if size else {}))
            try:
                with recorder, _without_updates(recorder):
                    built.step()
            finally:
                built.close()
        else:
            model = vision_model(name, size=pixels)
            with torch.no_grad(), recorder:
                model(torch.randn(1, 3, pixels, pixels))
    return [result.task() for result in recorder.found], recorder.uncovered


def _is_of_images(name: str) -> bool:
    return ":" not in name and name not in _ONE_SIZE


def _without_updates(recorder: Any) -> ExitStack:
    """Nothing of an optimizer's step is recorded."""
    from torch.optim import optimizer

    def pause(*_: Any) -> None:
        recorder.is_paused = True

    def go_on(*_: Any) -> None:
        recorder.is_paused = False

    hooks = ExitStack()
    hooks.callback(optimizer.register_optimizer_step_pre_hook(pause).remove)
    hooks.callback(optimizer.register_optimizer_step_post_hook(go_on).remove)
    return hooks


def _recorder(torch: Any) -> Any:
    """A mode of torch that sees every operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        """Tasks in the order in which the step runs them."""

        # conv2d -> batch norm -> add -> relu: the first opens a task, the others extend it, as a compiler fuses them.
        # ``_open`` maps the id of a task's current result to the task. Only the first reader of a result can extend its
        # task, since extending moves the entry to the new result.

        def __init__(self) -> None:
            super().__init__()
            self.found: list[Found] = []
            self.uncovered: Counter[str] = Counter()
            self.is_paused = False
            self._open: dict[int, Found] = {}
            self._alive: list[Any] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            result = func(*args, **(kwargs or {}))
            first = result[0] if isinstance(result, tuple | list) and result else result
            if not self.is_paused and isinstance(first, torch.Tensor) and first.dtype == torch.float32:
                self._alive.append(first)  # an id is only one tensor's as long as that lives
                self._note(str(func.overloadpacket.__name__), args, first)
            return result

        def _note(self, name: str, args: Any, result: Any) -> None:
            source = args[0] if args and isinstance(args[0], torch.Tensor) else None
            if name in _SAME_VALUES or name in ("t", "transpose", "permute", "expand", "slice", "select"):
                if source is not None and name in _SAME_VALUES and id(source) in self._open:
                    self._open[id(result)] = self._open[id(source)]
                return
            if self._extend_task(name, args, result):
                return
            results = START[name](args, result) if name in START else None
            if results is None:
                self.uncovered[name] += name not in START
                return
            self.found.append(results)
            if results.kind not in _CLOSED:
                self._open[id(result)] = results

        def _extend_task(self, name: str, args: Any, result: Any) -> bool:
            """Whether the operator goes with the task whose result it changes."""
            tensors = [value for value in args[:2] if isinstance(value, torch.Tensor)]
            owner = next((self._open[id(value)] for value in tensors if id(value) in self._open), None)
            if name in ("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"):
                if owner is None or owner.kind not in ("conv2d", "depthwise_conv2d"):
                    return False
                ops = [] if "bias" in owner.ops else ["bias"]
            else:
                op = pointwise(name, args, result)
                if op is None or owner is None or math.prod(result.shape) != math.prod(owner.task().output_shape):
                    return False
                ops = [op]
            if len(owner.ops) + len(ops) > MAX_OPS:
                return False
            owner.ops += ops
            for value in tensors:
                self._open.pop(id(value), None)
            self._open[id(result)] = owner
            return True

    return Recorder()
