"""Contracts that a plug-in of any kind keeps, as tests to inherit.

In: the name of a registered plug-in and what it can be tried on. Out: pytest tests. A package that registers something
writes one class, and inherits what ours are held to::

    from windtunnel.testing import WhatIfContract

    class TestHalfCopies(WhatIfContract):
        name = "half-copies"

        def graphs(self):
            return [my_graph()]

Contracts of a subject's own plug-ins lie with it: ``windtunnel.systems.cluster.testing``,
``windtunnel.systems.uneven.testing``. Not here: whether its numbers are true; a flight says that.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from windtunnel import registry
from windtunnel.cost import Work
from windtunnel.errors import InputError, NotApplicableError, PriceError, WindtunnelError
from windtunnel.graph import Edit, Graph, GraphBuilder, Kind, apply_edits
from windtunnel.simulate import replay

if TYPE_CHECKING:
    from windtunnel.hardware import Device

__all__ = [
    "CostModelContract",
    "FlightContract",
    "LayerContract",
    "PluginContract",
    "SourceContract",
    "WhatIfContract",
    "WorkloadContract",
]


class PluginContract:
    """What every registered thing keeps. Set ``kind`` and ``name``."""

    kind: ClassVar[str]
    name: ClassVar[str]

    @property
    def plugin(self) -> registry.Plugin:
        """As it is registered."""
        return registry.get(self.kind, self.name)

    def test_its_name_can_be_typed(self) -> None:
        """Lower case, with hyphens."""
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.plugin.name)

    def test_it_states_where_it_comes_from(self) -> None:
        """A paper, a product, a format's definition."""
        assert self.plugin.source.strip()

    def test_it_says_what_it_does_in_a_sentence(self) -> None:
        """The first line of its docstring."""
        assert self.plugin.summary.endswith(".")

    def test_a_near_name_is_offered_it(self) -> None:
        """A misspelled parameter raises an error that suggests the right name."""
        with pytest.raises(InputError) as refusal:
            registry.get(self.kind, f"{self.name}xx")
        assert self.name in refusal.value.fix


