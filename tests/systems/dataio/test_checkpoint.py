"""Checkpoints: sizes to the byte, files whole or absent, readable by safetensors."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.systems.dataio.checkpoint import Checkpointer, run_checkpoints
from windtunnel.systems.dataio.checkpoint_sizes import checkpoint_layout, num_parameters
from windtunnel.systems.dataio.config_file import load_config, parse_config

TINY = {"hidden_size": 16, "ffn_hidden_size": 24, "vocab_size": 50, "num_attention_heads": 4, "num_kv_heads": 2}


def configure(root, *, num_layers=4, checkpoint=None, transformer=TINY, **parallelism):
    model = {"num_layers": num_layers, "transformer": transformer, "parallelism": parallelism}
    return parse_config(
        {
            "storage": {"storage_root": str(root)},
            "workflow": {"train": False, "checkpoint": True},
            "model": model if transformer else {"model_size_bytes": 5000, **(model if num_layers != 4 else {})},
            "checkpoint": {"checkpoint_folder": "saved", **(checkpoint or {})},
        }
    )


def test_published_checkpoints_have_the_size_of_the_formula_to_the_byte():
    document = json.loads(shared_path("serve/dlio/checkpoint_sizes.json").read_text())

    for name, entry in document["checkpoints"].items():
        shape = dict(entry["transformer"])
        model = {"num_layers": shape.pop("num_layers"), "transformer": shape, "parallelism": entry["parallelism"]}
        config = parse_config({"model": model, "checkpoint": {"type": "all_ranks"}})
        layout = checkpoint_layout(config, entry["num_ranks"])

        assert entry["num_parameters"] == num_parameters(config.model), name
        assert round(entry["model_state_gib"] * 2**30) == layout.num_bytes("model")
        assert round(entry["optimizer_state_gib"] * 2**30) == layout.num_bytes("optimizer")
        assert entry["published_size"] == f"{math.ceil(layout.num_bytes() / 2**30)} GB"


def test_parameters_equal_those_of_llama_3_8b():
    assert 8_030_261_248 == num_parameters(load_config("llama_8b_zero3").model)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(4, 9),
    st.fixed_dictionaries({key: st.integers(4, 40) for key in TINY}),
)  # fmt: skip
def test_each_parameter_is_saved_once_whatever_the_parallelism(tensor, pipeline, data, zero_stage, num_layers, shape):
    config = configure(
        "x", num_layers=num_layers, transformer=shape, tensor=tensor, pipeline=pipeline, data=data,
        zero_stage=zero_stage,
    )  # fmt: skip
    layout = checkpoint_layout(config, tensor * pipeline * data)
    names = [file.name for rank in layout.files for file in rank]

    assert 2 * num_parameters(config.model) == layout.num_bytes("model")
    assert len(names) == len(set(names))
    shards = tensor * pipeline * (data if zero_stage else 1)
    per_shard = 3 * (num_parameters(config.model) // shards + 5 * shape["hidden_size"]) * 4
    assert shards * per_shard == layout.num_bytes("optimizer")


def test_a_pipeline_has_a_file_per_layer_with_the_embedding_first_and_the_head_last():
    layout = checkpoint_layout(configure("x", pipeline=2), 2)
    first, last = ([file.name for file in rank if file.kind == "model"] for rank in layout.files)

    assert [0, 1, 2] == [int(name[6:9]) for name in first]
    assert [3, 4, 5, 6] == [int(name[6:9]) for name in last]


def test_ranks_that_do_not_fit_are_shown_with_the_arithmetic():
    with pytest.raises(InputError, match=r"3 ranks are not 2 tensor x 1 pipeline x 1 data parallel = 2"):
        checkpoint_layout(configure("x", tensor=2), 3)


def test_a_subset_of_ranks_writes_its_part():
    config = configure("x", checkpoint={"mode": "subset"}, tensor=2, data=4, zero_stage=3)
    layout = checkpoint_layout(config, 2)

    assert (8, 2) == (len(layout.files), layout.num_writers)
    assert 0 == layout.rank_bytes(2) < layout.rank_bytes(1)


@pytest.mark.parametrize("mechanism", [None, "AsyncCheckpointing"])
@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_what_is_written_is_read_and_has_the_size_of_the_formula(tmp_path, mechanism, zero_stage):
    options = {"type": "all_ranks", "fsync": True, "checkpoint_mechanism_classname": mechanism}
    config = configure(tmp_path, checkpoint=options, data=2, zero_stage=zero_stage)
    layout = checkpoint_layout(config, 2)
    ranks = [Checkpointer(config, rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.save(1, 7)
        rank.close()

    assert layout.num_bytes() == sum(rank.load(1, 7) for rank in ranks)
    names = {f"{file.name}.safetensors" for rank in layout.files for file in rank}
    assert names == {path.name for path in (tmp_path / "saved/global_epoch1_step7").iterdir()}


def test_files_are_readable_by_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    config = configure(tmp_path, zero_stage=1)
    Checkpointer(config).save(1, 1)

    path = tmp_path / "saved/global_epoch1_step1/mp_rank_00_model_states.safetensors"
    with safetensors.safe_open(path, "np") as file:
        counts = [file.get_slice(name).get_shape()[0] for name in file.keys()]  # noqa: SIM118
    assert num_parameters(config.model) == sum(counts)


def test_rank_zero_writes_alone_and_all_ranks_read_it(tmp_path):
    config = configure(tmp_path, transformer=None, checkpoint={"type": "rank_zero"})
    for rank in range(2):
        Checkpointer(config, rank, 2).save(1, 1)

    assert ["model-0.safetensors"] == [path.name for path in (tmp_path / "saved/global_epoch1_step1").iterdir()]
    assert 5000 == Checkpointer(config, 1, 2).load(1, 1)


def test_shifted_ranks_read_what_another_wrote(tmp_path):
    config = configure(tmp_path, checkpoint={"type": "all_ranks", "recovery_rank_shift": True}, data=2, zero_stage=3)
    Checkpointer(config, 1, 2).save(1, 1)

    assert Checkpointer(config, 0, 2).load(1, 1)
    with pytest.raises(InputError, match="not there"):
        Checkpointer(config, 1, 2).load(1, 1)


def test_a_cut_checkpoint_is_named(tmp_path):
    config = configure(tmp_path)
    Checkpointer(config).save(1, 1)
    path = next((tmp_path / "saved/global_epoch1_step1").glob("*model*"))
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(InputError, match=r"(?s)bytes of tensors, not.*mp_rank_00_model_states"):
        Checkpointer(config).load(1, 1)


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    Checkpointer(configure(tmp_path)).save(1, 1)

    with pytest.raises(InputError, match="other tensors"):
        Checkpointer(configure(tmp_path, num_layers=3)).load(1, 1)


def test_the_error_of_a_thread_is_raised_by_the_next_call(tmp_path):
    (tmp_path / "saved").write_bytes(b"a file where a folder should be")
    options = {"checkpoint_mechanism_classname": "my.AsyncCheckpointing"}
    checkpointer = Checkpointer(configure(tmp_path, checkpoint=options))
    checkpointer.save(1, 1)

    with pytest.raises(InputError, match="cannot be used"):
        checkpointer.wait()
    checkpointer.close()


def test_random_checkpoints_do_not_compress_and_constant_ones_do(tmp_path):
    import zlib

    for is_random, limit in ((True, 0.99), (False, 0.05)):
        config = configure(tmp_path, transformer=None, checkpoint={"randomize_tensor": is_random})
        Checkpointer(config, folder="here").save(1, int(is_random))
        data = (tmp_path / f"here/global_epoch1_step{int(is_random)}/model-0.safetensors").read_bytes()

        assert (len(zlib.compress(data[-5000:])) > limit * 5000) is is_random


def test_checkpoints_without_training_are_written_and_read_as_often_as_requested(tmp_path):
    options = {"num_checkpoints_write": 3, "num_checkpoints_read": 2, "fsync": True}
    config = configure(tmp_path, checkpoint=options, data=2, zero_stage=3)
    result = run_checkpoints(config, 2)

    assert (3, 2) == (len(result.write_s), len(result.read_s))
    assert checkpoint_layout(config, 2).num_bytes() == result.num_bytes
    assert 3 == len(list((tmp_path / "saved").iterdir()))
    with pytest.raises(InputError, match="none is written"):
        run_checkpoints(configure(tmp_path, checkpoint={"num_checkpoints_read": 2}))


def test_checkpoints_that_do_not_fit_are_refused_before_writing(tmp_path):
    options = {"num_checkpoints_write": 1}
    config = configure(tmp_path, checkpoint=options, num_layers=9, transformer={**TINY, "vocab_size": 10**13})

    with pytest.raises(InputError, match="do not fit"):
        run_checkpoints(config)
    assert [] == list(tmp_path.iterdir())


def test_shipped_language_models_are_laid_out():
    for name, num_ranks in (("llama_7b", 8), ("llama_70b", 64), ("llama_70b_zero3", 64), ("llama_8b_zero3", 8)):
        config = load_config(name)

        assert checkpoint_layout(config, num_ranks).num_bytes() > 2 * num_parameters(config.model)
        assert replace(config, name="") != load_config("default")
