"""Profiles as files: what is read back, and what is said of wrong ones."""

import pytest
from hypothesis import given

from tests.systems.serving.profiles import profiles
from windtunnel.errors import InputError
from windtunnel.systems.serving.profile import Profile, read_cells, read_profile, write_profile


@given(profiles())
def test_what_is_written_is_read_back(tmp_path_factory, profile):
    path = tmp_path_factory.mktemp("profile") / "one.csv"
    write_profile(path, profile.cells.items())
    found = read_profile(path)

    assert list(profile.cells) == list(found.cells)
    assert list(profile.cells.values()) == pytest.approx(list(found.cells.values()), rel=1e-15)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1,1,nan"], "line 2, column latency_ms"),
        (["1,1,2", "1,2,0"], "line 3, column latency_ms"),
        (["1,0,2"], "line 2, column batch_size"),
        (["1.5,1,2"], "'1.5' is no whole number"),
        (["1,1,2", "1,1,3"], "lines 2 and 3"),
        ([], "has no rows"),
        (["1,1"], "line 2"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, lines, message):
    path = tmp_path / "wrong.csv"
    path.write_text("\n".join(["num_threads,batch_size,latency_ms", *lines]))

    with pytest.raises(InputError) as refused:
        read_profile(path)
    assert message in str(refused.value)


def test_of_two_machines_in_one_file_one_is_meant(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("machine,num_threads,batch_size,latency_mean_ms\nbig,1,1,2\nsmall,1,1,3\n")

    with pytest.raises(InputError, match="take 2 ms and 3 ms") as refused:
        read_profile(path)
    assert "--where machine=big" in refused.value.fix
    assert {(1, 1): 3e6} == read_profile(path, {"machine": "small"}).cells
    with pytest.raises(InputError, match="no row has machine=huge") as refused:
        read_cells(path, {"machine": "huge"})
    assert "big, small" in refused.value.fix


def test_a_file_of_other_columns_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("num_threads,batch_size,seconds\n1,1,2\n")

    with pytest.raises(InputError, match="no column 'latency_ms'"):
        read_profile(path)


@pytest.mark.parametrize("cells", [{}, {(1, 1): 0.0}, {(0, 1): 1.0}, {(1, 1): float("inf")}])
def test_what_is_no_latency_is_no_profile(cells):
    with pytest.raises(InputError):
        Profile.of(cells)
