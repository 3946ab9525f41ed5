"""Train a small character-level transformer on sentences that a little grammar makes up.

A plain training script: it knows nothing of windtunnel.

    python examples/train_transformer.py --steps 300
"""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WHO = ("the pilot", "an engineer", "a small bird", "the old propeller", "my neighbor", "the wind")
DOES = ("measures", "remembers", "builds", "follows", "forgets", "paints")
WHAT = ("the tunnel", "a paper wing", "every second", "two clouds", "the long table", "a better model")
HOW = ("slowly", "at noon", "without a sound", "again and again", "before breakfast", "by hand")


def make_text(num_sentences: int, seed: int = 0) -> str:
    """Sentences like "the pilot measures a paper wing at noon"."""
    rng = random.Random(seed)
    return "".join(" ".join(rng.choice(part) for part in (WHO, DOES, WHAT, HOW)) + ".\n" for _ in range(num_sentences))


class Characters(Dataset):
    """Windows of the text, encoded when they are asked for."""

    def __init__(self, text: str, length: int) -> None:
        self.text, self.length = text, length
        self.code = {character: index for index, character in enumerate(sorted(set(text)))}

    def __len__(self) -> int:
        return len(self.text) - self.length - 1

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.tensor([self.code[character] for character in self.text[start : start + self.length + 1]])
        return codes[:-1], codes[1:]


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norm_feed_forward(x))


class LanguageModel(nn.Module):
    """Predicts the next character."""

    def __init__(self, num_characters: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_characters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.characters(x) + self.positions(places))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=3)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = Characters(make_text(5000), arguments.length)
    loader = DataLoader(data, batch_size=arguments.batch_size, shuffle=True)
    model = LanguageModel(len(data.code), arguments.length, arguments.width, arguments.depth, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss_function = nn.CrossEntropyLoss()

    step = 0
    while step < arguments.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step:5d}  loss {loss.item():.3f}", flush=True)
            if step == arguments.steps:
                break


if __name__ == "__main__":
    main()
