"""Scripts that end in ways of their own: each is told, none ends in silence."""

import errno
import json
import sqlite3

import pytest

pytest.importorskip("torch")

from tests.cli.command import windtunnel, windtunnel_process
from windtunnel.base.outputs import whole
from windtunnel.errors import InputError
from windtunnel.graph import load
from windtunnel.measure import ProfileDatabase

TRAINING = """import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=60)
arguments = parser.parse_args()
model = torch.nn.Sequential()
model.add_module('a"b\\n\\x1b[31mc\\\\d%22', torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(arguments.iterations):
    with torch.profiler.record_function('say "hi"\\n\\x1b[2J'):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path):
    def written(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return written


def test_leaving_by_os_exit_is_told(script):
    shown = windtunnel("capture", script("import os\nos._exit(3)\n"))

    assert 2 == shown.code
    assert "train.py called os._exit(3) after 0 optimizer steps" in shown.stderr


def test_the_traceback_of_a_script_is_shown_without_ours(script):
    shown = windtunnel("capture", script("def inner(x):\n    return x['\\x1b[31m']\ninner({})\n"))

    assert "line 2, in inner" in shown.stderr
    assert "KeyError: '\\x1b[31m'" in shown.stderr
    assert "runpy" not in shown.stderr
    assert "\x1b[31m" not in shown.stderr
    assert "make it run by itself first: python " in shown.stderr


def test_arguments_that_a_script_refuses_are_not_answered_with_longer_training(script):
    shown = windtunnel("capture", script(TRAINING), "--iterations", "many")

    assert 2 == shown.code
    assert "train.py refused its arguments (--iterations many)" in shown.stderr
    assert "its options come behind it" in shown.stderr
    assert "train longer" not in shown.stderr


def test_names_with_quotes_line_breaks_and_escapes_are_captured_and_shown_escaped(script, tmp_path):
    shown = windtunnel("capture", "--iterations", "5", script(TRAINING))
    layers = set(load(tmp_path / "train.wt").tasks["layer"].values)
    explained = windtunnel("explain", tmp_path / "train.wt", "--by", "layer")

    assert 0 == shown.code, shown.stderr
    assert any('a"b\n\x1b[31mc\\d%22' in layer for layer in layers)
    assert "\x1b" not in explained.stdout
    assert 'a"b \\x1b[31mc\\d%22' in explained.stdout


def test_what_was_captured_before_the_end_knows_its_script(script, tmp_path):
    windtunnel("capture", "--iterations", "500", script(TRAINING))

    assert str(tmp_path / "train.py") == load(tmp_path / "train.wt").meta.origin["script"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["capture", "memory"])
def test_a_crash_of_native_code_ends_in_words(script, verb):
    path = script("import ctypes\nctypes.string_at(0)\n")

    shown = windtunnel_process(verb, path)

    assert 2 == shown.code
    assert f"error: {path} was killed by SIGSEGV" in shown.stderr
    assert "python -X faulthandler" in shown.stderr


@pytest.mark.slow
def test_a_command_that_outlives_its_script_answers_as_before(script):
    shown = windtunnel_process("capture", "--iterations", "5", "--json", script(TRAINING))

    assert 0 == shown.code, shown.stderr
    assert "windtunnel.capture/1" == json.loads(shown.stdout)["schema"]


def test_a_full_disk_leaves_nothing_behind_and_is_called_one(tmp_path):
    def written():
        with whole(tmp_path / "page.html") as scratch:
            scratch.write_text("half of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match="No space left") as refused:
        written()
    assert "free some space" in refused.value.fix
    assert [] == list(tmp_path.iterdir())


def test_a_database_on_a_full_disk_is_no_reason_against_a_whatif(tmp_path, monkeypatch):
    """Else amp is "not applicable" because the disk is full."""
    database = ProfileDatabase(tmp_path / "profile.db")

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("windtunnel.measure.database._prepare", full)

    with pytest.raises(OSError, match="No space left on device") as refused, database._connection():
        pass
    assert errno.ENOSPC == refused.value.errno
