"""Random schedules: legal, deterministic, replayed from their rows, and what their nests look like."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.shared_data import shared_path
from tests.systems.tensor_programs.model.golden_nests import statement_features
from tests.systems.tensor_programs.run.examples import SMALL
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.features import FEATURE_NAMES
from windtunnel.systems.tensor_programs.model.nest import Buffer, For, Nest, Store, stores
from windtunnel.systems.tensor_programs.run.tasks import Task

pytest.importorskip("tvm")

from windtunnel.systems.tensor_programs.run.code_size import code_operations
from windtunnel.systems.tensor_programs.run.nests import is_sound, nest_of, temporary_bytes
from windtunnel.systems.tensor_programs.run.sampling import sample
from windtunnel.systems.tensor_programs.run.schedules import PATTERNS, Scheduled, Step, from_rows, replay, to_rows

MATMUL = Task("matmul", {"m": 512, "n": 512, "k": 512})


@pytest.mark.slow
@pytest.mark.parametrize("task", SMALL, ids=lambda task: task.kind)
def test_a_seed_and_the_rows_of_a_schedule_give_the_same_program_again(task):
    for seed in range(4):
        drawn = sample(task, seed)
        nest = nest_of(drawn.module)

        assert nest == nest_of(sample(task, seed).module)
        assert nest == nest_of(replay(task, to_rows(drawn.steps)).module)
        assert len(drawn.steps) <= 25


@pytest.mark.slow
def test_seeds_give_different_programs():
    rows = {to_rows(sample(SMALL[3], seed).steps).tobytes() for seed in range(12)}

    assert len(rows) >= 11


def test_rows_are_the_steps():
    steps = [Step("split", "main", (0, 16)), Step("compute_at", "op1", (1, 0, 1)), Step("inline", "row_max_rf")]
    rows = to_rows(steps)

    assert steps == from_rows(rows)
    assert (25, 22) == rows.shape
    assert [1, 1, 1] == rows[:3, :11].sum(axis=1).tolist()
    assert not rows[3:].any()


def test_rows_that_are_no_schedule_are_refused():
    rows = to_rows([Step("split", "main", (0, 16))])
    rows[0, 1] = 1

    with pytest.raises(InputError, match="no step"):
        from_rows(rows)
    with pytest.raises(InputError, match="shape"):
        from_rows(np.zeros((3, 3)))


def test_a_schedule_of_another_task_is_refused():
    rows = to_rows([Step("split", "main", (3, 16))])

    with pytest.raises(InputError, match="step 0 of the schedule, split of main"):
        replay(MATMUL, rows)


def golden_schedule() -> Scheduled:
    """The program that the shared golden values describe, through the same steps that are drawn at random."""
    scheduled = Scheduled.of(MATMUL)
    order = PATTERNS.index("SRS")
    for step in (
        Step("split", "main", (0, 16)),
        Step("split", "main", (2, 8)),
        Step("reorder", "main", (3, 0, 0, order)),
        Step("parallel", "main", (0,)),
        Step("parallel", "main", (1,)),
        Step("vectorize", "main", (3,)),
        Step("unroll", "main", (2, 0)),
        Step("init", "main", (0,)),
    ):
        assert scheduled.try_step(step.primitive, step.block, *step.arguments), step
    return scheduled


def test_loops_come_out_of_the_compiler_as_they_were_scheduled():
    nest = nest_of(golden_schedule().module)
    update = nest.body[-1]
    loops = []
    while isinstance(update, For):
        loops.append((update.extent, update.kind, update.axis))
        update = update.body[0]

    assert loops == [
        (32, "parallel", "spatial"),
        (64, "parallel", "spatial"),
        (512, "unrolled", "reduce"),
        (8, "vectorized", "spatial"),
        (16, "serial", "spatial"),
    ]
    assert 0 == temporary_bytes(nest)


def test_features_of_a_compiled_program_equal_the_published_ones():
    golden = json.loads(shared_path("cost/golden/per_statement_features.json").read_text())
    expected = next(case for case in golden["cases"] if case["name"] == "cpu_matmul")["leaves"]
    nest = nest_of(golden_schedule().module)

    found = statement_features(nest, mode="compat", collect="buffer")

    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-5, atol=1e-5)


def test_padding_is_a_choice_and_no_function():
    """The compiler's own name for it changes with its versions; a call would count as mathematics."""
    padded = next(task for task in SMALL if task.kind == "conv2d")

    features = statement_features(nest_of(Scheduled.of(padded).module))

    assert features[:, FEATURE_NAMES.index("select_op")].max() > 0
    assert features[:, FEATURE_NAMES.index("float_mathfunc")].max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", SMALL, ids=lambda task: task.kind)
def test_nests_store_the_result_and_count_their_code(task):
    for seed in range(3):
        nest = nest_of(sample(task, seed).module)
        names = {store.buffer for store in stores(nest.body)}

        assert any(nest.buffers[name].shape == task.output_shape for name in names)
        assert code_operations(nest) >= len(names)


def test_a_loop_within_a_vector_and_parallel_within_parallel_are_not_sound():
    buffers = {"a": Buffer("a", (4, 8))}
    store = Store("a", ("i", "j"), 1.0)

    def nest(outer: str, inner: str) -> Nest:
        return Nest((For("i", 4, (For("j", 8, (store,), inner),), outer),), buffers)

    assert is_sound(nest("parallel", "vectorized"))
    assert not is_sound(nest("vectorized", "serial"))
    assert not is_sound(nest("parallel", "parallel"))
