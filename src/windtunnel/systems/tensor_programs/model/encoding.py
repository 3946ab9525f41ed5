"""Compact syntax trees: a nest in, its leaves with their places in pre-order out.

Only stores carry features; a place is the index of a store's id in the serialized tree, end markers included, so that
the depth and the order of the dropped inner nodes stay visible. Batches hold one number of leaves each, so nothing is
padded; ``pad`` is the masked form that serves every number. Not here: the network, normalization.

Source: CDMPP (EuroSys 2024), section 4. The positional angles are not halved, as in its released code.
"""

# P programs, N leaves of one program, F features

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.code_features import code_features
from windtunnel.systems.tensor_programs.model.features import NUM_FEATURES, Mode, PackedNest
from windtunnel.systems.tensor_programs.model.nest import If, Nest, Node, Store

__all__ = [
    "END",
    "MAX_LEAVES",
    "CompactTree",
    "bucket_batches",
    "encode",
    "positional_encoding",
    "serialize",
]

END = -1
MAX_LEAVES = 16


@dataclass(frozen=True)
class CompactTree:
    """One program as the network sees it.

    ``features`` [N, 164], ``code`` [N, 3, 39] by width of vectors, ``positions`` and ``leaf_ids`` [N], ``serialized``.
    """

    features: np.ndarray
    code: np.ndarray
    positions: np.ndarray
    leaf_ids: np.ndarray
    serialized: np.ndarray


def serialize(nest: Nest) -> tuple[np.ndarray, np.ndarray]:
    """Serialized tree and ids of its leaves.

    ``[id] + children + [-1]`` for the root (id 0) and every attribute, loop, allocation and store; guards are
    transparent.

    Returns
    -------
    serialized int16 [Z], leaf ids int16 [N].
    """
    tokens, leaf_ids = [0], []
    next_id = 1

    def walk(nodes: tuple[Node, ...]) -> None:
        nonlocal next_id
        for node in nodes:
            if isinstance(node, If):
                walk(node.body)
                walk(node.otherwise)
                continue
            tokens.append(next_id)
            next_id += 1
            if isinstance(node, Store):
                leaf_ids.append(tokens[-1])
            else:
                walk(node.body)
            tokens.append(END)

    walk(nest.body)
    return np.asarray([*tokens, END], dtype=np.int16), np.asarray(leaf_ids, dtype=np.int16)


def encode(nest: Nest, mode: Mode = "full") -> CompactTree:
    """The compact tree of a program."""
    serialized, leaf_ids = serialize(nest)
    where = nest.name or "nest"
    if not leaf_ids.size:
        raise InputError("this program stores nothing, so it has no leaf", where=where, fix="price it by the roofline")
    if leaf_ids.size > MAX_LEAVES:
        raise InputError(
            f"this program has {leaf_ids.size} stores, at most {MAX_LEAVES} are encoded",
            where=where,
            fix="price it by the roofline, or schedule it with less unrolling by hand",
        )
    indices = {int(token): index for index, token in enumerate(serialized) if token != END}
    positions = np.asarray([indices[int(leaf)] for leaf in leaf_ids], dtype=np.int16)
    packed = PackedNest(nest, skip_constants=False)
    return CompactTree(packed.rows(mode), code_features(nest, packed), positions, leaf_ids, serialized)


def positional_encoding(positions: np.ndarray, width: int = NUM_FEATURES) -> np.ndarray:
    """Sine and cosine of each place, float64 [..., width]; the exponent is ``2 i / width`` for every entry ``i``."""
    entries = np.arange(width)
    angles = np.asarray(positions, dtype=np.float64)[..., None] / 10000.0 ** (2 * entries / width)
    return np.where(entries % 2 == 0, np.sin(angles), np.cos(angles))


def bucket_batches(num_leaves: np.ndarray, batch_size: int, seed: int | None = None) -> Iterator[np.ndarray]:
    """Batches of rows that share one number of leaves; with a seed in random order.

    A last batch of one row joins the one before it, for batch statistics of a single row do not exist.
    """
    generator = None if seed is None else np.random.default_rng(seed)
    batches: list[np.ndarray] = []
    for count in np.unique(num_leaves):
        rows = np.flatnonzero(num_leaves == count)
        if generator is not None:
            generator.shuffle(rows)
        cuts = list(range(batch_size, rows.size, batch_size))
        if cuts and rows.size - cuts[-1] == 1:
            cuts.pop()
        batches.extend(np.split(rows, cuts))
    order = range(len(batches)) if generator is None else generator.permutation(len(batches))
    return (batches[index] for index in order)
