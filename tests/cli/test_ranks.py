"""A folder with one trace per rank, on the command line."""

import json

import pytest

from tests.cli.command import windtunnel
from tests.sources.test_ranks import MS, job, off
from windtunnel.graph import save


@pytest.fixture
def folder(tmp_path):
    """Three ranks; the clock of the last is 70 ms ahead."""
    for rank, graph in enumerate(job(3, world_size=3)):
        save(off(graph, 70 * MS) if rank == 2 else graph, tmp_path / f"rank{rank}.wt")
    return tmp_path


@pytest.mark.parametrize("verb", [("explain", "--table", "resources"), ("explain",)])
def test_what_was_added_to_the_clocks_is_said(folder, verb):
    said = windtunnel(*verb, folder).stdout

    assert "clocks of 3 hosts were set" in said
    assert "rank 2: -70,00" in said


def test_clocks_can_be_left_as_they_are(folder):
    document = json.loads(windtunnel("explain", "--table", "resources", folder, "--align", "none", "--json").stdout)

    assert [0, 0, 0] == [host["offset_ns"] for host in document["clocks"]["hosts"]]
    assert "clocks may differ" in document["clocks"]["notes"][0]
    assert (
        "there is no way 'some' to align clocks"
        in windtunnel("explain", "--table", "resources", folder, "--align", "some").stderr
    )


def test_missing_ranks_are_named_and_accepted_on_demand(folder):
    for path in (folder / "rank1.wt").iterdir():
        path.unlink()
    (folder / "rank1.wt").rmdir()

    refused, joined = windtunnel("explain", folder), windtunnel("explain", folder, "--allow-missing")

    assert (2, 0) == (refused.code, joined.code)
    assert "1 of 3 ranks are missing: 1" in refused.stderr
    assert "note: 2 of 3 ranks are here" in joined.stdout


def test_one_rank_has_no_clocks_to_align(folder):
    outcome = windtunnel("explain", "--table", "resources", folder / "rank0.wt", "--align", "none")

    assert (2, True) == (outcome.code, "the file holds one rank" in outcome.stderr)


def test_waits_are_told_with_whom_they_were_for(folder):
    waits = json.loads(windtunnel("explain", folder, "--json").stdout)["waits"]

    assert {0, 1, 2} == {wait["rank"] for wait in waits}
    assert sum(wait["waited_ns"] for wait in waits) == sum(wait["held_up_ns"] for wait in waits) > 0
