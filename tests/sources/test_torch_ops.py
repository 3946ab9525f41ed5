"""What an operator reads and writes, from its schema and its storages."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.sources.torch.ops import Role, Span, describe, resolve_recipes


def tensor(storage, shape, offset=0, stride=None, tensor_id=None):
    size = 1
    for length in shape:
        size *= length
    steps, step = [], 1
    for length in reversed(shape):
        steps.insert(0, step)
        step *= length
    return [tensor_id or storage, storage, offset, size, 4, "cpu"], list(shape), stride or steps


def node(schema, inputs, outputs):
    def side(items):
        values, shapes, strides = [], [], []
        for item in items:
            value, shape, stride = item if isinstance(item, tuple) else (item, [], [])
            values.append(value)
            shapes.append(shape)
            strides.append(stride)
        return {"values": values, "shapes": shapes, "strides": strides, "types": ["?"] * len(values)}

    return {"schema": schema, "inputs": side(inputs), "outputs": side(outputs)}


def test_a_product_reads_its_factors_and_writes_a_fresh_result():
    operator = describe(
        node(
            "aten::mm(Tensor self, Tensor mat2) -> Tensor",
            [tensor(1, (8, 4)), tensor(2, (4, 16))],
            [tensor(3, (8, 16))],
        )
    )

    assert Role.COMPUTE is operator.role
    assert (Span(1, 0, 128, 128), Span(2, 0, 256, 256)) == operator.reads
    assert (Span(3, 0, 512, 512),) == operator.writes
    assert 2 * 8 * 4 * 16 == operator.flops


def test_what_is_taken_zero_times_is_not_read():
    schema = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
    inputs = [tensor(1, (8, 16)), tensor(2, (8, 4)), tensor(3, (4, 16))]
    added, alone = (describe(node(schema, [*inputs, beta, 1], [tensor(4, (8, 16))])) for beta in (1, 0))

    assert [1, 2, 3] == [span.storage for span in added.reads]
    assert [2, 3] == [span.storage for span in alone.reads]


def test_what_is_filled_is_written_and_not_read():
    schema = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
    operator = describe(node(schema, [tensor(1, (4,)), tensor(2, (4,)), False], [tensor(1, (4,))]))

    assert [2] == [span.storage for span in operator.reads]
    assert [1] == [span.storage for span in operator.mutates]


def test_an_in_place_operator_changes_its_argument():
    schema = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    operator = describe(node(schema, [tensor(1, (4,)), tensor(2, (4,)), 1], [tensor(1, (4,))]))

    assert Role.COMPUTE is operator.role
    assert (Span(1, 0, 16, 16),) == operator.mutates
    assert () == operator.writes
    assert "[null,null,1]" == operator.arguments


def test_a_tensor_without_storage_has_no_number_among_the_arguments():
    """It differs from process to process, and equal calls must be equal text."""
    absent = [242, 0, 0, 0, 0, ""]
    inputs = [tensor(1, (2,)), (absent, [], []), ([absent, 3], [], [])]
    operator = describe(node("aten::nll(Tensor a, Tensor b, Any c) -> Tensor", inputs, [tensor(2, (2,))]))

    assert "[null,null,[null,3]]" == operator.arguments


def test_a_list_of_tensors_changes_as_a_whole():
    schema = "aten::_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()"
    first, second = tensor(1, (4,)), tensor(2, (2,))
    inputs = [([first[0], second[0]], [first[1], second[1]], [first[2], second[2]]), 1]

    operator = describe(node(schema, inputs, []))

    assert (Span(1, 0, 16, 16), Span(2, 0, 8, 8)) == operator.mutates


@pytest.mark.parametrize(
    ("schema", "role"),
    [
        ("aten::t(Tensor(a) self) -> Tensor(a)", Role.VIEW),
        ("aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor", Role.VIEW),
        ("aten::detach(Tensor(a) self) -> Tensor(a)", Role.VIEW),
    ],
)
def test_a_result_in_the_argument_s_storage_is_a_view(schema, role):
    assert role is describe(node(schema, [tensor(1, (4, 2))], [tensor(1, (2, 4), tensor_id=9)])).role


def test_an_allocation_computes_nothing():
    schema = "aten::empty.memory_format(SymInt[] size) -> Tensor"

    assert Role.ALLOCATE is describe(node(schema, [[4]], [tensor(1, (4,))])).role


def test_a_number_for_python_is_a_read():
    assert (
        Role.READ is describe(node("aten::_local_scalar_dense(Tensor self) -> Scalar", [tensor(1, (1,))], [1.0])).role
    )


def test_running_statistics_change_although_the_schema_is_silent():
    schema = (
        "aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
        "Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"
    )
    inputs = [tensor(1, (2, 3)), *(tensor(row, (3,)) for row in range(2, 6)), True, 0.1, 1e-5]

    operator = describe(node(schema, inputs, [tensor(7, (2, 3)), tensor(8, (3,)), tensor(9, (3,))]))

    assert {4, 5} == {span.storage for span in operator.mutates}


def test_a_strided_view_reaches_over_what_lies_between():
    schema = "aten::sum(Tensor self) -> Tensor"
    column = tensor(1, (4,), offset=1, stride=[10])

    assert Span(1, 4, 4 + 31 * 4, 16) == describe(node(schema, [column], [tensor(2, ())])).reads[0]


def test_what_has_no_schema_is_no_operator():
    assert Role.NONE is describe(None).role
    assert Role.NONE is describe(node("", [], [])).role


def test_a_recipe_computes_only_if_nothing_that_it_calls_does():
    clone = describe(node("aten::clone(Tensor self) -> Tensor", [tensor(1, (4,))], [tensor(2, (4,))]))
    copy = describe(
        node("aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)", [tensor(2, (4,)), tensor(1, (4,))], [])
    )

    assert Role.RECIPE is clone.role
    assert [Role.COMPOSITE, Role.COMPUTE] == [operator.role for operator in resolve_recipes([clone, copy], [-1, 0])]
    assert [Role.COMPUTE] == [operator.role for operator in resolve_recipes([clone], [-1])]


def test_a_convolution_counts_one_multiply_and_add_per_weight_and_output():
    schema = "aten::mkldnn_convolution(Tensor self, Tensor weight, Tensor? bias) -> Tensor"
    operator = describe(
        node(schema, [tensor(1, (2, 3, 8, 8)), tensor(2, (5, 3, 3, 3)), tensor(3, (5,))], [tensor(4, (2, 5, 8, 8))])
    )

    assert 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3) == operator.flops
