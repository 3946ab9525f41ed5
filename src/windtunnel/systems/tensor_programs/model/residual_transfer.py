"""Residuals of a predictor on known devices, transferred to a new one.

In: a predictor and samples profiled on the new device. Out: a ``ResidualTransfer``, which prices programs there.

Programs that are to be priced on a new device were often measured on others. Where their times there differ from what
was predicted, the network does not know something of the program, and most of that is the same on every device. So
the logarithm of measured over predicted on the new device is a weighted sum of those on the known ones: before
anything is profiled, their mean; with profiled samples, the weights move away from it as far as these say so. Not
here: which tasks to profile (``sampling``), changing the network itself (``train(..., start=...)``).

Source: ours; an alternative to CDMPP's fine-tuning (EuroSys 2024, section 5), which changes weights of the network.
"""

# P programs, D devices, S source devices, M samples, Q profiled samples

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.predictor import Predictor
from windtunnel.systems.tensor_programs.model.samples import labels_of
from windtunnel.systems.tensor_programs.model.splits import sources_of
from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = ["ResidualTransfer", "fit_residual_transfer"]

MAX_APART = 0.5  # of a logarithm: how far one device may stand from a program's median over devices
PENALTY = 0.3  # of the weights' way from the mean, over the variance of a residual
LEVEL = 0.3  # how readily all programs shift together, as a share of how readily a weight moves
HUBER = 1.5  # deviations from which on a residual counts by its size and not by its square
NUM_PASSES = 10
TINY = 1e-9


@dataclass(frozen=True)
class ResidualTransfer:
    """Prices on one device.

    Parameters
    ----------
    predictor : Predictor
    column : int
        The new device in the program set.
    sources : tuple of int
        Columns of the devices whose times are known.
    weights : float64 [S]
        How much of what was missed on each source is missed here too.
    level : float
        The logarithm by which all programs shift.
    """

    predictor: Predictor
    column: int
    sources: tuple[int, ...]
    weights: np.ndarray
    level: float = 0.0

    def predict(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        """Seconds float64 [M] of samples [M, 2] of the new device; its own measured times are not looked at.

        A program that no source has measured keeps the predictor's price, shifted by the level.
        """
        _require_device(samples, self.column)
        missed = _log_residuals(self.predictor, programs, samples[:, 0], self.sources)
        price_s: np.ndarray = self.predictor.predict(programs, samples) * np.exp(missed @ self.weights + self.level)
        return price_s


def fit_residual_transfer(
    predictor: Predictor,
    programs: ProgramSet,
    device: str,
    profiled: np.ndarray | None = None,
    *,
    of_other_hosts: bool = False,
) -> ResidualTransfer:
    """Learn how much to transfer from the other devices of the set to this one.

    Parameters
    ----------
    predictor : Predictor
        Trained on the other devices.
    programs : ProgramSet
        With times of the other devices; those of ``device`` are read for the profiled samples alone.
    device : str
    profiled : int64 [Q, 2], optional
        Samples that were measured on the device; without any, the mean over the sources is transferred.
    of_other_hosts : bool
        Transfer from devices of other hosts alone.

    Notes
    -----
    Ridge regression towards the mean over the sources, robust by iterated Huber weights: of a thousand times on two
    threads, a few were measured while a core was taken away.
    """
    column = programs.column(device)
    sources = tuple(sources_of(programs, device, of_other_hosts=of_other_hosts))
    mean = np.full(len(sources), 1.0 / len(sources))
    if profiled is None or not len(profiled):
        return ResidualTransfer(predictor, column, sources, mean)
    _require_device(profiled, column)
    missed = _log_residuals(predictor, programs, profiled[:, 0], sources)
    requested = np.log(labels_of(programs, profiled) / predictor.predict(programs, profiled)) - missed @ mean
    moved = _ridge(np.column_stack([missed, np.full(len(profiled), LEVEL)]), requested)
    return ResidualTransfer(predictor, column, sources, mean + moved[:-1], LEVEL * float(moved[-1]))


def _require_device(samples: np.ndarray, column: int) -> None:
    others = np.unique(samples[samples[:, 1] != column, 1])
    if others.size:
        raise InputError(
            f"samples are of column {', '.join(map(str, others))}, the transfer is for column {column}",
            where="samples",
            fix="samples of one device",
        )


def _log_residuals(
    predictor: Predictor, programs: ProgramSet, rows: np.ndarray, sources: tuple[int, ...]
) -> np.ndarray:
    """Logarithm of measured over predicted seconds [M, S]; what was not measured is the program's mean, or 0."""
    measured = programs.mean_s[rows][:, sources].astype(np.float64)
    samples = np.stack([np.repeat(rows, len(sources)), np.tile(sources, len(rows))], axis=1)
    predicted = predictor.predict(programs, samples).reshape(measured.shape)
    is_known = np.isfinite(measured) & (measured > 0)
    missed = np.log(np.where(is_known, measured, predicted) / predicted)
    known = np.ma.masked_array(missed, ~is_known)
    middle = np.ma.median(known, axis=1).filled(0.0)[:, None]
    near = np.clip(known, middle - MAX_APART, middle + MAX_APART)
    filled: np.ndarray = np.where(is_known, near.filled(0.0), near.mean(axis=1).filled(0.0)[:, None])
    return filled


def _ridge(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    weight = np.ones(len(targets))
    for _ in range(NUM_PASSES):
        gram = (inputs.T * weight) @ inputs + PENALTY * np.eye(inputs.shape[1])
        result = np.linalg.solve(gram, (inputs.T * weight) @ targets)
        apart = np.abs(targets - inputs @ result)
        deviation = 1.4826 * float(np.median(apart))
        weight = np.minimum(1.0, HUBER * max(deviation, TINY) / np.maximum(apart, TINY))
    return np.asarray(result)
