"""Layout inference: every legal row of the table, and illegal cases whose named repair makes them legal."""

from dataclasses import replace

import pytest

from windtunnel.errors import InputError
from windtunnel.systems.collectives.build import Builder
from windtunnel.systems.collectives.layouts import (
    FLAT,
    LOCAL,
    REPLICATED,
    Layout,
    TensorType,
    block,
    root_layout,
    slice_layout,
)
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rules import LayoutError, infer

R, L, S0, S1, S2, F = REPLICATED, LOCAL, slice_layout(0), slice_layout(1), slice_layout(2), slice_layout(FLAT)
SHAPE, SUM = (8, 6), (("reduction", "sum"),)


def _type(layout: Layout, shape: tuple[int, ...] = SHAPE, dtype: str = "float32", group: int = 0) -> TensorType:
    return TensorType(shape, layout, dtype, group)


def _stage(op: str, num_operands: int, settings: tuple = ()) -> Stage:
    return Stage("y", op, tuple(f"x{index}" for index in range(num_operands)), settings)


LEGAL = [
    ("add", [_type(R), _type(R)], (), R),
    ("add", [_type(S0), _type(S0)], (), S0),
    ("add", [_type(F), _type(F)], (), F),
    ("add", [_type(S0), _type(R, (6,))], (), S0),  # a bias has no dimension 0
    ("add", [_type(S0), _type(R, (1, 6))], (), S0),
    ("add", [_type(S1), _type(S0, (6,))], (), S1),  # dimension 0 of the bias is dimension 1 of the result
    ("mul", [_type(L), _type(L)], (), L),
    ("mul", [_type(L), _type(R)], (), L),
    ("mul", [_type(F), _type(R, ())], (), F),
    ("mul", [_type(L), _type(R, (1,))], (), L),
    ("sub", [_type(root_layout(1)), _type(root_layout(1))], (), root_layout(1)),
    ("mul", [_type(S0), 2.0], (), S0),
    ("select", [_type(S1), _type(S1), 0.0], (), S1),
    ("sqrt", [_type(L)], (), L),
    ("cast", [_type(S0)], (("dtype", "float16"),), S0),
    ("dropout", [_type(F)], (("probability", 0.1), ("seed", 1)), F),
    ("matmul", [_type(R, (4, 8, 6)), _type(R, (6, 5))], (), R),
    ("matmul", [_type(S0, (4, 8, 6)), _type(R, (6, 5))], (), S0),
    ("matmul", [_type(S1, (4, 8, 6)), _type(R, (6, 5))], (), S1),
    ("matmul", [_type(R, (4, 8, 6)), _type(S1, (6, 5))], (), S2),
    ("matmul", [_type(S2, (4, 8, 6)), _type(S0, (6, 5))], (), L),
    ("matmul", [_type(L, (8, 6)), _type(R, (6, 5))], (), L),
    ("matmul", [_type(R, (8, 6)), _type(L, (6, 5))], (), L),
    ("all_reduce", [_type(L)], SUM, R),
    ("reduce_scatter", [_type(L)], (*SUM, ("dim", 1)), S1),
    ("reduce_scatter", [_type(L)], (*SUM, ("dim", FLAT)), F),
    ("all_gather", [_type(S1)], (), R),
    ("reduce", [_type(L)], (*SUM, ("root", 2)), root_layout(2)),
    ("broadcast", [_type(root_layout(2))], (("root", 2),), R),
    ("broadcast", [_type(R)], (("root", 2),), R),
    ("slice", [_type(R)], (("dim", 1),), S1),
    ("send", [_type(R)], (), R),
    ("send", [_type(S0)], (), S0),
    ("sum", [_type(R)], (), R),
    ("sum_squares", [_type(S0)], (), L),
    ("sum", [_type(L)], (), L),
    ("update", [_type(R), _type(R)], (), R),
    ("update", [_type(R), _type(S0)], (), S0),
    ("update", [_type(S0), _type(S0)], (), S0),
]


@pytest.mark.parametrize(("op", "operands", "settings", "layout"), LEGAL)
def test_a_legal_row_has_the_layout_of_the_table(op, operands, settings, layout):
    result = infer(_stage(op, len(operands), settings), operands, (4, 4))

    assert layout == result.layout
    assert (1 if op == "send" else 0) == result.group


