"""What is said while work goes on, and what is not."""

import io
import json
import re
import threading

import pytest

from windtunnel.base.tables import Table
from windtunnel.cli import console
from windtunnel.cli.console import Progress, clean, print_lines, show
from windtunnel.units import format_duration


class Heard(io.StringIO):
    """A stream that another thread can wait for."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text):
        super().write(text)
        self.written.set()


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes as it is told."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_progress_says_nothing_of_quick_work(clock, capsys):
    with Progress("capturing") as progress:
        clock[0] = 1.9
        progress("capturing", 5, 10)

    assert ("", "") == capsys.readouterr()


def test_progress_that_is_piped_is_a_line_now_and_then(clock, capsys):
    with Progress("capturing train.py") as progress:
        for second in range(40):
            clock[0] = float(second)
            progress("iteration", second, 40)

    assert [
        "capturing train.py: iteration 15 of 40, 15 s",
        "capturing train.py: iteration 30 of 40, 30 s",
    ] == capsys.readouterr().err.splitlines()


def test_a_heartbeat_repeats_what_was_reported_last(clock, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(console.sys, "stderr", heard)
    monkeypatch.setattr(console, "BEAT_S", 0.001)
    with Progress("explaining train.wt", heartbeat=True) as progress:
        progress("measuring operators", 30, 100)
        clock[0] = 20.0
        heard.written.wait(60)

    assert "explaining train.wt: measuring operators 30 of 100, 20 s\n" == heard.getvalue()


def test_progress_of_a_search_names_no_total(clock, capsys):
    with Progress("searching") as progress:
        clock[0] = 15.0
        progress("batch 16, run", 2, 0)

    assert ["searching: batch 16, run 2, 15 s"] == capsys.readouterr().err.splitlines()


def test_progress_on_a_terminal_is_a_bar_that_leaves_nothing_behind(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(console.sys, "stderr", terminal)
    with Progress("capturing") as progress:
        clock[0] = 3.0
        progress("iteration", 5, 10)
    shown = terminal.getvalue()

    assert "iteration" in shown
    assert "5/10" in shown
    assert re.search(r"\x1b\[(1A\x1b\[)?2K$", shown.rstrip("\r\n"))


def test_tables_are_at_most_80_columns_and_lose_no_text(capsys):
    print_lines([Table({"name": str, "what": str}, [("n" * 20, "w " * 75)], wraps="what")])
    shown = capsys.readouterr().out

    assert 80 >= max(map(len, shown.splitlines()))
    assert 75 == shown.count("w ") + shown.count("w\n")
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_markup_in_a_cell_stays_text(capsys):
    print_lines([Table({"name": str}, [("[bold red]owned[/]",)])])

    assert "[bold red]owned[/]" in capsys.readouterr().out


def test_no_color_is_honored_on_a_terminal(monkeypatch):
    monkeypatch.setattr(console.sys, "stderr", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")

    assert "error:" == console.apply_style("error:", "bold red")


def test_control_characters_are_shown_and_not_obeyed():
    assert r"a\x1b[31mb\x07 c" == clean("a\x1b[31mb\x07\nc", 100)


def test_endless_text_keeps_its_beginning_and_end():
    shown = clean("a" * 1000 + "z" * 1000, 20)

    assert "a" * 10 + "…" + "z" * 10 == shown


def test_an_answer_is_shown_as_lines_or_as_a_document(capsys):
    table = Table(
        [("what-if", str), ("time", format_duration), ("time", "{:.1f} s")], [("amp", 1500, 2), (None, None, 3)]
    )

    show({"rows": [1]}, ["two of them:", table], as_json=False)
    assert "two of them:" == (lines := capsys.readouterr().out.splitlines())[0]
    assert ["what-if", "time", "time"] == lines[1].split()
    assert ["amp", "1.50", "µs", "2.0", "s"] == lines[3].split()
    assert ["3.0", "s"] == lines[4].split()

    show({"rows": [1]}, (1 / 0 for _ in "x"), as_json=True)
    assert {"rows": [1]} == json.loads(capsys.readouterr().out)


def test_a_path_is_never_cut(capsys):
    path = "/" + "/".join(["a-folder-whose-name-has-hyphens"] * 5)

    print_lines([f"the capture is in {path}"])

    assert path in capsys.readouterr().out
