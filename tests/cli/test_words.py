"""What the verbs say: help, lists, hints, and the order of options."""

import json
import shlex

import pytest

from tests.cli.command import windtunnel
from tests.cli.graphs import step_graph
from windtunnel.graph import save


@pytest.fixture
def stored(tmp_path):
    return save(step_graph(), tmp_path / "a run.wt")


def test_a_bare_command_prints_its_help():
    shown = windtunnel()

    assert (0, "") == (shown.code, shown.stderr)
    assert shown.stdout.startswith("Usage: windtunnel")
    assert "  capture " in shown.stdout


@pytest.mark.parametrize("group", ["suite", "models", "place", "pipeline"])
def test_a_group_without_its_verb_prints_its_help(group):
    shown = windtunnel(group)

    assert (0, "") == (shown.code, shown.stderr)
    assert shown.stdout.startswith(f"Usage: windtunnel {group}")


@pytest.mark.parametrize("kind", ["devices", "links", "machines"])
def test_the_catalog_is_listed(kind):
    shown = windtunnel("list", kind)
    rows = json.loads(windtunnel("list", kind, "--json").stdout)["rows"]

    assert 0 == shown.code
    assert all(row["name"] in shown.stdout for row in rows)
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_the_list_of_whatifs_has_parameters_with_their_defaults():
    shown = " ".join(windtunnel("list", "whatifs").stdout.split())
    plugins = json.loads(windtunnel("list", "whatifs", "--json").stdout)["plugins"]

    assert "[num_ranks=2, link=auto" in shown
    assert {"factor": 2.0} == next(one["defaults"] for one in plugins if one["name"] == "faster-cpu")


def test_answers_show_what_they_were_asked_with(stored, tmp_path):
    shown = windtunnel("whatif", stored, "faster-cpu", "--ledger", tmp_path / "none.db")
    found = json.loads(windtunnel("whatif", stored, "faster-cpu", "--json", "--ledger", tmp_path / "none.db").stdout)

    assert "faster-cpu: factor=2.0" in shown.stdout
    assert {"faster-cpu": {"factor": 2.0}} == found["answers"][0]["used"]


def test_hints_are_words_that_the_shell_takes(stored):
    hint = windtunnel("explain", stored).stderr.splitlines()[-1].removeprefix("next: ")

    assert ["windtunnel", "whatif", str(stored), "--all"] == shlex.split(hint)
    assert 0 == windtunnel(*shlex.split(hint)[1:]).code


def test_a_whatif_that_nobody_registered_has_no_receipts_but_an_error(tmp_path):
    ledger = ("--ledger", tmp_path / "none.db")

    shown = windtunnel("db", "receipts", "--whatif", "ampp", *ledger)

    assert 2 == shown.code
    assert "no whatif is called 'ampp'" in shown.stderr
    assert "did you mean amp" in shown.stderr
    assert 0 == windtunnel("db", "receipts", "--whatif", "amp", *ledger).code


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("train.py", "--epochs", "3", "--iterations", "5"), "--iterations 5 train.py"),
        (("train.py", "--iterations=5"), "--iterations=5 train.py"),
        (("train.py", "--json"), "--json train.py"),
        (("train.py", "--epochs", "3"), None),
        (("--", "train.py", "--iterations", "5"), None),
    ],
)
def test_options_of_ours_behind_a_script_are_shown_in_the_right_order(tmp_path, monkeypatch, words, meant):
    """They go to the script, which is right where it has such options, and a riddle where it has not."""
    monkeypatch.chdir(tmp_path)

    shown = windtunnel("capture", *words)

    assert (meant is not None) == ("comes after train.py and is passed to it" in shown.stderr)
    assert meant is None or f"windtunnel capture {meant}\n" in shown.stderr


def test_a_difference_has_intervals_and_every_part_a_name(stored, tmp_path):
    other = save(step_graph(factor=2), tmp_path / "faster.wt")

    shown = windtunnel("diff", stored, other, "--by", "layer")
    found = json.loads(windtunnel("diff", stored, other, "--json").stdout)

    assert 0 == shown.code
    assert 2 == len(found["before_interval_ns"])
    assert all(line[:1].strip() for line in shown.stdout.splitlines()[2:] if line.strip())


@pytest.mark.parametrize(
    ("command", "option", "suggested"),
    [
        (("calibrate",), "--budget", "--time-limit"),
        (("slice", "a.wt"), "--output", "--out"),
        (("stalls", "mlp"), "--output", "--html"),
        (("train", "plan", "cluster.toml"), "--fly", "--verify"),
    ],
)
def test_the_former_name_of_an_option_is_answered_with_the_new_one(command, option, suggested):
    refused = windtunnel(*command, option, "1")

    assert 2 == refused.code
    assert f"no such option: {option}" in refused.stderr
    assert f"did you mean {suggested}?" in refused.stderr
