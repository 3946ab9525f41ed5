"""An unmodified trainer, traced without hardware, takes what was published for 8 and 128 GPUs.

The rows of ``shared/data/replay/torchtitan``: Llama 3.1 8B by torchtitan on H100s of 96 GB at 500 W. Its trainer
(0.2.2, a folder of its own that holds it and what it imports) runs under ``dry_run`` in a process for each number of
GPUs; the graphs are priced for the device of the page: bandwidth and memory as stated, peaks midway between the two
H100s that it names, links of a DGX H100. Operators twice: by the shipped prices, which are bounds, and by a tile model
that learns from published measurements of other GPUs. Nothing is fitted to these rows. Of a compiled job pointwise
operators that feed each other make one trip through memory (what-if ``fuse-kernels``); its memory is that of the
program as it is written, and not judged. What was computed in fp8 is told and not predicted.

Beside it the unmodified trainer of transformers (``benchmarks/dry_run/trainer.py``, needs transformers and accelerate)
is traced for eight ranks: each of its layers is to be gathered and scattered.

    WINDTUNNEL_TORCHTITAN=FOLDER python -m benchmarks.torchtitan_published --verbose
"""

import csv
import gzip
import json
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.graph import Graph, load
from windtunnel.hardware import Device, Fabric, device, machine
from windtunnel.measure.workers import run_to_end
from windtunnel.simulate import replay
from windtunnel.whatifs.forecast import Forecast, forecast
from windtunnel.whatifs.fusion import fuse_kernels

MEDIAN_TARGET, WORST_TARGET, MEMORY_TARGET = 0.10, 0.15, 0.05
MANY, MOST_S = 8192, 90.0
TARGET = (
    f"tokens/s within {MEDIAN_TARGET:.0%} median, {WORST_TARGET:.0%} worst, memory within {MEMORY_TARGET:.0%}, every "
    f"ordering right; {MANY:,} GPUs traced within {MOST_S:.0f} s; transformers' trainer is traced"
)
SEQUENCE, BATCH = 8192, 2
TRAINER, NUM_SHARDED = Path(__file__).resolve().parent / "dry_run" / "trainer.py", 3  # two layers and what is around
SCRIPT = """import torch
from torchtitan.train import Trainer, main


def rms_norm(x, shape, weight=None, eps=None):
    values = x.float()
    result = (values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + (eps or 1e-5))).type_as(x)
    return result if weight is None else result * weight


torch.nn.functional.rms_norm = rms_norm
main(Trainer)
"""
"""Its own module ends in the last line; the PyTorch of the page (December 2024) had no kernel for this norm."""


def inputs(folder: Path) -> list[str]:
    """A small tokenizer and some text; returns the trainer's arguments."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = find_shared("text/gutenberg/war_and_peace.txt.gz")
    text = (
        gzip.decompress(path.read_bytes()).decode()[:1_000_000] if path else "All happy families are alike. " * 30_000
    )
    (folder / "tokenizer").mkdir()
    (folder / "text").mkdir()
    (folder / "train.py").write_text(SCRIPT)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    special = ["<bos>", "<eos>"]
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=special, show_progress=False)
    made.train_from_iterator([text[:300_000]], trainer)
    made.save(str(folder / "tokenizer" / "tokenizer.json"))
    words = {"bos_token": special[0], "eos_token": special[1], "add_bos_token": True, "add_eos_token": False}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(words))
    parts = [json.dumps({"text": text[place : place + 5000]}) for place in range(0, len(text), 5000)]
    (folder / "text" / "data.json").write_text("\n".join(parts))
    named = {
        "model.name": "llama3",
        "model.flavor": "8B",
        "training.steps": 6,
        "training.seq_len": SEQUENCE,
        "training.local_batch_size": BATCH,
        "training.dataset": "c4_test",
        "training.dataset_path": folder / "text",
        "model.hf_assets_path": folder / "tokenizer",
        "activation_checkpoint.mode": "selective",
        "activation_checkpoint.selective_ac_option": "op",
    }
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def traced(titan: str, script: Path, arguments: list[str], num_gpus: int) -> tuple[Graph, float]:
    """The graph of a trainer's step, and how long tracing took in seconds."""
    target = script.parent / f"{num_gpus}.wt"
    own = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), titan]))
    command = [sys.executable, "-m", "windtunnel", "capture", "--dry-run", "--ranks", str(num_gpus), "-o", str(target)]
    done = run_to_end([*command, str(script), *arguments], environment={"PYTHONPATH": own})
    assert done is not None, "the trainer said nothing"
    assert target.exists(), done.stderr[-2000:]
    return load(target), done.elapsed_ns * 1e-9


def of_transformers(folder: Path) -> bool:
    """Whether the trainer of transformers gathers and scatters each of its layers among eight ranks."""
    script = folder / "transformers" / TRAINER.name
    script.parent.mkdir()
    script.write_text(TRAINER.read_text(encoding="utf-8"), encoding="utf-8")
    graph, _ = traced("", script, [str(folder / "out")], 8)
    ops = graph.tasks.strings("op").to_numpy().tolist()
    return min(ops.count("all_gather"), ops.count("reduce_scatter")) >= NUM_SHARDED


