"""The predicted peak of a changed program is that of the changed program."""

from contextlib import ExitStack

import pytest

from windtunnel.whatifs import parse_request, whatif
from windtunnel.whatifs.peak_memory import note_form, peak_of_capture, predict_peak_bytes

torch = pytest.importorskip("torch", reason="needs the extra torch")

SMALL = {"batch_size": 4, "length": 32, "width": 64, "depth": 2, "vocabulary": 200}


@pytest.fixture(scope="module")
def graph():
    from windtunnel.sources.targets import WorkloadName

    return WorkloadName("transformer", SMALL).capture(2, None)


def flown(edit):
    """The peak of the changed program, really run."""
    from windtunnel.flights.run import _flights_of
    from windtunnel.sources.memory.tracking import track_memory
    from windtunnel.sources.targets import build_workload, discover
    from windtunnel.sources.torch.live import LiveProgram

    ((flight, parameters),) = _flights_of(parse_request(edit))
    program = LiveProgram()
    with ExitStack() as stack:
        if getattr(flight, "is_at_start", False):
            stack.enter_context(flight(program, **parameters))
        built = build_workload("transformer", SMALL, program)
        discover(built.step, program)
        if not getattr(flight, "is_at_start", False):
            stack.enter_context(flight(program, **parameters))
        return track_memory(built.step, model=built.models, optimizer=built.optimizers).peak_bytes


def test_a_capture_knows_the_peak_of_a_real_step(graph):
    from windtunnel.sources.memory.tracking import track_memory
    from windtunnel.sources.targets import build_workload

    built = build_workload("transformer", SMALL)
    profile = track_memory(built.step, model=built.models, optimizer=built.optimizers)

    assert profile.peak_bytes == peak_of_capture(graph)
    memory = graph.meta.memory
    assert peak_of_capture(graph) == max(memory["passes"]["peak_bytes"], memory["update"]["peak_bytes"])
    assert peak_of_capture(graph) == sum(memory["by_category"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit", ["activation-checkpointing", "amp", "batch-size:factor=2", "foreach-optimizer", "fused-optimizer"]
)
def test_the_predicted_peak_is_the_real_one(graph, edit):
    answer = whatif(graph, edit, budget_s=0.1)[0]

    assert answer.peak_bytes == pytest.approx(flown(edit), rel=0.03)
    assert answer.baseline_peak_bytes == peak_of_capture(graph)


def test_forms_join_and_survive_being_stored(graph, tmp_path):
    from windtunnel.cost.rerun import Form
    from windtunnel.graph import load, save

    both = note_form(note_form(graph, Form(batch=(4, 8))), Form(autocast="bfloat16"))
    alone = note_form(graph, Form(batch=(4, 8)))
    save(both, tmp_path / "both.wt")

    assert predict_peak_bytes(both) == predict_peak_bytes(load(tmp_path / "both.wt"))
    assert peak_of_capture(graph) < predict_peak_bytes(both) < predict_peak_bytes(alone)


def test_a_graph_without_notes_says_nothing(graph):
    assert predict_peak_bytes(graph) is None
    assert peak_of_capture(graph.with_meta(memory={})) is None