ILLEGAL = [
    ("add", [_type(S0), _type(S1)], (), "AllGather"),
    ("add", [_type(S0), _type(F)], (), "AllGather"),
    ("add", [_type(L), _type(S0)], (), "ReduceScatter"),
    ("mul", [_type(S1), _type(L)], (), "ReduceScatter"),
    ("mul", [_type(F), _type(L)], (), "ReduceScatter"),
    ("add", [_type(S0), _type(R)], (), "Slice(dim=0)"),
    ("add", [_type(R), _type(S1)], (), "Slice(dim=1)"),
    ("add", [_type(F), _type(R)], (), "Slice(dim=-1)"),
    ("add", [_type(F), _type(R, (6,))], (), "AllGather"),
    ("add", [_type(S1), _type(R, (6,))], (), "Slice(dim=0)"),
    ("add", [_type(root_layout(0)), _type(R)], (), "Broadcast"),
    ("add", [_type(root_layout(0)), _type(root_layout(1))], (), "Broadcast"),
    ("add", [_type(R), _type(R, dtype="float16")], (), "Cast"),
    ("select", [_type(S0), _type(R), 0.0], (), "Slice(dim=0)"),
    ("add", [_type(R), _type(R, group=1)], (), "Send"),
    ("matmul", [_type(S1), _type(S1, (6, 5))], (), "AllGather"),
    ("matmul", [_type(S0), _type(S0, (6, 5))], (), "AllGather"),
    ("matmul", [_type(S0), _type(S1, (6, 5))], (), "AllGather"),
    ("matmul", [_type(S1), _type(R, (6, 5))], (), "Slice(dim=0)"),
    ("matmul", [_type(R), _type(S0, (6, 5))], (), "Slice(dim=1)"),
    ("matmul", [_type(L), _type(L, (6, 5))], (), "AllReduce"),
    ("matmul", [_type(L), _type(S1, (6, 5))], (), "AllGather"),
    ("matmul", [_type(S0), _type(L, (6, 5))], (), "AllGather"),
    ("matmul", [_type(F), _type(R, (6, 5))], (), "AllGather"),
    ("matmul", [_type(root_layout(1)), _type(R, (6, 5))], (), "Broadcast"),
    ("all_reduce", [_type(R)], SUM, "remove"),
    ("all_reduce", [_type(S0)], SUM, "by AllGather"),
    ("all_reduce", [_type(root_layout(0))], SUM, "by Broadcast"),
    ("reduce_scatter", [_type(R)], (*SUM, ("dim", 0)), "remove"),
    ("reduce", [_type(S1)], (*SUM, ("root", 0)), "by AllGather"),
    ("all_gather", [_type(R)], (), "remove"),
    ("all_gather", [_type(L)], (), "by AllReduce"),
    ("all_gather", [_type(root_layout(1))], (), "by Broadcast"),
    ("broadcast", [_type(L)], (("root", 1),), "Reduce"),
    ("broadcast", [_type(S0)], (("root", 1),), "AllGather"),
    ("slice", [_type(L)], (("dim", 0),), "AllReduce"),
    ("slice", [_type(S0)], (("dim", 1),), "AllGather"),
    ("slice", [_type(S0)], (("dim", 0),), "remove"),
    ("slice", [_type(root_layout(0))], (("dim", 0),), "Broadcast"),
    ("sum", [_type(root_layout(0))], (), "Broadcast"),
    ("update", [_type(R), _type(L)], (), "AllReduce"),
    ("update", [_type(R), _type(root_layout(2))], (), "Broadcast"),
    ("update", [_type(S0), _type(R)], (), "Slice(dim=0)"),
    ("update", [_type(S0), _type(S1)], (), "declare"),
    ("update", [_type(S0), _type(L)], (), "AllReduce"),
]


@pytest.mark.parametrize(("op", "operands", "settings", "fix"), ILLEGAL)
def test_the_named_repair_of_an_illegal_case_makes_it_legal(op, operands, settings, fix):
    """Some need a second repair, which the next error names; none needs more than two."""
    with pytest.raises(LayoutError) as caught:
        infer(_stage(op, len(operands), settings), operands, (4, 4))

    assert fix in caught.value.fix
    assert f"y = {op}(" in caught.value.where
    for operand in operands:
        assert not isinstance(operand, TensorType) or str(operand) in caught.value.where
    stage = _stage(op, len(operands), settings)
    types = dict(zip(stage.operands, operands, strict=True))
    for _ in range(2):
        stage, types = _repaired(stage, types, caught.value.repair)
        try:
            if stage is not None:
                infer(stage, [types[name] for name in stage.operands], (4, 4))
            return
        except LayoutError as error:
            caught.value.repair = error.repair
    pytest.fail("the repairs do not help")


