"""The verbs below ``windtunnel suite``."""

import json
import re

import pytest

from tests.cli.command import windtunnel
from tests.reports.test_suite import _result
from windtunnel.systems.suite import run as suite_runs
from windtunnel.systems.suite.results import Cell, Result, write_machine, write_result

VERBS = ("run", "show", "verify")


@pytest.fixture
def folder(tmp_path):
    """Results on disk."""
    for result in (_result("mlp", 1, 100), _result("mlp", 4, 300, waited_ratio=0.3)):
        write_result(tmp_path / "run", result)
    write_machine(tmp_path / "run", {})
    return tmp_path / "run"


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_a_runnable_example_and_fits_in_80_columns(verb):
    outcome = windtunnel("suite", verb, "--help")
    lines = outcome.stdout.splitlines()

    assert outcome.code == 0
    assert lines[2].startswith(f"  Example: windtunnel suite {verb}")
    assert max(map(len, lines)) <= 80


def test_the_list_of_verbs_is_complete():
    listed = re.findall(r"^  ([a-z]+)   *[A-Z]", windtunnel("suite", "--help").stdout.partition("Commands:")[2], re.M)

    assert sorted(VERBS) == listed


def test_a_misspelt_verb_is_answered_with_the_nearest():
    outcome = windtunnel("suite", "verfiy")

    assert outcome.code == 2
    assert "did you mean verify" in outcome.stderr


def test_comparing_a_run_with_itself_finds_no_difference(folder):
    outcome = windtunnel("suite", "verify", folder, folder)
    document = json.loads(windtunnel("suite", "verify", folder, folder, "--json").stdout)

    assert "1.00x (1.00-1.00)" in outcome.stdout
    assert "no difference" in outcome.stdout
    assert document["schema"] == "windtunnel.comparison/1"
    assert [row["p_value"] for row in document["rows"]] == [None, None]
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_the_report_is_written_once(folder):
    outcome = windtunnel("suite", "show", folder)
    again = windtunnel("suite", "show", folder)

    assert outcome.code == 0
    assert "works offline" in " ".join(outcome.stdout.split())
    assert again.code == 2
    assert "--force" in again.stderr


def test_a_folder_without_results_says_how_to_make_some(tmp_path):
    outcome = windtunnel("suite", "show", tmp_path)

    assert outcome.code == 2
    assert "windtunnel suite run" in outcome.stderr


@pytest.mark.parametrize(
    "wrong",
    [("--batch-sizes", "1,two"), ("--threads", "0"), ("--time-limit", "soon"), ("--bandwidth", "fast")],
)
def test_wrong_options_are_bad_usage(tmp_path, wrong):
    outcome = windtunnel("suite", "run", "mlp", "--out", tmp_path / "run", *wrong)

    assert outcome.code == 2
    assert "Traceback" not in outcome.stderr


def test_an_unknown_workload_is_answered_with_the_nearest_names(tmp_path):
    outcome = windtunnel("suite", "run", "resnet5", "--out", tmp_path / "run")

    assert outcome.code == 2
    assert "resnet50" in outcome.stderr


def test_what_fails_is_told_and_the_rest_is_shown(tmp_path, monkeypatch):
    def pretended(order, _patience_s):
        name = order.cell.workload
        missing = Result(cell=Cell("gan"), status="missing", message="this needs a library", fix="pip install it")
        result = missing if name == "gan" else _result(name, 4, 300, waited_ratio=0.3)
        write_result(tmp_path / "run", result)
        return result

    monkeypatch.setattr(suite_runs, "_run_cell", pretended)
    monkeypatch.setattr(suite_runs, "_machine_facts", lambda _cells: {})
    outcome = windtunnel("suite", "run", "mlp", "gan", "--out", tmp_path / "run")

    assert outcome.code == 1
    assert "300 samples/s" in outcome.stdout
    assert "gan missing: this needs a library" in outcome.stdout
    assert "pip install it" in outcome.stdout
    assert "30%" in outcome.stdout


def test_the_list_is_a_table_and_json(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    outcome = windtunnel("suite", "show", "workloads", "mlp")
    document = json.loads(windtunnel("suite", "show", "workloads", "mlp", "--json").stdout)

    assert "FLOP/sample" in outcome.stdout
    assert document["workloads"][0]["num_parameters"] > 1e6
    assert document["workloads"][0]["note"] == ""
