"""What the thread of a GPU's host needs to call operators, for graphs that were never run.

In: a graph whose tasks take no time. Out: nanoseconds of each task on the thread: calling an operator and launching its
kernel, as timed on the host of an H200 (16 cores of an Intel Xeon, PyTorch 2.11); calls that launch nothing, Python
between operators. Not here: other hosts (``--host-factor``), what a capture measured of its own host.

The times of operators are those of calls in a row. The numbers here say what a step needs beyond; they come from traces
and bare times of recorded steps that wait for their host (``benchmarks.gpu.host_costs``).
"""

from __future__ import annotations

import csv
import functools
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import facts_of, plain_name
from windtunnel.cost.operators.recurrent import RECURRENT, layers_of
from windtunnel.cost.work import work_of
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.host_work import DEVICE_READ, HOST_CODE, LOADED, READ

__all__ = ["COSTS", "HOST_TABLE", "HostCosts", "host_times_ns", "select_reads"]

Floats = NDArray[np.float64]

HOST_TABLE = "host table"
"""Who priced tasks whose time comes from here, as ``cost_source`` says."""
_FILE = "host_times.csv"
COPY_NS, COPY_BYTES_PER_S = 60_000.0, 9.5e9
"""A batch that a thread copies to the device from memory that is not pinned: calls, then its driver's own copy."""
PINNED_COPY_NS = 45_000.0
"""One from pinned memory, which the device copies."""
HANDOVER_NS, HANDOVER_TENSOR_NS, FIRST_TOUCH_BYTES_PER_S = 850_000.0, 220_000.0, 8e9
"""A batch that workers have ready: the queue, a file descriptor for each tensor, and pages read for the first time."""
ON_HOST_NS = {"aten::index": 320_000.0, "aten::cat": 120_000.0, "aten::stack": 120_000.0}
"""Operators that compute on the host between two steps, when no cache holds their code or data."""
OTHER_ON_HOST_NS = 25_000.0
START_BACKWARD_NS = 59_000.0
"""To wake the thread of the backward pass, and to return: what ``torch.autograd.grad`` adds to one operator."""
FIXED_NS = {"Optimizer.step": 100_000.0, "Optimizer.zero_grad": 30_000.0}
"""Calls of an optimizer that has next to no parameters."""
OTHER_NS = 12_000.0
"""An operator that was not timed, in a row of the same calls."""
STEP_NS = {False: 24_000.0, True: 60_000.0}
"""What cuDNN launches for a time step of a recurrent layer, with the events of its streams; True: backward."""
_TURNS = 3  # images, filters and results
HIDDEN_NS = {"aten::_embedding_bag_backward": 40_000.0}
"""Calls whose kernels a dry run does not show: sparse gradients are indices and values of their own."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What a step needs beyond calls in a row.

    Parameters
    ----------
    call_ratio : float
        Of a call in the table: a profiler was still attached when some of these were timed.
    cold_ns : float
        More than in a row of the same calls: other code ran in between, and autograd keeps what it needs.
    python_ns : float
        Python between two operators of the forward pass: a module's call, a line of the script. While parameters are
        updated it is a loop over them, which takes ``tensor_ns``.
    engine_ns : float
        A node of the backward pass, or what leads to it; no Python runs there.
    call_ns : float
        A call that launches nothing: a view, a reshape.
    tensor_ns : float
        A tensor of a list that an optimizer updates, or an update of one tensor: the optimizer's loops in Python.
    mode_ns : float
        What ``torch.set_default_device`` adds to each call from Python, and to each tensor of a list.
    kernel_ns : float
        A further kernel of a convolution: cuDNN turns images and filters from channels first to channels last and back.
    read_ns : float
        A number that Python reads from the device: a copy and a wait, when the device has nothing else to do.
    """

    call_ratio: float = 0.63
    cold_ns: float = 10_400.0
    python_ns: float = 10_090.0
    engine_ns: float = 2_960.0
    call_ns: float = 1_460.0
    tensor_ns: float = 2_100.0
    mode_ns: float = 3_840.0
    kernel_ns: float = 6_460.0
    read_ns: float = 14_140.0


