"""A training step as a function of tensors that can be edited.

In: a workload that says what its step is made of. Out: ``Step``: forward and backward pass as operators, read as a
``Function`` of one block, and what an edited function is as a program. A value may only be replaced by one of the same
shape and type; the symbol C1 is a tensor of ones. Not here: running (``run``), searching (``kernels.search``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from windtunnel.base.extras import require
from windtunnel.errors import NotApplicableError
from windtunnel.measure.sandbox import Limits
from windtunnel.sources.targets import build_workload
from windtunnel.systems.kernels.ir import Argument, Block, Function, Instruction, Operand

__all__ = ["Order", "Setup", "Step", "inputs_of", "predict_time_ratio", "step_of"]


@dataclass(frozen=True, eq=False)
class Step:
    """Forward and backward pass of a model for one batch.

    Attributes
    ----------
    name : str
    function : Function
        Its instructions are operators of torch; what it returns is the loss and all gradients.
    module : GraphModule
    nodes : dict
        Node of each instruction.
    """

    name: str
    function: Function
    module: Any
    nodes: dict[str, Any]

    def program(self, function: Function) -> Any:
        """Return an edited function as an executable module without dead code."""
        import torch
        from torch import fx

        graph = fx.Graph()
        created: dict[str, Any] = {}
        for given in function.arguments:
            node = self.nodes[given.uid]
            is_input = node.op == "placeholder"
            created[given.uid] = graph.placeholder(node.name) if is_input else graph.get_attr(node.target)
        for instruction in function.blocks[0].instructions:
            if instruction.is_anchor:
                continue
            values = iter([created[operand.uid] if operand.uid else graph.call_function(torch.ones,
                *_shape_of(operand.type))
                           for operand in instruction.operands])  # fmt: skip
            node = self.nodes[instruction.uid.split(".")[0]]
            arguments, named = fx.node.map_arg((node.args, node.kwargs), partial(_next, values))
            if instruction.opcode == "ret":
                graph.output(arguments[0])
            else:
                created[instruction.uid] = graph.call_function(node.target, arguments, named)
        graph.eliminate_dead_code()
        graph.lint()
        return fx.GraphModule(self.module, graph)

    def list_needed_instructions(self, function: Function) -> list[str]:
        """Instructions of the original that an edited function still needs, a copy as often as it is there."""
        needed: set[str] = set()
        kept = []
        for instruction in reversed(function.blocks[0].instructions):
            if instruction.opcode == "ret" or instruction.uid in needed:
                needed |= {operand.uid for operand in instruction.operands}
                kept.append(instruction.uid.split(".")[0])
        return kept


@dataclass(frozen=True)
class Setup:
    """Configuration of the process: a workload, and the seeds of the batches."""

    name: str
    parameters: dict[str, Any]
    seeds: tuple[int, ...]
    limits: Limits


@dataclass(frozen=True)
class Order:
    """Order to run one edited step."""

    function: Function
    tolerance: float
    num_pairs: int


def _next(values: Iterator[Any], _: Any) -> Any:
    """Operands stand in the order in which the arguments are walked through."""
    return next(values)


def _shape_of(kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    name, inside = kind.rstrip("]").split("[")
    shape = tuple(int(part) for part in inside.split(",") if part)
    return (shape,), {"dtype": getattr(torch, name)}


def step_of(name: str, parameters: dict[str, Any] | None = None, seed: int = 0) -> tuple[Step, Any]:
    """The step of a workload, and the workload, whose batches are drawn for it.

    Raises
    ------
    NotApplicableError
        Its step is more than a model and a loss, or depends on values.
    """
    torch = require("torch", extra="torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    workload = build_workload(name, parameters or {})
    if workload.supervised is None:
        raise NotApplicableError(f"the step of {name} is more than a model and a loss", where=name,
                                 fix="choose mlp or one of the classifiers: windtunnel list workloads")  # fmt: skip
    tensors = inputs_of(workload, seed)
    try:
        module = make_fx(_whole(workload))(*tensors)
    except RuntimeError as error:
        raise NotApplicableError(f"the step of {name} depends on values: {str(error).splitlines()[0]}",
                                 where=name) from error  # fmt: skip
    return _read(name, module), workload


def _whole(workload: Any) -> Any:
    """Loss and gradients as a function of all tensors: parameters, buffers, inputs, target."""
    import torch

    model = workload.model
    names = [name for name, _ in model.named_parameters()]
    buffers = [name for name, _ in model.named_buffers()]

    def run(*tensors: Any) -> list[Any]:
        parameters = dict(zip(names, tensors, strict=False))
        states = dict(zip(buffers, tensors[len(names) :], strict=False))
        *inputs, target = tensors[len(names) + len(buffers) :]
        output = torch.func.functional_call(model, {**parameters, **states}, tuple(inputs))
        loss = workload.supervised.loss(output, target)
        requested = [parameter for parameter in parameters.values() if parameter.requires_grad]
        result = torch.autograd.grad(loss, requested, allow_unused=True)
        return [loss, *(item for item in result if item is not None)]

    return run


def inputs_of(workload: Any, seed: int) -> list[Any]:
    """Parameters, buffers and a batch; another seed draws another batch, and moves the parameters a little."""
    import torch

    torch.manual_seed(seed)
    inputs, target = workload.supervised.draw()
    model = workload.model
    parameters = [
        (parameter.detach() + 0.01 * seed * torch.randn_like(parameter)).requires_grad_(parameter.requires_grad)
        for parameter in model.parameters()
    ]
    return [*parameters, *(buffer.clone() for buffer in model.buffers()), *inputs, target]


def _read(name: str, module: Any) -> Step:
    """A traced module as a function of one block."""
    nodes: dict[str, Any] = {}
    names: dict[Any, str] = {}
    arguments: list[Argument] = []
    instructions: list[Instruction] = []
    count = 0
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            uid = f"A{len(arguments) + 1}"
            arguments.append(Argument(uid, _kind(node, uid)))
        else:
            count += 1
            uid = f"U{count}"
            instructions.append(_instruction(uid, node, names))
        names[node], nodes[uid] = uid, node
    blocks = (Block("B1", tuple(instructions)),)
    return Step(name, Function(name, "tensors", tuple(arguments), blocks, "", ""), module, nodes)


def _instruction(uid: str, node: Any, names: dict[Any, str]) -> Instruction:
    from torch import fx

    inputs: list[Any] = []
    fx.node.map_arg((node.args, node.kwargs), inputs.append)
    shown = fx.node.map_arg((node.args, node.kwargs), lambda _: "")
    operands = [Operand(_kind(tensor, names[tensor]), f"%{names[tensor]}") for tensor in inputs]
    pieces: list[str | Operand] = [f"{node.target} {shown!r} "]
    for operand in operands:
        pieces += [operand, " "]
    kind = "" if node.op == "output" else _kind(node, uid)
    return Instruction(uid, "ret" if node.op == "output" else re.sub(r"\W", "_", str(node.target)), kind, tuple(pieces))


def _kind(node: Any, uid: str) -> str:
    """Type and shape; what is no tensor is of a kind of its own and never exchanged."""
    value = node.meta.get("val")
    if value is None or not hasattr(value, "shape"):
        return f"value of {uid}"
    return f"{str(value.dtype).removeprefix('torch.')}[{','.join(str(int(item)) for item in value.shape)}]"


def predict_time_ratio(step: Step, function: Function, costs_ns: dict[str, float]) -> float:
    """Time of an edited step over the original's, from what each operator takes alone."""
    whole = sum(costs_ns.values())
    return sum(costs_ns.get(uid, 0.0) for uid in step.list_needed_instructions(function)) / whole if whole else 1.0
