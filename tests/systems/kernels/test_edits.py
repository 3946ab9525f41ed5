"""Edits are sets of explicit primitives: always valid, always the same again."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.kernels.texts import SCALE
from windtunnel.errors import InputError
from windtunnel.systems.kernels.compiling import read_module
from windtunnel.systems.kernels.edits import EditError, apply, apply_one, from_json, key, to_json
from windtunnel.systems.kernels.ir import parse
from windtunnel.systems.kernels.operators import cross, draw_edit
from windtunnel.systems.kernels.shelf.stencils import hotspot, hotspot_inputs
from windtunnel.systems.kernels.words import describe

FUNCTION = parse(SCALE)


def grown(seed: int, count: int, operators: str = "crismpxha", function=FUNCTION) -> frozenset:
    """Edits drawn one on top of another."""
    draw, edits = np.random.default_rng(seed), frozenset()
    for _ in range(count):
        try:
            edit = draw_edit(apply(function, edits), draw, operators)
            if edit is not None:
                apply(function, edits | {edit})
                edits |= {edit}
        except InputError:  # an earlier one in canonical order takes away what this one names
            continue
    return edits


def test_a_function_renders_to_what_the_compiler_reads():
    module = read_module(FUNCTION.render())

    assert [one.name for one in module.functions if not one.is_declaration] == ["scale"]


def test_reading_what_was_rendered_gives_the_same_again():
    assert parse(FUNCTION.render()).render() == FUNCTION.render()


@given(st.integers(0, 10_000), st.integers(1, 8))
@settings(deadline=None, max_examples=150)
def test_every_edit_is_repaired_so_that_the_module_stays_valid(seed, count):
    function, draw = FUNCTION, np.random.default_rng(seed)
    for _ in range(count):
        edit = draw_edit(function, draw, "crismpxha")
        if edit is not None:
            function = apply_one(function, edit)

    read_module(function.render())


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=100)
def test_a_set_in_canonical_order_is_valid_or_says_why_not(seed):
    """Edits that were drawn one on top of another may not fit once they stand in order."""
    text = apply(FUNCTION, grown(seed, 6)).render()
    said = ""
    try:
        read_module(text)
    except InputError as error:
        said = error.message

    assert not said or "no valid LLVM IR" in said


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=50)
def test_an_edit_list_that_was_stored_applies_to_the_same_text(seed):
    edits = grown(seed, 6)
    again = from_json(json.loads(json.dumps(to_json(edits))))

    assert apply(FUNCTION, edits).render() == apply(FUNCTION, again).render()
    assert key(edits) == key(again)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=50)
def test_children_have_what_both_parents_have_and_nothing_that_neither_has(seed):
    one, other = grown(seed, 5), grown(seed + 1, 5)
    children = cross(one, other, np.random.default_rng(seed))

    if children is not None:
        for child in children:
            assert one & other <= child <= one | other
        assert children[0] | children[1] == one | other


def test_another_process_draws_the_same():
    code = (
        "from tests.systems.kernels.test_edits import *\n"
        "print(key(grown(5, 6))); print(apply(FUNCTION, grown(5, 6)).render())"
    )
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            for _ in range(2)}  # fmt: skip

    assert len(said) == 1
    assert key(grown(5, 6)) in said.pop()


def test_edits_of_another_kernel_fail_cleanly():
    with pytest.raises(EditError, match="there is no instruction U99"):
        apply(FUNCTION, [(("-c", "U99"),)])
    with pytest.raises(EditError, match="is no value of type"):
        apply(FUNCTION, [(("-p", "U6.OP0,A3"),)])


def test_a_deleted_instruction_leaves_a_place_that_later_edits_can_name():
    once = frozenset({(("-c", "U5"), ("-p", "U6.OP0,C1")), (("-i", "U4,U5"),)})
    text = apply(FUNCTION, once).render()

    assert "%U5.d = add i8 0, 0" in text
    assert text.index("%U4.i1 = ") < text.index("%U5.d = ")
    read_module(text)


def test_pointers_to_other_types_are_never_exchanged():
    """Opaque pointers all look alike; what is loaded and stored through them does not."""
    from windtunnel.systems.kernels.flow import kinds_of
    from windtunnel.systems.kernels.from_numba import module_of

    def mixed(floats, numbers):
        for i in range(numbers.shape[0]):
            floats[i] = numbers[i]

    values = np.zeros(4, np.float32), np.zeros(4, np.int32)
    kinds = kinds_of(parse(module_of(mixed, values)))

    assert {"ptr<float>", "ptr<i32>"} <= set(kinds.values())


def test_edits_say_in_words_what_they_do_and_where():
    function = parse(SCALE)
    uid = next(one.uid for one in function.instructions() if one.opcode == "call")
    said = describe(function, (("-c", uid), ("-p", "U8.OP0,U5")))

    assert "drops the clamp (minimum) at line 11" in said
    assert "overlaps no other" in describe(function, (("-a", "A1,noalias"),))


def test_lines_are_those_of_the_python_source():
    from windtunnel.systems.kernels.from_numba import module_of

    function = parse(module_of(hotspot, next(iter(hotspot_inputs("fitness").values()))))
    begin = hotspot.__code__.co_firstlineno
    lines = {one.line for one in function.instructions() if one.line}

    assert lines <= set(range(begin, begin + 40))
    assert len(lines) > 5


@pytest.mark.parametrize(("line", "said"), [
    ("  %z = call i32 @fork()", "a call of fork"),
    ('  call void asm sideeffect "syscall", ""()', "assembly"),
    ("  %z = load volatile i32, ptr %p", "a load that is volatile"),
    ("  %z = call i32 %p()", "a call through a pointer"),
    ("  fence seq_cst", "the instruction 'fence'"),
])  # fmt: skip
def test_what_a_kernel_may_not_have_is_named_with_its_line(line, said):
    with pytest.raises(InputError, match="a kernel may not have") as caught:
        parse(f"define void @f(ptr %p) {{\n{line}\n  ret void\n}}")

    assert said in caught.value.message
    assert "line 2" in caught.value.where


def test_text_that_is_no_module_names_the_line():
    with pytest.raises(InputError, match="no valid LLVM IR") as caught:
        read_module("define void @f() {\n  %x = add i32 %y, 1\n  ret void\n}")

    assert "line 2" in caught.value.where
