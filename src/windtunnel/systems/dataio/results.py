"""Results in DLIO's files: those of other runs are read, those of ours are written.

In: a folder with ``{rank}_output.json`` and ``per_epoch_stats.json`` (or one per rank). Out: block times of each epoch
and rank, to be recomputed with ``metrics``; what the run itself reported. Not here: running anything.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.reading import parse_json
from windtunnel.errors import InputError
from windtunnel.systems.dataio.metrics import BlockTimes, JobMetrics, job_metrics

__all__ = ["ForeignResults", "read_results", "write_results"]

Epochs = dict[int, list[list[BlockTimes]]]


@dataclass(frozen=True, eq=False)
class ForeignResults:
    """A run that DLIO reported.

    Attributes
    ----------
    epochs : dict
        By number: for each rank its blocks.
    reported_au_ratios : tuple of float
        By epoch, as the summary has them; empty where there is no summary.
    batch_size : int
        1 where no configuration says it.
    is_batch_given : bool
        Whether a configuration of the run says the batch size.
    """

    epochs: Epochs
    reported_au_ratios: tuple[float, ...]
    batch_size: int
    is_batch_given: bool

    @property
    def num_ranks(self) -> int:
        """Ranks of the job."""
        return max((len(ranks) for ranks in self.epochs.values()), default=0)

    def metrics(self, *, num_start: int = 1, num_end: int = 0, is_dlio: bool = False) -> JobMetrics:
        """Recompute AU and throughput; see ``metrics.job_metrics``."""
        return job_metrics(self.epochs, num_start=num_start, num_end=num_end, is_dlio=is_dlio)


def read_results(folder: Path) -> ForeignResults:
    """Read the result files of a run.

    The wall time of a block is in no file: it follows from the reported throughput, of which versions of DLIO differ in
    the steps that they count. The one that fits the time stamps of the block is taken.

    Raises
    ------
    InputError
        There are none, or they are damaged.
    """
    files = {int(path.name.partition("_")[0]): path for path in folder.glob("*_output.json") if path.name[0].isdigit()}
    if not files:
        raise InputError(
            "there are no results of DLIO here", where=str(folder), fix="give a folder with files {rank}_output.json"
        )
    if missing := sorted(set(range(max(files) + 1)) - set(files)):
        raise InputError(f"results of ranks {missing} are missing", where=str(folder), fix="add their files")
    batch = _batch_size(folder)
    epochs: Epochs = {}
    for rank in sorted(files):
        document, stats = _document(files[rank]), _stats(folder, rank)
        for key, epoch in document.items():
            if not key.isdigit():
                continue
            try:
                blocks = _blocks(epoch, stats.get(key, {}), batch)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"epoch {key} is damaged: {error!r}", where=str(files[rank])) from error
            epochs.setdefault(int(key), []).append(blocks)
    summary = folder / "summary.json"
    reported = _document(summary).get("metric", {}).get("train_au_percentage", []) if summary.exists() else []
    return ForeignResults(epochs, tuple(value / 100 for value in reported), batch or 1, batch is not None)


def _document(path: Path) -> dict[str, Any]:
    document = parse_json(path.read_bytes(), str(path))
    if not isinstance(document, dict):
        raise InputError("this file holds no mapping", where=str(path))
    return document


def _stats(folder: Path, rank: int) -> dict[str, Any]:
    """Time stamps of the epochs of a rank; older versions wrote those of rank 0 only."""
    for name in (f"{rank}_per_epoch_stats.json", "per_epoch_stats.json", "0_per_epoch_stats.json"):
        if (folder / name).exists():
            return _document(folder / name)
    return {}


def _batch_size(folder: Path) -> int | None:
    """Batch size in the configuration of the run, where that is kept beside its results."""
    from windtunnel.base.extras import require

    for name in ("hydra/config.yaml", ".hydra/config.yaml", "hydra_log/config.yaml"):
        if (folder / name).exists():
            yaml = require("yaml", extra="dataio")
            try:
                found = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
                return int(found.get("workload", found)["reader"]["batch_size"])
            except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
                return None
    return None


def _blocks(epoch: Mapping[str, Any], stats: Mapping[str, Any], batch: int | None) -> list[BlockTimes]:
    blocks = []
    for name in sorted(epoch["load"], key=lambda name: int(name.removeprefix("block"))):
        load, proc, compute = (np.asarray(epoch[kind][name], np.float64) for kind in ("load", "proc", "compute"))
        wall_s = _wall_s(load, proc, epoch.get("throughput", {}).get(name), stats.get(name, {}), batch)
        blocks.append(BlockTimes(load, compute, wall_s, batch or 1, proc))
    return blocks


def _wall_s(load: Any, proc: Any, rate: float | None, stamps: Mapping[str, Any], batch: int | None) -> float:
    """Time of a block: of what the throughput can mean, what lies nearest to its time stamps."""
    stamped_s = float(proc.sum())
    if "end" in stamps:
        stamped_s = (_moment(stamps["end"]) - _moment(stamps["start"])).total_seconds()
    if not rate or batch is None:  # without the batch size, a throughput says nothing
        return stamped_s
    # all steps over the block (2023), or all but two over the time without the first step (later)
    meanings = (len(load) * batch / rate, (len(load) - 2) * batch / rate + float(proc[:1].sum()))
    return float(min(meanings, key=lambda wall_s: abs(wall_s - stamped_s)))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def write_results(
    folder: Path,
    epochs: Mapping[int, Sequence[Sequence[BlockTimes]]],
    starts: Mapping[int, Sequence[Sequence[datetime]]],
    *,
    num_start: int,
    num_end: int,
    record_bytes: int,
    extra: Mapping[str, Any],
) -> list[Path]:
    """Write a run as DLIO does, with its formulas, so that its tools read it; returns the files.

    Parameters
    ----------
    folder : Path
    epochs : mapping
        By number of the epoch: for each rank its blocks.
    starts : mapping
        When each of these blocks began.
    num_start, num_end : int
        Excluded steps.
    record_bytes : int
        Bytes of a sample, for the I/O rate.
    extra : mapping
        More fields of the summary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    num_ranks = max(len(ranks) for ranks in epochs.values())
    paths = []
    for rank in range(num_ranks):
        output: dict[str, Any] = {"hostname": platform.node()}
        stats: dict[str, Any] = {}
        for epoch, ranks in epochs.items():
            named = {f"block{index + 1}": block for index, block in enumerate(ranks[rank])}
            output[str(epoch)] = _output_of(named, num_start, num_end)
            stats[str(epoch)] = _stats_of(named, starts[epoch][rank])
        paths += [
            _write(folder / f"{rank}_output.json", output),
            _write(folder / f"{rank}_per_epoch_stats.json", stats),
        ]
    metrics = job_metrics(epochs, num_start=num_start, num_end=num_end, is_dlio=True)
    rates = np.array([rate for rate in metrics.samples_per_s if rate is not None])
    ratios = 100 * np.array([ratio for ratio in metrics.au_ratios if ratio is not None])
    mib = record_bytes / 2**20
    metric = {
        "train_au_percentage": ratios.tolist(),
        "train_au_mean_percentage": float(ratios.mean()) if len(ratios) else None,
        "train_au_stdev_percentage": float(ratios.std()) if len(ratios) else None,
        "train_throughput_samples_per_second": rates.tolist(),
        "train_throughput_mean_samples_per_second": float(rates.mean()) if len(rates) else None,
        "train_throughput_stdev_samples_per_second": float(rates.std()) if len(rates) else None,
        # DLIO calls it MB; it is MiB
        "train_io_mean_MB_per_second": float(rates.mean() * mib) if len(rates) else None,
        "train_io_stdev_MB_per_second": float(rates.std() * mib) if len(rates) else None,
    }
    summary = {"num_accelerators": num_ranks, "hostname": platform.node(), "metric": metric, "epochs": len(epochs)}
    paths.append(_write(folder / "summary.json", {**summary, **extra}))
    return paths


