"""Steps of offers from a captured graph and from a table, and the command."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from windtunnel.cli import main  # noqa: E402
from windtunnel.errors import ImplausibleError, InputError  # noqa: E402
from windtunnel.graph import GraphBuilder, Kind, save  # noqa: E402
from windtunnel.hardware import instance  # noqa: E402
from windtunnel.search.advice import steps  # noqa: E402
from windtunnel.search.advice.model import Offer  # noqa: E402
from windtunnel.search.advice.steps import GraphSteps, read_steps  # noqa: E402
from windtunnel.sources.torch.step import capture  # noqa: E402
from windtunnel.whatifs.forecast import forecast  # noqa: E402


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(1024, 1024)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return capture(step, iterations=3, model=model, optimizer=optimizer)


def steps_of(graph, *offers, host_factor=0.0):
    """Without the host's own time, in which short steps of fast devices are hidden."""
    return GraphSteps(graph, host_factor=host_factor).of([Offer(instance(name), count) for name, count in offers])


def test_a_network_is_added_to_what_one_machine_loses(graph):
    one, eight, two = steps_of(graph, ("p2.xlarge", 1), ("p2.8xlarge", 1), ("p2.8xlarge", 2))

    assert 0 == one.interconnect_ns == one.network_ns == eight.network_ns
    assert one.compute_ns == eight.compute_ns == two.compute_ns
    assert eight.interconnect_ns == two.interconnect_ns > 0
    assert two.network_ns > 0


def test_a_faster_device_takes_less(graph):
    slow, fast = steps_of(graph, ("g4dn.xlarge", 1), ("p5.48xlarge", 1))

    assert fast.compute_ns < slow.compute_ns


def test_what_was_measured_comes_first(graph, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("instance,count,compute_ms,interconnect_ms,network_ms\ng5.xlarge,1,12,0,0\n", encoding="utf-8")
    steps = GraphSteps(graph, measured=read_steps(path))
    found = steps.of([Offer(instance("g5.xlarge"), count) for count in (1, 2)])

    assert [("measured", 12e6), ("predicted", found[1].compute_ns)] == [(one.source, one.compute_ns) for one in found]


@pytest.mark.parametrize(
    ("rows", "said"),
    [("g5.xlarge,0,1,0,0", "count"), ("g5.xlarge,1,x,0,0", "compute_ms"), ("a,1,1,0,0\na,1,2,0,0", "two rows")],
)
def test_rows_that_mean_nothing_are_refused_with_their_line(tmp_path, rows, said):
    path = tmp_path / "steps.csv"
    path.write_text(f"instance,count,compute_ms,interconnect_ms,network_ms\n{rows}\n", encoding="utf-8")
    with pytest.raises(InputError, match=said) as error:
        read_steps(path)
    assert "line " in error.value.where + error.value.message


def test_the_command_takes_the_cheapest_in_time_and_says_why_not_the_others(graph, tmp_path, capsys):
    path = save(graph, tmp_path / "step.wt")
    asked = ["predict", "--cheapest", str(path), "--samples", "100000000", "--epochs", "10", "--max-machines", "2"]

    assert main([*asked, "--json"]) == 0
    free = json.loads(capsys.readouterr().out)
    assert main([*asked, "--deadline", f"{free['best']['time_s'] / 2}s", "--json"]) == 0
    quick = json.loads(capsys.readouterr().out)
    assert quick["best"]["cost_usd"] > free["best"]["cost_usd"]
    assert free["best"]["instance"] in [one["instance"] for one in quick["cheaper"]]
    assert any("too slow" in one["why_not"] for one in quick["cheaper"])
    assert main([*asked, "--deadline", "1s"]) == 1
    assert "no machine meets the limits; it would take a deadline of" in " ".join(capsys.readouterr().out.split())
    assert main(asked) == 0
    assert "prices of 2024-06" in capsys.readouterr().out


def test_a_device_that_does_not_compute_in_a_type_is_no_offer_and_says_why(graph, tmp_path, capsys):
    stored = str(save(graph, tmp_path / "train.wt"))
    asked = [
        "predict",
        "--cheapest",
        stored,
        "--samples",
        "1000000",
        "--epochs",
        "9",
        "--batch-size",
        "1024",
        "--dtype",
        "bf16",
    ]

    assert 0 == main([*asked, "--on", "p2.xlarge,g5.xlarge", "--json"])
    offers = json.loads(capsys.readouterr().out)["offers"]
    reasons = {one["instance"]: one["reason"] for one in offers}
    assert "does not compute in bf16" in reasons["p2.xlarge"]
    assert not reasons["g5.xlarge"]
    assert 2 == main([*asked, "--on", "p2.xlarge"])
    assert "no machine runs it: k80-12g does not compute in bf16" in capsys.readouterr().err


def test_a_graph_captured_in_a_type_that_a_device_lacks_leaves_that_device_out():
    """A step in bf16 ended the whole answer with "k80-12g has no peak rate for 'bf16'"."""
    builder = GraphBuilder()
    builder.task("mm", op="aten::mm", kind=Kind.COMPUTE, duration_ns=10**6, flops=10**9, bytes_read=10**6,
                 input_dtypes='["Tensor(c10::BFloat16)"]')  # fmt: skip
    old, new = GraphSteps(builder.build()).of([Offer(instance(name), 1) for name in ("p2.xlarge", "g5.xlarge")])

    assert "k80-12g does not compute in bf16" == old.reason
    assert not new.reason
    assert new.step_ns > 0


def test_processes_of_a_rented_machine_have_its_cores_and_not_those_of_the_capture(graph):
    """Two cores of a laptop, shared by eight processes, made a step on eight devices four times as long."""
    one, eight = steps_of(graph, ("p3.2xlarge", 1), ("p3.16xlarge", 1))

    assert eight.interconnect_ns < one.compute_ns


def test_a_step_that_cannot_be_true_is_refused(graph, monkeypatch):
    def too_quick(*given, **options):
        return replace(forecast(*given, **options), makespan_ns=1)

    monkeypatch.setattr(steps, "forecast", too_quick)
    with pytest.raises(ImplausibleError, match="the step predicted for v100"):
        steps_of(graph, ("p3.2xlarge", 1))
