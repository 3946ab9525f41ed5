"""The input pipeline of a user's training script, as a configuration.

In: an unmodified script that uses ``torch.utils.data.DataLoader``. Out: ``RecordedInput``: files, sizes, format, batch
size, workers, times of samples and steps; and the sections of a DLIO configuration that behaves like it. The data set
of every loader is wrapped; what its samples open and take is appended to a file per process, as loader workers are
processes of their own. Not here: writing YAML (``config_file``).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure.disks import read_all
from windtunnel.measure.turns import elapsed_ns, quiet
from windtunnel.sources.torch.live import swap
from windtunnel.sources.torch.script import EndOfScript, check_script, run_as_main

__all__ = ["RecordedInput", "record_script"]

_FORMATS = {
    ".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".csv": "csv", ".jpg": "jpeg", ".jpeg": "jpeg",
    ".png": "png", ".tfrecord": "tfrecord", ".bin": "indexed_binary",
}  # fmt: skip
_OTHER = "npy"  # of unknown files: one read of the whole file
_MIN_STEPS, _MAX_READS = 3, 64
_CODE = (".py", ".pyc", ".so", ".pth", ".json", ".yaml", ".yml", ".txt", ".cfg", ".toml", "")
_OPENED: list[str] = []
_WATCHED: list[int] = []  # processes whose opened files are noted: an audit hook cannot be taken away


@dataclass(frozen=True)
class RecordedInput:
    """How a script reads its data.

    Attributes
    ----------
    script : str
    format : str
        Of DLIO, by the suffix of the files.
    is_format_known : bool
        Whether the suffix says it; else ``npy`` stands for files that are read whole.
    num_samples, num_files : int
        Samples of the data set, and files that would hold them at the observed samples per file.
    sample_bytes, sample_bytes_std : float
        Of the files that a sample opens.
    sample_ns, read_ns : float
        Lower quartile of the time of a sample, and of reading its files alone.
    batch_size, num_workers, prefetch_factor : int
    is_shuffled : bool
    step_ns : list of int
        From each batch to the request of the next one.
    tensor_bytes : int
        Of a sample as the model gets it.
    """

    script: str
    format: str
    is_format_known: bool
    num_samples: int
    num_files: int
    sample_bytes: float
    sample_bytes_std: float
    sample_ns: float
    read_ns: float
    batch_size: int
    num_workers: int
    prefetch_factor: int
    is_shuffled: bool
    step_ns: list[int]
    tensor_bytes: int

    def sections(self, folder: str) -> dict[str, Any]:
        """Return the configuration that behaves like the script; ``folder`` is where its data would be generated."""
        per_file = max(round(self.num_samples / self.num_files), 1)
        return {
            "framework": "pytorch",
            "workflow": {"train": True, "generate_data": True},
            "model": {"name": Path(self.script).stem},
            "dataset": {
                "format": self.format,
                "data_folder": folder,
                "num_files_train": self.num_files,
                "num_samples_per_file": per_file,
                "record_length_bytes": max(round(self.sample_bytes), 1),
                "record_length_bytes_stdev": round(self.sample_bytes_std),
                "record_length_bytes_resize": self.tensor_bytes,
            },
            "reader": {
                "data_loader": "pytorch",
                "batch_size": self.batch_size,
                "read_threads": self.num_workers,
                "prefetch_size": max(self.num_workers * self.prefetch_factor, 1),
                "sample_shuffle": "seed" if self.is_shuffled else "off",
                "preprocess_time": max(self.sample_ns - self.read_ns, 0.0) / 1e9,
                "multiprocessing_context": "spawn",
            },
            "train": {"computation_time": quiet(self.step_ns) / 1e9},
        }


class RecordedSamples:
    """A data set that notes the time of each sample and the files that it opens.

    Parameters
    ----------
    samples : Dataset
        Of the user.
    folder : Path
        Where each process appends its notes.
    """

    def __init__(self, samples: Any, folder: Path) -> None:
        self._samples, self._folder = samples, folder

    def __len__(self) -> int:
        return len(self._samples)

    def __getattr__(self, name: str) -> Any:
        # unpickling asks for names before there is anything
        if name.startswith("__") or "_samples" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._samples, name)

    def __getitem__(self, index: Any) -> Any:
        item: list[Any] = []
        _OPENED.clear()
        _watch_opens()
        taken_ns = elapsed_ns(lambda: item.append(self._samples[index]))
        note = {"index": repr(index), "ns": taken_ns, "files": list(_OPENED), "tensor_bytes": _tensor_bytes(item[0])}
        with (self._folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
        return item[0]


def _watch_opens() -> None:
    """Note files that are opened for reading by this process."""
    if os.getpid() in _WATCHED:
        return
    is_new = not _WATCHED  # a forked child has the hook of its parent
    _WATCHED.append(os.getpid())

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not set(str(arguments[1])) & set("wax+"):
            _OPENED.append(arguments[0])

    if is_new:
        sys.addaudithook(note)


def _tensor_bytes(item: Any) -> int:
    """Bytes of the largest array of a sample."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list | tuple):
        return max(map(_tensor_bytes, item), default=0)
    return int(getattr(item, "nbytes", 0) or 0)


