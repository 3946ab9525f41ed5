"""Program sets as tensors: samples of a split in, normalized buckets with labels out.

Programs are scaled once, their places are added after scaling, and each lies in the bucket of its number of leaves; a
sample points at its program and adds label, context and, for recipes that look at it, the code for the vectors of its
device. Whatever is fitted here is fitted on training samples alone. Not here: networks, the training loop.
"""

# P programs, M samples, N leaves, F features, W widths of vectors, E entries of code, C entries of context

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES, VECTOR_BITS
from windtunnel.systems.tensor_programs.model.context import ContextKind, bound_of, context_rows
from windtunnel.systems.tensor_programs.model.encoding import MAX_LEAVES, bucket_batches, positional_encoding
from windtunnel.systems.tensor_programs.model.transforms import FeatureScale, LabelKind, LabelTransform, check_labels
from windtunnel.systems.tensor_programs.program_set import ProgramSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = require("torch", extra="learn")

__all__ = ["Batch", "Buckets", "Normalizer", "Target", "labels_of"]

Target = Literal["seconds", "efficiency"]


def labels_of(programs: ProgramSet, samples: np.ndarray, where: str = "program set") -> np.ndarray:
    """Measured seconds of samples, float64 [M]; zero, negative and missing ones are named."""
    return check_labels(programs.mean_s[samples[:, 0], samples[:, 1]], where)


