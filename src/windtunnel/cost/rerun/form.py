"""The form in which a program is run.

In: what a what-if changes about operators that stay the same in name. Out: ``Form``, a value that partial flights run
and that the profile database uses as part of its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from windtunnel.errors import InEffectError, InputError, NotApplicableError

__all__ = ["BASELINE", "Form", "require_uncompiled"]


@dataclass(frozen=True, slots=True)
class Form:
    """How a program is run: everything that may differ from the captured iteration.

    Parameters
    ----------
    autocast : str
        ``"bfloat16"`` or ``"float16"``: forward calls run under this autocast. Empty: as captured.
    threads : int
        Threads within operators; 0: as captured.
    memory_format : str
        ``"channels_last"``: 4-D weights and inputs are laid out so. Empty: as captured.
    batch : (int, int)
        Captured and new batch size; equal numbers change nothing.
    frozen : tuple of str
        Names of parameters that need no gradient.
    num_passes : int
        How many forward and backward passes accumulate into one gradient.
    rectified : tuple of (int, int, float)
        Batch norms that rectify as they normalize: call of the norm, call of the rectifier behind it (-1: none), its
        leak.
    replaced : tuple of (int, str, settings)
        Calls that a registered layer runs instead of their operator: call, name of the layer, its parameters as pairs.
    checkpointed, compiled : tuple of (int, int)
        Ranges of calls, [first, last), that run again in the backward pass, or that a compiler fuses; in addition to
        those that the captured program runs again.
    keeps_activations : bool
        Whether the captured program's own checkpoints are left out.
    sparse : tuple of int
        Calls of embeddings whose tables get gradients of the rows that were read only.
    chunked : tuple of (int, int, int)
        Ranges of calls, [first, last), from a linear layer to the cross-entropy of its results, which run in so many
        chunks of rows.

    Examples
    --------
    >>> Form(autocast="bfloat16").label
    'autocast=bfloat16'
    >>> BASELINE.label
    'as captured'
    """

    autocast: str = ""
    threads: int = 0
    memory_format: str = ""
    batch: tuple[int, int] = (1, 1)
    frozen: tuple[str, ...] = ()
    num_passes: int = 1
    rectified: tuple[tuple[int, int, float], ...] = ()
    replaced: tuple[tuple[int, str, tuple[tuple[str, Any], ...]], ...] = ()
    checkpointed: tuple[tuple[int, int], ...] = ()
    compiled: tuple[tuple[int, int], ...] = ()
    keeps_activations: bool = False
    sparse: tuple[int, ...] = ()
    chunked: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.threads < 0 or self.num_passes < 1 or min(self.batch) < 1:
            raise InputError(
                "a form needs positive counts",
                where=f"threads={self.threads}, num_passes={self.num_passes}, batch={self.batch}",
            )

    @property
    def batch_ratio(self) -> float:
        """New batch size over the captured one."""
        return self.batch[1] / self.batch[0]

    def ranges_to_recompute(self, captured: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Ranges of calls that run again, including those that the captured program already recomputed."""
        changed = (*self.checkpointed, *self.compiled)
        stays = () if self.keeps_activations else captured
        return (
            *self.checkpointed,
            *(span for span in stays if not any(span[0] < last and first < span[1] for first, last in changed)),
        )

    @property
    def label(self) -> str:
        """What is different, as one line of text."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.changes) or "as captured"

    @property
    def changes(self) -> tuple[str, ...]:
        """Names of what is different."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)


BASELINE = Form()


def require_uncompiled(compiled: Sequence[tuple[int, int]], form: Form) -> None:
    """Refuse to change single calls within ranges of calls that are compiled as a whole.

    Raises
    ------
    NotApplicableError
        The form changes some of them.
    """
    within = {index for first, last in compiled for index in range(first, last)}
    if within & {index for first, last in form.compiled for index in range(first, last)}:
        raise InEffectError("this runs as compiled code", where=f"{len(within)} calls")
    changed = {index for first, last in form.checkpointed for index in range(first, last)}
    changed |= {index for norm in form.rectified for index in norm[:2]} | {index for index, _, _ in form.replaced}
    changed |= set(form.sparse) | {index for first, last, _ in form.chunked for index in range(first, last)}
    if within & changed:
        raise NotApplicableError(
            "what this changes is compiled as a whole: what the compiler would make of the change is not known",
            where=f"{len(within & changed)} calls within compiled code",
            fix="make the change in the model, compile it, and measure both by a real run",
        )
