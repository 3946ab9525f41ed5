"""Tasks: one operator of a network with its shapes.

In: a table of operators that networks were seen to contain (``tasks.csv``, made by ``harvest``). Out: ``Task``: what is
computed, how much work that is, and which networks contain it how often. Not here: how it is computed.
"""

from __future__ import annotations

import csv
import importlib.resources
import io
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError

__all__ = ["BINARY_OPS", "CHANNEL_OPS", "KINDS", "UNARY_OPS", "Task", "format_tasks", "parse_task", "read_tasks"]

KINDS: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "bmm": ("b", "m", "n", "k"),
    "dense": ("m", "n", "k"),
    "conv2d": ("n", "ci", "h", "w", "co", "kh", "kw", "stride", "pad_h", "pad_w", "groups"),
    "depthwise_conv2d": ("n", "ci", "h", "w", "kh", "kw", "stride", "pad_h", "pad_w"),
    "max_pool2d": ("n", "ci", "h", "w", "kh", "stride", "pad_h"),
    "avg_pool2d": ("n", "ci", "h", "w", "kh", "stride", "pad_h"),
    "global_avg_pool": ("n", "ci", "s"),
    "layer_norm": ("m", "n"),
    "softmax": ("m", "n"),
    "reduce_sum": ("b", "k", "n"),
    "transpose": ("b", "m", "n", "s"),
    "elementwise": ("b", "c", "s"),
    "residual_add": ("b", "c", "s"),
    "gelu": ("b", "c", "s"),
}
"""Names of the extents of each kind; ``dense`` multiplies with transposed weights, ``reduce_sum`` adds up over k."""

