"""Checkpoints of a pipeline: a file per rank, and one line that says which set is whole.

In: a folder; the state of each rank. Out: files that are complete or absent: each is written to a temporary file and
renamed, and a set counts once all ranks have written theirs. Not here: what is in them (``weights``, ``trainer``).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from windtunnel.base.documents import json_text
from windtunnel.base.outputs import whole
from windtunnel.errors import InputError

__all__ = ["finish_checkpoint", "last_checkpoint", "read_rank", "read_saved_plan", "write_rank"]

_SCHEMA = "windtunnel.pipeline-checkpoint/1"
_NAME = "pipeline.json"


def last_checkpoint(folder: Path, identity: dict[str, Any]) -> int:
    """Batches that were trained on before the last whole set of files; 0 where there is none.

    Raises
    ------
    InputError
        The set is of another pipeline, or what says so cannot be read.
    """
    batch, kept, _ = _head(folder)
    requested = json.loads(json_text(identity))
    other = [key for key in requested if batch and kept.get(key) != requested[key]]
    if other:
        raise InputError(
            f"the checkpoint is of another pipeline: {other[0]} is {_brief(kept.get(other[0]))}, "
            f"not {_brief(requested[other[0]])}",
            where=str(folder), fix="run it as it was begun, or name another folder",
        )  # fmt: skip
    return batch


def read_saved_plan(folder: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """The stage of each module of the pipeline that has left a checkpoint, and what it was predicted to take.

    Both are empty where there is none.

    Raises
    ------
    InputError
        It cannot be read.
    """
    _, identity, predicted = _head(folder)
    return {str(name): int(stage) for name, stage in identity.get("stages", {}).items()}, predicted


def _head(folder: Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    path = folder / _NAME
    if not path.exists():
        return 0, {}, {}
    try:
        result = json.loads(path.read_text())
        return int(result["batch"]), dict(result["identity"]), dict(result["predicted"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no checkpoint of a pipeline", where=str(folder), fix="name another folder") from (
            error
        )


def write_rank(folder: Path, batch: int, rank: int, state: dict[str, Any]) -> None:
    """Write what a rank goes on with.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    import torch

    with whole(_file(folder, batch, rank)) as scratch:
        torch.save(state, scratch)


def read_rank(folder: Path, batch: int, rank: int) -> dict[str, Any]:
    """Read what a rank has written.

    Raises
    ------
    InputError
        It cannot be read.
    """
    import torch

    path = _file(folder, batch, rank)
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:  # torch.load and pickle have no common class for what they refuse
        raise InputError(
            f"the checkpoint of rank {rank} cannot be read: {str(error).partition(chr(10))[0]}", where=str(path),
            fix="start again in another folder",
        ) from error  # fmt: skip
    return state


def finish_checkpoint(folder: Path, batch: int, identity: dict[str, Any], predicted: dict[str, Any]) -> None:
    """Commit a set after every rank has written; older sets are removed. The prediction is saved with it.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    document = {"schema": _SCHEMA, "batch": batch, "identity": identity, "predicted": predicted}
    with whole(folder / _NAME) as scratch:
        scratch.write_text(json_text(document) + "\n")
    for older in folder.glob("batch-*"):
        if older.name != f"batch-{batch}":
            shutil.rmtree(older, ignore_errors=True)


def _file(folder: Path, batch: int, rank: int) -> Path:
    return folder / f"batch-{batch}" / f"rank{rank}.pt"


def _brief(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
