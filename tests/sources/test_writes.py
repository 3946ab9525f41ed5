# ruff: noqa: PTH102, PTH103, PTH105, PTH107, PTH110, PTH123, SIM115 - every way to write
"""Files that a captured script writes: seen before, watched, or kept away."""

import io
import json
import logging
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from tests.cli.command import windtunnel
from windtunnel.sources.scratch import FileWrites, lines_that_save, watch_writes, writes_below

SCRIPT = """
import torch
from pathlib import Path
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    if step % 9 == 3:
        torch.save(model.state_dict(), "checkpoint.pt")
        torch.load("checkpoint.pt")
        with open("log.txt", "a") as log:
            log.write("saved")
        Path(__file__).with_name("best").mkdir(exist_ok=True)
        Path(__file__).with_name("best").joinpath("step.txt").write_text(str(step))
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A folder with a script and the results of an earlier run, which is the current one."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "checkpoint.pt").write_bytes(b"weeks of work")
    (folder / "log.txt").write_text("begun ")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def scratch(job, tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    with writes_below(folder, job / "train.py") as files:
        yield files


def held(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- seen before ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("import torch\ntorch.save(1, 'a.pt')", ["torch.save"]),
        ("open('a.txt', 'w'); open('b.txt'); open('c.txt', 'rb'); open('w')", ["open"]),
        ("open('a', mode='ab')", ["open"]),
        ("Path('a').open('x')", ["Path('a').open"]),
        ("model.save_pretrained('out')", ["model.save_pretrained"]),
        ("from pathlib import Path\nPath('a').write_text('x')", ["Path('a').write_text"]),
        ("print('save')", []),
        ("this is no Python", []),
    ],
)
def test_lines_that_save_are_found_before_the_script_runs(tmp_path, code, calls):
    path = tmp_path / "train.py"
    path.write_text(code)

    assert calls == [call for _, call in lines_that_save(path)]


def test_a_word_comes_before_an_existing_file_is_overwritten(job):
    before = []
    writes = FileWrites(job / "train.py", lambda path: before.append((path.name, path.read_bytes())))
    with watch_writes(writes):
        torch.save({}, "checkpoint.pt")
        torch.save({}, "checkpoint.pt")
        Path("log.txt").write_text("new")
        Path("new.txt").write_text("new")
        Path("train.py").read_text()
    Path("later.txt").write_text("not watched")

    assert [("checkpoint.pt", b"weeks of work"), ("log.txt", b"begun ")] == before
    assert ["new.txt"] == [path.name for path in writes.created]
    assert ["checkpoint.pt", "log.txt"] == [path.name for path in writes.overwritten]


def test_capture_says_what_is_going_to_be_overwritten(job):
    outcome = windtunnel("capture", "--iterations", 4, "train.py")

    assert 0 == outcome.code, outcome.stderr
    lines = outcome.stderr.splitlines()
    assert "train.py saves files (line 11: torch.save, line 13: open, line 16:" in lines[0]
    assert any("overwrites" in line and "checkpoint.pt" in line for line in lines)
    assert b"weeks of work" != (job / "checkpoint.pt").read_bytes()


# --- kept away --------------------------------------------------------------------------------------------


def test_capture_keeps_files_away(job):
    before = held(job)
    outcome = windtunnel("capture", "--iterations", 4, "--scratch", "train.py")

    assert 0 == outcome.code, outcome.stderr
    assert before == held(job)
    assert not (job / "best").exists()
    assert (job / "train.wt").is_dir()
    assert "train.py wrote to a temporary directory" in outcome.stderr
    assert "best/step.txt" in outcome.stderr


def test_what_was_written_is_read_back_and_all_else_is_read_where_it_is(scratch, job):
    torch.save({"a": 1}, "checkpoint.pt")
    with open("log.txt", "a") as log:
        log.write("more")

    assert {"a": 1} == torch.load("checkpoint.pt")
    assert "begun more" == Path("log.txt").read_text()
    assert SCRIPT == Path("train.py").read_text()
    assert [job / "checkpoint.pt", job / "log.txt"] == scratch.list_written_paths()


def test_the_files_of_the_user_are_as_they_were(job, tmp_path):
    before = held(job)
    folder = tmp_path / "scratch"
    folder.mkdir()
    with writes_below(folder, job / "train.py"):
        os.replace("log.txt", "old.txt")
        os.remove("checkpoint.pt")
        os.makedirs("runs/1")
        Path("runs/1/a.json").write_text(json.dumps(1))
        open("b.bin", "wb").close()
        Path("touched").touch()
        shutil.copyfile("train.py", "copy.py")
        logging.FileHandler("run.log").close()

        exist = [
            name for name in ("log.txt", "old.txt", "checkpoint.pt", "runs/1/a.json", "b.bin") if os.path.exists(name)
        ]
        assert ["old.txt", "runs/1/a.json", "b.bin"] == exist
        assert "begun " == Path("old.txt").read_text()
        with pytest.raises(FileNotFoundError):
            open("checkpoint.pt")
        with pytest.raises(FileExistsError):
            os.mkdir("runs")
        shutil.rmtree("runs")
        assert not os.path.exists("runs/1/a.json")

    assert before == held(job)
    assert ["checkpoint.pt", "log.txt", "train.py"] == sorted(path.name for path in job.iterdir())


def test_a_folder_that_is_not_there_is_still_an_error(scratch):
    with pytest.raises(FileNotFoundError):
        open("nowhere/a.txt", "w")


def test_temporary_files_and_devices_stay_where_they_are(scratch, tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("x")
    with open(os.devnull, "w") as nothing:
        nothing.write("x")

    assert outside.exists()
    assert [] == scratch.list_written_paths()


def test_everything_is_put_back(job, tmp_path):
    before = open, io.open, os.open, os.stat, os.remove, shutil.rmtree, torch.save, torch.load
    with pytest.raises(ZeroDivisionError), writes_below(tmp_path, job / "train.py"):
        raise ZeroDivisionError

    assert before == (open, io.open, os.open, os.stat, os.remove, shutil.rmtree, torch.save, torch.load)


@pytest.mark.slow
def test_flights_keep_files_away(job, tmp_path):
    (job / "train.py").write_text(SCRIPT.replace("range(400)", "range(10**7)"))
    before = held(job)
    common = ("--rounds", 3, "--ledger", tmp_path / "receipts.db", "--prices", "paper")
    outcome = windtunnel("verify", "train.py", "--scratch", "--whatif", "foreach-optimizer", *common)

    assert 0 == outcome.code, outcome.stderr
    assert before == held(job)
    assert not (job / "best").exists()


def test_files_of_a_workload_need_not_be_kept_away():
    outcome = windtunnel("verify", "mlp:width=8", "--scratch", "--whatif", "foreach-optimizer")

    assert 2 == outcome.code
    assert "--scratch applies to a script" in outcome.stderr
