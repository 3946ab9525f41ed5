"""Operators by what a step would gain."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from windtunnel import save, whatif
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, ResourceKind
from windtunnel.simulate import replay
from windtunnel.systems.kernels.rank import by_operator
from windtunnel.whatifs.faster import faster_operator


def step():
    """A long kernel beside the critical path, and two on it."""
    builder = GraphBuilder()
    host, stream = (builder.resource(name, kind=kind) for name, kind in
                    (("cpu", ResourceKind.HOST_THREAD), ("gpu", ResourceKind.STREAM)))  # fmt: skip
    first = builder.task("first", op="aten::softmax", kind=Kind.HOST, resource=host, duration_ns=5000)
    second = builder.task("second", op="aten::mm", kind=Kind.HOST, resource=host, duration_ns=3000)
    builder.task("beside", op="aten::copy_", kind=Kind.COMPUTE, resource=stream, duration_ns=6000)
    builder.edge(first, second, kind=EdgeKind.ORDER)
    return builder.build()


def test_what_lies_beside_the_critical_path_gains_nothing_however_long_it_takes():
    found = {one.operator: one for one in by_operator(replay(step()), 2.0)}

    assert ["aten::softmax", "aten::mm", "aten::copy_"] == list(found)
    assert found["aten::softmax"].speedup == pytest.approx(8000 / 6000)  # then the copy is the longest
    assert found["aten::softmax"].hidden == pytest.approx(0.2)
    assert found["aten::mm"].speedup == pytest.approx(8000 / 6500)
    assert (found["aten::copy_"].speedup, found["aten::copy_"].hidden) == (1.0, 1.0)
    assert "softmax" == found["aten::softmax"].at_hand


@pytest.mark.parametrize("operator", ["aten::softmax", "aten::mm", "aten::copy_"])
def test_a_rank_is_what_the_what_if_says(operator):
    graph = step()
    answer = whatif(graph, [f"faster-operator:operator={operator},factor=2"])[0]
    found = {one.operator: one for one in by_operator(replay(graph), 2.0)}

    assert answer.speedup == pytest.approx(found[operator].speedup)


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(InputError, match="nothing is gained by 1"):
        by_operator(replay(step()), 1.0)
    with pytest.raises(NotApplicableError, match="which operators"):
        by_operator(replay(step().drop_columns(["op"])))
    with pytest.raises(InputError, match="no operator is called 'aten::sofmax'") as refused:
        faster_operator(step(), operator="aten::sofmax")
    assert "aten::softmax" in refused.value.fix


def test_the_command_ranks_a_stored_graph(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(step(), tmp_path / "train.wt")
    shown, document = (windtunnel("kernel", "predict", str(tmp_path / "train.wt"), *more) for more in ((), ("--json",)))

    assert 0 == shown.code, shown.stderr
    assert "aten::softmax" in shown.stdout
    assert "kernel plan softmax" in shown.stdout + shown.stderr
    assert 3 == len(json.loads(document.stdout)["operators"])
    (tmp_path / "softmax.evolve").mkdir()  # a search that has ended
    (tmp_path / "softmax.evolve" / "result.json").write_text("{}")
    assert "kernel predict step train.wt softmax.evolve" in windtunnel("kernel", "predict", "train.wt").stderr
