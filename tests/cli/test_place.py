"""``windtunnel place`` on a small problem."""

import json

import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from windtunnel.cli import main

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

    code, out, err = run(capsys, path, "--explain", "--compare", "--robust", "0.5-2", "--out", split,
                         "--picture", picture)  # fmt: skip

    assert 0 == code, err
    assert "no contiguous plan is below it" in out
    assert "min-cut" in out
    assert "cheapest moves" in out
    assert "best for bandwidths" in out
    assert 3 == len(json.loads(split.read_text())["fpgas"])
    page = picture.read_text()
    assert 6 == page.count("<circle")
    assert "://" not in page


def test_json_holds_the_assignment_and_its_proof(capsys, path):
    code, out, _ = run(capsys, path, "--json", "--devices", "2", "--cpus", "0")
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
        (("--devices", "2xh100"), "is no number"),
        (("--devices", "0", "--cpus", "0"), "no devices"),
        (("--devices", "2", "--cpus", "0", "--memory", "2B"), "no contiguous cut fits"),
        (("--robust", "fast"), "is no interval"),
        (("--out", "problem.json"), "is there already"),
        (("--combine", "both"), "cannot be combined"),
    ],
)
def test_wrong_wishes_are_answered_with_two(capsys, path, monkeypatch, arguments, message):
    monkeypatch.chdir(path.parent)

    code, _, err = run(capsys, path, *arguments)

    assert code in (1, 2)  # 1: there is no answer
    assert message in err


PROFILE = """node1 -- Conv -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=16.0, \
parameter_size=10.0
node2 -- Linear -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=100.0
\tnode1 -- node2
"""


def test_a_profile_is_cut_into_stages(capsys, tmp_path):
    profile = tmp_path / "profile.txt"
    profile.write_text(PROFILE)

    code, out, err = run(capsys, profile, "--levels", "2@1kB/s")

    assert 0 == code, err
    assert "6.00 ms per minibatch, 1.50x one machine" in out
    document = json.loads(run(capsys, profile, "--levels", "2@1kB/s", "--json")[1])
    assert [["node1"], ["node2"]] == [stage["layers"] for stage in document["stages"]]
    for levels, message in (("", "every level"), ("two", "is no level"), ("2@fast", "is not a rate")):
        code, _, err = run(capsys, profile, "--levels", levels)
        assert (2, True) == (code, message in err)
