"""What published transformers are made of: embedding, one layer, head, sharded as Megatron does.

In: a network's name, a microbatch. Run as a script it trains a network of one layer in bfloat16, each rank with its
shard: the ranks of the job are the tensor degree. It is there for the dry run, which needs neither memory nor other
ranks; all further layers are like the one. Out: ``PUBLISHED`` shapes, ``Shape``. Not here: what is done with them.

Sources: the papers of the networks; Shoeybi et al., Megatron-LM, 2019, section 3, for the shards.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["PUBLISHED", "Shape"]

# B sequences, S positions, H heads of this rank, D width of a head, W width


@dataclass(frozen=True)
class Shape:
    """Sizes of a network.

    Parameters
    ----------
    width, depth, heads, inner, vocabulary, length : int
        ``inner`` is the width of a feed-forward layer, ``length`` that of a sequence.
    is_causal : bool
        Each position sees those before it only.
    norms_first : bool
        Before attention and feed-forward, not after they are added.
    activation : str
        ``gelu``, ``relu``, or ``silu`` for a gated layer with RMS norms, rotary positions, no biases, no dropout.
    word_width : int
        Of the embedding; 0: ``width``.
    source : str
    """

    width: int
    depth: int
    heads: int
    inner: int
    vocabulary: int
    length: int
    is_causal: bool = True
    norms_first: bool = True
    activation: str = "gelu"
    word_width: int = 0
    source: str = ""

    @property
    def is_gated(self) -> bool:
        """Llama's layer, not GPT's."""
        return self.activation == "silu"

    def may_split(self, num_ranks: int) -> bool:
        """Whether every rank gets as much as the others."""
        return self.heads % num_ranks == 0 and self.inner % num_ranks == 0


def _gpt(width: int, depth: int, heads: int, length: int, source: str, vocabulary: int = 50_257) -> Shape:
    return Shape(width, depth, heads, 4 * width, vocabulary, length, source=source)


PUBLISHED: Mapping[str, Shape] = MappingProxyType(
    {
        "bert-large": Shape(
            1024, 24, 16, 4096, 30_522, 512, is_causal=False, norms_first=False, source="Devlin et al., NAACL 2019"
        ),
        "opt-350m": Shape(
            1024, 24, 16, 4096, 50_272, 2048, norms_first=False, activation="relu", word_width=512,
            source="Zhang et al., OPT, 2022",
        ),
        "gpt2-xl": _gpt(1600, 48, 25, 1024, "Radford et al., GPT-2, 2019"),
        "megatron-gpt2-2.5b": _gpt(1920, 54, 20, 1024, "Shoeybi et al., Megatron-LM, 2019, table 2", 51_200),
        "megatron-gpt2-8.3b": _gpt(3072, 72, 24, 1024, "Shoeybi et al., Megatron-LM, 2019, table 2", 51_200),
        "gpt3": _gpt(12_288, 96, 96, 2048, "Brown et al., GPT-3, NeurIPS 2020"),
        "llama2-7b": Shape(
            4096, 32, 32, 11_008, 32_000, 4096, activation="silu", source="Touvron et al., Llama 2, 2023"
        ),
    }
)  # fmt: skip
"""Networks by name."""


def _tensor_parallel_functions(num_ranks: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What enters a part that is split, and what leaves it: gradients of the one, values of the other are summed."""
    import torch
    from torch import distributed

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            total = gradients[0].contiguous()
            distributed.all_reduce(total)
            return total

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            distributed.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return gradients[0]

    if num_ranks == 1:
        return lambda x: x, lambda x: x
    return Enter.apply, Leave.apply


def _norm(shape: Shape) -> torch.nn.Module:
    from torch import nn

    return nn.RMSNorm(shape.width) if shape.is_gated else nn.LayerNorm(shape.width)


