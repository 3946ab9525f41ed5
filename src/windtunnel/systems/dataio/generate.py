"""Generate a data set of random bytes.

In: a configuration. Out: its files on its storage, each of them whole; files that are there already stay. Rank r
writes files r, r + R, ...; the bytes of a file depend on the seed and its number only. Random bytes do not compress, so
that neither a file system nor a device can make them smaller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.base.reading import parse_json
from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DlioConfig
from windtunnel.systems.dataio.dataset import SIZE_SEED, FileSet, file_set
from windtunnel.systems.dataio.formats import FileLayout, Format, make_format
from windtunnel.systems.dataio.storage import Storage, open_storage
from windtunnel.units import format_size

__all__ = ["GeneratedFiles", "data_files", "generate", "random_samples"]

_MANIFEST = ".windtunnel.json"
_RESERVE = 0.02  # of what is written, for metadata of the file system


@dataclass(frozen=True)
class GeneratedFiles:
    """What a rank did.

    Attributes
    ----------
    num_written, num_kept : int
        Files of this rank that were written, and that were there.
    num_bytes : int
        Of the samples that were written.
    """

    num_written: int
    num_kept: int
    num_bytes: int


def data_files(config: DlioConfig, *, is_eval: bool = False) -> FileSet:
    """List the files of a configuration.

    Raises
    ------
    InputError
        Data sets of its format have no files.
    """
    suffix = make_format(config.dataset, open_storage(config.storage)).suffix
    return file_set(config.dataset, suffix, is_eval=is_eval)


def random_samples(layout: FileLayout, seed: int, *, is_eval: bool, file: int) -> Iterator[NDArray[Any]]:
    """Draw the samples of a file, one after the other."""
    random = np.random.default_rng([seed, is_eval, file, 1])
    for _ in range(layout.num_samples):
        yield np.frombuffer(random.bytes(layout.sample_bytes), layout.dtype).reshape(layout.dims)


def generate(
    config: DlioConfig,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    seed: int = SIZE_SEED,
    is_forced: bool = False,
    progress: Progress | None = None,
) -> GeneratedFiles:
    """Write the files of one rank that are not there yet.

    Parameters
    ----------
    config : DlioConfig
    rank, num_ranks : int
    seed : int
        Of sizes and bytes.
    is_forced : bool
        Files that are there, of this or another data set, are written anew.
    progress : callable, optional

    Raises
    ------
    InputError
        There is not enough room, the folder holds another data set, or the storage fails.
    """
    storage = open_storage(config.storage)
    kind = make_format(config.dataset, storage)
    splits = [(is_eval, file_set(config.dataset, kind.suffix, is_eval=is_eval, seed=seed)) for is_eval in (False, True)]
    present = _present(storage, config, seed, is_forced)
    _require_room(storage, kind, splits, present)
    if rank == 0:
        for folder in ("train", "valid"):  # DLIO lists both
            storage.make_folder(f"{config.dataset.data_folder.rstrip('/')}/{folder}")
        _write_manifest(storage, config, seed)
    tasks = [
        (is_eval, files, file)
        for is_eval, files in splits
        for file in range(rank, len(files.keys), num_ranks)
        if files.keys[file] not in present
    ]
    storage.remove_scratch(name for _, files, i in tasks for name in (files.keys[i], *kind.companions(files.keys[i])))
    num_bytes = 0
    for done, (is_eval, files, file) in enumerate(tasks):
        if progress is not None:
            progress("generating", done, len(tasks))
        layout = files.layout(file)
        _write_file(kind, files.keys[file], layout, random_samples(layout, seed, is_eval=is_eval, file=file))
        num_bytes += layout.num_bytes
    total = sum(len(range(rank, len(files.keys), num_ranks)) for _, files in splits)
    return GeneratedFiles(len(tasks), total - len(tasks), num_bytes)


def _write_file(kind: Format, key: str, layout: FileLayout, samples: Iterator[NDArray[Any]]) -> None:
    with ExitStack() as stack:
        # contexts end in reverse: a file that is there has its index
        path = stack.enter_context(kind.storage.put(key))
        companions = [stack.enter_context(kind.storage.put(name)) for name in kind.companions(key)]
        kind.write(path, companions, layout, samples)


def _present(storage: Storage, config: DlioConfig, seed: int, is_forced: bool) -> dict[str, int]:
    """Files that are there, by key, if they are of this data set."""
    folder = config.dataset.data_folder.rstrip("/")
    present = {**storage.sizes(f"{folder}/train"), **storage.sizes(f"{folder}/valid")}
    if not present or is_forced:
        return {}
    fix = "choose another dataset.data_folder, or remove the folder"
    name = f"{folder}/{_MANIFEST}"
    if storage.size(name) is None:
        raise InputError(f"the folder holds {len(present):,} files of an unknown data set", where=folder, fix=fix)
    with storage.open(name) as file:
        before = parse_json(file.read(), name)
    expected = _manifest(config, seed)
    if not isinstance(before, dict):
        raise InputError("the description of the data set is damaged", where=name, fix=fix)
    for key, value in expected.items():
        if before.get(key) != value:
            raise InputError(
                f"the folder holds another data set: its {key} is {before.get(key)!r}, not {value!r}",
                where=folder, fix=fix,
            )  # fmt: skip
    return present


def _manifest(config: DlioConfig, seed: int) -> dict[str, Any]:
    dataset = config.dataset
    names = (
        "format", "record_length_bytes", "record_length_bytes_stdev", "record_dims", "record_element_type",
        "num_files_train", "num_files_eval", "num_samples_per_file", "num_subfolders_train", "num_subfolders_eval",
        "file_prefix", "compression",
    )  # fmt: skip
    values = {name: getattr(dataset, name) for name in names}
    return json.loads(json.dumps({**values, "seed": seed}))  # type: ignore[no-any-return]


def _write_manifest(storage: Storage, config: DlioConfig, seed: int) -> None:
    with storage.put(f"{config.dataset.data_folder.rstrip('/')}/{_MANIFEST}") as path:
        path.write_text(json.dumps(_manifest(config, seed), indent=1), encoding="utf-8")


def _require_room(storage: Storage, kind: Format, splits: list[tuple[bool, FileSet]], present: dict[str, int]) -> None:
    free = storage.free_bytes()
    if free is None:
        return
    missing = [
        kind.estimate_bytes(files.layout(index))
        for _, files in splits
        for index, key in enumerate(files.keys)
        if key not in present
    ]
    needed = round(sum(missing) * (1 + _RESERVE))
    if needed > free:
        raise InputError(
            f"the data set does not fit: {len(missing):,} files of {format_size(needed)}, {format_size(free)} are free",
            where=storage.root,
            fix="free some space, choose another storage.storage_root, or reduce dataset.num_files_train",
        )
