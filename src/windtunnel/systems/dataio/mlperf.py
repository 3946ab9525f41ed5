"""The rules of MLPerf Storage, checked for a configuration on a machine.

In: a configuration, accelerators, hosts and their memory. Out: each rule with its arithmetic, and what to change. Not
here: measured results.

References
----------
MLCommons Storage, submission guidelines, edition of 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.systems.dataio.config import DlioConfig
from windtunnel.systems.dataio.demands import mean_sample_bytes
from windtunnel.units import format_count, format_ratio, format_size

__all__ = ["RuleCheck", "check_mlperf_rules"]

MIN_AU_RATIOS = {"unet3d": 0.90, "resnet50": 0.90, "cosmoflow": 0.70}
MIN_STEPS_PER_EPOCH = 500
HOST_MEMORY_MULTIPLIER = 5
EXCLUDED_START_STEPS = 1
NUM_RUNS = 5


@dataclass(frozen=True)
class RuleCheck:
    """One rule.

    Attributes
    ----------
    rule : str
    is_met : bool or None
        None where only the runs can show it.
    arithmetic : str
    fix : str
        What to change; empty where the rule is met.
    """

    rule: str
    is_met: bool | None
    arithmetic: str
    fix: str = ""


def check_mlperf_rules(
    config: DlioConfig, *, num_accelerators: int, host_memory_bytes: int, num_hosts: int = 1
) -> list[RuleCheck]:
    """Check the rules for training workloads.

    Parameters
    ----------
    config : DlioConfig
    num_accelerators : int
        Of all hosts together.
    host_memory_bytes : int
        Of each host.
    num_hosts : int
    """
    return [
        _workload(config),
        _threshold(config),
        _dataset_size(config, num_accelerators, host_memory_bytes, num_hosts),
        _steps_left_out(config),
        RuleCheck("repeated runs", None, f"{NUM_RUNS} runs in a row count; each has to reach the threshold"),
    ]


def _workload(config: DlioConfig) -> RuleCheck:
    known = ", ".join(MIN_AU_RATIOS)
    is_known = config.model.name in MIN_AU_RATIOS
    fix = "" if is_known else f"use a shipped configuration of {known}"
    return RuleCheck("workload", is_known, f"model {config.model.name!r}; rules exist for {known}", fix)


def _threshold(config: DlioConfig) -> RuleCheck:
    rule = "threshold of AU"
    minimum = MIN_AU_RATIOS.get(config.model.name)
    if minimum is None:
        return RuleCheck(rule, None, f"no threshold for {config.model.name!r}")
    arithmetic = f"metric.au {config.metric.au:g}, at least {minimum:g} ({format_ratio(minimum)})"
    is_met = config.metric.au >= minimum
    return RuleCheck(rule, is_met, arithmetic, "" if is_met else f"--set metric.au={minimum:g}")


def _dataset_size(config: DlioConfig, num_accelerators: int, host_memory_bytes: int, num_hosts: int) -> RuleCheck:
    dataset, batch_size = config.dataset, config.reader.batch_size
    sample_bytes = mean_sample_bytes(dataset)
    by_steps = MIN_STEPS_PER_EPOCH * batch_size * num_accelerators
    by_memory = math.ceil(HOST_MEMORY_MULTIPLIER * num_hosts * host_memory_bytes / sample_bytes)
    needed, present = max(by_steps, by_memory), dataset.num_files_train * dataset.num_samples_per_file
    hosts = f"{num_hosts} host{'s' * (num_hosts > 1)}"
    arithmetic = (
        f"{MIN_STEPS_PER_EPOCH} steps x batch {batch_size} x {num_accelerators} accelerators = "
        f"{format_count(by_steps)} samples; {HOST_MEMORY_MULTIPLIER} x {hosts} x {format_size(host_memory_bytes)} / "
        f"{format_size(sample_bytes)} = {format_count(by_memory)} samples; the larger is {format_count(needed)}; "
        f"{format_count(dataset.num_files_train)} files x {dataset.num_samples_per_file} = {format_count(present)}"
    )
    num_files = math.ceil(needed / dataset.num_samples_per_file)
    fix = "" if present >= needed else f"--set dataset.num_files_train={num_files}"
    return RuleCheck("size of the data set", present >= needed, arithmetic, fix)


def _steps_left_out(config: DlioConfig) -> RuleCheck:
    metric = config.output.metric
    is_met = metric.exclude_start_steps == EXCLUDED_START_STEPS and metric.exclude_end_steps == 0
    arithmetic = (
        f"{metric.exclude_start_steps} steps at the start and {metric.exclude_end_steps} at the end are left out; the "
        f"rule is {EXCLUDED_START_STEPS} and 0"
    )
    fix = "" if is_met else "--set output.metric.exclude_start_steps=1 --set output.metric.exclude_end_steps=0"
    return RuleCheck("steps left out", is_met, arithmetic, fix)