def _dropout(shape: Shape) -> torch.nn.Module:
    """One operator, as a device runs it."""
    import torch
    from torch import nn

    class Dropout(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.native_dropout(x, 0.1, True)[0]

    return nn.Identity() if shape.is_gated else Dropout()


def _layer(shape: Shape, num_ranks: int) -> torch.nn.Module:
    """Attention and feed-forward, heads and inner width split over ranks."""
    import torch
    from torch import nn

    enter, leave = _tensor_parallel_functions(num_ranks)
    head_width, inner = shape.width // shape.heads, shape.inner // num_ranks
    own = shape.width // num_ranks
    has_bias = not shape.is_gated
    act: Callable[..., torch.Tensor] = getattr(nn.functional, shape.activation)

    class Layer(nn.Module):
        mask: torch.Tensor
        cosines: torch.Tensor
        sines: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _norm(shape), _norm(shape)
            if shape.is_gated:
                self.query, self.key, self.value = (nn.Linear(shape.width, own, bias=False) for _ in range(3))
                self.gate = nn.Linear(shape.width, inner, bias=False)
            else:
                self.mixed = nn.Linear(shape.width, 3 * own)
            self.out = nn.Linear(own, shape.width, bias=has_bias)
            self.up = nn.Linear(shape.width, inner, bias=has_bias)
            self.down = nn.Linear(inner, shape.width, bias=has_bias)
            self.drop = _dropout(shape)
            hidden = torch.full((shape.length, shape.length), -1e9).triu(1)
            self.register_buffer("mask", hidden[None, None].bfloat16(), persistent=False)
            turns = torch.ones(shape.length, head_width).bfloat16()
            self.register_buffer("cosines", turns, persistent=False)
            self.register_buffer("sines", turns.clone(), persistent=False)

        def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
            parts = [self.query(x), self.key(x), self.value(x)] if shape.is_gated else self.mixed(x).chunk(3, -1)
            query, key, value = (part.unflatten(-1, (-1, head_width)).transpose(1, 2) for part in parts)
            return [self.rotate(query), self.rotate(key), value] if shape.is_gated else [query, key, value]

        def rotate(self, x_BHSD: torch.Tensor) -> torch.Tensor:
            low, high = x_BHSD.chunk(2, -1)
            return x_BHSD * self.cosines + torch.cat([-high, low], -1) * self.sines

        def attend(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.heads(enter(x))
            scores = query @ key.transpose(-1, -2) / math.sqrt(head_width)
            scores = scores + self.mask if shape.is_causal else scores
            mixed = self.drop(scores.softmax(-1)) @ value
            return self.drop(leave(self.out(mixed.transpose(1, 2).flatten(2))))  # type: ignore[no-any-return]

        def feed(self, x: torch.Tensor) -> torch.Tensor:
            x = enter(x)
            wide = act(self.gate(x)) * self.up(x) if shape.is_gated else act(self.up(x))
            return self.drop(leave(self.down(wide)))  # type: ignore[no-any-return]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if shape.norms_first:
                x = x + self.attend(self.first(x))
                return x + self.feed(self.second(x))
            x = self.first(x + self.attend(x))
            return self.second(x + self.feed(x))  # type: ignore[no-any-return]

    return Layer()


def _network(shape: Shape, num_ranks: int) -> torch.nn.Module:
    """Embedding, one layer, head with its loss; the vocabulary is split over ranks."""
    from torch import nn

    enter, leave = _tensor_parallel_functions(num_ranks)
    words = -(-shape.vocabulary // num_ranks)
    word_width = shape.word_width or shape.width

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, word_width)
            self.widen = nn.Linear(word_width, shape.width, bias=False) if shape.word_width else nn.Identity()
            if not shape.is_gated:
                self.places = nn.Embedding(shape.length, shape.width)
            self.drop = _dropout(shape)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.widen(leave(self.words(tokens)))
            x = x if shape.is_gated else x + self.places.weight[None]
            return self.drop(x)  # type: ignore[no-any-return]

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = _norm(shape)
            self.before = nn.Linear(shape.width, word_width, bias=False) if shape.word_width else nn.Identity()
            self.scores = nn.Linear(word_width, words, bias=False)

        def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            scores = self.scores(enter(self.before(self.norm(x))))
            losses = nn.functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten(), reduction="none")
            return leave(losses).mean()  # type: ignore[no-any-return]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer, self.head = Embedding(), _layer(shape, num_ranks), Head()

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(self.embedding(tokens)), targets)  # type: ignore[no-any-return]

    return Network().bfloat16()


def _train(shape: Shape, microbatch: int, num_steps: int) -> None:
    import torch
    from torch import distributed

    device = "cuda" if torch.cuda.is_available() else "cpu"
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    num_ranks = distributed.get_world_size()
    network = _network(shape, num_ranks).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(num_steps):
        tokens = torch.randint(-(-shape.vocabulary // num_ranks), (microbatch, shape.length), device=device)
        optimizer.zero_grad()
        network(tokens, tokens).backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=PUBLISHED)
    parser.add_argument("--microbatch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    _train(PUBLISHED[given.network], given.microbatch, given.steps)
