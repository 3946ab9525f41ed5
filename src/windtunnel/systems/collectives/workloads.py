"""The programs of the paper: optimizers under data parallelism, a tensor-parallel layer, a pipeline's boundary.

In: sizes. Out: programs as a framework would run them, before any transformation. Not here: their schedules
(``search``), how fast they are.

Legend: N parameters, k ranks, B batch, S sequence, H hidden size.

References
----------
Jangda et al., ASPLOS 2022, section 6. Adam has its bias correction and epsilon here, which the published program omits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.sources.job_file import call_user_function, is_job_file
from windtunnel.systems.collectives.build import Builder, Value
from windtunnel.systems.collectives.program import Program
from windtunnel.whatifs.request import parse_value

__all__ = ["WORKLOADS", "adam", "lamb", "pipeline", "read_program", "sgd", "tensor_parallel", "workload"]


def sgd(num_ranks: int = 2, num_parameters: int = 1 << 20, momentum: float = 0.9, dtype: str = "float32") -> Program:
    """SGD with momentum on the mean gradient of all ranks."""
    builder = Builder("sgd", num_ranks)
    gradient = builder.declare_local("g", (num_parameters,), dtype)
    weights, velocity = (builder.declare_replicated(name, (num_parameters,), dtype) for name in ("w", "u"))
    rate = builder.declare_replicated("lr", (), dtype)
    mean = builder.all_reduce(gradient, name="g_sum") * (1 / num_ranks)
    new_velocity = builder.update(velocity, momentum * velocity + mean, name="u_new")
    return builder.program(builder.update(weights, weights - rate * new_velocity, name="w_new"))


def _moments(builder: Builder, num_ranks: int, num_parameters: int, dtype: str) -> tuple[Value, Value, Value, Value]:
    """Weights, new moments without bias, and their quotient ``m / (sqrt(v) + eps)``.

    The scalars ``c1`` and ``c2`` are 1 / (1 - beta^t), which the host computes in each step.
    """
    gradient = builder.declare_local("g", (num_parameters,), dtype)
    weights, first, second = (builder.declare_replicated(name, (num_parameters,), dtype) for name in ("w", "m", "v"))
    c1, c2 = (builder.declare_replicated(name, (), dtype) for name in ("c1", "c2"))
    mean = builder.all_reduce(gradient, name="g_sum") * (1 / num_ranks)
    new_first = builder.update(first, 0.9 * first + 0.1 * mean, name="m_new")
    new_second = builder.update(second, 0.999 * second + 0.001 * (mean * mean), name="v_new")
    quotient = (new_first * c1) / (builder.sqrt(new_second * c2) + 1e-8)
    return weights, new_first, new_second, quotient


def adam(num_ranks: int = 2, num_parameters: int = 1 << 20, dtype: str = "float32") -> Program:
    """Adam on the mean gradient of all ranks."""
    builder = Builder("adam", num_ranks)
    rate = builder.declare_replicated("lr", (), dtype)
    weights, _, _, quotient = _moments(builder, num_ranks, num_parameters, dtype)
    return builder.program(builder.update(weights, weights - rate * quotient, name="w_new"))


def lamb(num_ranks: int = 2, num_parameters: int = 1 << 20, decay: float = 0.01, dtype: str = "float32") -> Program:
    """LAMB of one layer: Adam's step times the norm of the weights over the norm of the step (1 where one is 0)."""
    builder = Builder("lamb", num_ranks)
    rate = builder.declare_replicated("lr", (), dtype)
    weights, _, _, quotient = _moments(builder, num_ranks, num_parameters, dtype)
    step = quotient + decay * weights
    weight_norm, step_norm = builder.norm(weights), builder.norm(step)
    both = weight_norm * step_norm
    trust = builder.select(both, weight_norm / builder.select(step_norm, step_norm, 1.0), 1.0)
    return builder.program(builder.update(weights, weights - (rate * trust) * step, name="w_new"))


