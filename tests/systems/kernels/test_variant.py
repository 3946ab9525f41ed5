"""Winners of searches in a step."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from tests.systems.kernels.test_rank import step
from windtunnel import load, save
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.simulate import replay
from windtunnel.systems.kernels.variant import place_winners


def winner(kernel, value, low, high, edits=("-c U7",)):
    return {
        "kernel": kernel, "edits": list(edits), "label": "exact", "speedup": value, "speedup_low": low,
        "speedup_high": high,
    }  # fmt: skip


def test_a_step_gains_what_the_measured_kernel_gives_it():
    """Of 8 us, 5 are the softmax on the critical path; the copy beside it would be in the way from 1.67x on."""
    changed, (placed,) = place_winners(replay(step()), [winner("softmax", 1.25, 1.2, 1.3)])

    assert placed.operator == "aten::softmax"
    assert placed.step.value == pytest.approx(8000 / 7000)
    assert placed.step.low == pytest.approx(8000 / (3000 + round(5000 / 1.2)))
    assert placed.step.high == pytest.approx(8000 / (3000 + round(5000 / 1.3)))
    assert replay(changed).makespan_ns == 7000
    sources = changed.tasks.strings("cost_source").to_numpy()
    assert sources[0].startswith("evolved softmax, measured 1.250x (1.200-1.300), exact")


def test_several_winners_stand_in_order_of_what_the_step_gains():
    """Also where one hides behind the other; together they gain more than each."""
    graph = replay(step())
    winners = [winner("mine", 3.0, 2.9, 3.1), winner("softmax", 1.25, 1.2, 1.3)]
    _, (copy,) = place_winners(graph, winners[:1], "aten::copy_")
    assert (copy.operator, copy.step.value) == ("aten::copy_", 1.0)

    with pytest.raises(InputError, match="one operator is one kernel's"):
        place_winners(graph, winners, "aten::copy_")
    with pytest.raises(NotApplicableError, match="it is not known which operator mine computes"):
        place_winners(graph, winners)
    with pytest.raises(NotApplicableError, match="this step has no operator that layernorm computes"):
        place_winners(graph, [winner("layernorm", 1.25, 1.2, 1.3)])
    with pytest.raises(InputError, match=r"two kernels compute aten::softmax"):
        place_winners(graph, [winners[1], winners[1]])


def test_a_search_that_found_nothing_has_no_variant():
    with pytest.raises(NotApplicableError, match="found nothing that is surely faster"):
        place_winners(replay(step()), [winner("softmax", 1.0, 1.0, 1.0, edits=())])


def test_the_command_places_what_a_folder_holds(tmp_path):
    """The whole way: a search of the shelf's softmax, then its winner, or the word that there is none."""
    save(step(), tmp_path / "train.wt")
    folder, out = tmp_path / "softmax.evolve", tmp_path / "faster.wt"
    searched = windtunnel(
        "kernel",
        "plan",
        "softmax",
        "--time-limit",
        "5s",
        "--population",
        "8",
        "--max-generations",
        "1",
        "-o",
        str(folder),
    )
    assert 0 == searched.code, searched.stderr
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if not document["edits"]:  # so short a search seldom finds one
        refused = windtunnel("kernel", "predict", "step", str(tmp_path / "train.wt"), str(folder))
        assert 0 != refused.code
        assert "found nothing that is surely faster" in refused.stderr
        document |= winner("softmax", 1.25, 1.2, 1.3, edits=[["-c", "U7"]])
        (folder / "result.json").write_text(json.dumps(document), encoding="utf-8")
    placed = windtunnel("kernel", "predict", "step", str(tmp_path / "train.wt"), str(folder), "-o", str(out), "--json")
    found = json.loads(placed.stdout)

    assert found["speedup"] == pytest.approx(8000 / replay(load(out)).makespan_ns)
    assert found["placed"][0]["operator"] == "aten::softmax"
    assert "step speed-up" in windtunnel("kernel", "predict", "step", str(tmp_path / "train.wt"), str(folder)).stdout