@dataclass(frozen=True)
class Normalizer:
    """Everything that turns programs and seconds into what a network sees, fitted on training samples.

    Parameters
    ----------
    target
        ``efficiency``: labels are seconds over the physical bound; ``seconds``: the papers' own regression.
    code
        Scale of the code's entries; None where they are not looked at.
    """

    features: FeatureScale
    labels: LabelTransform
    target: Target
    context: ContextKind
    context_mean: np.ndarray
    context_std: np.ndarray
    has_positions: bool = True
    code: FeatureScale | None = None

    @classmethod
    def fit(
        cls,
        programs: ProgramSet,
        train: np.ndarray,
        *,
        labels: LabelKind = "log",
        target: Target = "efficiency",
        context: ContextKind = "bound",
        has_positions: bool = True,
        is_standard: bool = False,
        has_code: bool = False,
    ) -> Normalizer:
        """Fit on the training samples [M, 2]; a context that is the same for all of them is dropped."""
        seconds = labels_of(programs, train)
        base = _base_s(programs, train, target)
        raw = context_rows(programs, train, context)
        if raw.size and (np.ptp(raw, axis=0) == 0).all():
            context, raw = "none", raw[:, :0]
        std = raw.std(axis=0)
        if context == "paper":  # used as they are
            mean, std = np.zeros(raw.shape[1]), np.ones(raw.shape[1])
        else:
            mean, std = raw.mean(axis=0), np.where(std > 1e-9, std, 1.0)
        leaves = np.concatenate([_leaf_rows(programs, row) for row in np.unique(train[:, 0])])
        rows = programs.features[leaves]
        scale = FeatureScale.standard(rows) if is_standard else FeatureScale.fit(rows)
        code = FeatureScale.standard(_code_rows(programs, train)) if has_code else None
        return cls(scale, LabelTransform.fit(labels, seconds / base), target, context, mean, std, has_positions, code)

    def context_of(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        """Standardized context, float32 [M, C]."""
        raw = context_rows(programs, samples, self.context)
        if raw.shape[1] != len(self.context_mean):
            raise InputError(
                f"these devices are described by {raw.shape[1]} numbers, those that were learned from by "
                f"{len(self.context_mean)}",
                where=", ".join(programs.device_names),
                fix="give the sheets the same fields: peak, bandwidth, and num_threads and simd_bits or neither",
            )
        scaled: np.ndarray = ((raw - self.context_mean) / self.context_std).astype(np.float32)
        return scaled

    def encode_labels(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        """Normalized labels, float32 [M]."""
        ratio = labels_of(programs, samples) / _base_s(programs, samples, self.target)
        encoded: np.ndarray = self.labels.forward(ratio).astype(np.float32)
        return encoded

    def decode(self, values: np.ndarray, programs: ProgramSet, samples: np.ndarray) -> tuple[np.ndarray, int]:
        """Seconds [M] of normalized predictions, and how many had to be clamped."""
        ratio, num_clamped = self.labels.inverse(values)
        return ratio * _base_s(programs, samples, self.target), num_clamped


def _leaf_rows(programs: ProgramSet, row: int) -> np.ndarray:
    return np.arange(programs.leaf_offset[row], programs.leaf_offset[row + 1])


def widths_of(programs: ProgramSet) -> np.ndarray:
    """Row of ``VECTOR_BITS`` by device [D]: the widest that its vectors fill."""
    unknown = [str(device.get("name", "device")) for device in programs.devices if not device.get("simd_bits")]
    if unknown:
        raise InputError(
            "the device lacks simd_bits",
            where=", ".join(unknown),
            fix="say how wide its vectors are, or for a GPU learn by --recipe efficiency",
        )
    bits = np.array([int(device["simd_bits"]) for device in programs.devices])
    return np.maximum(np.searchsorted(VECTOR_BITS, bits, side="right") - 1, 0)


def _code_rows(programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
    pairs = np.unique(np.column_stack([samples[:, 0], widths_of(programs)[samples[:, 1]]]), axis=0)
    return np.concatenate([programs.code[_leaf_rows(programs, row), width] for row, width in pairs])


def _base_s(programs: ProgramSet, samples: np.ndarray, target: Target) -> Any:
    return bound_of(programs, samples).bound_ns * 1e-9 if target == "efficiency" else 1.0


@dataclass(frozen=True)
class Batch:
    """Samples that share a number of leaves.

    Leaves [B, N, F] or with code [B, N, F + E], context [B, C] or None, label [B], rows of samples.
    """

    leaves: Tensor
    context: Any
    label: Any
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class Buckets:
    """The samples of a program set, ready for a network."""

    def __init__(
        self, programs: ProgramSet, samples: np.ndarray, normalizer: Normalizer, *, has_labels: bool = True
    ) -> None:
        self.programs, self.samples, self.normalizer = programs, samples, normalizer
        self.num_leaves = programs.num_leaves[samples[:, 0]]
        if samples.size and self.num_leaves.max() > MAX_LEAVES:
            worst = int(samples[self.num_leaves.argmax(), 0])
            raise InputError(f"program {worst} has {self.num_leaves.max()} leaves, at most {MAX_LEAVES} are encoded")
        self._widths = self._width = np.zeros(0, dtype=np.int64)  # which there are, and of each sample its place there
        if normalizer.code is not None:
            self._widths, self._width = np.unique(widths_of(programs)[samples[:, 1]], return_inverse=True)
        self.leaves, self._place = _buckets(programs, np.unique(samples[:, 0]), normalizer, self._widths)
        self.label = torch.from_numpy(normalizer.encode_labels(programs, samples)) if has_labels else None
        context = normalizer.context_of(programs, samples)
        self.context = torch.from_numpy(context) if context.shape[1] else None

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, rows: np.ndarray) -> Batch:
        """A batch of samples that share a number of leaves."""
        bucket = self.leaves[int(self.num_leaves[rows[0]])]
        index = torch.from_numpy(rows)
        leaves = bucket[torch.from_numpy(self._place[self.samples[rows, 0]])]
        return Batch(
            leaves if len(self._widths) < 2 else _of_width(leaves, self._width[rows], len(self._widths)),
            None if self.context is None else self.context[index],
            None if self.label is None else self.label[index],
            rows,
        )

    def batches(self, batch_size: int, seed: int | None = None) -> Iterator[Batch]:
        """Batches of an epoch, in random order with a seed; samples alone in their bucket only without one."""
        for rows in bucket_batches(self.num_leaves, batch_size, seed):
            if len(rows) > 1 or seed is None:
                yield self.batch(rows)


def _buckets(
    programs: ProgramSet, rows: np.ndarray, normalizer: Normalizer, widths: np.ndarray
) -> tuple[Mapping[int, Tensor], np.ndarray]:
    """Leaves float32 [P, N, F + W E] by their number, and each program's row in its bucket; W widths of vectors."""
    position = np.zeros(programs.num_programs, dtype=np.int64)
    result = {}
    counts = programs.num_leaves[rows]
    indices = np.arange(int(programs.leaf_pos.max(initial=0)) + 1)
    angles = positional_encoding(indices).astype(np.float32)
    num_features = programs.features.shape[1]
    for count in np.unique(counts):
        members = rows[counts == count]
        position[members] = np.arange(members.size)
        index = programs.leaf_offset[members][:, None] + np.arange(count)
        leaves = np.empty((*index.shape, num_features + len(widths) * len(CODE_NAMES)), dtype=np.float32)
        plain = normalizer.features(programs.features[index], out=leaves[..., :num_features])
        if normalizer.has_positions:
            plain += angles[programs.leaf_pos[index]]
        if normalizer.code is not None:
            code = leaves[..., num_features:].reshape(*index.shape, len(widths), -1)  # a view
            normalizer.code(programs.code[index[..., None], widths], out=code)
        result[int(count)] = torch.from_numpy(leaves)
    return result, position


def _of_width(leaves_BNX: Tensor, width_B: np.ndarray, num_widths: int) -> Tensor:
    """Leaves [B, N, F + W E] with the code of one width each: [B, N, F + E]."""
    num_entries = num_widths * len(CODE_NAMES)
    plain, code = leaves_BNX[..., :-num_entries], leaves_BNX[..., -num_entries:]
    code_BNWE = code.unflatten(2, (num_widths, len(CODE_NAMES)))
    own_BNE = code_BNWE[torch.arange(len(width_B)), :, torch.from_numpy(width_B)]
    return torch.cat([plain, own_BNE], dim=2)
