"""A job that a user's file makes, and what is said where it makes none."""

from contextlib import nullcontext

import pytest

from tests.cli.command import windtunnel
from windtunnel.errors import InputError
from windtunnel.sources.job_file import call_user_function, is_job_file

MAKER = """
import argparse
import sys
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
width = parser.parse_args().width


def make():
    return [width, Path(sys.path[0]).name]
"""
SCRIPT = """
import argparse
from pathlib import Path
Path(__file__).with_name("it ran").touch()
argparse.ArgumentParser().add_argument("--width", required=True)
"""


@pytest.fixture
def job(tmp_path):
    def write(text, name="my_job.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("text", ["a.py", "a.py:make", "dir/my job.py:f --x 1", "a.py --x 'y z'"])
def test_a_file_is_a_job_with_or_without_function_and_arguments(text):
    assert is_job_file(text)


@pytest.mark.parametrize("text", ["mlp", "mlp:width=64", "relu-network:family=vgg", ""])
def test_a_workload_is_no_file(text):
    assert not is_job_file(text)


def test_a_file_gets_its_arguments_and_its_folder(job, tmp_path):
    assert [64, tmp_path.name] == call_user_function(f"{job(MAKER, 'my job.py')} --width 64", list)


def test_arguments_that_the_file_refuses_are_explained(job):
    with pytest.raises(InputError, match=r"my_job.py ended itself \(exit code 2\) with the arguments --depth") as told:
        call_user_function(f"{job(MAKER)} --depth 3", list)
    assert "in quotes" in told.value.fix


def test_a_training_script_is_refused_before_it_runs(job, tmp_path):
    path = job(SCRIPT)
    outcome = windtunnel("stalls", path)

    assert 2 == outcome.code
    assert "my_job.py defines no function 'make'" in outcome.stderr
    assert "windtunnel capture" in outcome.stderr
    assert not (tmp_path / "it ran").exists()


def test_a_maker_that_raises_is_named_with_its_line(job):
    with pytest.raises(InputError, match="raised ZeroDivisionError") as told:
        call_user_function(str(job("def make():\n    return 1 / 0\n")), list)
    assert told.value.where.endswith("my_job.py:2")


@pytest.mark.parametrize(
    ("code", "function"),
    [
        ("from json import loads as make", "make"),
        ("if True:\n    def build(): return []", "build"),
        ("from json import *", "dumps"),
        ("try:\n    make = list\nexcept ValueError:\n    pass", "make"),
    ],
)
def test_a_function_may_come_from_anywhere(job, code, function):
    with pytest.raises(InputError, match=r"returned a|raised TypeError") if "json" in code else nullcontext():
        call_user_function(f"{job(code)}:{function}", list)


@pytest.mark.parametrize(
    ("text", "message"),
    [("absent.py:make", "there is no such file"), ("a.py 'open", "cannot be read")],
)
def test_what_cannot_be_a_job_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        call_user_function(text, list)


def test_what_is_no_python_is_refused_with_its_line(job):
    with pytest.raises(InputError, match="is not valid Python") as told:
        call_user_function(str(job("def make(:\n")), list)
    assert told.value.where.endswith("my_job.py:1")
