"""Which class of work an operator or a kernel of a device does, by its name: the only module that reads such names.

In: the schema name of an operator, the name that a library gave the kernel that it launched. Out: one of ``CLASSES``;
for communication, which collective. Readers ask for the kinds of device events, what-ifs for the kernels that matrix
units speed up, prices for operators that reach alike shares of their bound. Not here: what an operator computes
(``flops``), how far its work extends (``cost.work``).

The name of a kernel goes before that of its operator: ``aten::addmm`` also launches kernels that add partial products
and copy, which no matrix unit speeds up.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.flops import CONTRACTIONS
from windtunnel.graph.graph import Graph
from windtunnel.graph.table import Strings

__all__ = [
    "BACKENDS",
    "CLASSES",
    "COLLECTIVES",
    "MATRIX_CLASSES",
    "class_of",
    "collective_of",
    "does_matrix_work",
    "event_class",
]

CLASSES = {
    "communication": "exchanges data with other ranks",
    "transfer": "copies or fills memory by a copy engine",
    "synchronization": "waits, and does no work",
    "attention": "attention of queries over keys and values, in one kernel",
    "attention backward": "gradients of attention",
    "convolution": "convolution, with what it needs to be a product of matrices",
    "convolution backward": "gradients of a convolution",
    "depthwise": "convolution of each channel with its own filter, which only moves memory",
    "product": "product of matrices",
    "vector product": "product of a matrix and a vector, or of two vectors, which only moves memory",
    "normalization": "statistics of rows or channels, and what is scaled by them",
    "pooling": "windows of an image to single values, or back",
    "drawing": "random numbers",
    "sorting": "order of values",
    "indexing": "rows by their numbers",
    "moving": "the same values in another place, order or type",
    "reduction": "many values to few",
    "elementwise": "any other: a value of the result depends on single values of the inputs",
}
"""The classes, and what a member does."""

BACKENDS = ("nccl", "gloo", "mpi", "ucc")
"""Backends of torch.distributed: their annotations begin with the name and a colon."""

MATRIX_CLASSES = ("product", "convolution", "convolution backward", "attention", "attention backward")
"""Those that matrix units speed up."""

_NONE = r"(?!)"  # matches nothing
_GENERATED = re.compile(r"(triton|cpp)_[a-z]+_")
_AROUND = re.compile(r"^void |std::enable_if<.*?>::type |\(anonymous namespace\)::")
# Names in kernels, annotations and `Collective name`, without case and separators -> our name. "reduce", "gather" and
# "scatter" are part of other names, and come after them.
COLLECTIVES = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}


class _Row(NamedTuple):
    name: str
    operators: re.Pattern[str]
    kernels: re.Pattern[str]


def _row(name: str, operators: str | None, kernels: str | None) -> _Row:
    return _Row(name, re.compile(operators or _NONE), re.compile(kernels or _NONE))


# What a device event says of itself, wherever in its name, in the order in which Holistic Trace Analysis asks
_EVENTS = (
    _row("communication", None, r"(?i)nccl|rccl|oneccl|xccl|hccl|^(gloo|mpi|ucc):"),
    _row("transfer", None, r"^(Memcpy|Memset|dma|Copy[A-Z])"),
    _row("synchronization", None, r"Memcpy|Sync"),
)
# Class, names of its operators (without namespace and overload), names of its kernels (without arguments of templates).
# The first that matches decides, so that what libraries launch around a product or a convolution stands before them.
_ROWS = (
    _row("moving", None, r"(?i)n(chw|hwc)_?(2|To)_?n(chw|hwc)|CNHW|batched_transpose|tensorTransform|im2col|flip_filter"
                         r"|offsetsKernel|init_device_workspace|region_transform|fft2d|convert_dq|CatArray"),
    _row("reduction", None, r"splitKreduce|reduce_wgrad|reduce_1Block|compute_dot_do_o"),
    _row("elementwise", None, r"(?i)elementwise|multi_tensor_apply|scalePackedTensor|SubTensorOp|elemWiseRNN"
                              r"|epilogue::impl|scal_kernel|\bdropout"),
    _row("attention backward", r"attention.*backward",
         r"(?i:fmha|flash|sdpa|attn|attention).*(B_|bwd|bprop|backward)|fmha_cutlassB"),
    _row("attention", r"attention", r"(?i)fmha|flash_fwd|sdpa|attn_fwd|attention"),
    _row("depthwise", None, r"(?i)c1_k1|grouped_direct|depthwise"),
    _row("convolution backward", r"conv.*backward", r"(?i)dgrad|wgrad|conv.*bwd|igemm_(bwd|wrw)|scudnn.*stridedB"),
    _row("convolution", r"conv", r"(?i)conv(?!ert)|fprop|implicit_gemm|igemm_fwd|winograd|scudnn"),
    _row("normalization", r"softmax|^(native_)?(layer|batch|group)_norm",
         r"(?i)softmax|(layer|batch|group|rms)_?norm|bn_(fw|bw)"),
    _row("pooling", r"pool|upsample", r"(?i)pool|upsample"),
    _row("drawing", r"^(normal|uniform|bernoulli|random|randn?|randint|randperm|native_dropout|multinomial)$",
         r"distribution"),
    _row("sorting", r"sort|topk|unique", r"(?i)sort|topk"),
    _row("indexing", r"embedding|index|gather|scatter|select|take|masked_fill", r"(?i)embedding|index|gather|scatter"),
    _row("moving", r"^(copy|cat|stack|clone|fill|zero|to_copy)$|_copy$|pad", None),
    _row("reduction",
         r"^(sum|mean|amax|amin|max|min|prod|argmax|argmin|var|std|var_mean|norm|linalg_vector_norm)$|loss_forward|loss$",
         r"reduce_kernel"),
    _row("product", r"^(linear|matmul)$|^(cudnn|miopen)_rnn", r"(?i)(?<!fb)gemm|xmma|cutlass|nvjet|^Cijk_|matmul"),
    _row("vector product", None, r"gemv|\bdot_kernel"),
)  # fmt: skip


@lru_cache(maxsize=1 << 14)
def class_of(operator: str, kernel: str = "") -> str:
    """The class of what a kernel does, by its own name where that says it, else by the operator that launched it.

    Parameters
    ----------
    operator : str
        Schema name, with or without namespace and overload; empty where it is not known.
    kernel : str
        As a profiler names it; empty for an operator as such.

    Examples
    --------
    >>> [class_of(name) for name in ("aten::addmm", "aten::conv2d.default", "aten::native_layer_norm", "aten::gelu")]
    ['product', 'convolution', 'normalization', 'elementwise']
    >>> class_of("aten::addmm", "ampere_sgemm_128x64_nn"), class_of("aten::addmm", "void splitKreduce_kernel<32>(int)")
    ('product', 'reduction')
    >>> class_of("", "ncclKernel_AllReduce_RING_LL_Sum_float"), class_of("", "void fbgemm_gpu::permute_2D_data(int)")
    ('communication', 'elementwise')
    """
    return event_class(kernel) or _kernel_class(kernel) or _operator_class(operator) or "elementwise"


def event_class(name: str) -> str:
    """``communication``, ``transfer`` or ``synchronization``; empty for an event of a device that computes.

    Examples
    --------
    >>> [event_class(name) for name in ("nccl:all_reduce", "Memcpy HtoD (Pageable -> Device)", "Context Sync", "gemm")]
    ['communication', 'transfer', 'synchronization', '']
    """
    return next((row.name for row in _EVENTS if row.kernels.search(name)), "")


def _kernel_class(kernel: str) -> str:
    """By the name without arguments; CUTLASS says only in the first of its template's what it computes.

    A compiler names what it generates by the operators that it fuses, which no library's pattern means.
    """
    if _GENERATED.match(kernel):
        return ""
    head = _AROUND.sub("", kernel).partition("(")[0]
    name = head if "cutlass" in head.partition("<")[0] else head.partition("<")[0]
    return next((row.name for row in _ROWS if row.kernels.search(name)), "")


def _operator_class(operator: str) -> str:
    name = operator.partition("::")[2].partition(".")[0].strip("_") or operator
    result = next((row.name for row in _ROWS if row.operators.search(name)), "")
    if result or "::" in operator:
        return result or ("product" if name in CONTRACTIONS else "")
    # a graph that is no capture of PyTorch may have the name of a kernel, or none of a namespace, as its operator
    return "product" if name in CONTRACTIONS else _kernel_class(operator)


def does_matrix_work(graph: Graph) -> NDArray[np.bool_]:
    """Tasks of a class that matrix units speed up, by name and operator, bool [T]."""
    names = graph.tasks.strings("name")
    operators = graph.tasks.strings("op") if "op" in graph.tasks else Strings.repeat("", graph.num_tasks)
    pairs, task_pair = np.unique(np.stack([operators.codes, names.codes]), axis=1, return_inverse=True)
    is_matrix = [class_of(operators.values[op], names.values[name]) in MATRIX_CLASSES for op, name in pairs.T.tolist()]
    result: NDArray[np.bool_] = np.array(is_matrix, dtype=bool)[task_pair.reshape(-1)]
    return result


def collective_of(name: str, *, is_collective: bool = False) -> str:
    """The collective that a kernel, annotation or argument names; empty if it names none.

    Parameters
    ----------
    name : str
    is_collective : bool
        Known to name one, so that it does not have to name the library.

    Examples
    --------
    >>> collective_of("ncclDevKernel_ReduceScatter_Sum_f32"), collective_of("void reduce_kernel<512>(int)")
    ('reduce_scatter', '')
    >>> collective_of("all-reduce bucket 3", is_collective=True)
    'all_reduce'
    """
    if not (is_collective or event_class(name) == "communication"):
        return ""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((ours for theirs, ours in COLLECTIVES.items() if theirs in plain), "collective")
