"""What a step takes on each offer: from a table of what was measured, else from a captured graph.

In: a graph of one device's step, offers, measured rows. Out: a ``StepTime`` for each. The graph is priced for the
device of each machine; workers are added and replayed over the machine's own links and its network. Not here: what a
training costs (``model``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.base.columns import number, read_rows, whole_number
from windtunnel.base.plausible import require_plausible
from windtunnel.base.progress import Progress
from windtunnel.cost.pricing import AUTO, Model, comparable, missing_types
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.hardware import Instance, Link
from windtunnel.search.advice.model import Offer, StepTime
from windtunnel.search.shapes import Shape
from windtunnel.search.speeds import GraphSpeeds
from windtunnel.whatifs.forecast import Forecast, forecast
from windtunnel.whatifs.speed import speed_of

__all__ = ["GraphSteps", "data_parallel_step_ns", "offers_of", "read_steps"]

_NETWORK_LATENCY_NS = 50_000
_ONE = "step"  # name of the only model
_COLUMNS = ("instance", "count", "compute_ms", "interconnect_ms", "network_ms")


def offers_of(instances: Sequence[Instance], max_machines: int) -> list[Offer]:
    """One to ``max_machines`` machines of each kind."""
    return [Offer(instance, count) for instance in instances for count in range(1, max_machines + 1)]


@dataclass
class GraphSteps:
    """Steps by replay.

    Parameters
    ----------
    graph : Graph
        One training step of one device.
    dtype : str
        In which it computes; as captured by default.
    host_factor : float
        The host's own time over what was captured; 0 leaves it out.
    measured : mapping of (instance, count) to StepTime
        Come before what is predicted.
    """

    graph: Graph
    dtype: str = ""
    host_factor: float = 1.0
    measured: Mapping[tuple[str, int], StepTime] | None = None

    def __post_init__(self) -> None:
        self._forecasts: dict[str, Forecast] = {}
        self._speeds: dict[str, GraphSpeeds] = {}
        self._model: Model = AUTO

    def of(self, offers: Sequence[Offer], *, progress: Progress | None = None) -> list[StepTime]:
        """The step of each offer.

        Raises
        ------
        PriceError
            The graph cannot be priced for a device.
        InputError
            None of the devices computes in the type that is asked for.
        ImplausibleError
            By a defect of ours, a step cannot be true.
        """
        result = []
        self._model = comparable(AUTO, [offer.instance.device for offer in offers])
        for done, offer in enumerate(offers):
            if progress is not None:
                progress(f"pricing {offer}", done, len(offers))
            known = (self.measured or {}).get((offer.instance.name, offer.count))
            result.append(known or self._predict_step(offer))
        if result and all(item.reason for item in result):
            kinds = {kind for offer in offers for kind in offer.instance.device.peak_flops_per_s}
            raise InputError(
                f"no machine runs it: {result[0].reason}", where="--dtype", fix=f"known: {', '.join(sorted(kinds))}"
            )
        return result

    def _predict_step(self, offer: Offer) -> StepTime:
        machine = offer.instance
        if missing := missing_types(self.graph, machine.device, self.dtype):
            return StepTime(0.0, reason=f"{machine.device.name} does not compute in {', '.join(missing)}")
        if machine.device.name not in self._forecasts:
            self._forecasts[machine.device.name] = forecast(
                self.graph, machine.device, dtype=self.dtype, host_factor=self.host_factor, model=self._model
            )
        priced = self._forecasts[machine.device.name]
        compute_ns = float(priced.makespan_ns)
        speed = speed_of(
            priced.graph, priced.makespan_ns, device=machine.device, dtype=self.dtype, batch_size=priced.batch_size
        )
        require_plausible(
            f"the step predicted for {machine.device.name}",
            step_ns=compute_ns,
            captured_ns=self.graph.meta.iteration_ns.get("median"),
            mfu_ratio=speed.mfu_ratio,
        )
        if machine.name not in self._speeds:
            # Within a machine, within a rack, between racks: all machines are taken to share a rack.
            network = Link("network", machine.network_bytes_per_s, _NETWORK_LATENCY_NS, True, machine.source)
            self._speeds[machine.name] = GraphSpeeds(
                {_ONE: priced.graph},
                [machine.device_link or network, network, network],
                cores_per_rank=machine.num_vcpus / machine.num_devices,
            )
        speeds = self._speeds[machine.name]  # remembers shapes: one machine is asked for by every number of them

        def with_averaging(count: int) -> float:
            shape: Shape = ((machine.num_devices,) * count,)
            return compute_ns / speeds.speed(_ONE, 0, shape)

        alone = with_averaging(1)
        joined = with_averaging(offer.count) if offer.count > 1 else alone
        spread = (priced.high_ns - priced.low_ns) / 2 / compute_ns
        waits_ns = max(alone - compute_ns, 0.0), max(joined - alone, 0.0)
        return StepTime(compute_ns, *waits_ns, spread, priced.at_bound_ratio)


def data_parallel_step_ns(isolated: Forecast, num_devices: int, link: Link, num_cores: int = 0) -> int:
    """The step of a forecast on several devices that share the batches and average gradients over one link.

    ``num_cores`` are those of their host; 0: as many for each process as the capture had.

    Raises
    ------
    NotApplicableError
        The graph computes no gradients, or is of several ranks already.
    """
    per_rank = num_cores / num_devices or float(isolated.graph.meta.hardware.get("num_cores", 1))
    speeds = GraphSpeeds({_ONE: isolated.graph}, [link] * 3, cores_per_rank=per_rank)
    return round(isolated.makespan_ns / speeds.speed(_ONE, 0, ((num_devices,),)))


def read_steps(path: Path) -> dict[tuple[str, int], StepTime]:
    """Measured steps: ``instance,count,compute_ms,interconnect_ms,network_ms``.

    Raises
    ------
    InputError
        A row means nothing, or there are two of one offer; names the line.
    """
    result: dict[tuple[str, int], StepTime] = {}
    for line, row in enumerate(read_rows(path, _COLUMNS), 2):
        count = whole_number(row, "count", path, line, least=1)
        compute_ns, interconnect_ns, network_ns = (1e6 * number(row, name, path, line) for name in _COLUMNS[2:])
        key = row["instance"], count
        if key in result:
            raise InputError(f"{count} x {row['instance']} has two rows", where=f"{path}: line {line}")
        result[key] = StepTime(compute_ns, interconnect_ns, network_ns, source="measured")
    return result
