"""Small training steps whose times can be worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind


@dataclass(frozen=True)
class Layer:
    """One layer: times in ns, sizes in bytes."""

    name: str
    forward_ns: int = 100
    backward_ns: int = 200
    update_ns: int = 30
    param_bytes: int = 1000
    output_bytes: int = 0


def cpu_step(layers: Sequence[Layer], *, data_ns: int = 0, meta: dict | None = None, gap_ns: int = 0) -> Graph:
    """One iteration on one thread, all in program order; activations feed the backward pass by data edges."""
    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    chain: list[int] = []

    def run(name, phase, duration_ns, **columns):
        columns = {"kind": Kind.COMPUTE, "layer": "", **columns}
        row = builder.task(name, resource=cpu, phase=phase, duration_ns=duration_ns, op=name, **columns)
        chain.append(row)
        return row

    if data_ns:
        run("next batch", Phase.DATA, data_ns, kind=Kind.IO)
    forward = {
        layer.name: run(
            "forward",
            Phase.FORWARD,
            layer.forward_ns,
            layer=layer.name,
            param_bytes=layer.param_bytes,
            output_bytes=layer.output_bytes,
        )
        for layer in layers
    }
    backward = {
        layer.name: run("backward", Phase.BACKWARD, layer.backward_ns, layer=layer.name) for layer in reversed(layers)
    }
    for layer in layers:
        update = run("update", Phase.UPDATE, layer.update_ns, layer=layer.name)
        builder.edge(backward[layer.name], update)
        builder.edge(forward[layer.name], backward[layer.name], size_bytes=layer.output_bytes)
    for src, dst in itertools.pairwise(chain):
        builder.edge(src, dst, kind=EdgeKind.ORDER, lag_ns=gap_ns)
    return builder.build({"hardware": {"num_cores": 2, "num_threads": 1}, **(meta or {})})


def gpu_step(layers: Sequence[Layer], *, launch_ns: int = 10, floor_ns: int = 5, copy_ns: int = 0) -> Graph:
    """One iteration on a stream, each kernel launched by a call of the thread, which waits at the end."""
    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("stream 7", ResourceKind.STREAM)
    calls: list[int] = []
    kernels: list[int] = []

    def launch(name, phase, duration_ns, kind=Kind.COMPUTE, **columns):
        call = builder.task(f"launch {name}", kind=Kind.HOST, resource=cpu, phase=phase, duration_ns=launch_ns)
        kernel = builder.task(
            name, kind=kind, resource=stream, phase=phase, duration_ns=duration_ns, op=name, **columns
        )
        builder.edge(call, kernel, kind=EdgeKind.LAUNCH, lag_ns=floor_ns, from_start=True)
        calls.append(call)
        kernels.append(kernel)
        return kernel

    if copy_ns:
        launch("memcpy HtoD", Phase.DATA, copy_ns, Kind.COPY)
    forward = {
        layer.name: launch(
            "forward",
            Phase.FORWARD,
            layer.forward_ns,
            layer=layer.name,
            param_bytes=layer.param_bytes,
            output_bytes=layer.output_bytes,
            bytes_written=layer.output_bytes,
        )
        for layer in layers
    }
    backward = {
        layer.name: launch("backward", Phase.BACKWARD, layer.backward_ns, layer=layer.name)
        for layer in reversed(layers)
    }
    for layer in layers:
        update = launch("update", Phase.UPDATE, layer.update_ns, layer=layer.name)
        builder.edge(backward[layer.name], update)
        builder.edge(forward[layer.name], backward[layer.name], size_bytes=layer.output_bytes)
    wait = builder.task("synchronize", kind=Kind.SYNC, resource=cpu, phase=Phase.OTHER, duration_ns=0)
    builder.edge(kernels[-1], wait, kind=EdgeKind.SYNC)
    for chain in ([*calls, wait], kernels):
        for src, dst in itertools.pairwise(chain):
            builder.edge(src, dst, kind=EdgeKind.ORDER)
    return builder.build()


def finish_of(timeline, name: str) -> list[int]:
    """When the tasks of a name end, by row."""
    return timeline.finish_ns[timeline.graph.select(name=name)].tolist()


def start_of(timeline, name: str) -> list[int]:
    """When the tasks of a name start, by row."""
    return timeline.start_ns[timeline.graph.select(name=name)].tolist()
