"""Random programs for the tests and the bar of this subject."""

import random

from windtunnel.systems.collectives.build import Builder, Value
from windtunnel.systems.collectives.program import Program

SHAPES = ((7,), (12,), (5, 6), (8, 4), (1, 3, 5))  # the last one is cut as if it were flat


def random_program(seed: int, num_ranks: int = 2) -> Program:
    """A program with one or two all-reduces, pointwise work, updates, norms, products and sends.

    Computation before an all-reduce is local, behind it replicated; a later all-reduce sums a local tensor that what is
    replicated already has scaled.
    """
    rng = random.Random(seed)
    has_send = rng.random() < 0.25
    builder = Builder(f"random{seed}", *([num_ranks] * (2 if has_send else 1)))
    shape = rng.choice(SHAPES)
    values: list[Value] = []
    for index in range(rng.choice((1, 1, 2))):
        values.append(_reduced(builder, rng, shape, index, values))
        for _ in range(rng.randint(0, 4)):
            values.append(_pointwise(builder, rng, shape, values))
    outputs = [values[-1]]
    if rng.random() < 0.6:
        state = builder.declare_replicated("s", shape)
        old = state * 0.5 if rng.random() < 0.5 else state
        outputs.append(builder.update(state, old + values[-1], name="s_new"))
        if rng.random() < 0.5:
            outputs.append(_pointwise(builder, rng, shape, [outputs[-1], values[0]]))
    if has_send:
        outputs = [builder.send(item) for item in outputs]
    return builder.program(*outputs[: rng.randint(1, len(outputs))])


def _reduced(builder: Builder, rng: random.Random, shape: tuple[int, ...], index: int, values: list[Value]) -> Value:
    """An all-reduce of a local tensor, or of the partial sums of a product."""
    if len(shape) > 1 and rng.random() < 0.4:
        left = builder.declare_sliced(f"a{index}", (*shape[:-1], 9), len(shape) - 1)
        partial = builder.apply("matmul", left, builder.declare_sliced(f"b{index}", (9, shape[-1]), 0))
    else:
        partial = builder.declare_local(f"g{index}", shape)
        if rng.random() < 0.3:
            partial = partial * partial
    if values and rng.random() < 0.5:
        partial = partial * rng.choice(values)
    return builder.all_reduce(partial, reduction="max" if rng.random() < 0.15 else "sum")


def _pointwise(builder: Builder, rng: random.Random, shape: tuple[int, ...], values: list[Value]) -> Value:
    """One pointwise stage of the values so far, or a norm that scales one."""
    value = rng.choice(values)
    match rng.randint(0, 7):
        case 0:
            return value + rng.choice(values)
        case 1:
            return value * 0.7
        case 2:
            return builder.dropout(value, 0.3, seed=rng.randint(0, 99), step=rng.randint(0, 9))
        case 3:
            return value - builder.declare_replicated(f"r{len(builder.stages)}", shape)
        case 4:
            return builder.relu(value) + builder.declare_replicated(f"r{len(builder.stages)}", shape[-1:])
        case 5:
            return value / (builder.norm(value) + 1.0)
        case 6:
            other = builder.declare_replicated(f"r{len(builder.stages)}", shape) * 3.0
            return builder.select(builder.apply("greater", value, 0.1), value, other)
        case _:
            return builder.apply("maximum", value, rng.choice(values))
