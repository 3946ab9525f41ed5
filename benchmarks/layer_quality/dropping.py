"""Recurrent networks under each kind of dropout.

In: a case, sizes, a share. Out: modules. The cases say which units are dropped together, in the paper's numbers:

- ``I`` at random for every sequence and step, by torch's own layers;
- ``II`` at random for every sequence, the same at all steps;
- ``III`` the same for the whole batch, drawn anew each step: what really shrinks products;
- ``III+rh`` also on the way from step to step;
- ``IV`` the same for the whole batch at all steps.

Not here: texts, losses, training (``tasks``), the layers of III and IV (``nn``).

Source: Sarma et al., Structured in Space, Randomized in Time, NeurIPS 2021, figure 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn import StructuredLinear, StructuredLSTM

__all__ = ["CASES", "Recurrent", "Scores", "checked_case"]

CASES = ("I", "II", "III", "III+rh", "IV")
_WHOLE = 1 << 20  # steps that share a set in case IV: all

# T steps, B sequences, D units
Tensor = torch.Tensor


def checked_case(case: str) -> str:
    """The case, if it is one.

    Raises
    ------
    InputError
        It is not.
    """
    if case not in CASES:
        raise InputError(f"no case of dropout is called {case!r}", where="cases", fix=f"known: {', '.join(CASES)}")
    return case


class _Locked(nn.Module):
    """Dropout with one mask for all steps of a sequence: [T, B, D] to [T, B, D]."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return x * nn.functional.dropout(torch.ones_like(x[:1]), self.p, self.training)


def _random(case: str, p: float) -> nn.Module:
    return nn.Dropout(p) if case == "I" else _Locked(p)


class Recurrent(nn.Module):
    """An LSTM with dropout on the way into each of its layers.

    Parameters
    ----------
    case : str
    num_inputs, width, num_layers : int
    p : float
    """

    def __init__(self, case: str, num_inputs: int, width: int, num_layers: int, p: float) -> None:
        super().__init__()
        self.before: nn.Module = nn.Identity()
        if checked_case(case) == "II":  # torch's own has another mask for each step between its layers
            widths = [num_inputs, *[width] * (num_layers - 1)]
            self.parts = nn.ModuleList(nn.LSTM(size, width) for size in widths)
            self.before = _Locked(p)
            return
        how: dict[str, Any] = {"num_layers": num_layers, "dropout": p if num_layers > 1 else 0.0}
        if case == "I":
            self.before = nn.Dropout(p)
            self.parts = nn.ModuleList([nn.LSTM(num_inputs, width, **how)])
            return
        how |= {"recurrent_dropout": p if case == "III+rh" else 0.0, "period": _WHOLE if case == "IV" else 1}
        self.parts = nn.ModuleList([StructuredLSTM(num_inputs, width, input_dropout=p, **how)])

    def forward(self, x: Tensor, states: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """[T, B, D] to [T, B, H], and the states behind it."""
        last = []
        for i, part in enumerate(self.parts):
            x, state = part(self.before(x), None if states is None else states[i])
            last.append(state)
        return x, last


class Scores(nn.Module):
    """Dropout and a linear layer behind a recurrence: [T, B, H] to [T, B, V]."""

    def __init__(self, case: str, width: int, num_outputs: int, p: float) -> None:
        super().__init__()
        self.before: nn.Module = nn.Identity()
        if checked_case(case) in ("I", "II"):
            self.before = _random(case, p)
            self.linear: nn.Module = nn.Linear(width, num_outputs)
        else:
            period = _WHOLE if case == "IV" else 1
            self.linear = StructuredLinear(width, num_outputs, dropout=p, step_dim=0, period=period)

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, H] to [T, B, V]."""
        scores: Tensor = self.linear(self.before(x))
        return scores
