"""Small tasks of every kind."""

from __future__ import annotations

from windtunnel.systems.tensor_programs.run.tasks import Task

IMAGE = {"n": 1, "ci": 8, "h": 9, "w": 8}
SMALL = (
    Task("matmul", {"m": 12, "n": 20, "k": 16}, ("bias", "relu")),
    Task("dense", {"m": 12, "n": 20, "k": 16}, ("bias", "gelu", "add")),
    Task("bmm", {"b": 3, "m": 4, "n": 6, "k": 8}, ("mul_const",)),
    Task(
        "conv2d",
        IMAGE | {"co": 12, "kh": 3, "kw": 1, "stride": 1, "pad_h": 1, "pad_w": 0, "groups": 1},
        ("bias", "relu6"),
    ),
    Task("conv2d", IMAGE | {"co": 12, "kh": 3, "kw": 3, "stride": 2, "pad_h": 1, "pad_w": 1, "groups": 4}),
    Task("depthwise_conv2d", IMAGE | {"kh": 3, "kw": 3, "stride": 1, "pad_h": 1, "pad_w": 1}, ("scale", "silu")),
    Task("max_pool2d", IMAGE | {"kh": 3, "stride": 2, "pad_h": 1}),
    Task("avg_pool2d", IMAGE | {"kh": 2, "stride": 2, "pad_h": 0}, ("sub",)),
    Task("global_avg_pool", {"n": 2, "ci": 8, "s": 21}, ("sigmoid",)),
    Task("layer_norm", {"m": 6, "n": 32}, ("tanh",)),
    Task("softmax", {"m": 6, "n": 32}),
    Task("reduce_sum", {"b": 2, "k": 24, "n": 8}),
    Task("transpose", {"b": 2, "m": 6, "n": 4, "s": 8}),
    Task("elementwise", {"b": 2, "c": 6, "s": 10}, ("sqrt", "rsqrt", "exp", "neg", "hardswish", "div")),
    Task("residual_add", {"b": 2, "c": 6, "s": 10}, ("add", "leaky_relu", "square", "add_const", "mul")),
    Task("gelu", {"b": 2, "c": 6, "s": 10}, ("gelu",)),
)
