"""Reduce-scatter, update a slice, all-gather: CoCoNet's schedule in a job under DistributedDataParallel.

In: a model under DDP and its optimizer. Out: the same losses. Each bucket of gradients is reduce-scattered in the
background as soon as DDP has filled it; ``optimizer.step()`` updates only this rank's slice of each bucket, with only
that slice's state; updated parameters are all-gathered in the background, and the next forward pass waits for them
layer by layer. The update itself is the user's optimizer, which sees pieces in place of parameters. Not here: messages
(``background``), state that goes from parameters to pieces and back (``slices``), when this is done (``flight``).

    backward        bucket 0 full -> RS 0,  bucket 1 full -> RS 1, ...         the link carries RS 0, RS 1 ...
    step            last bucket first: RS done -> update of the slice -> AG    AG last ... AG 0
    next forward    each layer waits for the AG of the buckets with its parameters
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel.errors import FlightError, NotApplicableError
from windtunnel.sources.torch.annotate import asks_to_compile
from windtunnel.sources.torch.live import Undo, swap
from windtunnel.systems.collectives.background import BackgroundRing, Job
from windtunnel.systems.collectives.slices import Bucket, cut_bucket, gather_state, move_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = ["ELEMENTWISE", "REDUCE_SCATTERS", "SlicedOptimizer"]

# optimizers of torch whose update of an element reads no other element
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")
PIECE_BYTES = 1 << 20
"""Largest message: a bucket is sent in pieces, so that a piece is added while the next one travels."""
REDUCE_SCATTERS = "reduce-scatters"  # what the flight proves


class SlicedOptimizer:
    """The schedule for one model under DDP and its optimizer.

    The first iterations run as they are, until DDP has settled on its buckets. While the schedule is in effect,
    ``parameter.grad`` holds this rank's gradients after ``backward()`` instead of their mean.

    Parameters
    ----------
    model : DistributedDataParallel
        Made with ``gradient_as_bucket_view=True``, else gradients are copied once more. All ranks have to make this
        object, as it makes a process group.
    overlaps_forward : bool
        Gather parameters during the next forward pass; else ``step()`` waits for them.
    counts : Counter, optional
        Counts reduce-scatters.

    Raises
    ------
    NotApplicableError
        The model uses something of DDP that the schedule does not support; says what.
    """

    def __init__(
        self,
        model: torch.nn.parallel.DistributedDataParallel,
        *,
        overlaps_forward: bool = True,
        counts: Counter[str] | None = None,
    ) -> None:
        import torch.distributed as dist

        _require_plain(model)
        self.optimizer: torch.optim.Optimizer | None = None
        self._model, self._overlaps_forward = model, overlaps_forward
        self._counts = Counter[str]() if counts is None else counts
        self._ring = BackgroundRing(dist.new_group(backend="gloo"), piece_bytes=PIECE_BYTES)
        self._seen: list[tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]] = []
        self._previous: list[tuple[int, ...]] = []
        self._buckets: list[Bucket] = []  # empty until the schedule is in effect
        self._scatters: dict[int, Job] = {}
        self._gathers: dict[int, Job] = {}
        self._called: set[int] = set()
        self._is_closed = False
        modules = list(model.module.modules())
        self._undos: list[Undo] = [module.register_forward_pre_hook(self._note_call).remove for module in modules]
        model.register_comm_hook(None, lambda _state, bucket: self._reduce(bucket))

    # --- while the model runs -------------------------------------------------------------------------------

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's hook for a bucket that is full."""
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        if not self._buckets:
            if bucket.index() == 0:
                self._seen = []
            self._seen.append((bucket.buffer(), bucket.parameters(), bucket.gradients()))
            return allreduce_hook(self._model.process_group, bucket)
        index, buffer = bucket.index(), bucket.buffer()
        if index in self._scatters:
            raise FlightError(
                "gradients are reduced twice before an update, which would add up what is reduced already",
                where="sliced-optimizer",
                fix="put all but the last backward pass of an update into `with model.no_sync():`",
            )
        if self._buckets[index].parameter_ids != tuple(map(id, bucket.parameters())):
            raise FlightError("DDP has changed its buckets", where=f"bucket {index}", fix="do not freeze layers later")
        self._buckets[index].set_gradients(buffer)
        self._scatters[index] = self._ring.reduce_scatter(buffer)
        self._counts[REDUCE_SCATTERS] += 1
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    def step(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
        """Run what has to happen at ``optimizer.step()``; ``step`` is the call itself.

        Raises
        ------
        NotApplicableError
            The optimizer cannot update slices; says why.
        """
        if self._is_closed:
            return step()
        if not self._buckets:
            result = step()
            self._begin_slicing(optimizer)
            return result
        if optimizer is not self.optimizer or not self._scatters:
            return step()
        self._overlap_updates(optimizer, step)
        self._scatters = {}
        if not self._overlaps_forward:
            self.wait()
        return None

    def _overlap_updates(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
        """Update slices, and gather those first that the next forward pass reads first."""
        pending, next_gather = set(self._scatters), max(self._scatters)
        update_pieces = _plain_step(optimizer)
        while pending:
            done = [index for index in pending if self._scatters[index].is_done]
            # reduce-scatters end in the order of the buckets, and the last bucket has the first layers
            index = max(done) if done else min(pending)
            self._scatters[index].wait()
            pending.remove(index)
            with _with_parameters(optimizer, self._buckets[index].pieces_by_group):
                # the user's call, with the hooks on it, comes once
                step() if not pending else update_pieces()
            while next_gather >= 0 and next_gather not in pending:
                self._gathers[next_gather] = self._ring.all_gather(self._buckets[next_gather].parameters)
                next_gather -= 1

    def clip_gradients(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float) -> Any:
        """Clip the norm of all gradients, of which each rank has a slice; returns the norm.

        Raises
        ------
        FlightError
            Only some parameters are clipped, or by another norm than the second.
        """
        import torch

        clipped = {id(parameter) for parameter in parameters if parameter.grad is not None}
        if clipped != self._ids() or float(norm_type) != 2:
            raise FlightError(
                "only the 2-norm of all gradients together can be clipped while ranks hold slices of them",
                where="clip_grad_norm_",
                fix="pass all of model.parameters() and norm_type=2",
            )
        for job in self._scatters.values():
            job.wait()
        gradients = [piece.grad for bucket in self._buckets for piece in bucket.pieces if piece.grad is not None]
        square = torch.zeros(1)
        for gradient in gradients:
            square += torch.linalg.vector_norm(gradient).square()
        self._ring.all_reduce(square).wait()
        norm = square.sqrt()[0]
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    @property
    def is_in_effect(self) -> bool:
        """Whether ranks hold slices, as DDP has settled on its buckets."""
        return bool(self._buckets)

    def owns(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether the schedule is in effect for some of these parameters."""
        return self.is_in_effect and not self._ids().isdisjoint(map(id, parameters))

    def wait(self, *_: object) -> None:
        """Wait until this rank has all parameters."""
        for index in list(self._gathers):
            self._gathers[index].wait()
        self._gathers = {}

    def close(self) -> None:
        """Give the optimizer its whole state back and go on as without the schedule; all ranks have to call it."""
        self.wait()
        for undo in reversed(self._undos):
            undo()
        if self._buckets:
            assert self.optimizer is not None
            gather_state(self.optimizer, self._buckets, self._ring)
        self._buckets, self._is_closed = [], True
        self._ring.close()

    # --- when the schedule begins ---------------------------------------------------------------------------

    def _begin_slicing(self, optimizer: torch.optim.Optimizer) -> None:
        """DDP makes other buckets after the first iteration; go on from when two iterations had the same."""
        layout = [tuple(map(id, parameters)) for _, parameters, _ in self._seen]
        is_settled, self._previous = bool(layout) and layout == self._previous, layout
        if not is_settled:
            return
        if self._overlaps_forward and asks_to_compile():
            raise NotApplicableError(
                "compiled code reads parameters without waiting for them",
                where="torch.compile",
                fix="ask for sliced-optimizer:overlaps_forward=False",
            )
        _require_elementwise(optimizer, {item for ids in layout for item in ids})
        self.optimizer = optimizer
        self._buckets = [
            cut_bucket(optimizer, *seen, num_ranks=self._ring.num_ranks, rank=self._ring.rank) for seen in self._seen
        ]
        self._seen = []
        move_state(optimizer, self._buckets)
        for undo in self._undos:
            undo()
        self._undos = [*self._wait_in_forward(), *self._wait_where_read(), *self._gather_in_state_dict(optimizer)]

    def _wait_in_forward(self) -> Iterator[Undo]:
        """Wait in each module for its parameters, and for those of parts that it uses without calling them."""
        bucket_of = {item: index for index, bucket in enumerate(self._buckets) for item in bucket.parameter_ids}
        yield self._model.register_forward_pre_hook(self._wait_in_evaluation).remove

        def collect(module: torch.nn.Module) -> set[int]:
            """Buckets that a call of this module has to wait for."""
            own = {bucket_of[id(item)] for item in module.parameters(recurse=False) if id(item) in bucket_of}
            for child in module.children():
                own |= collect(child)
            if id(module) not in self._called and module is not self._model.module:
                return own
            if own:
                hooks.append(module.register_forward_pre_hook(self._wait_for(own)).remove)
            return set()

        hooks: list[Undo] = []
        collect(self._model.module)
        yield from hooks

    def _wait_for(self, indices: set[int]) -> Callable[..., None]:
        order = sorted(indices, reverse=True)

        def wait(*_: object) -> None:
            for index in order:
                job = self._gathers.pop(index, None)
                if job is not None:
                    job.wait()

        return wait

    def _wait_where_read(self) -> Iterator[Undo]:
        """Wait where a program lists the parameters: to save, average or print them."""
        for module in (self._model, self._model.module):
            plain = module.zero_grad
            yield module.register_state_dict_pre_hook(self.wait).remove
            for name in ("parameters", "named_parameters"):
                yield swap(module, name, self._after_wait(getattr(module, name)))
            yield swap(module, "zero_grad", self._without_wait(module, plain))

    def _after_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            self.wait()
            return function(*args, **kwargs)

        return read

    def _without_wait(self, module: torch.nn.Module, plain: Callable[..., None]) -> Callable[..., None]:
        """``zero_grad`` lists the parameters, and reads none of them."""
        parameters = type(module).parameters

        def clear(*args: Any, **kwargs: Any) -> None:
            restore = swap(module, "parameters", lambda: parameters(module))
            try:
                plain(*args, **kwargs)
            finally:
                restore()

        return clear

    def _gather_in_state_dict(self, optimizer: torch.optim.Optimizer) -> Iterator[Undo]:
        """Give whole states to ``state_dict``, which all ranks have to call, and take slices of what is loaded."""
        plain, load = optimizer.state_dict, optimizer.load_state_dict

        def state_dict() -> Any:
            gather_state(optimizer, self._buckets, self._ring)
            document = plain()
            move_state(optimizer, self._buckets)
            return document

        def load_state_dict(document: Any) -> None:
            load(document)
            move_state(optimizer, self._buckets)

        yield swap(optimizer, "state_dict", state_dict)
        yield swap(optimizer, "load_state_dict", load_state_dict)

    def _note_call(self, module: torch.nn.Module, *_: object) -> None:
        self._called.add(id(module))

    def _wait_in_evaluation(self, module: torch.nn.Module, *_: object) -> None:
        """Modules may use each other's parameters in other ways than while they train."""
        if not module.training:
            self.wait()

    def _ids(self) -> set[int]:
        return {item for bucket in self._buckets for item in bucket.parameter_ids}


def _require_plain(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Refuse what DDP can do besides averaging dense gradients on CPUs."""
    unsupported = {
        "find_unused_parameters=True: a parameter without a gradient keeps its state, a slice of zeros would not": (
            model.find_unused_parameters
        ),
        "static_graph=True": model.static_graph,
        "a mixed_precision policy": getattr(model, "mixed_precision", None) is not None,
        "parameters on a GPU: the schedule runs over gloo": any(item.is_cuda for item in model.parameters()),
    }
    for what, is_used in unsupported.items():
        if is_used:
            raise NotApplicableError(
                f"the model uses {what}", where="DistributedDataParallel", fix="ask for the prediction only"
            )


def _require_elementwise(optimizer: torch.optim.Optimizer, ids: set[int]) -> None:
    """Refuse an optimizer that does not update these parameters, all of them and no others, element by element."""
    name = type(optimizer).__name__
    if name not in ELEMENTWISE:
        raise NotApplicableError(
            f"{name} may need more than a slice of a parameter to update it, such as a norm per layer",
            where="the optimizer",
            fix=f"use one of {', '.join(ELEMENTWISE)}",
        )
    updated = [item for group in optimizer.param_groups for item in group["params"] if item.requires_grad]
    if {id(item) for item in updated} != ids:
        raise NotApplicableError(
            f"the optimizer updates {len(updated)} parameters, and DDP averages {len(ids)}, which are not the same",
            where=name,
            fix="let one optimizer update all parameters of the one model under DDP",
        )


def _plain_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """``step`` of the optimizer's class without the hooks around it, which see one step per iteration."""
    function: Any = type(optimizer).step
    while getattr(function, "hooked", False) or getattr(function, "is_windtunnel", False):
        function = function.__wrapped__
    return lambda: function(optimizer)


@contextmanager
def _with_parameters(optimizer: torch.optim.Optimizer, by_group: list[list[torch.Tensor]]) -> Iterator[None]:
    """Within, each group of the optimizer has these parameters."""
    plain = [group["params"] for group in optimizer.param_groups]
    for group, parameters in zip(optimizer.param_groups, by_group, strict=True):
        group["params"] = parameters
    try:
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, plain, strict=True):
            group["params"] = parameters
