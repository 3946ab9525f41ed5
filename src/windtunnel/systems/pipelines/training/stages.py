"""A torch model as the stages of a pipeline, which really trains.

In: a model and the stage of each of its layers. Out: ``torch.distributed.pipelining`` stages with exactly these
operators, and what each hands on. The model is exported; operators go to the stage of their module, values that cross
go along. Not here: which layer goes where (``pipelines``), who runs them (``runtime``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError, NotApplicableError

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torch.distributed.pipelining import Pipe

__all__ = ["CutStage", "cut_stages", "split_model"]


def split_model(model: torch.nn.Module, inputs: tuple[Any, ...], stage_of: Mapping[str, int]) -> Pipe:
    """Cut a model.

    Parameters
    ----------
    model : Module
        Shares its parameters with all pipelines that are cut of it.
    inputs : tuple
        Inputs of one microbatch.
    stage_of : mapping of str to int
        Stage by path of a module, from 0 on, without gaps; what is not named follows the module around it, or what
        it reads.

    Raises
    ------
    InputError
        A stage would be empty.
    NotApplicableError
        The model cannot be exported, shares weights between modules, or what crosses between stages is no tensor of
        floats.
    """
    pipelining = require("torch.distributed.pipelining", extra="torch")
    _require_own_weights(model)
    num_stages = 1 + max(stage_of.values(), default=0)
    cut = _Cut(stage_of, num_stages)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's, of itself
            pipe: Pipe = pipelining.pipeline(model, inputs, split_policy=cut)
    except (InputError, NotApplicableError):
        raise
    except Exception as error:  # export has no common class for what it refuses
        cause = error.__cause__ or error  # what pipelining says of it names no reason
        text = str(cause).strip().partition("\n")[0]
        raise NotApplicableError(
            f"torch.export does not take this model: {type(cause).__name__}: {text}", where=type(model).__name__
        ) from error
    part: Any
    for part in pipe.modules():
        if hasattr(part, "_run_with_interpreter"):  # operator by operator, which costs a tenth of a millisecond each
            part._run_with_interpreter = False
    return pipe


@dataclass(frozen=True)
class CutStage:
    """One stage of a model that was cut.

    Parameters
    ----------
    module : Module
        Called with what the stage before hands on; the first one with the model's inputs.
    output_indices : tuple of int
        Which of its outputs the next stage reads, in that stage's order; empty for the last one.
    shapes : tuple of (shape, dtype)
        Shapes and dtypes of these outputs.
    """

    module: torch.nn.Module
    output_indices: tuple[int, ...]
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]


def cut_stages(pipe: Pipe) -> list[CutStage]:
    """The stages of a pipe with what goes from each to the next."""
    calls = [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    modules = [pipe.get_stage_module(index) for index in range(pipe.num_stages)]
    result = []
    for position, module in enumerate(modules):
        read: list[tuple[int, fx.Node]] = []
        if position + 1 < len(calls):
            graph: Any = modules[position + 1].graph
            indices = [node for node in graph.nodes if node.op == "placeholder"]
            sources = [arg.args[1] if arg.op == "call_function" else 0 for arg in calls[position + 1].args]
            read = list(zip(sources, indices, strict=True))
        shapes = tuple((node.meta["val"].shape, node.meta["val"].dtype) for _, node in read)
        result.append(CutStage(module, tuple(index for index, _ in read), shapes))
    return result


def _require_own_weights(model: torch.nn.Module) -> None:
    """Refuse weights that two modules share: export gives each its own."""
    name_of: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = name_of.setdefault(id(parameter), name)
        if first != name:
            raise NotApplicableError(
                f"{first} and {name} are the same weights", where=type(model).__name__,
                fix="give each module weights of its own",
            )  # fmt: skip


class _Cut:
    """Orders an exported graph by stages and marks where they meet."""

    def __init__(self, stage_of: Mapping[str, int], num_stages: int) -> None:
        self._stage_of, self._num_stages = stage_of, num_stages
        self._stage: dict[fx.Node, int] = {}

    def __call__(self, module: fx.GraphModule) -> fx.GraphModule:
        operators = [node for node in module.graph.nodes if node.op.startswith("call")]
        for node in operators:
            self._stage[node] = self._assign_stage(node)
        for stage in range(self._num_stages):
            if stage not in self._stage.values():
                raise InputError(f"stage {stage} computes nothing", where="stage_of", fix="give it a module that does")
        self._check_inputs(module.graph)
        for node in list(operators):
            operators += self._relay(module.graph, node)
        operators.sort(key=lambda node: self._stage[node])
        self._reorder(module.graph, operators)
        module.recompile()
        return module

    def _assign_stage(self, node: fx.Node) -> int:
        """Return the stage of a node's module, not before its inputs'; in-place operators follow what they modify."""
        read = [self._stage[other] for other in node.all_input_nodes if other in self._stage]
        schema = getattr(node.target, "_schema", None)
        if read and schema is not None and schema.is_mutable:
            return max(read)
        return max([*read, self._stage_of_node(node)])

    def _stage_of_node(self, node: fx.Node) -> int:
        stack = node.meta.get("nn_module_stack") or {}
        path = list(stack.values())[-1][0] if stack else ""
        while True:
            if path in self._stage_of:
                return self._stage_of[path]
            if not path:
                return 0
            path = path.rpartition(".")[0]

    def _check_inputs(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            late = [user for user in node.users if self._stage.get(user, 0) > 0]
            if node.op == "placeholder" and late:
                raise NotApplicableError(
                    f"stage {self._stage[late[0]]} reads the model's input {node.name}", where="stage_of",
                    fix="put what reads an input on the first stage",
                )  # fmt: skip

    def _relay(self, graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
        """A value goes from stage to stage: a message that skips one can wait for a turn that waits for it."""
        import torch

        home = self._stage[node]
        later = sorted({self._stage[user] for user in node.users if self._stage.get(user, home) > home})
        if not later:
            return []
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise NotApplicableError(
                f"{node.name}, which stage {later[0]} reads of stage {home}, is no tensor of floats", where="stage_of",
                fix="keep what makes and what reads it on one stage",
            )  # fmt: skip
        created = []
        if not value.is_contiguous():
            created.append(self._hand_on(graph, node, home, torch.ops.aten.contiguous.default))
        source = created[-1] if created else node
        for stage in range(home + 1, later[-1] + 1):
            for user in [user for user in node.users if user not in created and self._stage.get(user) == stage]:
                user.replace_input_with(node, source)
            if stage < later[-1]:
                source = self._hand_on(graph, source, stage, torch.ops.aten.alias.default)
                created.append(source)
        return created

    def _hand_on(self, graph: fx.Graph, value: fx.Node, stage: int, how: Any) -> fx.Node:
        with graph.inserting_after(value):
            node: fx.Node = graph.call_function(how, (value,))
        node.meta = _outermost(value) | {"val": value.meta["val"].contiguous()}
        self._stage[node] = stage
        return node

    def _reorder(self, graph: fx.Graph, operators: list[fx.Node]) -> None:
        import torch
        from torch.distributed.pipelining import pipe_split  # noqa: F401 - registers the marker

        output = next(node for node in graph.nodes if node.op == "output")
        for last, node in zip([None, *operators], operators, strict=False):
            if last is not None and self._stage[last] != self._stage[node]:
                with graph.inserting_before(output):
                    mark = graph.call_function(torch.ops.pippy._pipe_split.default)
                mark.meta = _outermost(node)
            output.prepend(node)


def _outermost(node: fx.Node) -> dict[str, Any]:
    """The meta of a node as if the model itself had called it: export makes modules of neighbors again."""
    stack = dict(list((node.meta.get("nn_module_stack") or {}).items())[:1])
    return dict(node.meta) | {"nn_module_stack": stack}
