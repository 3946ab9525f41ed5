"""The suite: one process per cell, results that survive, refusals, resuming."""

from itertools import pairwise

import msgspec
import pyarrow.parquet as pq
import pytest

from windtunnel import registry
from windtunnel.errors import InfeasibleError, InputError, SchemaVersionError
from windtunnel.systems.suite import run as suite
from windtunnel.systems.suite.cell import measure_cell
from windtunnel.systems.suite.model import fitting_parameters, list_workloads, suite_plugins
from windtunnel.systems.suite.results import Cell, Result, load_run, write_machine, write_profile, write_result
from windtunnel.systems.suite.run import Order, cells_of, run_suite

torch = pytest.importorskip("torch")

from windtunnel.workloads.workload import Workload  # noqa: E402


def _result(name: str, **fields: object) -> Result:
    durations_ns = [2_000_000, *[1_000_000] * 9]
    return Result(
        cell=Cell(name),
        batch_size=8,
        durations_ns=durations_ns,
        units=[8.0] * 10,
        cut=1,
        median_ns=(1e6, 1e6, 1e6),
        throughput_per_s=(8000.0, 7900.0, 8100.0),
        **{"flops_by_dtype": {"float32": 100, "bfloat16": 11}, "arithmetic_utilization": {"float32": 0.5}} | fields,
    )


def test_the_suite_is_what_has_a_domain():
    assert all(plugin.domain for plugin in suite_plugins().values())
    assert "mlp" not in suite_plugins()


def test_cells_are_the_product_of_all_that_is_asked():
    cells = cells_of(["mlp", "lstm"], batch_sizes=[4, 8], num_threads=[1], num_ranks=[1, 2])

    assert len(set(cells)) == len({cell.key for cell in cells}) == 8
    assert cells[0] == Cell("mlp", "tiny", 4, 1, 1)


def test_an_unknown_workload_is_answered_with_the_nearest_names():
    with pytest.raises(InputError, match="lsmt") as caught:
        cells_of(["lsmt"])

    assert "lstm" in caught.value.fix


def test_an_unknown_size_is_refused():
    with pytest.raises(InputError, match="tinny"):
        cells_of(["mlp"], size="tinny")


@pytest.mark.parametrize("wrong", [{"batch_sizes": [0]}, {"num_threads": [-1]}, {"num_ranks": [0]}])
def test_numbers_that_run_nothing_are_refused(wrong):
    with pytest.raises(InputError, match="runs nothing"):
        cells_of(["mlp"], **wrong)


def test_only_parameters_that_a_workload_knows_are_given():
    assert fitting_parameters(Cell("mlp", "tiny", 32)) == {"batch_size": 32}
    assert fitting_parameters(Cell("mlp")) == {}


def test_results_are_read_as_they_were_written(tmp_path):
    first, second = _result("mlp"), _result("lstm", status="failed", message="it broke")
    for result in (first, second):
        write_result(tmp_path, result)
    write_machine(tmp_path, {"peak_flops_per_s": {"float32 x 1": 1e9}})
    run = load_run(tmp_path)

    assert {each.cell.workload: each for each in run.results} == {"mlp": first, "lstm": second}
    assert run.measured == [first]
    assert run.find(Cell("mlp")) == first
    assert run.machine["peak_flops_per_s"] == {"float32 x 1": 1e9}
    assert {"num_sockets", "cpu_quota_cores", "num_cores", "memory_bytes"} < set(run.machine)
    assert not list(tmp_path.glob("**/.*"))


def test_the_profile_table_has_a_row_per_measured_cell(tmp_path):
    write_profile(tmp_path, [_result("mlp"), _result("lstm", status="refused")])
    table = pq.read_table(tmp_path / "profile.parquet").to_pylist()

    assert [row["model"] for row in table] == ["mlp"]
    assert (table[0]["latency_p50_ns"], table[0]["num_runs"], table[0]["warm_up_runs"]) == (1_000_000, 9, 1)
    assert (table[0]["flops"], table[0]["arithmetic_utilization"]) == (111, 0.5)


def test_a_broken_or_newer_result_is_an_error_and_not_a_guess(tmp_path):
    path = write_result(tmp_path, _result("mlp"))
    path.write_text("{")
    with pytest.raises(InputError, match="no result"):
        load_run(tmp_path)
    write_result(tmp_path, msgspec.structs.replace(_result("mlp"), schema="windtunnel.suite/9"))
    with pytest.raises(SchemaVersionError):
        load_run(tmp_path)
    with pytest.raises(InputError, match="no results"):
        load_run(tmp_path / "empty")


def test_a_workload_that_does_not_fit_is_refused_before_it_is_built(tmp_path):
    order = Order(Cell("mlp"), str(tmp_path), memory_bytes=1_000_000)

    with pytest.raises(InfeasibleError, match="mlp needs") as caught:
        measure_cell(order)

    assert "cut the" in caught.value.fix