def tensor_parallel(
    num_ranks: int = 2,
    batch: int = 2,
    sequence: int = 64,
    hidden: int = 128,
    expansion: int = 1,
    probability: float = 0.1,
    dtype: str = "float32",
) -> Program:
    """The second product of an attention (expansion 1) or MLP (4) block under tensor parallelism, up to the residual.

    [B·S, H·expansion] sliced by columns times [H·expansion, H] sliced by rows; all-reduce, bias, dropout, residual.
    """
    builder = Builder("tensor_parallel", num_ranks)
    rows, inner = batch * sequence, hidden * expansion
    activations = builder.declare_sliced("x", (rows, inner), 1, dtype)
    weights = builder.declare_sliced("w", (inner, hidden), 0, dtype)
    bias, residual = (
        builder.declare_replicated("b", (hidden,), dtype),
        builder.declare_replicated("r", (rows, hidden), dtype),
    )
    step = builder.declare_replicated("step", ())
    total = builder.all_reduce(builder.apply("matmul", activations, weights, name="product"), name="total")
    return builder.program(builder.dropout(total + bias, probability, seed=7, step=step) + residual)


def pipeline(
    num_ranks: int = 2, batch: int = 2, sequence: int = 64, hidden: int = 128, probability: float = 0.1,
    dtype: str = "float32",
) -> Program:  # fmt: skip
    """The boundary of two pipeline stages of tensor-parallel layers: all-reduce, dropout and residual, send."""
    builder = Builder("pipeline", num_ranks, num_ranks)
    rows = batch * sequence
    partial = builder.declare_local("x", (rows, hidden), dtype)
    bias, residual = (
        builder.declare_replicated("b", (hidden,), dtype),
        builder.declare_replicated("r", (rows, hidden), dtype),
    )
    step = builder.declare_replicated("step", ())
    total = builder.all_reduce(partial, name="total")
    result = builder.dropout(total + bias, probability, seed=7, step=step) + residual
    return builder.program(builder.send(result, name="sent"))


WORKLOADS: dict[str, Callable[..., Program]] = {
    "adam": adam,
    "lamb": lamb,
    "pipeline": pipeline,
    "sgd": sgd,
    "tensor-parallel": tensor_parallel,
}
"""Programs by the name that the command line takes."""


def workload(name: str, **sizes: Any) -> Program:
    """A program by its name.

    Raises
    ------
    InputError
        There is none of that name, or it has no such size.
    """
    maker = _maker(name)
    known = inspect.signature(maker).parameters
    unknown = [key for key in sizes if key not in known]
    if unknown:
        raise InputError(f"{name} has no parameter {unknown[0]!r}", fix=registry.did_you_mean(unknown[0], known))
    return maker(**sizes)


def read_program(text: str) -> Program:
    """The program that a command line names: ``adam:num_ranks=4`` or ``my_programs.py:function``.

    Raises
    ------
    InputError
        There is no such program, a parameter is not known, or the function fails.
    """
    if is_job_file(text):
        return call_user_function(text, Program)
    name, _, given = text.partition(":")
    known = inspect.signature(_maker(name.strip())).parameters
    sizes = {}
    for piece in filter(None, (piece.strip() for piece in given.split(","))):
        key, sign, value = (part.strip() for part in piece.partition("="))
        if not sign:
            raise InputError(f"{piece!r} gives no value", where=text, fix="write parameters as key=value,key=value")
        sizes[key] = parse_value(key, known[key], value, text) if key in known else value
    return workload(name.strip(), **sizes)


def _maker(name: str) -> Callable[..., Program]:
    if name not in WORKLOADS:
        fix = registry.did_you_mean(name, WORKLOADS) or f"known: {', '.join(WORKLOADS)}"
        raise InputError(f"there is no program {name!r}", fix=f"{fix}; or give file.py:function")
    return WORKLOADS[name]