def _output_of(blocks: Mapping[str, BlockTimes], num_start: int, num_end: int) -> dict[str, Any]:
    au = {name: block.au_ratio(num_start, num_end) for name, block in blocks.items()}
    return {
        "load": {name: block.load_s.tolist() for name, block in blocks.items()},
        "proc": {name: block.steps_s.tolist() for name, block in blocks.items()},
        "compute": {name: block.compute_s.tolist() for name, block in blocks.items()},
        "throughput": {
            name: block.samples_per_s(num_start, num_end, is_dlio=True) for name, block in blocks.items()
        },
        "au": {name: None if value is None else 100 * value for name, value in au.items()},
    }  # fmt: skip


def _stats_of(blocks: Mapping[str, BlockTimes], starts: Sequence[datetime]) -> dict[str, Any]:
    from datetime import timedelta

    stats: dict[str, Any] = {}
    first, last = starts[0], starts[0]
    for (name, block), start in zip(blocks.items(), starts, strict=True):
        last = start + timedelta(seconds=block.wall_s)
        stats[name] = {"start": start.isoformat(), "end": last.isoformat(), "duration": f"{block.wall_s:.2f}"}
    total = f"{(last - first).total_seconds():.2f}"
    return {"start": first.isoformat(), **stats, "end": last.isoformat(), "duration": total}


def _write(path: Path, document: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(document, indent=4), encoding="utf-8")
    return path