class WhatIfContract(PluginContract):
    """A what-if: a pure function of graph and parameters. Override ``graphs``, and ``prices`` if it needs any."""

    kind = "whatif"
    prices: ClassVar[str] = "paper"

    def graphs(self) -> Iterable[Graph]:
        """Graphs to which it applies."""
        raise NotImplementedError

    def price(self, needs: Sequence[Any], is_run: bool) -> dict[Any, Any]:
        """Prices of what it needs; by default what is known and nothing that runs."""
        from windtunnel.cost.rerun import price_needs

        return price_needs(needs, database=":memory:", is_run=is_run)

    def apply_whatif(self, graph: Graph) -> Graph:
        """The graph after it."""
        from windtunnel.whatifs import apply, parse_request

        return apply(graph, parse_request(self.name), prices=self.prices, pricer=self.price)

    def test_it_leaves_a_valid_graph_and_the_old_one_untouched(self) -> None:
        """The replay of what it leaves takes time."""
        for graph in self.graphs():
            before = [table[name] for table in (graph.tasks, graph.edges, graph.resources) for name in table]
            assert replay(self.apply_whatif(graph).validate()).makespan_ns > 0
            after = [table[name] for table in (graph.tasks, graph.edges, graph.resources) for name in table]
            assert all(item is other for item, other in zip(before, after, strict=True))

    def test_it_gives_the_same_graph_twice(self) -> None:
        """Column for column, and in what is known of the whole."""
        for graph in self.graphs():
            first, second = self.apply_whatif(graph), self.apply_whatif(graph)
            assert first.equals(second)
            assert first.meta == second.meta

    def test_it_is_one_recorded_edit_that_is_stored_done_again_and_undone(self) -> None:
        """However many primitives it uses."""
        for graph in self.graphs():
            changed = self.apply_whatif(graph)
            (edit,) = changed.edits[len(graph.edits) :]
            again = apply_edits(graph, [Edit.from_json(json.loads(json.dumps(edit.json())))])
            assert self.name == edit.name
            assert changed.equals(again)
            assert changed.meta == again.meta
            assert graph.equals(changed.undo())

    def test_it_says_who_priced_what_it_added(self) -> None:
        """In ``cost_source``; copies of captured tasks keep theirs."""
        for graph in self.graphs():
            changed = self.apply_whatif(graph)
            added = changed.duration_ns[graph.num_tasks :] > 0
            is_copy = changed.num_iterations != graph.num_iterations or changed.num_ranks != graph.num_ranks
            if added.any() and not is_copy:
                assert "" not in changed.tasks.strings("cost_source").to_numpy()[graph.num_tasks :][added].tolist()

    def test_it_refuses_an_empty_graph_kindly(self) -> None:
        """With the reason."""
        with pytest.raises(NotApplicableError, match="no tasks"):
            self.apply_whatif(GraphBuilder().build())

    def test_it_refuses_a_graph_that_holds_nothing_for_it(self) -> None:
        """A single join: no work, no message, no batch."""
        builder = GraphBuilder()
        builder.task("join", kind=Kind.VIRTUAL, duration_ns=0)
        with pytest.raises((NotApplicableError, PriceError)) as refusal:
            self.apply_whatif(builder.build())
        assert len(str(refusal.value)) > 10

    def test_it_states_what_physics_allows_and_keeps_within(self) -> None:
        """``limits=`` where it is registered; see :mod:`windtunnel.simulate.limits`."""
        from windtunnel.simulate.iterations import iteration_ns
        from windtunnel.whatifs import parse_request
        from windtunnel.whatifs.limiter import Limiter

        assert self.plugin.limits is not None
        for graph in self.graphs():
            baseline, changed = replay(graph), self.apply_whatif(graph)
            after_ns = iteration_ns(replay(changed, like=baseline), graph.num_iterations)
            limits, violation = Limiter(baseline).check_answer(parse_request(self.name).steps, [changed], after_ns)
            assert violation == ""
            assert limits is not None
            assert limits.reason

    def test_every_parameter_has_a_default(self) -> None:
        """So that ``whatif --all`` can ask it."""
        missing = [
            parameter.name
            for parameter in self.plugin.parameters.values()
            if parameter.default is inspect.Parameter.empty
        ]
        assert missing == []


class FlightContract(PluginContract):
    """A flight: a context manager that changes a live program and puts everything back. Override ``program``."""

    kind = "flight"
    parameters: ClassVar[dict[str, Any]] = {}

    def program(self) -> tuple[Any, Any]:
        """A ``LiveProgram``, and a function that does one iteration of it and returns its loss."""
        raise NotImplementedError

    def flight(self, program: Any) -> AbstractContextManager[None]:
        """The flight over a program."""
        created: AbstractContextManager[None] = self.plugin.function(program, **self.parameters)
        return created

    def test_the_program_runs_within_it_and_after_it(self) -> None:
        """Two iterations each, with losses that are numbers."""
        program, step = self.program()
        step()
        with self.flight(program):
            losses = [float(step()) for _ in range(2)]
        losses += [float(step()) for _ in range(2)]
        assert all(loss == loss for loss in losses)

    def test_what_it_flies_is_predicted_under_the_same_name(self) -> None:
        """A flight is how a what-if is done in real life."""
        assert self.name in registry.all("whatif")


class CostModelContract(PluginContract):
    """A cost model: work in, efficiencies against the bound out. Override ``device`` and, if need be, ``work``."""

    kind = "cost_model"

    def work(self) -> Work:
        """Rows of which it covers at least one; by default a product and a pointwise operator without shapes."""
        return Work.of_counts(np.array(["aten::mm", "aten::relu"]), np.array([1e9, 1e6]), np.array([1e6, 1e6]))

    def device(self) -> Device:
        """What it prices for."""
        raise NotImplementedError

    def test_it_prices_what_it_covers_and_nothing_is_faster_than_the_bound(self) -> None:
        """An efficiency above 0, at most 1 but for noise; intervals around it; twice the same."""
        pricer, work, device = self.plugin.function(), self.work(), self.device()
        covered = pricer.covers(work, device)
        assert covered.any()
        first, second = (pricer.price(work.take(covered), device) for _ in range(2))
        assert len(first) == int(covered.sum())
        assert (first.duration_ns >= 0).all()
        assert (first.efficiency <= 1.05).all()
        assert (first.duration_ns == second.duration_ns).all()
        known = first.efficiency_low == first.efficiency_low
        assert (first.efficiency_low[known] <= first.efficiency_high[known]).all()