@pytest.mark.parametrize(("needs_values", "said"), [(False, []), (True, ["memory not predicted: "])])
def test_memory_is_predicted_before_a_cell_runs_or_it_is_said_why_not(tmp_path, needs_values, said):
    @registry.workload("test-of-prediction", source="this test")
    def small() -> Workload:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(8, 4)).square().mean()
            if needs_values and isinstance(loss, torch._subclasses.FakeTensor):
                raise TypeError("a kernel of its own takes no fake tensors")
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Workload("test-of-prediction", (model,), (optimizer,), step, 8)

    try:
        order = Order(Cell("test-of-prediction"), str(tmp_path), budget_s=0.01, min_steps=12, graph_iterations=0)
        result = measure_cell(order)
    finally:
        del registry._plugins["workload"]["test-of-prediction"]

    assert said == [note[:22] for note in result.notes]
    assert (4 * (8 + 2) if not needs_values else None) == result.predicted_memory_by_category.get("weight")
    assert (result.predicted_memory_bytes is None) == needs_values


def test_the_list_counts_parameters_and_flops_and_keeps_them(tmp_path):
    entry = list_workloads(names=["mlp"], cache=tmp_path / "kept.json")[0]
    widths = [784, 1024, 1024, 1024, 1024, 10]
    weights = sum(before * after for before, after in pairwise(widths))
    forward_and_weights, inputs = 2 * weights, weights - widths[0] * widths[1]

    assert entry.num_parameters == weights + sum(widths[1:])
    assert entry.flops_per_sample == 2 * (forward_and_weights + inputs)
    assert entry == list_workloads(names=["mlp"], cache=tmp_path / "kept.json")[0]

    (tmp_path / "kept.json").write_text("broken")

    assert entry == list_workloads(names=["mlp"], cache=tmp_path / "kept.json")[0]


@pytest.mark.slow
def test_a_cell_is_trained_measured_and_captured(tmp_path):
    order = Order(Cell("mlp", batch_size=16), str(tmp_path), budget_s=1.0, graph_iterations=2, is_graph_kept=True)
    result = measure_cell(order)

    assert result.batch_size == 16
    assert result.units == [16.0] * len(result.durations_ns)
    assert result.throughput_per_s[1] <= result.throughput_per_s[0] <= result.throughput_per_s[2]
    assert 0 < result.compute_utilization <= 1
    assert 0 < result.arithmetic_utilization["float32"]
    assert result.objective[-1] < result.objective[0]
    assert (tmp_path / result.graph / "meta.json").exists()
    assert result.notes == []


@pytest.mark.slow
def test_a_suite_survives_a_workload_that_dies_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    options = {"output": folder, "budget_s": 0.3, "num_threads": [1]}
    launch = suite.Workers

    def launch_or_die(module, order, **more):
        return launch("tests.systems.suite.dying" if order.cell.workload == "lstm" else module, order, **more)

    monkeypatch.setattr(suite, "Workers", launch_or_die)
    run = run_suite(["lstm", "mlp"], **options)
    by_name = {result.cell.workload: result for result in run.results}

    assert by_name["mlp"].is_measured
    assert by_name["lstm"].status == "failed"
    assert "ended with 1" in by_name["lstm"].message
    assert len(pq.read_table(folder / "profile.parquet")) == 1

    with pytest.raises(InputError, match="already"):
        run_suite(["lstm", "mlp"], **options)
    monkeypatch.undo()
    resumed = run_suite(["lstm", "mlp"], resume=True, **options)

    assert len(resumed.measured) == 2
    assert resumed.find(by_name["mlp"].cell) == by_name["mlp"]  # kept, not made again


@pytest.mark.slow
def test_two_ranks_train_together_over_gloo(tmp_path):
    run = run_suite(["mlp"], output=tmp_path, budget_s=1.0, batch_sizes=[16], num_threads=[1], num_ranks=[2])

    assert [(result.status, result.message) for result in run.results] == [("measured", "")]
    assert run.results[0].batch_size == 32
    assert run.results[0].units[0] == 32.0


def test_what_was_interrupted_keeps_the_finished_cells(tmp_path, monkeypatch):
    def interrupted(order: Order, _patience_s: float) -> Result:
        if order.cell.workload == "mlp":
            raise KeyboardInterrupt
        result = msgspec.structs.replace(_result("lstm"), cell=order.cell)
        write_result(tmp_path, result)
        return result

    monkeypatch.setattr(suite, "_run_cell", interrupted)
    monkeypatch.setattr(suite, "_machine_facts", lambda _cells: {})
    with pytest.raises(KeyboardInterrupt):
        run_suite(["lstm", "mlp"], output=tmp_path)

    assert [result.cell.workload for result in load_run(tmp_path).measured] == ["lstm"]
    assert len(pq.read_table(tmp_path / "profile.parquet")) == 1


def test_every_workload_of_the_suite_says_where_it_comes_from():
    for plugin in registry.all("workload").values():
        assert plugin.source
