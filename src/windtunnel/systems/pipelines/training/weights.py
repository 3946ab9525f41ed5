"""The versions of a stage's weights: one, two or as many as are under way.

In: a stage's module and its optimizer. Out: for each batch the module whose weights it sees, forward and backward; a
new version when its gradients are complete. Each version is a module of its own over the same buffers, so that what
autograd keeps of a microbatch stays what it was; the optimizer has one state, whatever the version. Not here: messages,
the order of passes (``runtime``).

Sources: PipeDream (Narayanan et al., SOSP 2019), section 3.3; PipeDream-2BW (ICML 2021), section 3.1.
"""

# P parameters of a stage

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import torch

from windtunnel.errors import InputError
from windtunnel.systems.pipelines.training.reduction import Gradients

__all__ = ["MakeOptimizer", "StageWeights", "Versions"]

Versions = Literal["flush", "2bw", "stash"]
MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer | None]


class StageWeights:
    """Weights of one stage as batches see them.

    ``flush``: those after all earlier batches. ``2bw``: those of one batch before, ``W(t+1) = W(t) - lr * grad
    f(W(t-1))``. ``stash``: the newest that the stage has when a batch comes, and the same ones backward.

    Parameters
    ----------
    module : Module
        Is version 0; it trains in place where no other version is needed.
    make_optimizer : callable
        An optimizer of some parameters, or None where nothing is to be updated.
    versions : str
        ``flush``, ``2bw`` or ``stash``.
    num_copies : int
        Made from the start; more are made when they are needed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        versions: Versions = "flush",
        num_copies: int = 1,
    ) -> None:
        self._versions = versions
        self._modules = {0: module}
        self._spare = [_twin(module) for _ in range(num_copies - 1)]
        self._newest = 0
        self._under_way: Counter[int] = Counter()  # microbatches by version
        self._version_of: dict[int, int] = {}  # of batches that are under way
        self._trained = [torch.nn.Parameter(item.data) for item in _trainable(module)]  # [P]
        self._optimizer = make_optimizer(self._trained) if self._trained else None

    @property
    def newest(self) -> torch.nn.Module:
        """The version that has all updates."""
        return self._modules[self._newest]

    @property
    def copies(self) -> list[torch.nn.Module]:
        """All modules that hold memory."""
        return [*self._modules.values(), *self._spare]

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Optimizer of all versions; None where nothing is trained."""
        return self._optimizer

    def begin(self, batch: int) -> torch.nn.Module:
        """The module for a microbatch of a batch, which is under way from now on.

        Raises
        ------
        InputError
            That version is not there yet, or no more: the schedule asks for more than this kind of versions keeps.
        """
        version = self._version_of.setdefault(batch, self._version_for(batch))
        if version not in self._modules:
            raise InputError(
                f"batch {batch} needs weights after {version} updates, there are {self._newest}",
                where=f"versions {self._versions!r}",
                fix="a schedule that has a batch's backward passes done before weights of it are asked for",
            )
        self._under_way[version] += 1
        return self._modules[version]

    def end(self, batch: int) -> None:
        """A microbatch of a batch has gone backward."""
        self._under_way[self._version_of[batch]] -= 1

    def gradients(self, batch: int) -> Gradients:
        """Return and clear the gradients that a batch's microbatches have accumulated."""
        module = self._modules[self._version_of.pop(batch)]
        used = []
        for parameter in _trainable(module):
            used.append(parameter.grad)
            parameter.grad = None
        return used

    @torch.no_grad()
    def update(self, gradients: Gradients) -> None:
        """Make the next version of the weights."""
        newest, following = self.newest, self._room()
        if following is not newest:
            for old, new in zip(_trainable(newest), _trainable(following), strict=True):
                new.data.copy_(old)
        for trained, holder, gradient in zip(self._trained, _trainable(following), gradients, strict=True):
            # an alias: autograd must not take what is under way with other versions for changed
            trained.data, trained.grad = holder.data, gradient
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._newest += 1
        self._modules[self._newest] = following

    def state(self) -> dict[str, Any]:
        """Return the state from which training can resume between batches."""
        return {
            "newest": self._newest,
            "versions": {version: _values(module) for version, module in self._modules.items()},
            "buffers": [buffer.clone() for buffer in self.newest.buffers()],
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved ``state``."""
        modules = self.copies
        self._newest, self._version_of = state["newest"], {}
        self._under_way.clear()
        first = modules[0]
        self._modules = {}
        for version, values in state["versions"].items():
            module = modules.pop() if modules else _twin(first)
            for parameter, value in zip(_trainable(module), values, strict=True):
                parameter.data.copy_(value)
            self._modules[version] = module
        self._spare = modules
        for buffer, value in zip(self.newest.buffers(), state["buffers"], strict=True):
            buffer.copy_(value)
        for trained, holder in zip(self._trained, _trainable(self.newest), strict=True):
            trained.data = holder.data
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])

    def _version_for(self, batch: int) -> int:
        if self._versions == "flush":
            return batch
        return max(batch - 1, 0) if self._versions == "2bw" else self._newest

    def _room(self) -> torch.nn.Module:
        """A module that the next version may lie in: nothing under way needs it, nor will the next batch."""
        is_kept = self._versions == "2bw" or self._under_way[self._newest] > 0
        for version in [module for module in self._modules if module != self._newest and not self._under_way[module]]:
            self._spare.append(self._modules.pop(version))
        if not is_kept:
            return self._modules.pop(self._newest)
        return self._spare.pop() if self._spare else _twin(self.newest)


def _trainable(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _values(module: torch.nn.Module) -> list[torch.Tensor]:
    return [item.detach().clone() for item in _trainable(module)]


def _twin(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of the module with weights of its own; what no update changes is shared."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of itself
        return copy.deepcopy(module, {id(item): item for item in [*module.buffers(), *frozen]})
