"""The eight observations: each can come out shown, refuted, or not checked."""

from benchmarks.observations import low_kernels
from benchmarks.tbd_observations import observe

from windtunnel.graph import GraphBuilder, Kind, ResourceKind
from windtunnel.systems.suite.results import Cell, Result


def _result(name: str, batch: int, rate: float, family: str, **fields: object) -> Result:
    cell = Cell(name, "tiny", batch, fields.pop("threads", 1), fields.pop("ranks", 1), fields.pop("link", 0))
    used = {"compute_utilization": 0.9, "cpu_utilization": 0.5, "peak_resident_bytes": 1000 * batch} | fields
    return Result(cell=cell, batch_size=batch, family=family, throughput_per_s=(rate, rate, rate), **used)


def _sweep(name: str, family: str, rates: list[float], used: list[float], busy: float = 0.9) -> list[Result]:
    return [
        _result(name, 2**at, rate, family, arithmetic_utilization={"float32": use}, compute_utilization=busy)
        for at, (rate, use) in enumerate(zip(rates, used, strict=True))
    ]


def _as_published() -> list[Result]:
    slow = {"ranks": 2, "family": "convolutional", "name": "resnet50", "batch": 4}
    return [
        *_sweep("resnet50", "convolutional", [10, 19, 20], [0.2, 0.3, 0.4]),
        *_sweep("seq2seq", "recurrent", [10, 20, 40], [0.02, 0.03, 0.04], busy=0.3),
        _result("resnet50", 1, 15, "convolutional", threads=2, arithmetic_utilization={"float32": 0.15}),
        _result(rate=20, **slow),
        _result(rate=2, link=125_000_000, **slow),
    ]


def test_a_run_as_the_paper_saw_it_shows_its_observations():
    kernels = {"resnet50": [("aten::native_batch_norm", 0.2, 0.01)]}
    verdicts = [each.verdict for each in observe(_as_published(), {"resnet50": 0.8}, kernels)]

    assert verdicts == ["shown", "shown", "shown", "refuted", "shown", "shown", "shown", "shown"]


def test_a_run_that_contradicts_the_paper_refutes_it():
    results = [
        *_sweep("resnet50", "convolutional", [10, 20, 40], [0.4, 0.3, 0.2], busy=0.3),
        *_sweep("seq2seq", "recurrent", [10, 11, 11], [0.5, 0.5, 0.5]),
        _result("resnet50", 1, 10.1, "convolutional", threads=2, arithmetic_utilization={"float32": 0.5}),
    ]
    verdicts = [each.verdict for each in observe(results, {"resnet50": 0.2})]

    assert verdicts[:3] == ["refuted"] * 3
    assert verdicts[4:6] == ["refuted", "refuted"]


def test_an_empty_run_checks_nothing_and_says_what_it_lacks():
    found = observe([])

    assert [each.number for each in found] == list(range(1, 9))
    assert {each.verdict for each in found} == {"not checked"}
    assert all("does not hold" in each.finding for each in found)


def test_feature_maps_come_from_predicted_memory_where_nothing_else_is_given():
    small, large = (
        _result(
            "vit", batch, 1, "dense", predicted_memory_bytes=100, predicted_memory_by_category={"feature map": share}
        )
        for batch, share in ((1, 30), (8, 70))
    )

    assert "vit 70%" in observe([large, small])[5].finding
    assert observe([large, small])[5].verdict == "shown"


def test_numbers_stand_in_the_findings():
    first = observe(_as_published())[0]

    assert "resnet50 +5%" in first.finding
    assert first.numbers["gains"]["seq2seq"] == 4


def test_long_kernels_with_little_arithmetic_are_found():
    builder = GraphBuilder()
    thread = builder.resource("thread", ResourceKind.HOST_THREAD)
    for op, duration_ns, flops in (("conv", 600, 600), ("norm", 300, 3), ("relu", 40, 1)):
        builder.task(op, op=op, kind=Kind.COMPUTE, resource=thread, duration_ns=duration_ns, flops=flops)
    builder.task("python", op="python", kind=Kind.HOST, resource=thread, duration_ns=1000, flops=0)
    found = low_kernels(builder.build(), peak_flops_per_s=1e9)

    assert [(op, round(share, 3), round(used, 3)) for op, share, used in found] == [("norm", 0.319, 0.01)]
