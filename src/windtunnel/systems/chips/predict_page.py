"""What ``predict`` adds for chips that say what they are built of: area, energy, which of them none beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.units import format_duration

if TYPE_CHECKING:
    from windtunnel.hardware import Device, Machine
    from windtunnel.whatifs.forecast import Forecast

__all__ = ["ChipFacts", "Chips", "describe_chips"]


@dataclass(frozen=True, slots=True)
class ChipFacts:
    """Area of a chip in square micrometers (0: unknown, without a template), and energy of one iteration."""

    device: str
    area_um2: float
    energy_j: float

    def json(self) -> dict[str, Any]:
        """Raw units; an area that is not known is null."""
        return {"area_um2": self.area_um2 or None, "energy_j": self.energy_j}


@dataclass(frozen=True, slots=True)
class Chips:
    """Forecasts on accelerators, with area and energy."""

    found: Sequence[Forecast]
    facts: dict[str, ChipFacts]

    def json(self) -> dict[str, dict[str, Any]]:
        """Return area and energy by device, in raw units."""
        return {name: facts.json() for name, facts in self.facts.items()}

    def lines(self) -> Iterator[str | Table]:
        """A line for one chip; of several a table, with a mark at those that none beats in step, energy and area."""
        from windtunnel.base.pareto import is_best

        if len(self.found) == 1:
            yield from (
                f"  chip    {_area(fact)}, {_energy(fact)} per iteration at 45 nm" for fact in self.facts.values()
            )
            return
        shown = [
            (item.device, item.makespan_ns, self.facts[item.device]) for item in self.found if item.device in self.facts
        ]
        if not shown:
            return
        goals = [(time_ns, fact.energy_j, fact.area_um2 or float("inf")) for _, time_ns, fact in shown]
        marks = ["*" if best else "" for best in is_best(goals)]
        columns = {"chip": str, "step": format_duration, "energy": _energy, "area": _area, "best": str}
        yield ""
        yield Table(columns, [(*item, item[-1], mark) for item, mark in zip(shown, marks, strict=True)])
        yield "* no other is better in step, energy (at 45 nm) and area (of templates, 22 nm) at once"


@registry.page("predict-chips", source="PHAZE")
def describe_chips(forecasts: Sequence[Forecast], chips: Sequence[Device | Machine]) -> Chips:
    """Area and energy of those among the devices of forecasts that say what they are built of."""
    from windtunnel.cost.pricing import device_of
    from windtunnel.hardware import Accelerator
    from windtunnel.systems.chips.accelerators.pricer import graph_energy_j

    devices = {entry.name: entry for entry in map(device_of, chips) if isinstance(entry, Accelerator)}
    facts = {}
    for item in forecasts:
        if item.device in devices:
            chip = devices[item.device]
            area = float(chip.template.area_um2[0]) if chip.template else 0.0
            dtype = "" if item.dtype == "as captured" else item.dtype
            facts[item.device] = ChipFacts(item.device, area, graph_energy_j(item.graph, chip, dtype))
    return Chips(forecasts, facts)


def _area(facts: ChipFacts) -> str:
    return f"{facts.area_um2 / 1e6:.1f} mm²" if facts.area_um2 else "area not known"


def _energy(facts: ChipFacts) -> str:
    for unit, factor in (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)):
        if facts.energy_j >= factor:
            return f"{facts.energy_j / factor:.3g} {unit}"
    return f"{facts.energy_j:.2g} J"
