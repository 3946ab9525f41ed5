"""The page of a benchmark run."""

import re

import msgspec

from windtunnel.reports.curves import Bar, Curve, bars, curves
from windtunnel.systems.suite.comparison import compare
from windtunnel.systems.suite.page import write_suite_report
from windtunnel.systems.suite.results import Cell, Result, SuiteRun


def _result(name: str, batch_size: int, rate: float, **fields: object) -> Result:
    return Result(
        cell=Cell(name, "tiny", batch_size),
        batch_size=batch_size,
        durations_ns=[round(1e9 * batch_size / rate)] * 40,
        units=[float(batch_size)] * 40,
        throughput_per_s=(rate, 0.9 * rate, 1.1 * rate),
        median_ns=(1e9 * batch_size / rate,) * 3,
        flops_by_dtype={"float32": 10**9},
        arithmetic_utilization={"float32": 0.25},
        compute_utilization=0.5,
        cpu_utilization=0.4,
        peak_resident_bytes=2**28,
        objective=[2.0, 1.0],
        measured_at="2026-01-02T03:04:05+00:00",
        energy_source="this host tells no energy",
        **fields,
    )


def _run(tmp_path) -> SuiteRun:
    results = [
        _result("mlp", 1, 100),
        _result("mlp", 4, 300, data="synthetic: <script>alert(1)</script>"),
        Result(cell=Cell("bert"), status="missing", message="this needs transformers", fix="pip install it"),
    ]
    return SuiteRun(tmp_path, {"cpu_name": "a processor", "num_cores": 2, "versions": {"torch": "2"}}, results)


def test_the_page_holds_table_bars_sweeps_and_what_is_missing(tmp_path):
    run = _run(tmp_path)
    page = write_suite_report(run, tmp_path / "suite.html", comparison=compare(run, run)).read_text()

    for text in (
        "2 of 3 cells",
        "300 samples/s",
        "Batch size",
        "no difference",
        "needs transformers",
        "25 %",
        "2 to 1",
    ):
        assert text in page
    assert "<script>alert" not in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_an_objective_that_is_not_there_yet_is_a_dash(tmp_path):
    result = msgspec.structs.replace(_result("a3c", 1, 100), objective=[None, -0.5, None], compute_utilization=None)
    run = SuiteRun(tmp_path, {}, [result, msgspec.structs.replace(result, objective=[None, -0.5])])
    page = write_suite_report(run, tmp_path / "suite.html").read_text()

    assert "– to –" in page
    assert "– to -0.5" in page


def test_a_run_in_which_nothing_was_measured_still_has_a_page(tmp_path):
    run = SuiteRun(tmp_path, {}, [Result(cell=Cell("bert"), status="failed", message="it broke")])

    assert "it broke" in write_suite_report(run, tmp_path / "suite.html").read_text()


def test_bars_start_at_zero_and_show_their_values():
    svg = bars([Bar("one", 0.5, "50 %", 0.4, 0.6), Bar("<two>", 1.0, "100 %")], "a & b")
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="17"', svg)]

    assert widths[1] / widths[0] == 2
    assert "&lt;two&gt;" in svg
    assert "<two>" not in svg


def test_curves_space_their_points_by_powers():
    svg = curves([Curve("one", [(1, 1), (4, 2), (16, 4)])], "x", x_label="batch", y_label="throughput")
    places = [float(place) for place in re.findall(r'<circle cx="([\d.]+)"', svg)]

    assert places[1] - places[0] == places[2] - places[1]
    assert curves([Curve("one", [(8, 1.0)])], "x", x_label="", y_label="")