COSTS = HostCosts()


def host_times_ns(graph: Graph, costs: HostCosts = COSTS) -> Floats:
    """Time of each task on the thread that calls it [T]: of operators with work the call and the launch."""
    column = graph.tasks.strings("op" if "op" in graph.tasks else "name")
    names, table = list(column.values) or [""], _table()
    computes = graph.select(kind=Kind.COMPUTE)
    phase = graph.tasks.get("phase", np.full(graph.num_tasks, int(Phase.OTHER), dtype=np.int8))
    rows = np.array([costs.call_ratio * table.get(_name_in_table(name), OTHER_NS) for name in names])[column.codes]
    is_list = np.array(["_foreach" in name for name in names])[column.codes] & computes
    # an optimizer that loops over its tensors calls the same few operators again and again
    is_loop = computes & ~is_list & (phase == Phase.UPDATE)
    times = np.where(
        computes,
        rows + np.where(is_loop, costs.tensor_ns, costs.cold_ns),
        _without_launch(names, column.codes, phase, costs),
    )
    times += _copies_ns(graph) + _on_host_ns(graph)
    counts = _list_lengths(graph, np.flatnonzero(is_list))
    times[is_list] += costs.tensor_ns * counts
    is_convolution = computes & np.array(["convolution" in name for name in names])[column.codes]
    times += costs.kernel_ns * _num_turns(graph, is_convolution)
    for name, is_backward in RECURRENT.items():
        layers = np.flatnonzero(computes & (column.codes == names.index(name))) if name in names else np.zeros(0, int)
        times[layers] += STEP_NS[is_backward] * _num_time_steps(graph, name, layers)
    if graph.meta.has_default_device:
        is_python = np.array([name == "python" for name in names])[column.codes] & (phase != Phase.BACKWARD)
        times[is_python] += costs.mode_ns
        times[is_list] += costs.mode_ns * counts
    times[select_reads(graph)] += costs.read_ns
    return _with_launches(graph, times, costs)


def _with_launches(graph: Graph, times: Floats, costs: HostCosts) -> Floats:
    """Times with those of launches that are tasks, which are those of what they launch."""
    is_launch = graph.edges["kind"] == EdgeKind.LAUNCH
    src, dst = graph.edges["src"][is_launch], graph.edges["dst"][is_launch]
    times[dst[graph.select(kind=Kind.COMM)[dst]]] = costs.call_ratio * OTHER_NS + costs.cold_ns
    times[src] = times[dst]
    return times


def select_reads(graph: Graph) -> NDArray[np.bool_]:
    """Tasks in which Python reads a number of the device, bool [T]."""
    if "op" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    reads: NDArray[np.bool_] = graph.select(op=DEVICE_READ)
    # counters of an optimizer lie on the host, unless the program made the device torch's default
    return reads | graph.select(op=READ, phase=Phase.UPDATE) if graph.meta.has_default_device else reads


def _copies_ns(graph: Graph) -> Floats:
    """Copies to the device on the thread that makes them [T]."""
    is_copy = graph.select(kind=Kind.COPY)
    if not is_copy.any():
        return np.zeros(graph.num_tasks)
    names = graph.tasks.strings("name")
    is_pinned = names.where({text: "Pinned" in text for text in names.values})
    pageable_ns = COPY_NS + 1e9 / COPY_BYTES_PER_S * graph.tasks["bytes_written"]
    return np.where(is_copy, np.where(is_pinned, PINNED_COPY_NS, pageable_ns), 0.0)


def _on_host_ns(graph: Graph) -> Floats:
    """What the host itself computes or is handed, beyond a call [T]."""
    if "bytes_written" not in graph.tasks or "op" not in graph.tasks:
        return np.zeros(graph.num_tasks)
    ops, written = graph.tasks.strings("op"), graph.tasks["bytes_written"]
    computes = graph.select(kind=Kind.HOST) & (written > 0)
    known = np.array([ON_HOST_NS.get(text, OTHER_ON_HOST_NS) * text.startswith("aten::") for text in ops.values])
    is_loaded = ops.where({text: text.startswith(LOADED) for text in ops.values})
    touched = np.where(is_loaded, 1e9 / FIRST_TOUCH_BYTES_PER_S * written, 0.0)
    return np.where(computes, known[ops.codes] if len(known) else 0.0, 0.0) + touched


