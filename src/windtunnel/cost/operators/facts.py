"""What an operator's arguments determine of its time on a GPU: its family, sizes, layout, operations and bytes.

In: ``Work``, whose rows have shapes, strides and arguments as captured. Out: ``Facts``, one row of numbers for each row
of work. Rows of families that nothing is known of, or whose arguments were not captured, have no family. Devices do not
enter (``learned_features``), nor do times.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.calls import Call, Describe
from windtunnel.cost.operators.matrix_facts import (
    attention_of,
    describe_convolution,
    describe_convolution_backward,
    describe_linear,
    product_of,
)
from windtunnel.cost.operators.row_facts import (
    describe_copy,
    describe_loss,
    describe_normalization,
    describe_pointwise,
    describe_pooling,
    describe_reduction,
    describe_softmax,
    describe_sorting,
    describe_table,
    describe_update,
    variant_of,
)
from windtunnel.cost.work import ITEM_BYTES, Work
from windtunnel.graph.kernel_classes import class_of

__all__ = ["COLUMNS", "FAMILIES", "Facts", "facts_of", "plain_name"]

# P rows of work
Floats = NDArray[np.float64]

FAMILIES = (
    "product", "attention", "attention backward", "convolution", "convolution backward", "normalization", "softmax",
    "pointwise", "reduction", "pooling", "table", "copy", "loss", "update", "multi-tensor",
)  # fmt: skip
"""Operators of one family are priced by the same Gaussian process."""
COLUMNS = (
    "rows", "columns", "inner", "batch", "flops", "read_bytes", "written_bytes", "item_bytes", "variant", "layout",
    "is_causal", "is_strided", "window", "stride", "channels", "num_groups", "alignment", "alignment_right",
    "num_tensors", "positions",
)  # fmt: skip
"""Of a product (rows x inner) times (inner x columns), ``batch`` times; attention has queries, keys and the elements of
a head; a convolution is taken as the product of all windows and the filters of a group. Others have ``rows`` of
``columns`` elements. An alignment is the largest power of two, at most 128 bytes, that divides a row's length. Images
have ``positions`` in a channel of one of them: results of a convolution or of pooling, elements of a batch norm."""

_UPDATES: tuple[str, ...] = (
    "fused_sgd", "fused_adam", "fused_adamw", "fused_adagrad", "foreach_add", "foreach_sub", "foreach_mul",
    "foreach_div", "foreach_sqrt", "foreach_lerp", "foreach_addcmul", "foreach_addcdiv", "foreach_neg", "foreach_copy",
    "foreach_norm", "foreach_zero", "foreach_clamp_min",
)  # fmt: skip
_LOSSES: tuple[str, ...] = (
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss",
    "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "binary_cross_entropy",
)  # fmt: skip
_NORMS: tuple[str, ...] = (
    "rms_norm", "fused_rms_norm", "rms_norm_backward", "fused_rms_norm_backward", "cudnn_batch_norm",
    "cudnn_batch_norm_backward", "native_group_norm",
)  # fmt: skip
_BY_NAME: Mapping[str, Describe] = {
    "mm": product_of(0),
    "bmm": product_of(0),
    "addmm": product_of(1, has_sum=True),
    "baddbmm": product_of(1, has_sum=True),
    "matmul": product_of(0),
    "linear": describe_linear,
    "scaled_dot_product_attention": attention_of(0, 5),
    "scaled_dot_product_flash_attention": attention_of(0, 4),
    "scaled_dot_product_flash_attention_for_cpu": attention_of(0, 4),
    "scaled_dot_product_efficient_attention": attention_of(0, 6),
    "scaled_dot_product_cudnn_attention": attention_of(0, 6),
    "scaled_dot_product_fused_attention_overrideable": attention_of(0, 5),
    "scaled_dot_product_flash_attention_backward": attention_of(1, 11, is_backward=True),
    "scaled_dot_product_flash_attention_for_cpu_backward": attention_of(1, 7, is_backward=True),
    "scaled_dot_product_efficient_attention_backward": attention_of(1, 11, is_backward=True),
    "scaled_dot_product_cudnn_attention_backward": attention_of(1, 14, is_backward=True),
    "convolution": describe_convolution,
    "cudnn_convolution": describe_convolution,
    "convolution_backward": describe_convolution_backward,
    "topk": describe_sorting,
    "cumsum": describe_reduction,
    "select_backward": describe_copy,
    "slice_backward": describe_copy,
    "full": describe_copy,
    "zeros": describe_copy,
    "ones": describe_copy,
    "zeros_like": describe_copy,
    "ones_like": describe_copy,
    "full_like": describe_copy,
    "masked_fill": describe_pointwise,
    "where": describe_pointwise,
    "native_dropout": describe_pointwise,
    "native_dropout_backward": describe_pointwise,
    **dict.fromkeys(_UPDATES, describe_update),
    **dict.fromkeys(_LOSSES, describe_loss),
    **dict.fromkeys(_NORMS, describe_normalization),
}
# operators that the classes take for elementwise, of which some do other work than one value per element
_OTHER_WORK = re.compile(
    r"rnn|lstm|gru|linalg_(?!vector)|fft|cdist|ctc|solve|cholesky|histc|bincount|unique|sparse|quant|grid_sampl"
)


@dataclass(frozen=True, eq=False)
class Facts:
    """Numbers about P rows of work.

    Parameters
    ----------
    family : object [P]
        One of ``FAMILIES``; empty where the row is of none.
    values : float [P, ``COLUMNS``]
        0 where a column does not apply.
    dtype : object [P]
        The type that is computed in.
    """

    family: NDArray[np.object_]
    values: Floats
    dtype: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.family)

    def column(self, name: str) -> Floats:
        """One of ``COLUMNS`` [P]."""
        return self.values[:, COLUMNS.index(name)]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Facts:
        """The given rows."""
        return Facts(self.family[rows], self.values[rows], self.dtype[rows])


def facts_of(work: Work) -> Facts:
    """Facts about all rows of work."""
    columns = (work.operator, work.shapes, work.strides, work.arguments, work.dtype, work.bytes_moved)
    rows = [_facts_of_call(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    families, values = np.full(len(work), "", dtype=object), np.zeros((len(work), len(COLUMNS)))
    for index, (family, numbers) in enumerate(rows):
        if family:
            families[index], values[index] = family, numbers
    return Facts(families, values, work.dtype)


@functools.lru_cache(maxsize=1 << 14)
def _facts_of_call(
    operator: str, shapes: str, strides: str, arguments: str, dtype: str, moved: float
) -> tuple[str, tuple[float, ...]]:
    """Family and numbers of one row; no device enters, and many devices are asked of the same rows."""
    unknown = "", ()
    if not shapes or dtype not in ITEM_BYTES:
        return unknown
    try:
        call = Call(
            plain_name(operator),
            json.loads(shapes),
            json.loads(strides) if strides else [],
            json.loads(arguments) if arguments else [],
            ITEM_BYTES[dtype],
            float(moved),
        )
        family, row = _describe(call)
    except (IndexError, TypeError, ValueError, KeyError, ZeroDivisionError):
        return unknown  # arguments of another form than those of this operator: another model may know it
    if not family or not all(math.isfinite(value) and value >= 0 for value in row.values()):
        return unknown
    row = {"item_bytes": float(ITEM_BYTES[dtype]), "variant": variant_of(family, call.name), **row}
    return family, tuple(row.get(name, 0.0) for name in COLUMNS)


def plain_name(operator: str) -> str:
    """Schema name without namespace, overload and underscores around it.

    Examples
    --------
    >>> plain_name("aten::add_.Tensor"), plain_name("aten::_fused_adamw_")
    ('add', 'fused_adamw')
    """
    return operator.rpartition("::")[2].partition(".")[0].strip("_")


def _describe(call: Call) -> tuple[str, dict[str, float]]:
    describe = _BY_NAME.get(call.name)
    if describe is not None:
        return describe(call)
    kind = class_of(f"aten::{call.name}")
    if kind in _BY_CLASS and not _OTHER_WORK.search(call.name):
        return _BY_CLASS[kind](call)
    return "", {}


def _norms_and_softmax(call: Call) -> tuple[str, dict[str, float]]:
    return describe_softmax(call) if "softmax" in call.name else describe_normalization(call)


_BY_CLASS: Mapping[str, Describe] = {
    "normalization": _norms_and_softmax,
    "pooling": describe_pooling,
    "reduction": describe_reduction,
    "indexing": describe_table,
    "moving": describe_copy,
    "drawing": describe_pointwise,
    "elementwise": describe_pointwise,
}
