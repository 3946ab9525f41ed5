"""Logits a chunk of rows at a time: which losses, what they take, what they hold."""

from __future__ import annotations

import numpy as np
import pytest

from tests.whatifs.prices import published
from tests.whatifs.test_kernel_forms import CALL_NS, DISPATCH_NS, kernels_of, launched
from windtunnel.cost.rerun import Ratios
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.whatifs import whatif
from windtunnel.whatifs.chunked_loss import chunked_loss
from windtunnel.whatifs.measured import calls_of

torch = pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.sources.torch.step import capture  # noqa: E402

CLASSES, WIDTH, SAMPLES, LENGTH = 1000, 8, 4, 16
LOGIT_BYTES = 4 * SAMPLES * (LENGTH - 1) * CLASSES


class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(CLASSES, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens):
        return self.head(torch.relu(self.table(tokens)))


def next_token(logits, tokens):
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), tokens[:, 1:].reshape(-1))


def captured(loss=next_token) -> Graph:
    torch.manual_seed(0)
    model, tokens = Language(), torch.randint(0, CLASSES, (SAMPLES, LENGTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        value = loss(model(tokens), tokens)
        value.backward()
        optimizer.step()
        return value.item()

    return capture(step, iterations=1, model=model)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return captured()


def test_the_layer_the_views_and_the_loss_run_in_chunks_and_nothing_else(graph):
    change = chunked_loss(graph, num_chunks=5)
    ((first, last, num_chunks),) = change.needs[0].form.chunked
    operators = [call.operator for call in change.needs[0].program.calls]
    count = len(operators)
    changed = change.finish(Ratios(np.full(count, 3.0), np.full(count, 2.0), np.zeros(count)))
    inside = (calls_of(graph) >= first) & (calls_of(graph) < last)
    backward = graph.select(phase=Phase.BACKWARD)

    assert ("aten::linear", "aten::cross_entropy_loss", 5) == (operators[first], operators[last - 1], num_chunks)
    outside = ~inside & ~(backward & (calls_of(graph) < 0))  # what the engine does before a node goes with it
    assert (changed.duration_ns[outside] == graph.duration_ns[outside]).all()
    assert (changed.duration_ns[inside & ~backward] == 3 * graph.duration_ns[inside & ~backward]).all()
    assert (changed.duration_ns[inside & backward] == 2 * graph.duration_ns[inside & backward]).all()


def test_the_step_runs_again_in_chunks_and_holds_one_of_them(graph):
    (answer,) = whatif(graph, "chunked-loss", budget_s=0.01, database=":memory:")
    saved = graph.meta.memory["peak_bytes"] - answer.peak_bytes

    assert answer.is_applicable
    assert not answer.peak_violation
    assert LOGIT_BYTES < saved < 10 * LOGIT_BYTES


def no_mean(logits, tokens):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").sum()


def weighted(logits, tokens):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), torch.ones(CLASSES))


def read_twice(logits, tokens):
    logits = logits.flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, tokens.flatten()) + logits.mean()


def scaled(logits, tokens):
    return torch.nn.functional.cross_entropy((logits * 0.5).flatten(0, 1), tokens.flatten())


def no_loss(logits, tokens):
    del tokens
    return logits.mean()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (no_mean, "no sum or mean over labels"),
        (weighted, "weighs classes"),
        (read_twice, "read by more than the loss"),
        (scaled, "mul lies between"),
        (no_loss, "no cross-entropy is computed"),
    ],
)
def test_a_loss_that_needs_all_logits_is_refused_with_the_reason(loss, message):
    with pytest.raises(NotApplicableError, match=message):
        chunked_loss(captured(loss))


def test_so_many_chunks_need_rows(graph):
    with pytest.raises(NotApplicableError, match="100 chunks of 60 rows"):
        chunked_loss(graph, num_chunks=100)
    with pytest.raises(InputError, match="1 chunks change nothing"):
        chunked_loss(graph, num_chunks=1)


def of_device(*, sizes=None):
    """A product and its softmax, and their gradients: each kernel is launched after 40 ns of host."""
    forward = [("aten::mm", "sgemm", 500), ("aten::_log_softmax", "softmax_forward", 7)]
    backward = [("aten::_log_softmax_backward_data", "softmax_backward", 9), ("aten::mm", "sgemm", 1000)]
    graph = launched(*forward, *backward)
    phases = np.repeat(np.array([Phase.FORWARD, Phase.BACKWARD], dtype=np.int8), graph.num_tasks // 2)
    return graph.with_columns(phase=phases, **(sizes or {}))


def test_on_a_trace_of_a_device_the_product_and_its_softmax_run_again():
    """Two more chunks are 8 and 18 more operators, of 40 ns each on the host."""
    changed = published(chunked_loss(of_device(), num_chunks=3))
    launches = changed.duration_ns[changed.select(name="cudaLaunchKernel")].tolist()

    assert [500, 7, 9, 1000, 507] == [duration for _, duration in kernels_of(changed)]  # the last one is new
    assert [CALL_NS, CALL_NS + 320, CALL_NS + 720, CALL_NS] == launches
    assert 3 * (DISPATCH_NS + CALL_NS) < 320


def test_on_a_trace_of_a_device_what_is_as_large_as_the_logits_keeps_a_chunk():
    """Logits of 16 bits, their softmax and gradient of 32 bits; something else of another size."""
    made, freed = np.zeros(12, dtype=np.int64), np.zeros(12, dtype=np.int64)
    made[[0, 3, 6, 9]] = 3000, 6000, 6000, 800
    freed[[7, 10]] = 6000, 9800
    graph = of_device(sizes={"output_bytes": made, "freed_bytes": freed})
    changed = published(chunked_loss(graph, num_chunks=3))

    assert [1000, 2000, 2000, 800] == changed.tasks["output_bytes"][[0, 3, 6, 9]].tolist()
    assert [2000, 3800] == changed.tasks["freed_bytes"][[7, 10]].tolist()