def record_script(
    script: Path, argv: Sequence[str] = (), *, num_iterations: int = 20, progress: Progress | None = None
) -> RecordedInput:
    """Run a script for some iterations, and record how it reads its data.

    Parameters
    ----------
    script : Path
    argv : sequence of str
        Its arguments.
    num_iterations : int
    progress : callable, optional

    Raises
    ------
    InputError
        It makes no ``DataLoader`` with a data set that has a length, or its samples open no files.
    """
    path = check_script(script)
    seen = _Seen(num_iterations, progress)
    with tempfile.TemporaryDirectory(prefix="windtunnel-io-") as scratch:
        folder = Path(scratch)
        try:
            with _watch_loaders(folder, seen):
                run_as_main(path, argv)
        except (EndOfScript, SystemExit):
            pass
        except Exception as error:
            fix = "make it run without windtunnel first"
            raise InputError(f"the script failed: {error!r}", where=str(path), fix=fix) from error
        notes = [
            json.loads(line)
            for file in sorted(folder.glob("*.jsonl"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
    if seen.loader is None or not notes or len(seen.step_ns) < _MIN_STEPS:
        raise InputError(
            f"the script reads fewer than {_MIN_STEPS} batches from a DataLoader over a data set of known length",
            where=str(path),
            fix="record a script whose loop iterates over torch.utils.data.DataLoader",
        )
    return _summarize(path, seen, notes)


@dataclass
class _Seen:
    """What the loop of a script has shown."""

    num_iterations: int
    progress: Progress | None
    loader: Any = None
    step_ns: list[int] = field(default_factory=list)
    received: dict[int, int] = field(default_factory=dict)

    def request(self, iterator: Any) -> None:
        """A batch is requested: the step on the one before has ended."""
        if id(iterator) in self.received:
            self.step_ns.append(time.monotonic_ns() - self.received.pop(id(iterator)))
            if self.progress is not None:
                self.progress("iterations", min(len(self.step_ns), self.num_iterations), self.num_iterations)
        if len(self.step_ns) > self.num_iterations:
            raise EndOfScript


@contextlib.contextmanager
def _watch_loaders(folder: Path, seen: _Seen) -> Iterator[None]:
    """Wrap the data set of every loader, and note the time from each batch to the request of the next one."""
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    construct: Callable[..., None] = DataLoader.__init__
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__

    def watch_construction(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        construct(loader, RecordedSamples(dataset, folder) if is_indexed else dataset, *args, **kwargs)
        if is_indexed and seen.loader is None:
            seen.loader = loader

    def watch_fetch(iterator: Any) -> Any:
        seen.request(iterator)
        batch = fetch(iterator)
        seen.received[id(iterator)] = time.monotonic_ns()
        return batch

    with contextlib.ExitStack() as stack:
        stack.callback(swap(DataLoader, "__init__", watch_construction))
        stack.callback(swap(_BaseDataLoaderIter, "__next__", watch_fetch))
        yield


def _summarize(script: Path, seen: _Seen, notes: list[dict[str, Any]]) -> RecordedInput:
    from torch.utils.data import RandomSampler

    loader = seen.loader
    opened = [[name for name in note["files"] if _is_data(name)] for note in notes]
    if not any(opened):
        raise InputError(
            "its samples open no files that can be seen",
            where=str(script),
            fix="data that rests in memory, or is read by a C library, needs no storage to be measured",
        )
    sizes = [sum(Path(name).stat().st_size for name in set(names)) for names in opened if names]
    suffix = Counter(Path(name).suffix.lower() for names in opened for name in names).most_common(1)[0][0]
    reads = [read_all(map(Path, set(names)))[1] for names in opened[:_MAX_READS] if names]
    num_samples = len(loader.dataset)
    # different samples that open one file share it
    samples = {note["index"] for note, names in zip(notes, opened, strict=True) if names}
    per_file = max(round(len(samples) / len({name for names in opened for name in names})), 1)
    return RecordedInput(
        script=str(script),
        format=_FORMATS.get(suffix, _OTHER),
        is_format_known=suffix in _FORMATS,
        num_samples=num_samples,
        num_files=max(num_samples // per_file, 1),
        sample_bytes=fmean(sizes) / per_file,
        sample_bytes_std=pstdev(sizes) / per_file if per_file == 1 else 0.0,
        sample_ns=quiet([note["ns"] for note in notes]),
        read_ns=quiet(reads),
        batch_size=int(loader.batch_size or getattr(loader.batch_sampler, "batch_size", 1)),
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or 2,
        is_shuffled=isinstance(loader.sampler, RandomSampler),
        step_ns=seen.step_ns[1:],  # the first one allocates
        tensor_bytes=max(note["tensor_bytes"] for note in notes),
    )


def _is_data(name: str) -> bool:
    path = Path(name)
    return path.suffix.lower() not in _CODE and path.is_file() and not name.startswith(("/proc/", "/sys/", "/dev/"))