def _list_lengths(graph: Graph, tasks: NDArray[np.int64]) -> Floats:
    """Tensors of the first list of each task; 0 where shapes were not captured."""
    if "input_shapes" not in graph.tasks or not len(tasks):
        return np.zeros(len(tasks))
    texts = graph.tasks.strings("input_shapes").take(tasks).to_numpy().tolist()
    return np.array([len(json.loads(text)[0]) if text else 0 for text in texts], dtype=np.float64)


def _num_turns(graph: Graph, convolutions: NDArray[np.bool_]) -> Floats:
    """Kernels of convolutions that turn images, filters and results to channels last or back [T].

    In recorded steps a convolution of channels first with windows launches 3 kernels more than its product, its
    backward pass 3 for each gradient; products of single positions and separate channels need none.
    """
    result = np.zeros(graph.num_tasks)
    if not convolutions.any() or not {"input_shapes", "input_args"} <= set(graph.tasks):
        return result
    work, row_T = work_of(graph, convolutions)
    facts = facts_of(work)
    turns = (facts.column("layout") == 0) & (facts.column("window") > 1) & (facts.column("num_groups") == 1)
    num_results = np.where(facts.column("variant") == 3, 2, 1)
    result[convolutions] = np.where(turns, _TURNS * num_results, 0)[row_T[convolutions]]
    return result


def _num_time_steps(graph: Graph, name: str, tasks: NDArray[np.int64]) -> Floats:
    """Time steps of all layers of each task, which is that operator."""
    if not len(tasks) or not {"input_shapes", "input_args"} <= set(graph.tasks):
        return np.zeros(len(tasks))
    texts = [graph.tasks.strings(column).take(tasks).to_numpy().tolist() for column in ("input_shapes", "input_args")]
    counts = [sum(layer.num_steps for layer in layers_of(name, *pair)) for pair in zip(*texts, strict=True)]
    return np.array(counts, dtype=np.float64)


def _without_launch(names: list[str], codes: NDArray[np.int32], phase: NDArray[np.int8], costs: HostCosts) -> Floats:
    """Tasks that launch nothing [T]."""
    times: Floats = np.array([_call_ns(name, costs) for name in names])[codes]
    is_python = np.array([name == "python" for name in names])[codes]
    is_backward = phase == Phase.BACKWARD
    times[is_python & is_backward] = costs.engine_ns
    times[is_python & (phase == Phase.UPDATE)] = costs.tensor_ns
    starts = np.flatnonzero(is_backward & is_python & np.roll(~is_backward, 1))
    times[starts] += START_BACKWARD_NS
    return times


def _call_ns(name: str, costs: HostCosts) -> float:
    if name == "python":
        return costs.python_ns
    start, _, number = name.partition("#")
    if f"{start}#" == HOST_CODE:
        return float(number)
    if f"{start}#" == LOADED:
        return HANDOVER_NS + HANDOVER_TENSOR_NS * int(number)
    known = HIDDEN_NS.get(name, FIXED_NS.get(start))
    if known is not None:
        return known
    if "Backward" in name or name == "torch::autograd::AccumulateGrad":
        return costs.engine_ns
    return costs.call_ns if name.startswith(("aten::", "torch::")) or name in ("detach", "detach_") else 0.0


def _name_in_table(name: str) -> str:
    """Attention of all implementations has one."""
    plain = plain_name(name)
    if plain.startswith("scaled_dot_product"):
        is_backward = plain.endswith("backward")
        return "scaled_dot_product_flash_attention_backward" if is_backward else "scaled_dot_product_attention"
    return plain


@functools.cache
def _table() -> dict[str, float]:
    text = resources.files("windtunnel.cost").joinpath(_FILE).read_text(encoding="utf-8")
    return {row["operator"]: float(row["host_ns"]) for row in csv.DictReader(text.splitlines())}
