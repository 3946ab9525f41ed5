"""Files from outside: how much they may take, and what is said of text that is none."""

import gzip

import pytest

from windtunnel.base.reading import ReadLimit, format_value, free_memory_bytes, parse_json, read_decompressed, read_json
from windtunnel.errors import InputError, TraceError

MIB = 1 << 20


def test_a_small_file_may_take_256_mib_and_a_larger_one_256_times_its_size(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x")
    large.write_bytes(bytes(2 * MIB))

    assert 256 * MIB == ReadLimit(small).num_bytes
    assert 512 * MIB == ReadLimit(large).num_bytes
    assert 7 == ReadLimit(large, 7).num_bytes


def test_what_takes_more_names_the_limit_its_reason_and_how_to_raise_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")

    with pytest.raises(InputError, match=r"takes 1.00 GiB of memory or more; the limit is 256 MiB") as caught:
        ReadLimit(path).check(1 << 30)
    assert "a file of 1 B" in caught.value.where
    assert "--read-limit" in caught.value.fix


def test_a_bomb_of_gzip_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(80 * MIB), 1))

    with pytest.raises(TraceError, match=r"unpacks to 65.0 MiB or more"):
        read_decompressed(ReadLimit(path))
    assert 80 * MIB == len(read_decompressed(ReadLimit(path, 100 * MIB)))


def test_what_the_control_group_leaves_is_free_memory(tmp_path):
    for name, text in (
        ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 8 kB\n"),
        ("sys/fs/cgroup/memory.max", "5000"),
        ("sys/fs/cgroup/memory.current", "4000"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert 1000 == free_memory_bytes(tmp_path)
    assert free_memory_bytes(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": "\xff"}', r"this is no UTF-8: .*\n.*byte 7"),
        (b'{"a":\n 1,}', r"this is no JSON: .*\n.*line 2, column \d"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" + b"0" * 5000, "a number that is too long"),
    ],
)
def test_text_that_is_no_json_says_where(text, says):
    with pytest.raises(InputError, match=says):
        parse_json(text, "here")


def test_json_is_read_packed_or_not(tmp_path):
    for name, pack in (("a.json", bytes), ("a.json.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b'\xef\xbb\xbf{"a": 1}'))

        assert {"a": 1} == read_json(ReadLimit(tmp_path / name))


def test_a_value_is_shown_whatever_it_holds():
    nested = []
    for _ in range(5000):
        nested = [nested]

    assert "a list" == format_value(nested)
    assert "a number of 33,220 bits" == format_value(10**10_000)
    assert 60 == len(format_value("x" * 1000))
