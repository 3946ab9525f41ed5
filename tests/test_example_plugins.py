"""The plug-ins of ``examples/plugins`` are found as those of an installed package, and keep their contracts."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tests.cli.command import windtunnel
from tests.cli.graphs import step_graph
from windtunnel import registry
from windtunnel.errors import NotApplicableError, TraceError
from windtunnel.graph import save
from windtunnel.simulate import replay
from windtunnel.sources.stored import format_of
from windtunnel.testing import FlightContract, SourceContract, WhatIfContract
from windtunnel.whatifs import apply, parse_request
from windtunnel.whatifs.ask import pricer_of

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "plugins"
NAME = "amp-channels-last"
PRICER = pricer_of(":memory:", 0.01)  # measures once what is asked again
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")


@pytest.fixture(autouse=True)
def installed(tmp_path_factory, monkeypatch):
    """As pip leaves the package: its modules, and its entry points in the metadata of a distribution."""
    site = tmp_path_factory.mktemp("site-packages")
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
    points = project["project"]["entry-points"][registry.ENTRY_POINT_GROUP]
    info = site / "windtunnel_example_plugins-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: windtunnel-example-plugins\nVersion: 0.1.0\n")
    lines = [f"[{registry.ENTRY_POINT_GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    settings = project["tool"]["setuptools"]
    for module in settings["py-modules"]:
        shutil.copy(FOLDER / f"{module}.py", site)
    for package in settings["packages"]:
        shutil.copytree(FOLDER / package, site / package)
    # while the package cannot be found: what is registered now stays, and a loaded module registers nothing anew
    for kind in registry.KINDS:
        registry.all(kind)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()
    for name in [*settings["py-modules"], *settings["packages"]]:
        for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[loaded]


def capture_images():
    from windtunnel.sources.targets import WorkloadName

    return WorkloadName("cnn", {"batch_size": 2}).capture(2, None)


@needs_torch
class TestPricedWhatIf(WhatIfContract):
    name = NAME
    prices = "measured"
    graph: ClassVar = []

    def graphs(self):
        self.graph[:] = self.graph or [capture_images()]
        return self.graph

    def price(self, needs, is_run):
        return PRICER(needs, is_run)

    def test_prices_come_from_operators_that_ran_in_the_new_form(self):
        (graph,) = self.graphs()
        changed = self.apply_whatif(graph)

        assert "measured:partial" in changed.tasks.strings("cost_source").values
        assert replay(changed).makespan_ns != replay(graph).makespan_ns

    def test_it_is_refused_where_there_is_no_image(self):
        from windtunnel.sources.targets import WorkloadName

        network = WorkloadName("mlp", {"batch_size": 4, "width": 8, "depth": 1}).capture(2, None)
        with pytest.raises(NotApplicableError, match="no 2-D convolution"):
            apply(network, parse_request(NAME))


@needs_torch
class TestProvenFlight(FlightContract):
    name = NAME

    def program(self):
        from tests.flights.test_changes import program

        return program()

    def test_it_is_proven_and_what_does_less_is_not(self):
        from windtunnel.flights.proof import Witness, unproven

        program, step = self.program()
        strides = [parameter.stride() for parameter in program.models[0].parameters()]
        before, after, of_half = {}, {}, {}
        with Witness(program).watching(1, before):
            step()
        with self.flight(program), Witness(program).watching(1, after):
            step()
        with registry.get("flight", "amp").function(program), Witness(program).watching(1, of_half):
            step()

        assert not unproven(before, after, [(self.plugin.function, {})])
        assert "channels-last" in unproven(before, of_half, [(self.plugin.function, {})])
        assert strides == [parameter.stride() for parameter in program.models[0].parameters()]


class TestCsvTimeline(SourceContract):
    name = "csv-timeline"
    rows = """category,name,start_ns,duration_ns,thread,stream,correlation
operator,aten::mm,0,2000,1,,
call,cudaLaunchKernel,500,1000,1,,7
kernel,gemm,2500,9000,1,3,7
call,cudaDeviceSynchronize,2200,9400,1,,
"""

    def files(self, folder):
        path = folder / "step.csv"
        path.write_text(self.rows)
        return [path]

    def test_the_kernel_follows_its_launch_on_its_stream(self, tmp_path):
        graph = format_of(self.files(tmp_path)[0]).function(tmp_path / "step.csv")
        (kernel,) = np.flatnonzero(graph.select(name="gemm"))
        (launch,) = np.flatnonzero(graph.select(name="cudaLaunchKernel"))

        assert 9000 == graph.duration_ns[kernel]
        assert (launch, kernel) in set(zip(graph.edges["src"].tolist(), graph.edges["dst"].tolist(), strict=True))
        assert "GPU 0 stream 3" == graph.resources.strings("name").to_numpy()[graph.tasks["resource"][kernel]]

    @pytest.mark.parametrize("row", ["kernel,gemm,soon,9,1,3,7", "kernels,gemm,1,9,1,3,7", "kernel,gemm,1"])
    def test_a_row_that_is_no_event_is_an_error_with_its_line(self, tmp_path, row):
        (path,) = self.files(tmp_path)
        path.write_text(self.rows + row + "\n")

        with pytest.raises(TraceError, match="line 6"):
            self.plugin.function(path)


def test_the_subject_is_a_command_over_any_source(tmp_path):
    (trace,) = TestCsvTimeline().files(tmp_path)
    stored = save(step_graph(), tmp_path / "train.wt")

    shown = windtunnel("hotspots", trace)
    assert (0, "") == (shown.code, shown.stderr)
    assert "aten::mm" in shown.stdout
    found = json.loads(windtunnel("hotspots", stored, "--max-rows", 2, "--json").stdout)["operators"]
    assert 2 == len(found)
    assert found[0]["duration_ns"] >= found[1]["duration_ns"] > 0
    assert "csv-timeline" in windtunnel("list", "sources").stdout


def test_each_file_is_short_enough_to_be_read_at_once():
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.rglob("*.py")) <= 60
