"""Tables whose gradients hold the rows that were read only."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.cost.rerun import Ratios
from windtunnel.errors import FlightError, InEffectError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.whatifs import whatif
from windtunnel.whatifs.measured import update_steps

torch = pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.flights.proof import Witness  # noqa: E402
from windtunnel.flights.sparse_gradients import sparse_embedding_gradients  # noqa: E402
from windtunnel.sources.torch.live import LiveProgram  # noqa: E402
from windtunnel.sources.torch.step import capture  # noqa: E402
from windtunnel.whatifs.sparse_gradients import sparse_embedding_gradients as change  # noqa: E402

ROWS, WIDTH = 100_000, 8


class Tables(torch.nn.Module):
    """A table and a bag of rows, then a linear layer; ``ties`` its weights to the table as language models do."""

    def __init__(self, *, sparse=False, ties=False, num_classes=8):
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.bag = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse)
        self.head = torch.nn.Linear(WIDTH, ROWS if ties else num_classes)
        if ties:
            self.head.weight = self.table.weight

    def forward(self, rows):
        return self.head(self.table(rows).mean(1) + self.bag(rows))


def step_of(model, optimizer, *, clips=False):
    rows, labels = torch.randint(0, ROWS, (16, 4)), torch.randint(0, 8, (16,))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def captured(*, optimizer=torch.optim.SGD, clips=False, options=None, **sizes) -> Graph:
    torch.manual_seed(0)
    model = Tables(**sizes)
    stepped = optimizer(model.parameters(), lr=0.1, **(options or {}))
    return capture(step_of(model, stepped, clips=clips), iterations=2, model=model)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return captured()


def test_updates_take_their_price_and_zeroing_the_share_of_the_bytes(graph):
    priced = change(graph)
    ones = np.ones(len(graph.meta.program["calls"]))
    changed = priced.finish(Ratios(ones, ones, ones), 0.25)
    updates, zeroing = update_steps(graph), graph.select(phase=Phase.UPDATE, name="Optimizer.zero_grad.*")
    same = ~updates & ~zeroing

    assert (changed.duration_ns[same] == graph.duration_ns[same]).all()
    assert changed.duration_ns[updates].sum() == pytest.approx(0.25 * graph.duration_ns[updates].sum(), rel=0.01)
    assert zeroing.any()
    assert (changed.duration_ns[zeroing] <= 0.01 * graph.duration_ns[zeroing]).all()  # 64 rows of 100,000, twice


def test_the_step_runs_again_with_sparse_gradients_and_holds_less(graph):
    (answer,) = whatif(graph, "sparse-embedding-gradients", budget_s=0.01, database=":memory:")

    assert answer.is_applicable
    assert answer.peak_bytes < graph.meta.memory["peak_bytes"] - ROWS * WIDTH * 4  # a table's gradient at least


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"sparse": True}, InEffectError, "2 tables have sparse gradients"),
        ({"optimizer": torch.optim.Adam}, NotApplicableError, "Adam needs gradients of whole tables"),
        ({"options": {"momentum": 0.9}}, NotApplicableError, "momentum=0.9 changes rows that were not read"),
        ({"clips": True}, NotApplicableError, "clipped by their norm"),
    ],
)
def test_what_needs_whole_tables_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        change(captured(**given))


def test_a_table_that_is_the_output_layer_too_keeps_its_gradient():
    tied = change(captured(ties=True))

    assert {"bag.weight"} == set(tied.needs[1].form.sparse)
    assert 1 == len(tied.needs[0].form.sparse)


def test_a_step_without_tables_has_nothing_to_change():
    model = torch.nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(2, 4)

    def step():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    with pytest.raises(NotApplicableError, match="no row of a trained table"):
        change(capture(step, iterations=2, model=model))


def trained(*, flies: bool, **options):
    torch.manual_seed(1)
    model = Tables(**options)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    live, step = LiveProgram([model], [optimizer]), step_of(model, optimizer)
    losses, counts = [step()], {}
    if flies:
        with sparse_embedding_gradients(live), Witness(live).watching(2, counts):
            losses += [step(), step()]
    else:
        losses += [step(), step()]
    return model, [*losses, step()], counts


@pytest.mark.filterwarnings("ignore:Sparse invariant")  # Adagrad of torch itself
def test_the_flight_trains_as_before_and_leaves_nothing_behind():
    plain, expected, _ = trained(flies=False)
    flown, losses, counts = trained(flies=True)

    assert expected == pytest.approx(losses, rel=1e-6)
    assert 2.0 == counts["sparse gradients"]
    assert not flown.table.sparse
    assert not flown.table.weight.grad.is_sparse
    for before, after in zip(plain.parameters(), flown.parameters(), strict=True):
        np.testing.assert_allclose(before.detach(), after.detach(), rtol=1e-5, atol=1e-7)


def test_the_flight_leaves_tables_that_others_share():
    _, _, counts = trained(flies=True, ties=True)
    assert 1.0 == counts["sparse gradients"]

    model = torch.nn.Linear(2, 2)
    live = LiveProgram([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
    with pytest.raises(FlightError, match="no trained table"), sparse_embedding_gradients(live):
        pass