def _repaired(stage: Stage, types: dict, repair: tuple) -> tuple:
    """The stage and the types of its operands after what an error says."""
    op, name, settings = repair
    if op == "remove":
        return None, types
    if op == "replace":
        rest = tuple((key, value) for key, value in settings.items() if key != "by")
        return replace(stage, op=settings["by"], settings=rest or SUM), types
    if op == "lay_out":
        return stage, {**types, name: types[name].with_layout(settings["layout"])}
    given = {**({"reduction": "sum"} if op in ("all_reduce", "reduce", "reduce_scatter") else {}), **settings}
    inserted = Stage("z", op, (name,), tuple(given.items()))
    return stage, {**types, name: infer(inserted, [types[name]], (4, 4))}


def test_enough_illegal_cases_are_named():
    assert len(ILLEGAL) >= 25


@pytest.mark.parametrize(
    ("op", "operands", "settings", "text"),
    [
        ("send", [_type(R, group=1)], (), "no group after group 1"),
        ("broadcast", [_type(root_layout(1))], (("root", 0),), "rank 1 has the value"),
        ("reduce", [_type(L)], (("root", 9),), "no rank 9"),
        ("slice", [_type(R)], (("dim", 2),), "no dimension 2"),
        ("dropout", [_type(R)], (("probability", 1.0), ("seed", 0)), "not in [0, 1)"),
        ("dropout", [_type(R), _type(R)], (("probability", 0.1), ("seed", 0)), "the step of a dropout is no number"),
        ("add", [_type(R), _type(R, (5,))], (), "do not broadcast"),
        ("matmul", [_type(R), _type(R, (5, 5))], (), "contracted dimensions differ"),
    ],
)
def test_what_no_operator_repairs_says_what_to_change(op, operands, settings, text):
    with pytest.raises(LayoutError, match=text.replace("[", r"\[").replace(")", r"\)")) as caught:
        infer(_stage(op, len(operands), settings), operands, (4, 4))

    assert caught.value.fix


def test_a_tensor_has_a_known_element_type():
    with pytest.raises(InputError, match="no element type 'int8'"):
        _type(R, dtype="int8")


def test_a_program_computes_something():
    builder = Builder("idle", 2)
    builder.declare_replicated("x", (4,))

    with pytest.raises(InputError, match="program idle computes nothing"):
        builder.program()


def test_sending_slices_to_a_group_of_another_size_names_both_sizes():
    with pytest.raises(LayoutError, match="group 0 has 4 ranks, group 1 has 2"):
        infer(_stage("send", 1), [_type(S0)], (4, 2))


def test_blocks_cover_a_dimension_and_may_be_empty():
    assert [(0, 1), (1, 2), (2, 2), (2, 2)] == [block(2, rank, 4) for rank in range(4)]
    assert (3, 0) == _type(S1, (3, 2)).local_shape(3, 4)
    assert [(2,), (2,), (2,), (0,)] == [_type(F, (3, 2)).local_shape(rank, 4) for rank in range(4)]


def test_an_update_in_slices_has_to_be_gathered():
    types = {"w": _type(R, (8,)), "g": _type(S0, (8,))}

    with pytest.raises(InputError, match="updated in slices only"):
        Program("p", (2,), types, (Stage("w_new", "update", ("w", "g")),), ("w_new",))


def test_reading_an_input_after_its_update_is_refused():
    builder = Builder("p", 2)
    weights = builder.declare_replicated("w", (4,))
    builder.update(weights, weights * 2.0, name="w_new")

    with pytest.raises(InputError, match="w is read after it is overwritten"):
        builder.program(weights + 1.0)


def test_a_replicated_bias_that_would_be_summed_k_times_is_warned_about():
    builder = Builder("p", 4)
    partial = builder.declare_local("x", (4, 3)) + builder.declare_replicated("b", (3,))

    warnings = builder.program(builder.all_reduce(partial)).lint()

    assert 1 == len(warnings)
    assert "counts 4 times" in warnings[0]


def test_builders_insert_slices_and_nothing_that_sends():
    builder = Builder("p", 2)
    total = builder.declare_sliced("x", (4, 6), 0) + builder.declare_replicated("r", (4, 6))

    program = builder.program(total)

    assert ["slice", "add"] == [stage.op for stage in program.stages]
    with pytest.raises(LayoutError, match="sliced along 0 and 1"):
        builder.declare_sliced("y", (4, 6), 0) + builder.declare_sliced("z", (4, 6), 1)


def test_an_unknown_operator_lists_those_that_are_known():
    with pytest.raises(InputError, match="no operator 'conv'") as caught:
        Program("p", (2,), {"x": _type(R)}, (Stage("y", "conv", ("x",)),), ("y",))

    assert "all_reduce" in caught.value.fix
