"""Forward, backward and update as CUDA graphs (flight of "cuda-graphs").

In: a live program that computes on a GPU. Out: every model's forward and backward pass, and every optimizer's update,
captured once and launched by one call each; what lies between them, such as the loss, is launched as before. Not here:
graphs of compiled code ("compile").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.optimizers import place_step_counts
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, SuspendedCall, Undo, apart, swap

if TYPE_CHECKING:
    import torch

GRAPH_DEVICES = ("cuda",)
"""Kinds of devices whose work can be captured."""
_MAX_GRAPHS = 4  # of one model or optimizer: each holds the memory of its pass
_NUM_WARM_UPS = 2  # updates that create state


@registry.flight("cuda-graphs", source="CUDA graphs, PyTorch 1.10")
@proven_by(rises("replayed graphs"))
@apart
@contextmanager
def cuda_graphs(program: LiveProgram, *, with_update: bool = True) -> Iterator[None]:
    """Launch forward and backward passes of models, and updates, as one CUDA graph each.

    Raises
    ------
    FlightError
        There is no GPU, or a model or an optimizer cannot be captured; says why.
    """
    import torch

    if not torch.cuda.is_available():
        raise FlightError(
            "CUDA graphs need a GPU: on a CPU, operators run when they are called", fix="fly this where the GPU is"
        )
    updates: dict[int, _GraphedUpdate] = {}

    def update(optimizer: torch.optim.Optimizer, step: SuspendedCall) -> Any:
        return updates.setdefault(id(optimizer), _GraphedUpdate(optimizer))(step)

    with program.each_model(_graph_model):
        if not with_update:
            yield
            return
        with program.each_step(update):
            yield


def _graph_model(model: torch.nn.Module) -> Undo | None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:  # a loss, which is launched as before
        return None
    kinds = {parameter.device.type for parameter in model.parameters()}
    if not kinds <= set(GRAPH_DEVICES):
        raise FlightError(f"{type(model).__name__} does not lie on a GPU", where=", ".join(sorted(kinds)))
    return swap(model, "forward", _GraphedPasses(model, trained))


class _GraphedPasses:
    """Stands for the forward of a model: one graph of its passes for each form of its inputs."""

    def __init__(self, model: torch.nn.Module, trained: list[torch.nn.Parameter]) -> None:
        self._model, self._trained, self._forward = model, trained, model.forward
        self._graphs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay while training, call otherwise."""
        import torch

        if not (torch.is_grad_enabled() and self._model.training):
            return self._forward(*args, **kwargs)
        if kwargs or not all(isinstance(value, torch.Tensor) for value in args):
            raise FlightError(
                f"{type(self._model).__name__} takes other arguments than tensors by position",
                fix="a graph has static inputs: call the model with tensors alone",
            )
        key = tuple((value.shape, value.dtype, value.stride(), value.requires_grad) for value in args)
        if key not in self._graphs:
            _require_room(self._graphs, f"inputs of {type(self._model).__name__}")
            self._graphs[key] = _capture_passes(self._model, self._forward, args)
        outputs = self._graphs[key](*args)
        for leaf in torch.utils._pytree.tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._require_no_gradients)
        return outputs

    def _require_no_gradients(self, _gradient: torch.Tensor) -> None:
        """A replay writes gradients to where those of the replay before lie, and they would be added to themselves."""
        if any(parameter.grad is not None for parameter in self._trained):
            raise FlightError(
                "gradients are accumulated, or zeroed in place, and a graph would overwrite them",
                where=type(self._model).__name__,
                fix="call zero_grad(set_to_none=True) before each backward pass",
            )


def _capture_passes(model: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Capture both passes of a model; its inputs are copied to memory of the graph."""
    import torch

    class Passes(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        """The model without its hooks, which torch would refuse."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return forward(*inputs)

    inputs = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in args)
    keeps_casts = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a cast that is kept would lie outside of the graph
    try:
        graphed: Any = torch.cuda.make_graphed_callables(Passes(), inputs, allow_unused_input=True)
    except (RuntimeError, AssertionError) as error:
        raise FlightError(
            f"the passes of {type(model).__name__} cannot be captured: {str(error).partition(chr(10))[0]}",
            fix="`windtunnel explain` names the synchronizations of a step, which no graph can hold",
        ) from error
    finally:
        torch.set_autocast_cache_enabled(keeps_casts)
    call: Callable[..., Any] = graphed.forward
    return call


class _GraphedUpdate:
    """Stands for the step of an optimizer: one graph for each place of gradients and each set of options."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._num_steps = optimizer, 0
        self._graphs: dict[Any, torch.cuda.CUDAGraph] = {}
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
        place_step_counts(optimizer)

    def __call__(self, step: SuspendedCall) -> Any:
        """Step as before until there is state, then replay."""
        import torch

        if self._num_steps < _NUM_WARM_UPS:
            self._num_steps += 1
            return step()
        key = self._places(), self._options()
        if key not in self._graphs:
            _require_room(self._graphs, f"gradients or options of {type(self._optimizer).__name__}")
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    step()
            except RuntimeError as error:
                raise FlightError(
                    f"the update of {type(self._optimizer).__name__} cannot be captured: "
                    f"{str(error).partition(chr(10))[0]}",
                    fix="ask for cuda-graphs:with_update=no",
                ) from error
            self._graphs[key] = graph
        self._graphs[key].replay()
        return None

    def _places(self) -> tuple[int, ...]:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return tuple(0 if parameter.grad is None else parameter.grad.data_ptr() for parameter in parameters)

    def _options(self) -> str:
        return str([{key: group[key] for key in group if key != "params"} for group in self._optimizer.param_groups])


def _require_room(graphs: dict[Any, Any], what: str) -> None:
    if len(graphs) >= _MAX_GRAPHS:
        raise FlightError(
            f"{what} have more than {_MAX_GRAPHS} forms, and each needs a graph",
            fix="keep batches and hyper-parameters as they are while this is flown",
        )
