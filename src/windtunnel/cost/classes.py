"""What kind of operator it is, and how finely its work is cut (room cost): what efficiencies depend on beside size.

In: an operator's name, the shapes of its inputs as text. Out: its class, and the extent of its inner work. Not here:
efficiencies (``measured``), what it computes (``graph.flops``).
"""

from __future__ import annotations

import math
import re

from windtunnel.graph.flops import CONTRACTIONS

__all__ = ["class_of", "grain_of"]

_CLASSES = (
    ("attention backward", re.compile(r"attention.*backward")),
    ("attention", re.compile(r"attention")),
    ("convolution backward", re.compile(r"conv.*backward")),
    ("convolution", re.compile(r"conv")),
    ("normalisation", re.compile(r"softmax|^(native_)?(layer|batch|group)_norm")),
    ("pooling", re.compile(r"pool|upsample")),
    ("drawing", re.compile(r"^(normal|uniform|bernoulli|random|randn?|randint|randperm|native_dropout|multinomial)$")),
    ("sorting", re.compile(r"sort|topk|unique")),
    ("indexing", re.compile(r"embedding|index|gather|scatter|select|take|masked_fill")),
    ("moving", re.compile(r"^(copy|cat|stack|clone|fill|zero|to_copy)$|_copy$|pad")),
    ("reduction", re.compile(
        r"^(sum|mean|amax|amin|max|min|prod|argmax|argmin|var|std|var_mean|norm|linalg_vector_norm)$|loss_forward|loss$"
    )),
)  # fmt: skip
_SHAPE = re.compile(r"(?<!/)\[(\d[\d, ]*)\]")


def class_of(operator: str) -> str:
    """The class of an operator: those of one class reach alike shares of their bound.

    Examples
    --------
    >>> [class_of(name) for name in ("aten::addmm", "aten::conv2d.default", "aten::native_layer_norm", "aten::gelu")]
    ['product', 'convolution', 'normalisation', 'elementwise']
    """
    name = operator.partition("::")[2].partition(".")[0].strip("_") or operator
    other = "product" if name in CONTRACTIONS else "elementwise"
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), other)


def grain_of(operator: str, shapes: str) -> float:
    """Octaves of the extent that inner loops run over: short ones reach less of a bound. 0 where there is none.

    Of a product its smallest side, of a convolution the fewer of its channels (1 where it is depthwise), of attention
    the fewer of rows and columns, of a normalisation, reduction or sorting the length of a row, of a look-up the rows
    asked for over those of the table: its bytes are those of the whole table.

    Parameters
    ----------
    operator : str
    shapes : str
        A list of shapes as captured, or the signature of a kernel; strides may follow a slash or a space.

    Examples
    --------
    >>> grain_of("aten::addmm", "[[64],[256,32],[32,64]] [[1],[32,1],[64,1]]"), grain_of("aten::relu", "[[256,32]]")
    (5.0, 0.0)
    >>> grain_of("aten::native_batch_norm", "[[8,16,4,4],[16],[16]]")
    4.0
    """
    kind = class_of(operator)
    if kind in ("elementwise", "moving", "drawing"):
        return 0.0
    captured = shapes.split(" ")[0] if shapes.startswith("[") else shapes
    found = [[int(size) for size in one.split(",")] for one in _SHAPE.findall(captured)]
    if kind == "indexing":
        asked = [math.prod(one) for one in found[1:]]
        return math.log2(asked[0] / found[0][0]) if asked and asked[0] and found[0][0] else 0.0
    tensors = [one for one in found if len(one) > 1 and min(one) > 0]
    if not tensors:
        return 0.0
    if kind == "product":
        extent = min(size for one in tensors for size in one[-2:])
    elif kind.startswith("convolution"):
        extent = min(max(tensors, key=lambda one: (len(one), tensors.index(one)))[:2])
    elif kind.startswith("attention"):
        extent = min(tensors[0][-2:])
    elif "batch_norm" in operator:
        extent = math.prod(tensors[0][2:])
    else:
        extent = tensors[0][-1]
    return math.log2(extent)
