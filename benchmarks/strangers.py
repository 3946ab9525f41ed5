"""Scripts in the style of other libraries' examples go all the way (``benchmarks/foreign``).

A trainer that accumulates, a graph network, reinforcement learning, diffusion, speech, a table, packed sequences, a
mixture of experts, DDP and FSDP: ten unmodified scripts. Each goes the way of ``held_out_style`` (replay beside bare
iterations, what-ifs beside flights), and then through the command line as a newcomer types it: capture, explain, whatif
of everything, verify, report. What a verb refuses is listed with what it says; a verb that fails fails the bar.

Their libraries are no dependencies of this package. Those that an environment lacks can lie in a folder of their own:

    pip install --no-deps --target PEERS accelerate diffusers stable-baselines3 pytorch-tabnet
    PYTHONPATH=PEERS python -m benchmarks.strangers --verbose
    python -m benchmarks.strangers --scripts packed_lstm,ddp_two_ranks --small
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import bar
from benchmarks.held_out_style import Record, Row, main
from windtunnel.sources.targets import Script

CHANGES = {
    "accelerate_accumulation": ("foreach-optimizer", "threads:threads=2", "loader-workers:num_workers=1"),
    "geometric_gin": ("fused-optimizer", "threads:threads=2", "loader-workers:num_workers=1"),
    "baselines_ppo": ("fused-optimizer", "foreach-optimizer"),
    "diffusers_ddpm": ("fused-optimizer", "threads:threads=2", "channels-last"),
    "wav2vec_ctc": ("fused-optimizer", "threads:threads=2", "amp"),
    "tabnet_table": ("fused-optimizer", "amp", "batch-size:factor=2"),
    "packed_lstm": ("threads:threads=2", "amp"),
    "mixtral_experts": ("fused-optimizer", "threads:threads=2", "amp"),
    "ddp_two_ranks": ("fused-optimizer", "amp"),
    "fsdp_two_ranks": ("fused-optimizer", "amp"),
}
NEEDS = {
    "accelerate_accumulation": ("accelerate",),
    "geometric_gin": ("torch_geometric",),
    "baselines_ppo": ("stable_baselines3", "gymnasium"),
    "diffusers_ddpm": ("diffusers",),
    "wav2vec_ctc": ("transformers",),
    "tabnet_table": ("pytorch_tabnet",),
    "mixtral_experts": ("transformers",),
}
RANKS = {"ddp_two_ranks": 2, "fsdp_two_ranks": 2}
ITERATIONS, SMALL_ITERATIONS = 20, 6
VERB_S = 300.0
ANSWER_IS_NO = 1  # the exit code of a verb that has understood, and refuses


def walked(subject: Script, change: str, is_small: bool) -> list[Row]:
    """One row per verb, in the order in which each names the next; what a refused capture would feed is not tried."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, ledger = str(folder / "step.wt"), str(folder / "receipts.db")
        iterations = str(SMALL_ITERATIONS if is_small else ITERATIONS)
        processes = ["--nproc", str(subject.ranks.num_ranks)] if subject.ranks.num_ranks > 1 else []
        verbs = {
            "capture": ["--iterations", iterations, "-o", graph, *processes, str(subject.path)],
            "explain": [graph],
            "whatif": [graph, "--all"],
            "verify": [graph, "--whatif", change, "--rounds", "3", "--ledger", ledger],
            "page": [graph, "--html", str(folder / "report.html"), "--ledger", ledger],
        }
        rows: list[Row] = []
        for verb, options in verbs.items():
            rows.append(
                {"script": subject.path.stem, "verb": verb} | _typed(["explain" if verb == "page" else verb, *options])
            )
            if verb == "capture" and "seconds" not in rows[-1]:
                break
        return rows


def _typed(words: list[str]) -> Row:
    """What comes of one command: its seconds, or what it says where it refuses or fails."""
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "windtunnel", *words]
    try:
        done = subprocess.run(command, cwd=bar.ROOT, capture_output=True, text=True, timeout=VERB_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {VERB_S:.0f} s"}
    if done.returncode == 0:
        return {"seconds": round(time.monotonic() - begun_s, 1)}
    said = done.stderr[done.stderr.rfind("error:") :].strip()[:300]
    return {"refused" if done.returncode == ANSWER_IS_NO and said else "failed": said or f"ended {done.returncode}"}


def counted(rows: list[Row]) -> dict[str, object]:
    """How many scripts went all the way by the command line, the slowest of each verb, and what was refused."""
    typed = [row for row in rows if "verb" in row]
    stopped = {row["script"] for row in typed if "seconds" not in row}
    verbs = dict.fromkeys(str(row["verb"]) for row in typed)
    return {
        "num_walked": len({row["script"] for row in typed} - stopped),
        "slowest_s": {
            verb: max(
                (float(str(row["seconds"])) for row in typed if row["verb"] == verb and "seconds" in row), default=0
            )
            for verb in verbs
        },
        "refused": {f"{row['script']}/{row['verb']}": row["refused"] for row in typed if "refused" in row},
    }


STRANGERS = Record("strangers", Path(__file__).resolve().parent / "foreign", CHANGES, NEEDS, RANKS, walked, counted)

if __name__ == "__main__":
    main(STRANGERS, __doc__)
