"""``windtunnel place`` on a small problem."""

import itertools
import json

import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from windtunnel.cli import main
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind, save

NODES = [
    {"id": node, "supportedOnFpga": 1, "cpuLatency": 40.0, "fpgaLatency": node + 1.0, "size": 1, "isBackwardNode": 0}
    for node in range(6)
]
DOCUMENT = {
    "maxSizePerFPGA": 100, "maxFPGAs": 3, "maxCPUs": 1, "nodes": NODES,
    "edges": [{"sourceId": node, "destId": node + 1, "cost": 0.5} for node in range(5)],
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "problem.json"
    found.write_text(json.dumps(DOCUMENT))
    return found


def run(capsys, *arguments):
    code = main(list(map(str, ("place", *arguments))))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_problem_is_placed_explained_and_drawn(capsys, path, tmp_path):
    split, picture = tmp_path / "split.json", tmp_path / "picture.html"

    code, out, err = run(capsys, path, "--explain", "--compare", "--out", split, "--html", picture)

    assert 0 == code, err
    assert "no plan whose stages follow one another is below it" in " ".join(run(capsys, path)[1].split())
    assert "even split: " in out
    assert "cheapest moves" in out
    assert 3 == len(json.loads(split.read_text())["fpgas"])
    page = picture.read_text()
    assert 6 == page.count("<circle")
    assert "://" not in page


def test_json_holds_the_assignment_and_its_proof(capsys, path):
    code, out, _ = run(capsys, path, "--json", "--on", "2", "--cpus", "0")
    document = json.loads(out)

    assert 0 == code
    assert document["is_optimal"]
    assert document["value_ns"] == document["bound_ns"] == 11.5e6
    assert {"0", "1", "2", "3", "4", "5"} == set(document["assignment"])


def test_latency_is_greedy_when_asked(capsys, path):
    code, out, err = run(capsys, path, "--objective", "latency", "--solver", "greedy")

    assert 0 == code, err
    assert "greedy" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--solver", "magic"), "not solved by 'magic'"),
        (("--objective", "speed"), "speed is not solved"),
        (("--on", "2xh100"), "is no number"),
        (("--on", "0", "--cpus", "0"), "no devices"),
        (("--on", "2", "--cpus", "0", "--memory", "2B"), "no contiguous cut fits"),
        (("--out", "problem.json"), "is there already"),
        (("--combine", "both"), "cannot be combined"),
    ],
)
def test_wrong_wishes_are_answered_with_two(capsys, path, monkeypatch, arguments, message):
    monkeypatch.chdir(path.parent)

    code, _, err = run(capsys, path, *arguments)

    assert code in (1, 2)  # 1: there is no answer
    assert message in err


@pytest.mark.slow
def test_a_workload_is_flown_and_its_receipt_kept(capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("windtunnel.cli.console.COLUMNS", 160)  # names are folded where there is little room
    ledger = tmp_path / "receipts.db"
    code, out, err = run(capsys, "verify", "mlp:batch_size=32,width=32,depth=2", "--ranks", "2", "--microbatches",
                         "4", "--compare", "--ledger", ledger)  # fmt: skip

    assert 0 == code, err
    assert "even" in out
    assert "stage 1:" in out
    assert main(["db", "receipts", "--ledger", str(ledger), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    splits = 2 + ("improved" in out)  # the exact plan has a row of its own where a move from it helped
    assert ["pipeline"] * splits == [one["whatif"] for one in found["receipts"]]


def test_the_report_of_a_capture_has_the_split(capsys, tmp_path):
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    tasks = [
        builder.task(name, kind=Kind.COMPUTE, layer=name, phase=Phase.FORWARD, resource=cpu, duration_ns=1000)
        for name in ("first", "second", "third")
    ]
    for one, other in itertools.pairwise(tasks):
        builder.edge(one, other, kind=EdgeKind.DATA, size_bytes=4)
    stored = save(builder.build(), tmp_path / "train.wt")

    code = main(
        [
            "explain",
            str(stored),
            "--html",
            str(tmp_path / "page.html"),
            "--no-whatifs",
            "--place",
            "2xhere",
            "--ledger",
            str(tmp_path / "none.db"),
        ]
    )

    assert 0 == code, capsys.readouterr().err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Assignment of operators to devices" in page
    assert 3 == page.count("<circle")


def test_flights_that_cannot_be(capsys):
    code, _, err = run(capsys, "verify", "mlp", "--ranks", "2xh100")
    assert 2 == code
    assert "invalid value for '--ranks'" in err
    code, _, err = run(capsys, "verify", "nothing", "--ranks", "2")
    assert 2 == code
    assert "nothing" in err


def test_what_belongs_to_another_verb_is_sent_there(capsys):
    assert "windtunnel place verify mlp --ranks 2" in run(capsys, "mlp")[2]


def test_infinite_memory_is_null_in_json(capsys, tmp_path):
    """A host without a limit: JSON knows no Infinity, and a strict reader refuses one."""
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({**DOCUMENT, "maxFPGAs": 1, "maxSizePerFPGA": 3}))

    code, out, err = run(capsys, problem, "--json")
    document = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    assert 0 == code, err
    assert [3.0, None] == sorted((one["memory_limit_bytes"] for one in document["devices"]), key=str)


@pytest.mark.parametrize("objective", ["throughput", "flush", "latency"])
def test_the_even_split_is_judged_by_the_objective_of_the_plan(capsys, path, objective):
    code, out, err = run(capsys, path, "--compare", "--objective", objective, "--json", "--time-limit", "5s")
    document = json.loads(out)

    assert 0 == code, err
    assert "even" == document["even"]["solver"]
    assert document["value_ns"] <= document["even"]["value_ns"]


def test_a_graph_of_too_many_cuts_says_what_was_searched(capsys, path):
    code, out, _ = run(capsys, path, "--max-downsets", "3", "--solver", "dp")

    assert 0 == code
    assert "more than 3 downsets" in out


def test_stages_may_have_replicas(capsys, path):
    code, out, _ = run(capsys, path, "--on", "5", "--replicas", "3")
    _, as_json, _ = run(capsys, path, "--on", "5", "--replicas", "3", "--sync", "ring", "--json")

    assert 0 == code
    assert "x 2" in out
    assert "agrees" in out
    document = json.loads(as_json)
    assert document["is_optimal"]
    assert 5 >= sum(one["replicas"] for one in document["devices"] if one["kind"] == "accelerator")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--replicas", "2", "--solver", "ilp"), "do not support replicas"),
        (("--replicas", "2", "--sync", "tree"), "synchronized by 'tree'"),
        (("--links", "a:b=1GB/s"), "states the cost of each transfer itself"),
    ],
)
def test_what_fits_no_solver_is_refused(capsys, path, options, message):
    code, _, err = run(capsys, path, *options)

    assert 0 != code
    assert message in err