def of_the_page() -> Device:
    """The H100 of 96 GB at 500 W."""
    sxm, nvl = device("h100-sxm5-80g").peak_flops_per_s, device("h100-nvl-94g").peak_flops_per_s
    peaks = {dtype: (rate + nvl[dtype]) / 2 for dtype, rate in sxm.items()}
    return replace(
        device("h100-sxm5-80g"),
        name="h100-96g-500w",
        memory_bytes=96 * 2**30,
        bandwidth_bytes_per_s=2.4e12,
        peak_flops_per_s=peaks,
    )


def models(folder: Path) -> dict[str, str]:
    """The shipped prices, and those that are learned from published measurements where these are here."""
    sheet = find_shared("cost/devices.csv")
    if sheet is None:
        return {"shipped": "auto"}
    target = folder / "tile.safetensors"
    command = [sys.executable, "-m", "windtunnel", "models", "train", "tile", "--no-calibrate"]
    run_to_end([*command, "--data", str(sheet.parent), "--out", str(target)])
    assert target.exists(), "no tile model was learned"
    return {"shipped": "auto", "learned": f"tile={target},roofline"}


def speed(answer: Forecast, *, is_compiled: bool) -> float:
    """Tokens per second of one GPU."""
    taken_ns = replay(fuse_kernels(answer.graph)).makespan_ns if is_compiled else answer.makespan_ns
    return BATCH * SEQUENCE / (taken_ns * 1e-9)


def is_ordered(found: list[dict[str, object]], model: str) -> bool:
    """Whether predictions order any two jobs as the page does."""
    pairs = [(row["tokens_per_s"], row["tokens_per_s"] * (1 + row["errors"][model])) for row in found]  # type: ignore[index,operator]
    return all((one[0] < other[0]) == (one[1] < other[1]) for one in pairs for other in pairs if one[0] != other[0])


def published() -> list[dict[str, str]]:
    """The page's rows."""
    path = find_shared("replay/torchtitan/llama3_8b_h100.csv")
    assert path is not None, "public data replay/torchtitan is not here"
    return list(csv.DictReader(path.read_text().splitlines()))


def main() -> int:
    """Print the bar."""
    titan = os.environ.get("WINDTUNNEL_TORCHTITAN", "")
    if not (Path(titan) / "torchtitan").is_dir():
        needed = "pip install --no-deps --target FOLDER torchtitan==0.2.2, and what it imports"
        bar.report("torchtitan_published", 0.0, TARGET, holds=False, skipped=f"no torchtitan: {needed}")
        return 0
    rows = published()
    asked = [row for row in rows if row["float8"] == "no"]
    dgx = machine("dgx-h100")
    assert dgx.device_link is not None
    assert dgx.network_link is not None
    fabric, page = Fabric(dgx.device_link, dgx.network_link, 8), of_the_page()
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments, pricers = inputs(folder), models(folder)
        script = folder / "train.py"
        graphs = {count: traced(titan, script, arguments, int(count)) for count in {row["num_gpus"] for row in asked}}
        for row in asked:
            graph, seconds = graphs[row["num_gpus"]]
            is_compiled = row["compile"] == "yes"
            told = graph.meta.distributed
            memory = {
                key: max(told[key].values()) / 2**30 / float(row["peak_memory_gib"]) - 1
                for key in ("peak_bytes", "peak_reserved_bytes")
            }
            errors = {
                title: speed(forecast(graph, page, model=model, fabric=fabric), is_compiled=is_compiled)
                / float(row["tokens_per_s_per_gpu"])
                - 1
                for title, model in pricers.items()
            }
            job = f"{row['num_gpus']} GPUs{', compiled' * is_compiled}"
            told_per_s = float(row["tokens_per_s_per_gpu"])
            found.append({"job": job, "errors": errors, "traced_s": seconds, "tokens_per_s": told_per_s})
            if not is_compiled:
                found[-1]["memory_errors"] = memory
        many_s = traced(titan, script, arguments, MANY)[1]
        is_sharded = of_transformers(folder)
    if bar.is_verbose():
        for one in found:
            print(one)
    best = "learned" if "learned" in pricers else "shipped"
    sizes = [abs(one["errors"][best]) for one in found]  # type: ignore[index]
    reserved = max(
        abs(one["memory_errors"]["peak_reserved_bytes"])  # type: ignore[index]
        for one in found
        if "memory_errors" in one
    )
    checks = {
        "median": statistics.median(sizes) <= MEDIAN_TARGET,
        "worst": max(sizes) <= WORST_TARGET,
        "memory": reserved <= MEMORY_TARGET,
        "ordering": is_ordered(found, best),
        "many": many_s <= MOST_S,
        "trainer of transformers": is_sharded,
    }
    bar.report(
        "torchtitan_published",
        statistics.median(sizes),
        TARGET,
        all(checks.values()),
        checks=checks,
        many_s=many_s,
        worst=max(sizes),
        worst_memory=reserved,
        rows=found,
        num_not_predicted=len(rows) - len(asked),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
