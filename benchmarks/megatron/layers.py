"""A Megatron-shaped transformer: layers split over ranks, as Megatron-LM (v3.0) runs them on A100s.

Kernels that it fuses by hand (scaled causal softmax, bias with GELU, bias with dropout and the residual) are operators
here, so that each reads its inputs once and writes its results once. A column-parallel layer's backward pass sends
while it computes the weight's gradient, which is added to an fp32 buffer by the product itself.

Source: Shoeybi et al., Megatron-LM, 2019; Korthikanti et al., Reducing activation recomputation, MLSys 2023.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

DROPOUT = 0.1
HALF = torch.float16


@dataclass(frozen=True)
class Shape:
    """Of a model, and how it is run."""

    hidden: int
    heads: int
    feedforward: int
    sequence: int
    blocks: int
    vocabulary: int = 51_200
    microbatch: int = 1
    recompute: str = "none"  # none, attention, full
    splits_sequence: bool = False
    waits: bool = False  # for every message, instead of computing a weight's gradient meanwhile


# --- kernels that are fused by hand -----------------------------------------------------------------------


@torch.library.custom_op("megatron::causal_softmax", mutates_args=())
def causal_softmax(scores: Tensor) -> Tensor:
    """Softmax over what is not behind a position."""
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.float().masked_fill(ahead, -torch.inf).softmax(-1).to(scores.dtype)


@torch.library.custom_op("megatron::causal_softmax_backward", mutates_args=())
def causal_softmax_backward(gradient: Tensor, result: Tensor) -> Tensor:
    """Gradient of the scores."""
    product = gradient.float() * result
    return (product - result * product.sum(-1, keepdim=True)).to(result.dtype)


@torch.library.custom_op("megatron::bias_gelu", mutates_args=())
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """GELU by tanh of x + bias."""
    return nn.functional.gelu(x + bias, approximate="tanh")


@torch.library.custom_op("megatron::bias_gelu_backward", mutates_args=())
def bias_gelu_backward(gradient: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """Gradient of x."""
    return torch.ops.aten.gelu_backward(gradient, x + bias, approximate="tanh")


@torch.library.custom_op("megatron::bias_dropout_add", mutates_args=())
def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Residual plus dropout of x + bias, and what was kept."""
    kept = torch.rand(x.shape, device=x.device) >= share
    return residual + (x + bias) * kept / (1 - share), kept


@torch.library.custom_op("megatron::dropout_backward", mutates_args=())
def dropout_backward(gradient: Tensor, kept: Tensor, share: float) -> Tensor:
    """Gradient of what dropout was given."""
    return gradient * kept / (1 - share)


@causal_softmax.register_fake
def _(scores: Tensor) -> Tensor:
    return torch.empty_like(scores)


@causal_softmax_backward.register_fake
def _(gradient: Tensor, _result: Tensor) -> Tensor:
    return torch.empty_like(gradient)


@bias_gelu.register_fake
def _(x: Tensor, _bias: Tensor) -> Tensor:
    return torch.empty_like(x)


@bias_gelu_backward.register_fake
def _(gradient: Tensor, _x: Tensor, _bias: Tensor) -> Tensor:
    return torch.empty_like(gradient)