class SourceContract(PluginContract):
    """A reader of files. Override ``files``."""

    kind = "source"

    def files(self, folder: Path) -> Sequence[Path]:
        """Good files or folders, written below ``folder`` or lying elsewhere."""
        raise NotImplementedError

    def test_it_knows_its_own_files_and_no_other_source_does(self, tmp_path: Path) -> None:
        """By their content, or the end of their name."""
        from windtunnel.sources.stored import format_of

        for path in self.files(tmp_path):
            result = format_of(path)
            assert result is not None
            assert self.name == result.name

    def test_it_claims_nothing_that_is_not_its_own(self, tmp_path: Path) -> None:
        """An empty file, text, bytes, a folder."""
        sniff = self.plugin.sniff
        assert sniff is not None
        (tmp_path / "folder").mkdir()
        others = {"empty.json": b"", "text.json": b"not json", "bytes.gz": bytes(range(256)), "list.json": b"[1, 2]"}
        for name, content in others.items():
            (tmp_path / name).write_bytes(content)
            assert not sniff(tmp_path / name)
        assert not sniff(tmp_path / "folder")

    def test_it_reads_a_valid_graph(self, tmp_path: Path) -> None:
        """With tasks, and with its source noted."""
        for path in self.files(tmp_path):
            graph = self.plugin.function(path).validate()
            assert graph.num_tasks
            assert graph.meta.source

    def test_a_file_that_is_cut_off_is_an_error_for_people(self, tmp_path: Path) -> None:
        """Never a traceback."""
        for path in self.files(tmp_path):
            if path.is_file():
                cut = tmp_path / f"cut {path.name}"
                cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                with contextlib.suppress(WindtunnelError):
                    self.plugin.function(cut)


class WorkloadContract(PluginContract):
    """A workload: models, optimizers and one step that really trains."""

    kind = "workload"
    parameters: ClassVar[dict[str, Any]] = {}

    def test_a_step_trains_and_what_it_holds_is_let_go(self) -> None:
        """The loss is a number and parameters move."""
        built = self.plugin.function(**self.parameters)
        try:
            before = [parameter.detach().clone() for model in built.models for parameter in model.parameters()]
            losses = [float(built.step()) for _ in range(3)]
            after = [parameter.detach() for model in built.models for parameter in model.parameters()]
            assert all(loss == loss for loss in losses)
            assert any((old != new).any() for old, new in zip(before, after, strict=True))
            assert built.batch_size >= 1
        finally:
            built.close()


class LayerContract(PluginContract):
    """A layer. Say an operator that it can replace, and arguments of it that can be computed."""

    kind = "layer"
    operator: ClassVar[str]
    parameters: ClassVar[dict[str, Any]] = {}

    def arguments(self) -> Sequence[Any]:
        """Of one call."""
        raise NotImplementedError

    def test_its_results_have_the_shapes_of_the_operators_and_a_gradient(self) -> None:
        """What comes after it must not notice, and what it brings along learns."""
        import torch

        arguments = self.arguments()
        created = self.plugin.function(self.operator, arguments, **self.parameters)
        plain = getattr(torch.ops.aten, self.operator.partition("::")[2])(*arguments)
        result, requested = (
            [item] if isinstance(item, torch.Tensor) else list(item) for item in (created.function(*arguments), plain)
        )
        assert [item.shape for item in requested] == [item.shape for item in result]
        torch.stack([item.sum() for item in result]).sum().backward()
        assert all(parameter.grad is not None for parameter in created.parameters)

    def test_it_refuses_an_operator_that_it_has_nothing_for(self) -> None:
        """Nothing is replaced in silence."""
        with pytest.raises(InputError, match="aten::relu"):
            self.plugin.function("aten::relu", [], **self.parameters)
