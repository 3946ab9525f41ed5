"""DLIO itself, and the same configuration run by this package, on the same files.

The files are generated here and read by both. Runs take turns, DLIO first in every other round; what is compared are
samples, epochs, bytes read from files per epoch, and AU of the epochs after the first (median of all rounds). DLIO
comes from PyPI into an environment of its own, with torch of this one; it needs MPI (``apt-get install mpich``) and
imports TensorFlow, which its torch path does not use: an empty module takes its place. Without DLIO the bar fails and
says why.

Both run with one thread of OpenMP: without loader workers, torch puts batches together in the main process with as many
threads as there are cores, which wait busily for each other and take 0.6 or 30 ms, in either program.

A job takes about a minute: ``--jobs "two ranks" --rows FILE`` adds its row to a file, and rows that are there are not
measured again, so that each job may run in a quiet minute of its own.
"""

import argparse
import ctypes.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import torch

from benchmarks import bar
from windtunnel.systems.dataio.config_file import load_config
from windtunnel.systems.dataio.generate import generate
from windtunnel.systems.dataio.run import run_job
from windtunnel.systems.dataio.source import job_of

TARGET = "samples and epochs equal, bytes per epoch within 2 %, AU within 2 points, in all of 4 jobs"
VERSION = "2.0.0"
HOME = Path(tempfile.gettempdir()) / f"windtunnel-dlio-{VERSION}"
NEEDS = ("hydra-core", "pandas", "psutil", "Pillow", "h5py", "PyYAML", "mpi4py")
# the last run of DLIO has more epochs: what an interpreter reads to start cancels
ROUNDS, EPOCHS, MORE_EPOCHS, BATCH = 3, 3, 5, 4
CASES = {
    # format, ranks, workers, seconds to prepare a sample, seconds to compute a step
    "compute bound": ("npz", 1, 2, 0.01, 0.1),
    "loader bound": ("npz", 1, 2, 0.05, 0.05),
    "main process loads": ("npy", 1, 0, 0.02, 0.1),
    "two ranks": ("indexed_binary", 2, 1, 0.03, 0.1),
}


