"""``windtunnel pipeline show``: the usual pictures, files, and what is refused."""

import json

import pytest

from tests.cli.command import windtunnel
from windtunnel.systems.pipelines.generate import SCHEDULES
from windtunnel.systems.pipelines.schedule_file import read_schedule


def test_1f1b_is_drawn_as_in_its_paper():
    shown = windtunnel("pipeline", "show", "1f1b", "--ranks", "3", "--microbatches", "4")

    assert 0 == shown.code
    assert [
        "rank 0  F0 F1 F2 .  .  .  .  B0 -  F3 B1 -  .  B2 -  .  B3 -",
        "rank 1  .  F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -  .  .",
        "rank 2  .  .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -  .  .  .  .",
    ] == [line.rstrip() for line in shown.stdout.splitlines()[:3]]
    assert "1f1b: 4 microbatches, 3 stages, 18.0 ms, idle 33 %" in shown.stdout


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_drawn_written_and_told(name, tmp_path):
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    shown = windtunnel("pipeline", "show", name, "--batches", "2", "--html", page, "--csv", table)
    told = json.loads(windtunnel("pipeline", "show", name, "--batches", "2", "--json").stdout)
    again = windtunnel("pipeline", "show", table, "--batches", "2", "--versions", told["versions"], "--json")

    assert (0, 0) == (shown.code, again.code)
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert told == {**json.loads(again.stdout), "name": name}
    assert page.read_text().count("<title>") - 1 == sum(len(rank["passes"]) for rank in told["ranks"])
    assert 16 == read_schedule(table, num_batches=2, versions=told["versions"]).num_passes


def test_stages_may_be_uneven():
    told = json.loads(
        windtunnel("pipeline", "show", "gpipe", "--ranks", "2", "--microbatches", "2", "--forward", "1ms,3ms",
                   "--backward", "2ms", "--message", "1ms", "--json").stdout
    )  # fmt: skip

    assert 1_000_000 + 1_000_000 + 2 * 3_000_000 + 2 * 2_000_000 + 1_000_000 + 2_000_000 == told["makespan_ns"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zb"], "no schedule is called 'zb'"),
        (["interleaved", "--ranks", "4", "--microbatches", "6"], "6 microbatches are no multiple of 4 ranks"),
        (["2bw", "--ranks", "8", "--microbatches", "4"], "two versions"),
        (["none.csv"], "none.csv cannot be read"),
        (["1f1b", "--forward", "1ms,2ms"], "2 values for 4 stages"),
        (["1f1b", "--forward", "fast"], "fast"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2(arguments, message):
    shown = windtunnel("pipeline", "show", *arguments)

    assert 2 == shown.code
    assert message in shown.stderr


def test_a_file_with_a_missing_action_names_rank_and_slot(tmp_path):
    (tmp_path / "bad.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,,1B1\n")
    shown = windtunnel("pipeline", "show", tmp_path / "bad.csv")

    assert 2 == shown.code
    assert "rank 1, slot 2: 1F1 is missing" in shown.stderr
