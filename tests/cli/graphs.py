"""Small graphs with exact numbers, for the tests of what is printed of them."""

from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind


def step_graph(name: str = "encoder", factor: int = 1) -> Graph:
    """A host thread that launches on a stream: 100 µs, of which 60 forward, 20 backward, 10 update and 10 idle."""
    builder = GraphBuilder()
    host = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("stream 7", ResourceKind.STREAM)
    launch = builder.task("launch", kind=Kind.HOST, resource=host, duration_ns=5_000, phase=Phase.FORWARD, op="launch")
    forward = builder.task(
        f"{name} forward", resource=stream, duration_ns=55_000 * factor, phase=Phase.FORWARD, op="gemm", layer=name
    )
    backward = builder.task(
        f"{name} backward", resource=stream, duration_ns=20_000, phase=Phase.BACKWARD, op="gemm", layer=name
    )
    update = builder.task("adam", resource=host, kind=Kind.HOST, duration_ns=10_000, phase=Phase.UPDATE, op="adam")
    aside = builder.task("log", resource=host, kind=Kind.HOST, duration_ns=1_000, phase=Phase.OTHER, op="log")
    builder.edge(launch, forward, kind=EdgeKind.LAUNCH, lag_ns=4_000)
    builder.edge(forward, backward, kind=EdgeKind.ORDER)
    builder.edge(launch, aside, kind=EdgeKind.ORDER)
    builder.edge(aside, update, kind=EdgeKind.ORDER)
    builder.edge(backward, update, kind=EdgeKind.SYNC, lag_ns=6_000)
    return builder.build(
        {
            "iteration_ns": {
                "median": 102_000,
                "low": 100_000,
                "high": 106_000,
                "samples": [100_000, 102_000, 106_000],
            },
            "profiled_iteration_ns": {"median": 127_500},
            "hardware": {"processor": "Some CPU", "num_threads": 2},
        }
    )


HOSTILE = {
    "html": "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "closing": "</script></style></title><h1>owned</h1>",
    "attribute": "\" onmouseover=\"document.title='owned'\" x='",
    "path": "../../../../tmp/owned",
    "sql": "'; DROP TABLE receipts; --",
    "control": "a\x1b[31mred\x07\r\nb\x00c",
    "markup": "[bold red]owned[/bold red]",
    "template": "$title ${sections} {0} %s",
    "long": "x" * 10_000_000,
    "bidi": "\u202egnp.exe",
    "empty": "",
}


def hostile_graph() -> Graph:
    """Tasks, layers, operators and resources whose names try to be something else."""
    builder = GraphBuilder()
    for text in HOSTILE.values():
        resource = builder.resource(text, ResourceKind.STREAM)
        builder.task(text, duration_ns=1_000, resource=resource, op=text, layer=text, output_bytes=4096)
    return builder.build({"source": HOSTILE["html"], "hardware": {"processor": HOSTILE["html"]}})