@bias_dropout_add.register_fake
def _(x: Tensor, _bias: Tensor, _residual: Tensor, _share: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@dropout_backward.register_fake
def _(gradient: Tensor, _kept: Tensor, _share: float) -> Tensor:
    return torch.empty_like(gradient)


class _CausalSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        result = causal_softmax(scores)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return causal_softmax_backward(gradient, *ctx.saved_tensors)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return bias_gelu(x, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gradient = bias_gelu_backward(gradient, *ctx.saved_tensors)
        return gradient, gradient.flatten(0, 1).sum(0)


class _BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        result, kept = bias_dropout_add(x, bias, residual, DROPOUT)
        ctx.save_for_backward(kept)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_x = dropout_backward(gradient, *ctx.saved_tensors, DROPOUT)
        return of_x, of_x.flatten(0, 1).sum(0), gradient


# --- what is sent -----------------------------------------------------------------------------------------


def gathered(part: Tensor) -> tuple[Tensor, dist.Work]:
    """All parts of a sequence, on their way."""
    whole = part.new_empty(part.shape[0] * dist.get_world_size(), *part.shape[1:])
    return whole, dist.all_gather_single(whole, part.contiguous(), async_op=True)


def scattered(whole: Tensor) -> tuple[Tensor, dist.Work]:
    """The sum's own part, on its way."""
    part = whole.new_empty(whole.shape[0] // dist.get_world_size(), *whole.shape[1:])
    return part, dist.reduce_scatter_single(part, whole.contiguous(), async_op=True)


def waited(sending: dist.Work, waits: bool) -> None:
    """Compute nothing before it has arrived."""
    if waits:
        sending.wait()


class _ColumnLinear(torch.autograd.Function):
    """Rows of a weight on each rank: its input is whole, the gradient of its input is a sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, splits: bool, waits: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.splits, ctx.waits, ctx.has_bias = weight, splits, waits, bias is not None
        if splits:
            x, sending = gathered(x)
            sending.wait()
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight = ctx.saved_tensors, ctx.weight
        if ctx.splits:
            x, sending = gathered(x)
            waited(sending, ctx.waits)
        of_x = gradient.matmul(weight)
        if ctx.splits:
            sending.wait()
            of_x, sending = scattered(of_x)
        else:
            sending = dist.all_reduce(of_x, async_op=True)
        waited(sending, ctx.waits)
        of_bias = gradient.flatten(0, 1).sum(0) if ctx.has_bias else None
        of_weight = accumulated(weight, gradient, x)
        sending.wait()
        return of_x, of_weight, of_bias, None, None


class _RowLinear(torch.autograd.Function):
    """Columns of a weight on each rank: its result is a sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, splits: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.splits = weight, splits
        part = x.matmul(weight.t())
        if not splits:
            dist.all_reduce(part)
            return part
        part, sending = scattered(part)
        sending.wait()
        return part

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight = ctx.saved_tensors, ctx.weight
        if ctx.splits:
            gradient, sending = gathered(gradient)
            sending.wait()
        return gradient.matmul(weight), accumulated(weight, gradient, x), None


def accumulated(weight: Tensor, gradient: Tensor, x: Tensor) -> Tensor | None:
    """Add a weight's gradient to its fp32 buffer; returns it where there is none."""
    rows, columns = gradient.flatten(0, -2), x.flatten(0, -2)
    buffer = getattr(weight, "main_grad", None)
    if buffer is None:
        return rows.t().mm(columns)
    if buffer.is_cuda or torch.cuda.is_available():
        torch.ops.aten.addmm.dtype_out(buffer, rows.t(), columns, torch.float32, out=buffer)
    else:
        buffer.add_(rows.t().mm(columns))
    return None


# --- layers -----------------------------------------------------------------------------------------------


def parameter(*size: int) -> nn.Parameter:
    """A weight on this rank."""
    return nn.Parameter(torch.randn(*size, dtype=HALF) * 0.02)


class Attention(nn.Module):
    """Heads of this rank."""

    def __init__(self, shape: Shape, num_ranks: int) -> None:
        super().__init__()
        self.shape, self.heads = shape, shape.heads // num_ranks
        width = shape.hidden // num_ranks
        self.mix, self.mix_bias = parameter(3 * width, shape.hidden), parameter(3 * width)
        self.out, self.out_bias = parameter(shape.hidden, width), parameter(shape.hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Its bias apart, to be added with what follows."""
        mixed = _ColumnLinear.apply(x, self.mix, self.mix_bias, self.shape.splits_sequence, self.shape.waits)
        sequence, batch = mixed.shape[:2]
        parts = mixed.view(sequence, batch * self.heads, -1).chunk(3, -1)
        if self.shape.recompute == "attention":
            found = checkpoint(self.core, *parts, use_reentrant=True)
        else:
            found = self.core(*parts)
        found = found.transpose(0, 1).reshape(sequence, batch, -1)
        return _RowLinear.apply(found, self.out, self.shape.splits_sequence), self.out_bias

    def core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[heads, sequence, width]."""
        query, key, value = (one.transpose(0, 1) for one in (query, key, value))
        buffer = query.new_empty(query.shape[0], query.shape[1], key.shape[1])
        scores = torch.baddbmm(buffer, query, key.transpose(1, 2), beta=0.0, alpha=query.shape[-1] ** -0.5)
        return nn.functional.dropout(_CausalSoftmax.apply(scores), DROPOUT).bmm(value)


class Perceptron(nn.Module):
    """Units of this rank."""

    def __init__(self, shape: Shape, num_ranks: int) -> None:
        super().__init__()
        self.splits, self.waits = shape.splits_sequence, shape.waits
        width = shape.feedforward // num_ranks
        self.up, self.up_bias = parameter(width, shape.hidden), parameter(width)
        self.down, self.down_bias = parameter(shape.hidden, width), parameter(shape.hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Its bias apart, to be added with what follows."""
        wide = _BiasGelu.apply(_ColumnLinear.apply(x, self.up, None, self.splits, self.waits), self.up_bias)
        return _RowLinear.apply(wide, self.down, self.splits), self.down_bias


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape, num_ranks: int) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(shape.hidden, dtype=HALF) for _ in range(2))
        self.attention, self.perceptron = Attention(shape, num_ranks), Perceptron(shape, num_ranks)

    def forward(self, x: Tensor) -> Tensor:
        """[sequence, batch, hidden]."""
        x = _BiasDropoutAdd.apply(*self.attention(self.first(x)), x)
        return _BiasDropoutAdd.apply(*self.perceptron(self.second(x)), x)


class Embedding(nn.Module):
    """Words of this rank, and places."""

    def __init__(self, shape: Shape, num_ranks: int) -> None:
        super().__init__()
        self.splits, self.count = shape.splits_sequence, shape.vocabulary // num_ranks
        self.words, self.places = parameter(self.count, shape.hidden), parameter(shape.sequence, shape.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [sequence, batch, hidden]."""
        own = tokens - dist.get_rank() * self.count
        is_own = (own >= 0) & (own < self.count)
        x = nn.functional.embedding(own * is_own, self.words) * is_own.unsqueeze(-1)
        x = _Summed.apply(x)
        x = (x + self.places).transpose(0, 1).contiguous()
        x = _Own.apply(x) if self.splits else x
        return nn.functional.dropout(x, DROPOUT)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        return gradient


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.chunk(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        whole, sending = gathered(gradient)
        sending.wait()
        return whole


class _CrossEntropy(torch.autograd.Function):
    """Over words that lie on all ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        most = logits.max(-1)[0]
        dist.all_reduce(most, dist.ReduceOp.MAX)
        logits = logits - most.unsqueeze(-1)
        own = targets - dist.get_rank() * logits.shape[-1]
        is_own = (own >= 0) & (own < logits.shape[-1])
        right = logits.gather(-1, (own * is_own).unsqueeze(-1)).squeeze(-1) * is_own
        dist.all_reduce(right)
        shares = logits.exp_()
        whole = shares.sum(-1)
        dist.all_reduce(whole)
        shares.div_(whole.unsqueeze(-1))
        ctx.save_for_backward(shares, own, is_own)
        return whole.log() - right

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        shares, own, is_own = ctx.saved_tensors
        found = shares.scatter_add(-1, (own * is_own).unsqueeze(-1), -is_own.unsqueeze(-1).to(shares.dtype))
        return found.mul_(gradient.unsqueeze(-1)), None


class Head(nn.Module):
    """The last norm, the words' weight again, and the loss."""

    def __init__(self, shape: Shape, words: nn.Parameter) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(shape.hidden, dtype=HALF), words
        self.splits, self.waits = shape.splits_sequence, shape.waits

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        logits = _ColumnLinear.apply(self.norm(x), self.words, None, self.splits, self.waits)
        return _CrossEntropy.apply(logits.float(), targets.t()).mean()


class Model(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        num_ranks = dist.get_world_size()
        self.recompute = shape.recompute
        self.embedding = Embedding(shape, num_ranks)
        self.blocks = nn.ModuleList(Block(shape, num_ranks) for _ in range(shape.blocks))
        self.head = Head(shape, self.embedding.words)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.recompute == "full" else block(x)
        return self.head(x, targets)
