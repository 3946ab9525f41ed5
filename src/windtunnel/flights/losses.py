"""What loss a program computes while it flies.

In: a program that calls ``backward`` on a scalar. Out: that scalar, read outside of measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel.sources.torch.live import swap

if TYPE_CHECKING:
    import torch

__all__ = ["LossWatch"]


class LossWatch:
    """Remember the last tensor from which a backward pass began; it is read only on demand, as reading waits for it."""

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch ``Tensor.backward``."""
        import torch

        backward = torch.Tensor.backward

        def watch_backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._last = tensor.detach()
            return backward(tensor, *args, **kwargs)

        restore = swap(torch.Tensor, "backward", watch_backward)
        try:
            yield
        finally:
            restore()

    def read(self) -> list[float]:
        """The last loss, if there was one and it is a number."""
        last, self._last = self._last, None
        return [float(last)] if last is not None and last.numel() == 1 else []
