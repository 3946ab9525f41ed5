"""Tasks of captured calls are those that a watched network shows."""

from __future__ import annotations

import json

import pytest

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.run.captured import task_of_call
from windtunnel.systems.tensor_programs.run.tasks import Task, parse_task


def call(operator, *given):
    """A call as a capture writes it: tensors as (shape, strides), anything else as it is."""
    shapes = [list(one[0]) if isinstance(one, tuple) else [] for one in given]
    strides = [list(one[1]) if isinstance(one, tuple) else [] for one in given]
    arguments = [None if isinstance(one, tuple) else one for one in given]
    return task_of_call(f"aten::{operator}", *map(json.dumps, (shapes, strides, arguments)))


IMAGE, WEIGHT = ((4, 64, 8, 8), (4096, 64, 8, 1)), ((32, 64, 3, 3), (576, 9, 3, 1))
UNDEFINED = [496, 0, 0, 0, 0, ""]


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (call("mm", ((8, 16), (16, 1)), ((16, 4), (4, 1))), "matmul m=8 n=4 k=16"),
        (call("mm", ((8, 16), (16, 1)), ((16, 4), (1, 16))), "dense m=8 n=4 k=16"),
        (call("bmm", ((2, 8, 16), (128, 16, 1)), ((2, 16, 4), (64, 4, 1))), "bmm b=2 m=8 n=4 k=16"),
        (
            call("mkldnn_convolution", IMAGE, WEIGHT, UNDEFINED, [1, 1], [2, 2], [1, 1], 1),
            "conv2d n=4 ci=64 h=8 w=8 co=32 kh=3 kw=3 stride=2 pad_h=1 pad_w=1 groups=1",
        ),
        (
            call("_slow_conv2d_forward", IMAGE, WEIGHT, [3, 3], ((32,), (1,)), [1, 1], [0, 0]),
            "conv2d n=4 ci=64 h=8 w=8 co=32 kh=3 kw=3 stride=1 pad_h=0 pad_w=0 groups=1 bias",
        ),
        (call("_softmax", ((4, 8, 16), (128, 16, 1)), -1, False), "softmax m=32 n=16"),
        (call("relu_", IMAGE), "elementwise b=4 c=64 s=64 relu"),
        (call("clamp_min_", IMAGE, 0), "elementwise b=4 c=64 s=64 relu"),
        (call("add", IMAGE, IMAGE, 1), "residual_add b=4 c=64 s=64 add"),
        (call("mean", IMAGE, [-1, -2], True, "<None>"), "global_avg_pool n=4 ci=64 s=64"),
    ],
)
def test_a_call_is_its_task(found, name):
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "found",
    [
        call("sort", IMAGE),
        call("clamp_min_", IMAGE, 1),
        call("convolution_backward", IMAGE, IMAGE, WEIGHT),
        call("_softmax", IMAGE, 1, False),
        call("mul", ((), ()), ((), ())),
        task_of_call("aten::mm", "", "", ""),
        task_of_call("tensor::mm", "", "", "{}"),
    ],
)
def test_other_calls_are_none(found):
    assert found is None


def test_a_captured_network_has_the_tasks_that_a_watched_one_has():
    torch = pytest.importorskip("torch")
    from windtunnel.cost.work import work_of
    from windtunnel.sources.torch.step import capture
    from windtunnel.systems.tensor_programs.run.recognition import START

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
    inputs = torch.randn(16, 64)

    def step():
        with torch.no_grad():
            model(inputs)

    work, _ = work_of(capture(step, iterations=2, model=model))
    rows = zip(work.operator, work.shapes, work.strides, work.arguments, strict=True)
    names = {task.name for row in rows if (task := task_of_call(*row)) is not None}
    assert names == {"dense m=16 n=128 k=64 bias", "dense m=16 n=32 k=128 bias", "elementwise b=16 c=128 s=1 relu"}
    assert "addmm" in START


@pytest.mark.parametrize(
    "task",
    [
        Task("matmul", {"m": 2, "n": 3, "k": 4}, ("bias", "relu")),
        Task("max_pool2d", {"n": 1, "ci": 2, "h": 8, "w": 8, "kh": 3, "stride": 2, "pad_h": 1}),
    ],
)
def test_a_task_is_read_from_its_name(task):
    assert parse_task(task.name) == task


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no kind of task"),
        ("matmul m=2 n=3", "lacks k"),
        ("matmul m=2 n=3 k=x", "no extent"),
        ("matmul m=2 n=3 k=4 q=1", "no shape of matmul"),
        ("matmul m=2 n=3 k=4 bias+fly", "cannot be followed by fly"),
        ("convolve m=2", "no kind of task"),
    ],
)
def test_what_names_no_task_is_told(text, message):
    with pytest.raises(InputError, match=message):
        parse_task(text)
