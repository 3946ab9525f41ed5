"""Schedules: what the papers draw, what can run, and files that torch reads and writes."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.peers.torch_schedules import NAMES, made_by_torch, through_torch

from tests.systems.pipelines.schedule_rules import broken_rule, mutated
from windtunnel.errors import InputError
from windtunnel.systems.pipelines.chunked import interleaved, zb_h1
from windtunnel.systems.pipelines.generate import SCHEDULES, generate
from windtunnel.systems.pipelines.schedule_file import read_schedule, schedule_csv, schedule_of_csv, write_schedule
from windtunnel.systems.pipelines.schedules import (
    Action,
    gpipe,
    one_forward_one_backward,
    pipedream_2bw,
    repeat_schedule,
)
from windtunnel.systems.pipelines.verify import in_flight, require_valid

NUMBERS = [(1, 3), (2, 2), (2, 6), (4, 4), (4, 12)]


def row(schedule, rank):
    return " ".join(map(str, schedule.actions[rank]))


def made(name, num_ranks, num_microbatches, num_batches=1):
    if name == "dualpipe" and num_ranks % 2:
        pytest.skip("it has no middle")
    num_microbatches += num_microbatches % num_ranks if name == "interleaved" else 0
    return generate(name, num_ranks, num_microbatches + num_microbatches % 2, num_batches=num_batches)


def test_schedules_are_those_of_the_papers():
    assert "0F0 0F1 0F2 0B0 0B1 0B2" == row(gpipe(2, 3), 0)
    assert "0F0 0F1 0B0 0F2 0B1 0B2" == row(one_forward_one_backward(2, 3), 0)
    assert "1F0 1B0 1F1 1B1 1F2 1B2" == row(one_forward_one_backward(2, 3), 1)
    # Narayanan et al., figure 4: two chunks on four ranks, eight microbatches; what the first rank does first
    assert row(interleaved(4, 8), 0).startswith("0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2")
    # Qi et al., figure 3: the last of three ranks puts its weights' gradients off by two
    assert "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3" == row(zb_h1(3, 4), 2)


def test_2bw_is_1f1b_that_goes_on_through_all_batches():
    """Warm up with one pass less than ranks behind it, then pairs; a batch begins before the one before has ended."""
    schedule = pipedream_2bw(2, 2, 3)

    assert "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0F4 0B3 0F5 0B4 0B5" == row(schedule, 0)
    with pytest.raises(InputError, match="3 microbatches per batch on 4 ranks need more than two versions"):
        pipedream_2bw(4, 3, 2)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), NUMBERS)
@pytest.mark.parametrize("num_batches", [1, 3])
def test_every_schedule_can_run_and_holds_no_more_than_it_declares(name, num_ranks, num_microbatches, num_batches):
    schedule = made(name, num_ranks, num_microbatches, num_batches)
    require_valid(schedule)

    assert "" == broken_rule(schedule)
    if schedule.is_training:
        assert all(held <= most for held, most in zip(in_flight(schedule), schedule.max_in_flight, strict=True))


def test_what_is_in_flight_is_what_the_papers_say():
    def most(name):
        return in_flight(generate(name, 4, 16))

    assert (16, 16, 16, 16) == most("gpipe")
    assert (4, 3, 2, 1) == most("1f1b")
    assert (4, 4, 4, 4) == most("zb-h1")
    assert (8, 8, 8, 8) == most("zbv")  # of half as large stages
    assert (5, 5, 5, 5) == most("dualpipe")  # one more than ranks
    assert (11, 9, 7, 5) == most("interleaved")


@pytest.mark.parametrize("name", [one for one in SCHEDULES if one != "forward-only"])
def test_an_accident_is_found_exactly_where_the_slow_check_finds_one(name):
    random = np.random.default_rng(0)
    schedule = made(name, 4, 8, 2)
    for _ in range(60):
        other = mutated(schedule, random)
        rule = broken_rule(other)
        if rule:
            with pytest.raises(InputError, match="rank"):
                require_valid(other)
        else:
            require_valid(other)


def test_errors_name_rank_and_slot():
    schedule = one_forward_one_backward(3, 4)

    def wrong(rank, change, **options):
        rows = [list(one) for one in schedule.actions]
        change(rows[rank])
        with pytest.raises(InputError) as error:
            require_valid(replace(schedule, actions=tuple(map(tuple, rows)), **options))
        return str(error.value).splitlines()[0]

    def swap(row):
        row[2], row[3] = row[3], row[2]

    def early(row):
        row.insert(1, row.pop(3))

    def lose(row):
        row.remove(Action(2, "F", 1))

    def double(row):
        row.insert(2, Action(1, "F", 0))

    def stray(row):
        row.append(Action(0, "B", 9))

    def elsewhere(row):
        row.append(Action(2, "F", 1))

    assert "rank 2, slot 2: 2F1 is missing" == wrong(2, lose)
    assert "rank 2, slot 7: 2B3 is missing" == wrong(2, list.pop)
    assert "rank 1, slot 2: 1F0 comes twice: 1F0 (rank 1, slot 0)" == wrong(1, double)
    assert "rank 0, slot 8: 0B9 does not exist" == wrong(0, stray)
    assert "rank 1, slot 8: 2F1 belongs on rank 2" == wrong(1, elsewhere)
    assert "rank 2, slot 2: 2B1 comes before 2F1 (rank 2, slot 3), which it needs" == wrong(2, swap)
    assert "rank 0: 3 passes are in flight, 2 were declared" == wrong(0, lambda _: None, max_in_flight=(2, 2, 1))
    assert (
        "rank 0, slot 1: 0B0 waits for 1B0 (rank 1, slot 2); rank 1, slot 1: 1F1 waits for 0F1 (rank 0, slot 2): "
        "so that these ranks wait for each other"
    ) == wrong(0, early)


def test_a_batch_begins_when_its_weights_are_there():
    flushed = repeat_schedule(gpipe(2, 2), 2)
    early = pipedream_2bw(2, 2, 2)

    require_valid(flushed)
    with pytest.raises(InputError, match=r"rank 0, slot 3: 0F2 of batch 1 comes before 0B1 \(rank 0, slot 4\)"):
        require_valid(replace(early, versions="flush"))
    with pytest.raises(InputError, match="more than two versions would be needed"):
        require_valid(replace(pipedream_2bw(4, 4, 4), num_microbatches=1, num_batches=16))


def test_gradients_of_weights_end_a_batch_that_has_them_apart():
    schedule = repeat_schedule(zb_h1(2, 2), 2)
    row = list(schedule.actions[0])
    last = max(at for at, one in enumerate(row) if one.kind == "W" and one.microbatch < 2)
    row.insert(last, row.pop(last + 1))

    require_valid(schedule)
    with pytest.raises(InputError, match=rf"rank 0, slot {last}: 0F2 of batch 1 comes before 0W1"):
        require_valid(replace(schedule, actions=(tuple(row), *schedule.actions[1:])))


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("zb", (2, 2), "no schedule is called 'zb'"),
        ("interleaved", (4, 6), "6 microbatches are no multiple of 4 ranks"),
        ("dualpipe", (3, 6), "3 ranks have no middle"),
        ("dualpipe", (2, 5), "5 microbatches are no two halves"),
        *((name, (0, 2), "2 microbatches on 0 ranks") for name in SCHEDULES),
        *((name, (2, 0), "0 microbatches on 2 ranks") for name in SCHEDULES),
    ],
)
def test_numbers_that_a_schedule_cannot_have_are_refused(name, numbers, message):
    with pytest.raises(InputError, match=message):
        generate(name, *numbers)


def test_chunks_are_a_choice_of_interleaved_only():
    assert 12 == generate("interleaved", 4, 8, num_chunks=3).num_stages
    assert 8 == generate("zbv", 4, 8, num_chunks=2).num_stages
    with pytest.raises(InputError, match="2 chunks per rank"):
        generate("1f1b", 4, 8, num_chunks=2)


# --- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [one for one in SCHEDULES if one not in ("forward-only", "dualpipe")])
@pytest.mark.parametrize("num_batches", [1, 2])
def test_torch_loads_validates_and_writes_our_files_unchanged(name, num_batches):
    schedule = made(name, 4, 12, num_batches)
    text = schedule_csv(schedule)

    assert text.split() == through_torch(text, 4, schedule.num_stages, schedule.num_passes).split()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_comes_back_from_its_file(name, tmp_path):
    schedule = made(name, 4, 12, 2)
    path = tmp_path / f"{name}.csv"
    write_schedule(schedule, path)

    assert replace(schedule, max_in_flight=()) == read_schedule(path, num_batches=2, versions=schedule.versions)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 4), (4, 8), (4, 16)])
def test_torchs_schedules_are_read_checked_and_written_unchanged(name, num_ranks, num_microbatches):
    text = made_by_torch(name, num_ranks, num_microbatches)
    schedule = schedule_of_csv(text, name)
    require_valid(schedule)

    assert "" == broken_rule(schedule)
    assert text.split() == schedule_csv(schedule).split()


@pytest.mark.parametrize(("ours", "theirs"), [("zbv", "ZBVZeroBubble"), ("dualpipev", "DualPipeV"),
                                              ("interleaved", "Interleaved1F1B")])  # fmt: skip
def test_ours_are_torchs_where_torch_has_them(ours, theirs):
    for num_ranks, num_microbatches in ((2, 4), (4, 8), (4, 16), (5, 15)):
        other = schedule_of_csv(made_by_torch(theirs, num_ranks, num_microbatches), theirs)
        rows = tuple(tuple(one for one in row if one is not None) for row in other.actions)
        schedule = generate(ours, num_ranks, num_microbatches)

        assert schedule.rank_of == other.rank_of
        assert schedule.overlaps == other.overlaps
        if ours != "interleaved" or num_microbatches > num_ranks:
            assert schedule.actions == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no actions"),
        ("0F0,0X0", "rank 0, slot 1: '0X0' is no action"),
        ("0F0,0SEND_F0", "the form without messages"),
        ("0F0,,0B0\n1F0,1B0,2F0", "rank 1, slot 1: 2B0 is missing"),
        ("0F0,0B0\n1F0,,1F7", "too few for 2 stages and 8"),
        ('0F0,"0B0', "no CSV"),
        ("0F0,0B0\n,1B0", "rank 1, slot 0: 1F0 is missing"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0,,1B1", "rank 1, slot 2: 1F1 is missing"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,", "rank 1, slot 3: 1B1 is missing"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,0B1", "rank 1, slot 3: 0B1 belongs on rank 0"),
    ],
)
def test_a_bad_file_says_where(text, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(text)

    with pytest.raises(InputError, match=message):
        read_schedule(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_schedule(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_schedule(tmp_path / "bytes.csv")
    (tmp_path / "odd.csv").write_text("0F0,0F1,0F2")
    with pytest.raises(InputError, match="no 2 equal batches"):
        read_schedule(tmp_path / "odd.csv", num_batches=2)
