"""Which iterations are alike: the shapes that the models are called with.

A step over sentences of any length is as many different steps as there are lengths; a mean over them is the time of
none. ``ShapeSorter`` notes the shapes at every call of a model (a hook on the outermost modules only, in all iterations
alike), chooses the form that most iterations have, and says of each iteration whether it has it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from windtunnel.sources.torch.compiled import CompiledRegions

__all__ = ["ShapeSorter", "Shapes", "shapes_of"]

Shapes = tuple[tuple[int, ...], ...]
_PATIENCE_PER_ITERATION, _PATIENCE = 8, 40
_CLEAR = 0.5  # share of the iterations seen at which a form is the commonest without looking further
_ENOUGH, _ALL_UNLIKE = 32, 12  # iterations that show the commonest form, and that there is none
_ENOUGH_OF_ONE = 6  # iterations behind which any is taken down, where nothing is measured


class ShapeSorter:
    """Tells iterations of the commonest form from others, until too many others came.

    Parameters
    ----------
    iterations : int
        How many shall be measured; eight times as many (and forty) of other forms are let pass, then all count. 0 where
        one is taken down and none is measured, as on fake tensors, where many of them would take minutes.
    """

    def __init__(self, iterations: int) -> None:
        self._hooks: list[Any] = []
        self._calls: list[tuple[int, ...]] = []
        self._seen: Counter[Shapes] = Counter()
        self._others_ns: dict[Shapes, list[int]] = {}
        self._chosen: Shapes | None = None
        self._is_of_one = iterations == 0
        self._patience = _PATIENCE_PER_ITERATION * iterations + _PATIENCE
        self._is_mixed = False

    def watch(self, models: Iterable[torch.nn.Module]) -> None:
        """Note the shapes at every call of these modules from now on."""
        self.remove()
        self._hooks = [model.register_forward_pre_hook(self._note, with_kwargs=True) for model in models]

    def watch_compiled_regions(self, regions: CompiledRegions) -> None:
        """Note the shapes at every call of compiled code from now on; what it holds anyway is no input."""
        self.remove()
        regions.on_call = lambda values: self._calls.extend(
            shapes_of([value for value in values if not isinstance(value, torch.nn.Parameter)])
        )
        self._hooks = [_Removal(regions)]

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def begin(self) -> None:
        """An iteration begins."""
        self._calls = []

    def end(self, *, is_seen: bool = True) -> Shapes:
        """The form of the iteration that ends; of one whose calls could not be seen, nothing is kept."""
        result = tuple(self._calls)
        if self._hooks and is_seen:
            self._seen[result] += 1
        return result

    def is_common(self, shapes: Shapes) -> bool:
        """Whether this is the form to measure; the first that is accepted stays so."""
        if self._chosen is None and not self._is_settled():
            return False
        is_any = self._is_mixed or (self._is_of_one and self._seen.total() >= _ENOUGH_OF_ONE)
        if is_any or shapes == (self._chosen if self._chosen is not None else self.commonest):
            self._chosen = shapes if self._chosen is None else self._chosen
            return True
        self._patience -= 1
        self._is_mixed = self._patience <= 0
        return False

    def is_chosen(self, shapes: Shapes) -> bool:
        """Whether this is the form that is measured, of an iteration that nothing waits for."""
        return self._chosen is None or self._is_mixed or shapes == self._chosen

    def _is_settled(self) -> bool:
        """Whether enough was seen to choose a form: a few iterations of many lengths show any of them."""
        num_seen, most = self._seen.total(), max(self._seen.values(), default=0)
        self._is_mixed |= num_seen >= _ALL_UNLIKE and most == 1
        is_clear = most > 1 and most >= _CLEAR * num_seen
        enough = _ENOUGH_OF_ONE if self._is_of_one else _ENOUGH
        return self._is_mixed or not num_seen or is_clear or num_seen >= enough

    def set_aside(self, shapes: Shapes, elapsed_ns: int) -> None:
        """Keep the time of an iteration, where it is of another form than the chosen one."""
        if self._chosen is None or shapes != self._chosen:
            self._others_ns.setdefault(shapes, []).append(elapsed_ns)

    @property
    def commonest(self) -> Shapes:
        """The form that most iterations had."""
        return self._seen.most_common(1)[0][0] if self._seen else ()

    def as_meta(self) -> dict[str, Any]:
        """For ``graph.meta``: empty where all iterations had one form."""
        if len(self._seen) < 2:
            return {}
        selected = self.commonest if self._chosen is None else self._chosen
        others = [
            {"inputs": [list(shape) for shape in form], "count": count, "median_ns": self._median_ns(form)}
            for form, count in self._seen.most_common()
            if form != selected
        ]
        return {
            "inputs": [list(shape) for shape in selected],
            "share": self._seen[selected] / self._seen.total(),
            "is_mixed": self._is_mixed,
            "others": others,
        }

    def _median_ns(self, form: Shapes) -> int | None:
        times_ns = self._others_ns.get(form)
        return int(statistics.median(times_ns)) if times_ns else None

    def _note(self, _module: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._calls.extend(shapes_of((positional, named)))


class _Removal:
    """The way back, as a handle of torch has it."""

    def __init__(self, regions: CompiledRegions) -> None:
        self._regions = regions

    def remove(self) -> None:
        """Note no shapes any more."""
        self._regions.on_call = None


def shapes_of(value: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of all tensors in tuples, lists and mappings, in order.

    Examples
    --------
    >>> list(shapes_of((torch.zeros(2, 3), {"mask": [torch.zeros(4)]}, "text")))
    [(2, 3), (4,)]
    """
    if isinstance(value, torch.Tensor):
        yield tuple(value.shape)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from shapes_of(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from shapes_of(item)
