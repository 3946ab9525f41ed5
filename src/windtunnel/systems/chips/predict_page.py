"""What ``predict`` adds for chips that say what they are built of: area, energy, which of them none beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.cli.console import print_table, say, say_wrapped

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

    def print(self) -> None:
        """A line for one chip; of several a table, with a mark at those that none beats in step, energy and area."""
        _print_chips(self.found, self.facts)


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


def _print_chips(forecasts: Sequence[Forecast], facts: dict[str, ChipFacts]) -> None:
    from windtunnel.base.pareto import is_best
    from windtunnel.units import format_duration

    if len(forecasts) == 1:
        for fact in facts.values():
            say_wrapped(f"  chip    {_area(fact)}, {_energy(fact)} per iteration at 45 nm")
        return
    shown = [item for item in forecasts if item.device in facts]
    if not shown:
        return
    goals = [
        (item.makespan_ns, facts[item.device].energy_j, facts[item.device].area_um2 or float("inf")) for item in shown
    ]
    rows = [
        (item.device, format_duration(item.makespan_ns), _energy(facts[item.device]), _area(facts[item.device]),
         "*" if best else "")
        for item, best in zip(shown, is_best(goals), strict=True)
    ]  # fmt: skip
    say()
    print_table(("chip", "step", "energy", "area", "best"), rows, numbers=(1, 2, 3), gives_way=0)
    say_wrapped("* no other is better in step, energy (at 45 nm) and area (of templates, 22 nm) at once")


def _area(facts: ChipFacts) -> str:
    return f"{facts.area_um2 / 1e6:.1f} mm²" if facts.area_um2 else "area not known"


def _energy(facts: ChipFacts) -> str:
    for unit, factor in (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)):
        if facts.energy_j >= factor:
            return f"{facts.energy_j / factor:.3g} {unit}"
    return f"{facts.energy_j:.2g} J"