UNARY_OPS: dict[str, int] = {
    "relu": 1,
    "relu6": 2,
    "leaky_relu": 2,
    "gelu": 5,
    "tanh": 1,
    "sigmoid": 3,
    "silu": 4,
    "hardswish": 5,
    "exp": 1,
    "sqrt": 1,
    "rsqrt": 2,
    "square": 1,
    "neg": 1,
    "mul_const": 1,
    "add_const": 1,
}
"""Operators on each element after the main one, and the operations that each of them takes."""
BINARY_OPS = ("add", "sub", "mul", "div")
"""With a second tensor of the same form."""
CHANNEL_OPS = ("bias", "scale")
"""With one number per channel: addition and multiplication."""
MAX_OPS = 6
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Task:
    """One operator with its shapes, and the operators on each element that follow it.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    shape : mapping
        Extents by name, as ``KINDS`` lists them.
    ops : tuple of str
        What is done to each element of the result, first to last; at most six.
    networks : mapping
        How often one step of each network contains it.
    """

    kind: str
    shape: Mapping[str, int]
    ops: tuple[str, ...] = ()
    networks: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"no kind of task is called {self.kind!r}", fix=f"one of {', '.join(KINDS)}")
        if tuple(self.shape) != KINDS[self.kind] or any(
            extent < (0 if "pad" in name else 1) for name, extent in self.shape.items()
        ):
            raise InputError(
                f"{dict(self.shape)} is no shape of {self.kind}", fix=f"give {', '.join(KINDS[self.kind])}"
            )
        unknown = [op for op in self.ops if op not in (*UNARY_OPS, *BINARY_OPS, *CHANNEL_OPS)]
        if unknown or len(self.ops) > MAX_OPS:
            raise InputError(f"{self.kind} cannot be followed by {', '.join(unknown or self.ops)}")

    @property
    def name(self) -> str:
        """Kind, shape and operators in one line; two tasks of one name are the same."""
        extents = " ".join(f"{name}={extent}" for name, extent in self.shape.items())
        return f"{self.kind} {extents}{' ' + '+'.join(self.ops) if self.ops else ''}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Extents of the result."""
        return _output_shape(self.kind, self.shape)

    @property
    def flops(self) -> float:
        """Floating-point operations of the definition, a multiply-add counted as two."""
        size = math.prod(self.output_shape)
        return float(_main_flops(self.kind, self.shape, size) + size * sum(UNARY_OPS.get(op, 1) for op in self.ops))

    @property
    def size_bytes(self) -> int:
        """Bytes of all inputs and the output, each counted once."""
        sizes = [math.prod(shape) for shape in (*self.input_shapes, self.output_shape)]
        return _FLOAT_BYTES * sum(sizes)

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Extents of the arguments: those of the main operator, then those of ``ops``."""
        channels = self.output_shape[1 if len(self.output_shape) > 2 else -1]
        own = _input_shapes(self.kind, self.shape)
        extra = [
            self.output_shape if op in BINARY_OPS else (channels,)
            for op in self.ops
            if op in BINARY_OPS or op in CHANNEL_OPS
        ]
        return (*own, *extra)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain values, as a program set stores it."""
        return {
            "kind": self.kind,
            "shape": dict(self.shape),
            "ops": list(self.ops),
            "flops": self.flops,
            "bytes": self.size_bytes,
            "networks": dict(self.networks),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """Read what ``to_dict`` returned."""
        shape = {name: int(values["shape"][name]) for name in KINDS.get(values["kind"], ())}
        return cls(values["kind"], shape, tuple(values["ops"]), dict(values["networks"]))


def _output_shape(kind: str, shape: Mapping[str, int]) -> tuple[int, ...]:
    if kind in ("conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d"):
        height, width = (
            (shape[side] + 2 * shape.get(f"pad_{side}", shape["pad_h"]) - shape.get(f"k{side}", shape["kh"]))
            // shape["stride"]
            + 1
            for side in "hw"
        )
        return shape["n"], shape.get("co", shape["ci"]), height, width
    names = {"bmm": "bmn", "global_avg_pool": ("n", "ci"), "reduce_sum": "bn", "transpose": "bnms"}
    default = "bcs" if kind in ("elementwise", "residual_add", "gelu") else "mn"
    return tuple(shape[name] for name in names.get(kind, default))


def _input_shapes(kind: str, shape: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    get = shape.__getitem__
    if kind == "conv2d":
        weights = (get("co"), get("ci") // get("groups"), get("kh"), get("kw"))
        return tuple(map(get, ("n", "ci", "h", "w"))), weights
    if kind == "depthwise_conv2d":
        return tuple(map(get, ("n", "ci", "h", "w"))), (get("ci"), get("kh"), get("kw"))
    if kind in ("max_pool2d", "avg_pool2d"):
        return (tuple(map(get, ("n", "ci", "h", "w"))),)
    if kind == "layer_norm":
        return (get("m"), get("n")), (get("n"),), (get("n"),)
    operands = {
        "matmul": ("mk", "kn"),
        "dense": ("mk", "nk"),
        "bmm": ("bmk", "bkn"),
        "softmax": ("mn",),
        "reduce_sum": ("bkn",),
        "transpose": ("bmns",),
        "global_avg_pool": (("n", "ci", "s"),),
    }
    return tuple(tuple(map(get, names)) for names in operands.get(kind, ("bcs",)))


def _main_flops(kind: str, shape: Mapping[str, int], output_size: int) -> int:
    if kind in ("matmul", "dense", "bmm"):
        return 2 * output_size * shape["k"]
    if kind == "conv2d":
        return 2 * output_size * shape["ci"] // shape["groups"] * shape["kh"] * shape["kw"]
    if kind == "depthwise_conv2d":
        return 2 * output_size * shape["kh"] * shape["kw"]
    if kind in ("max_pool2d", "avg_pool2d"):
        return output_size * shape["kh"] ** 2
    per_output = {"global_avg_pool": "s", "reduce_sum": "k"}
    if kind in per_output:
        return output_size * shape[per_output[kind]]
    return output_size * {"layer_norm": 8, "softmax": 5}.get(kind, 0)


def format_tasks(tasks: Iterable[Task]) -> str:
    """The table of tasks as CSV, one row per task and network."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kind", "shape", "ops", "network", "count"])
    for task in tasks:
        extents = " ".join(str(extent) for extent in task.shape.values())
        for network, count in sorted(task.networks.items()):
            writer.writerow([task.kind, extents, "+".join(task.ops), network, count])
    return text.getvalue()


def read_tasks(path: str | os.PathLike[str] | None = None) -> tuple[Task, ...]:
    """Tasks of a table, in its order.

    Parameters
    ----------
    path : path-like or None
        A table that ``format_tasks`` wrote; None reads the one that comes with the package.
    """
    name = str(path or "tasks.csv")
    if path is None:
        text = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name} cannot be read: {error}") from error
    networks: dict[tuple[str, str, str], dict[str, int]] = {}
    for line, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if line == 1:
            continue
        try:
            kind, shape, ops, network, count = row
            networks.setdefault((kind, shape, ops), {})[network] = int(count)
            _parse(kind, shape, ops, {})
        except (ValueError, KeyError) as error:
            raise InputError(f"not a task: {','.join(row)}", where=f"{name}, line {line}") from error
    return tuple(_parse(*key, networks=item) for key, item in networks.items())


def parse_task(text: str) -> Task:
    """The task of a name, as ``Task.name`` writes it.

    Examples
    --------
    >>> parse_task("matmul m=2 n=3 k=4 bias+relu").ops
    ('bias', 'relu')
    """
    kind, *words = text.split() or [""]
    shape: dict[str, int] = {}
    ops: tuple[str, ...] = ()
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            ops += tuple(word.split("+"))
        elif not value.isdigit():
            raise InputError(f"{word} is no extent", where=text, fix="write name=number, such as m=128")
        else:
            shape[name] = int(value)
    known = KINDS.get(kind, ())
    missing = [name for name in known if name not in shape]
    if missing:
        raise InputError(f"{kind} lacks {', '.join(missing)}", where=text, fix=f"give {', '.join(known)}")
    return Task(kind, {name: shape[name] for name in known} | shape, ops)


def _parse(kind: str, shape: str, ops: str, networks: Mapping[str, int]) -> Task:
    extents = dict(zip(KINDS[kind], map(int, shape.split()), strict=True))
    return Task(kind, extents, tuple(ops.split("+")) if ops else (), networks)