def install() -> tuple[Path, dict[str, str]]:
    """Return DLIO's interpreter and environment; RuntimeError with the reason where it cannot be had."""
    python = HOME / "bin" / "python"
    folder = HOME / "mpi"
    library = next(
        (name for name in ("mpi", "mpich") if (found := ctypes.util.find_library(name)) and found.endswith(".so.12")),
        "",
    )
    if not library:
        raise RuntimeError("no MPI library (libmpi.so.12 or libmpich.so.12): apt-get install mpich")
    if not (HOME / "whole").exists():
        venv.create(HOME, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for words in (["--no-deps", f"dlio-benchmark=={VERSION}"], [*NEEDS], ["--no-deps", "pydftracer==1.0.2"]):
            done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=900)
            if done.returncode:
                raise RuntimeError(f"pip install {' '.join(words)}: {done.stderr.strip()[-300:]}")
        packages = next((HOME / "lib").glob("python*/site-packages"))
        (packages / "tensorflow").mkdir(exist_ok=True)
        (packages / "tensorflow/__init__.py").touch()
        (packages / "zz_torch.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        folder.mkdir(exist_ok=True)
        target = folder / "libmpi.so.12"
        target.unlink(missing_ok=True)
        target.symlink_to(Path(_library_path(ctypes.util.find_library(library))))
        (HOME / "whole").touch()
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return python, {**environment, "LD_LIBRARY_PATH": path}


def _library_path(name: str) -> str:
    text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    return next(line.rpartition(" ")[2] for line in text.splitlines() if line.split()[:1] == [name])


def write_config(folder: Path, name: str) -> Path:
    kind, _, workers, prepare_s, step_s = CASES[name]
    stem = name.replace(" ", "-")
    text = f"""
model: {stem}
framework: pytorch
workflow: {{generate_data: False, train: True}}
dataset: {{data_folder: data/{stem}, format: {kind}, num_files_train: 64, record_length: 1000000}}
reader:
  {{data_loader: pytorch, batch_size: {BATCH}, read_threads: {workers}, preprocess_time: {prepare_s}}}
train: {{epochs: {EPOCHS}, computation_time: {step_s}}}
"""
    path = folder / "workload" / f"{stem}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def read_bytes() -> int:
    """Bytes that this process and its children that have ended read from files."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


def run_dlio(folder: Path, name: str, tools, epochs: int) -> dict[str, object]:
    python, environment = tools
    output = folder / "output"
    words = [str(python), "-m", "dlio_benchmark.main", f"--config-dir={folder}", f"workload={name.replace(' ', '-')}"]
    words += [f"++workload.output.folder={output}", f"++workload.train.epochs={epochs}"]
    ranks = CASES[name][1]
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    before = read_bytes()
    done = subprocess.run([*launcher, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode or not (output / "summary.json").exists():
        raise RuntimeError(f"DLIO failed on {name}: {(done.stdout + done.stderr).strip()[-400:]}")
    summary = json.loads((output / "summary.json").read_text())
    steps = json.loads((output / "0_output.json").read_text())
    counts = [sum(map(len, steps[str(epoch)]["load"].values())) for epoch in range(1, epochs + 1)]
    (output / "summary.json").unlink()
    last = steps[str(epochs)]
    compute, proc = (sum(last[kind]["block1"][1:]) for kind in ("compute", "proc"))
    return {
        "au": summary["metric"]["train_au_percentage"][1:],
        "steps_au": 100 * compute / proc,
        "samples": [count * BATCH * ranks for count in counts],
        "bytes": read_bytes() - before,
    }


def run_ours(config, name: str) -> dict[str, object]:
    result = run_job(job_of(config, CASES[name][1]), cache="as-is")
    block = result.epochs[-1].ranks[0].blocks[0]
    compute, load = block.compute_s[1:].sum(), block.load_s[1:].sum()
    return {
        "steps_au": float(100 * compute / (compute + load)),
        "au": [100 * ratio for ratio in result.metrics().au_ratios[1:]],
        "samples": [sum(len(record.spans) for record in run.ranks) * BATCH for run in result.epochs],
        "bytes": [sum(span.read_bytes for record in run.ranks for span in record.spans) for run in result.epochs],
    }


def compare(folder: Path, name: str, tools) -> dict[str, object]:
    path = write_config(folder, name)
    config = load_config(path, [f"storage.storage_root={folder}"])
    generate(config)
    theirs, ours = [], []
    for turn in range(ROUNDS):
        epochs = MORE_EPOCHS if turn == ROUNDS - 1 else EPOCHS
        pair = [
            lambda epochs=epochs: theirs.append(run_dlio(folder, name, tools, epochs)),
            lambda: ours.append(run_ours(config, name)),
        ]
        for run in pair[::-1] if turn % 2 else pair:
            run()
    before = statistics.median(run["bytes"] for run in theirs[:-1])
    per_epoch = (theirs[-1]["bytes"] - before) / (MORE_EPOCHS - EPOCHS)
    au = [statistics.median(value for run in runs for value in run["au"]) for runs in (theirs, ours)]
    return {
        "au_dlio": au[0],
        "au_ours": au[1],
        "au_rounds": [[statistics.median(run["au"]) for run in runs] for runs in (theirs, ours)],
        # of load and compute alone, without what a loop does between two steps: log lines, barriers
        "steps_au_dlio": statistics.median(run["steps_au"] for run in theirs),
        "steps_au_ours": statistics.median(run["steps_au"] for run in ours),
        "samples_equal": theirs[0]["samples"] == ours[0]["samples"],
        "samples": ours[0]["samples"],
        "bytes_dlio": per_epoch,
        "bytes_ours": statistics.median(value for run in ours for value in run["bytes"]),
    }


def main() -> bool:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", nargs="*", default=list(CASES), choices=list(CASES), metavar="JOB")
    parser.add_argument("--rows", type=Path, help="file of rows, read and added to")
    options, _ = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = json.loads(options.rows.read_text()) if options.rows and options.rows.exists() else {}
    try:
        tools = install()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return bar.report("dlio_side_by_side", float("nan"), TARGET, False, reason=f"DLIO is not installed: {error}")
    with tempfile.TemporaryDirectory(prefix="windtunnel-dlio-") as folder:
        for name in (name for name in options.jobs if name not in rows):
            rows[name] = compare(Path(folder), name, tools)
            print(name, rows[name], file=sys.stderr, flush=True)
            if options.rows:
                options.rows.write_text(json.dumps(rows))
    differences = [abs(row["au_dlio"] - row["au_ours"]) for row in rows.values()]
    volumes = [abs(row["bytes_dlio"] / row["bytes_ours"] - 1) for row in rows.values()]
    equal = all(row["samples_equal"] for row in rows.values())
    holds = max(differences) <= 2 and max(volumes) <= 0.02 and equal and len(rows) == len(CASES)
    return bar.report("dlio_side_by_side", max(differences), TARGET, holds, bytes_error=max(volumes), rows=rows)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
