"""Real runs: files, loader workers, ranks; what is reported of them, and a script that is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command import windtunnel
from tests.shared_data import shared_path
from tests.systems.dataio.jobs import config_in, costs, real_job
from windtunnel.errors import InputError
from windtunnel.systems.dataio.config_file import dump_config, load_config
from windtunnel.systems.dataio.flight import fly_settings
from windtunnel.systems.dataio.loading import SampleSet, make_loader
from windtunnel.systems.dataio.order import all_rank_orders
from windtunnel.systems.dataio.predict import predict_job
from windtunnel.systems.dataio.record import record_script
from windtunnel.systems.dataio.results import read_results
from windtunnel.systems.dataio.run import run_job, running
from windtunnel.systems.dataio.source import ensure_files, job_of, measure_job
from windtunnel.systems.dataio.worker import EpochTask

_SCRIPT = """
import pathlib
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Arrays(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.from_numpy(np.load(pathlib.Path(__file__).parent / f"{index}.npy"))

if __name__ == "__main__":
    for batch in DataLoader(Arrays(), batch_size=2, shuffle=True, num_workers=WORKERS):
        batch.sum()
"""


def test_any_number_of_workers_reads_the_same_samples(tmp_path: Path) -> None:
    """In the main process and in the order of the rank; workers get their indices from the same sampler."""
    job = real_job(tmp_path, num_workers=0)
    read: list[int] = []

    class Noted(SampleSet):
        def __getitems__(self, samples: list[int]) -> list[object]:
            read.extend(samples)
            return super().__getitems__(samples)

    loader, order = make_loader(job, Noted(job), job.batch_size)
    order.samples = all_rank_orders(job.dataset, 1, 1)[0].tolist()
    batches = list(loader)

    assert read == order.samples
    assert batches[0][0].shape == (job.batch_size, job.tensor_bytes)
    assert all(span.worker == -1 and span.end_ns >= span.start_ns for _, span in batches)
    assert sum(span.read_bytes for _, span in batches) >= sum(path.stat().st_size for path in job.files)


def test_readers_keep_to_a_limit_where_the_kernel_has_none(tmp_path: Path) -> None:
    """12 batches of two samples of 4,224 bytes at 200 kB/s take half a second; only a lower bound is asserted."""
    job = real_job(tmp_path, num_workers=0, limit_bytes_per_s=200e3)
    loader, order = make_loader(job, SampleSet(job), job.batch_size)
    order.samples = list(range(job.dataset.num_samples))

    spans = [span for _, span in loader]

    total = sum(path.stat().st_size for path in job.files)
    assert spans[-1].end_ns - spans[0].start_ns > 0.9e9 * total / 200e3


@pytest.mark.slow
def test_two_ranks_run_epochs_evaluations_and_write_results(tmp_path: Path) -> None:
    config = config_in(tmp_path / "data", num_files_eval=8)
    config = replace(config, workflow=replace(config.workflow, evaluation=True, checkpoint=True))
    ensure_files(config)
    job = job_of(config, 2)

    result = run_job(job, cache="warm", checkpoint_folder=tmp_path / "checkpoints")
    result.write(tmp_path / "results")

    assert [len(record.spans) for run in result.epochs for record in run.ranks] == [6, 6, 6, 6]
    assert {span.worker for record in result.epochs[0].ranks for span in record.spans} == {0}
    metrics = result.metrics()
    assert all(ratio is not None and 0 < ratio <= 1 for ratio in metrics.au_ratios)
    assert len(result.evaluations) == 2
    assert len(result.checkpoint_s) == 2
    assert any((tmp_path / "checkpoints").rglob("*.safetensors"))
    assert any("page cache" in note for note in result.notes())
    assert read_results(tmp_path / "results").metrics().au_ratios == pytest.approx(metrics.au_ratios, abs=1e-3)


@pytest.mark.slow
def test_costs_are_measured_and_a_change_is_flown(tmp_path: Path) -> None:
    job = real_job(tmp_path)

    known = measure_job(job)
    before, after = (predict_job(replace(job, num_workers=count), known, cache="warm") for count in (0, 1))
    flight = fly_settings((before, "warm"), (after, "warm"), max_rounds=3)

    assert known.num_cores >= 1
    assert min(known.warm_ns) > 0
    assert known.pool_bytes_per_s > 0
    assert flight.receipt().num_rounds == 3
    assert len(flight.baseline_ns) == len(flight.changed_ns) == 3
    assert min(flight.baseline_ns) >= 2_000_000


def test_results_of_dlio_are_shown() -> None:
    done = windtunnel("dataio", "show", shared_path("serve/dlio/reference_run"))

    assert done.code == 0, done.stderr
    assert "94.60%" in done.stdout


def test_a_run_without_files_says_how_to_get_them(tmp_path: Path) -> None:
    job = job_of(config_in(tmp_path), 1)

    with pytest.raises(InputError, match="24 of 24 files of the data set do not exist"), running(job):
        pass


@pytest.mark.slow
def test_a_real_step_takes_the_place_of_sleeping(tmp_path: Path) -> None:
    job = real_job(tmp_path, compute_job="mlp:width=8", num_workers=0)

    with running(job) as ranks:
        record = ranks.run(EpochTask(1, max_steps=3)).ranks[0]

    assert len(record.blocks[0].compute_s) == 3
    assert (record.blocks[0].compute_s > 0).all()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_script_becomes_a_configuration(tmp_path: Path, num_workers: int) -> None:
    import numpy as np

    for index in range(12):
        np.save(tmp_path / f"{index}.npy", np.zeros(1000, np.uint8))
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.replace("WORKERS", str(num_workers)), encoding="utf-8")

    recorded = record_script(script)

    assert (recorded.format, recorded.num_samples, recorded.num_files) == ("npy", 12, 12)
    assert (recorded.batch_size, recorded.num_workers, recorded.is_shuffled) == (2, num_workers, True)
    assert recorded.sample_bytes == 1128
    assert recorded.tensor_bytes == 1000
    assert recorded.sections("data")["reader"]["read_threads"] == num_workers


def test_a_script_without_loader_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)", encoding="utf-8")

    with pytest.raises(InputError, match="fewer than 3 batches from a DataLoader"):
        record_script(script)


def test_predict_and_plan_answer_from_saved_costs(tmp_path: Path) -> None:
    from windtunnel.systems.dataio.calibrate import write_costs

    config, saved = tmp_path / "tiny.yaml", tmp_path / "costs.json"
    dump_config(config_in(tmp_path / "data"), config)
    write_costs(saved, costs())

    done = windtunnel("dataio", "predict", config, "--costs", saved, "--html", tmp_path / "page.html")
    assert done.code == 0, done.stderr
    assert "bottleneck: " in done.stdout
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")

    done = windtunnel("dataio", "plan", config, "--costs", saved, "--json", "--html", tmp_path / "plan.html")
    assert done.code == 0
    assert '"schema": "windtunnel.dataio-plan/1"' in done.stdout

    done = windtunnel("dataio", "predict", config, "--costs", saved, "--set", "dataset.num_files_train=1")
    assert done.code == 2
    assert "1 files x 1 samples = 1 samples, fewer than batch 2 x 1 ranks = 2" in done.stderr

    done = windtunnel("dataio", "run", config, "--cache", "hot")
    assert done.code == 2
    assert "one of cold, warm, cold-start" in done.stderr


def test_a_captured_script_is_read_as_a_configuration(tmp_path: Path) -> None:
    import numpy as np

    for index in range(12):
        np.save(tmp_path / f"{index}.npy", np.zeros(1000, np.uint8))
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.replace("WORKERS", "0"), encoding="utf-8")

    done = windtunnel("dataio", "capture", script)

    assert done.code == 0, done.stderr
    assert "12 in 12 files of npy" in done.stdout
    assert load_config(tmp_path / "train.dataio.yaml").dataset.num_files_train == 12
