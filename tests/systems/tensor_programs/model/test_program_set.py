"""The npz of measured programs: what goes in comes out, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES, VECTOR_BITS
from windtunnel.systems.tensor_programs.program_set import NUM_FEATURES, ProgramSet


def make_set(num_leaves=(1, 3, 2)) -> ProgramSet:
    """Three programs of two tasks on two devices, numbered so that every row is recognizable."""
    P, L = len(num_leaves), sum(num_leaves)
    offset = np.concatenate([[0], np.cumsum(num_leaves)]).astype(np.int32)
    mean_s = np.array([[1e-3, np.nan], [2e-3, 3e-3], [4e-3, 5e-3]], np.float32)[:P]
    return ProgramSet(
        features=np.repeat(np.arange(L, dtype=np.float16)[:, None], NUM_FEATURES, axis=1),
        code=np.broadcast_to(np.arange(L, dtype=np.float16)[:, None, None], (L, len(VECTOR_BITS), len(CODE_NAMES))),
        leaf_offset=offset,
        leaf_pos=np.arange(L, dtype=np.int16),
        tree=np.arange(2 * L, dtype=np.int16),
        tree_offset=2 * offset,
        task=np.array([0, 1, 0], np.int32)[:P],
        sched=np.zeros((P, 25, 22), np.int16),
        mean_s=mean_s,
        std_s=np.float32(0.01) * mean_s,
        flops=np.arange(1.0, P + 1),
        devices=({"name": "avx2-1"}, {"name": "avx512-1"}),
        tasks=({"kind": "matmul", "networks": {"bert": 2}}, {"kind": "softmax", "networks": {"vit": 1}}),
        meta={"seed": 7},
    )


def test_a_set_that_was_saved_is_the_same_when_it_is_loaded(tmp_path):
    programs = make_set()
    loaded = ProgramSet.load(programs.save(tmp_path / "set.npz"))

    for name in (
        "features",
        "code",
        "leaf_offset",
        "leaf_pos",
        "tree",
        "tree_offset",
        "task",
        "sched",
        "mean_s",
        "std_s",
    ):
        np.testing.assert_array_equal(getattr(programs, name), getattr(loaded, name))
    assert (programs.devices, programs.tasks, programs.meta) == (loaded.devices, loaded.tasks, loaded.meta)
    assert ["set.npz"] == [path.name for path in tmp_path.iterdir()]


def distinct(programs: ProgramSet) -> ProgramSet:
    """The same set with a schedule of its own for each program."""
    sched = np.zeros_like(programs.sched)
    sched[:, 0, 0] = np.arange(1, programs.num_programs + 1)
    return replace(programs, sched=sched)


def test_devices_of_another_host_join_by_program_and_what_they_lack_is_nan():
    programs = distinct(make_set())
    here = replace(programs.select([2, 0]), devices=({"name": "a@here"}, {"name": "b@here"}), meta={"seed": 8})

    both = programs.merge_devices(here)

    assert ("avx2-1", "avx512-1", "a@here", "b@here") == both.device_names
    np.testing.assert_array_equal(both.mean_s[:, :2], programs.mean_s)
    np.testing.assert_array_equal(both.mean_s[[2, 0], 2:], here.mean_s)
    np.testing.assert_array_equal(both.std_s[[2, 0], 2:], here.std_s)
    assert np.isnan(both.mean_s[1, 2:]).all()
    assert (7, [{"seed": 8}]) == (both.meta["seed"], both.meta["beside"])


def test_sets_of_other_programs_or_the_same_devices_do_not_join():
    programs = distinct(make_set())
    here = replace(programs, devices=({"name": "a@here"}, {"name": "b@here"}))
    other = replace(here, sched=here.sched + np.int16(1))

    with pytest.raises(InputError, match="both sets have a device avx2-1, avx512-1"):
        programs.merge_devices(programs)
    with pytest.raises(InputError, match="program 0 of the other set is not in this one"):
        programs.merge_devices(other)


def test_selected_programs_keep_their_own_leaves_and_nodes():
    part = make_set().select([2, 1])

    assert [0, 2, 5] == part.leaf_offset.tolist()
    assert [4, 5, 1, 2, 3] == part.leaf_pos.tolist()
    assert [8, 9, 10, 11, 2, 3, 4, 5, 6, 7] == part.tree.tolist()
    assert [3.0, 2.0] == part.flops.tolist()
    assert 1 == make_set().select(np.array([False, True, False])).num_programs


def test_parts_together_are_the_whole():
    whole = make_set()
    joined = ProgramSet.concatenate([whole.select([0]), whole.select([1, 2])])

    np.testing.assert_array_equal(whole.leaf_offset, joined.leaf_offset)
    np.testing.assert_array_equal(whole.tree, joined.tree)
    np.testing.assert_array_equal(whole.features, joined.features)


def test_columns_and_networks_go_by_name():
    programs = make_set()

    assert 1 == programs.column("avx512-1")
    assert ("bert", "vit") == programs.networks()
    with pytest.raises(InputError, match="no device 'sse'"):
        programs.column("sse")


@pytest.mark.parametrize("label", [0.0, -1e-3, np.inf])
def test_a_label_that_is_no_time_is_refused_with_program_and_file(label, tmp_path):
    programs = make_set()
    mean_s = programs.mean_s.copy()
    mean_s[1, 1] = label

    with pytest.raises(InputError, match="program 1 took") as caught:
        replace(programs, mean_s=mean_s).save(tmp_path / "set.npz")
    assert str(tmp_path / "set.npz") == caught.value.where


def test_a_program_without_any_time_is_refused(tmp_path):
    mean_s = np.full((3, 2), np.nan, np.float32)

    with pytest.raises(InputError, match="program 0 has no time on any device"):
        replace(make_set(), mean_s=mean_s, std_s=mean_s).save(tmp_path / "set.npz")


def test_a_file_with_a_bad_label_is_named_when_it_is_read(tmp_path):
    path = make_set().save(tmp_path / "set.npz")
    arrays = dict(np.load(path))
    arrays["mean_s"][0, 0] = -1.0
    np.savez(path, **arrays)

    with pytest.raises(InputError, match="program 0 took -1 s") as caught:
        ProgramSet.load(path)
    assert str(path) == caught.value.where


def test_another_schema_is_refused(tmp_path):
    path = make_set().save(tmp_path / "set.npz")
    arrays = dict(np.load(path))
    header = json.loads(arrays["header"].tobytes()) | {"schema": 99}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)

    with pytest.raises(SchemaVersionError, match="schema 99"):
        ProgramSet.load(path)


def test_what_is_no_program_set_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))

    for name in ("text.npz", "other.npz"):
        with pytest.raises(InputError, match="not a program set"):
            ProgramSet.load(tmp_path / name)
    with pytest.raises(InputError, match="is not there"):
        ProgramSet.load(tmp_path / "missing.npz")


def test_a_part_that_claims_to_be_longer_than_the_file_is_not_read(tmp_path):
    path = make_set().save(tmp_path / "set.npz")
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 20 : directory + 24] = (1 << 31).to_bytes(4, "little")  # of its compressed bytes
    path.write_bytes(data)

    with pytest.raises(InputError, match="longer than the file"):
        ProgramSet.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaf_pos": np.zeros(5, np.int16)}, "features has shape"),
        ({"task": np.array([0, 9, 0], np.int32)}, "program 1 is of task 9"),
        ({"leaf_offset": np.array([0, 1, 1, 6], np.int32)}, "program 1 stores nothing"),
        ({"tree_offset": np.array([0, 9, 2, 12], np.int32)}, "tree_offset does not go"),
        ({"features": np.full((6, NUM_FEATURES), np.nan, np.float16)}, "feature of program 0"),
    ],
)
def test_a_broken_set_says_what_is_broken(change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        replace(make_set(), **change).save(tmp_path / "set.npz")
