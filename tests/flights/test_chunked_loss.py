"""Losses in chunks of unmodified programs: the same training, with fewer logits at a time."""

from __future__ import annotations

import pytest

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.flights import fly
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch.nn.functional import cross_entropy  # noqa: E402

from windtunnel.flights.proof import Witness  # noqa: E402
from windtunnel.sources.torch.live import LiveProgram  # noqa: E402

BRIEF = StopRule(rounds=3, min_rounds=3, precision=0.5, turn_ns=1_000_000, time_limit_s=5)
CLASSES, WIDTH = 97, 8


class Language(torch.nn.Module):
    def __init__(self, *, bias=False):
        super().__init__()
        self.table = torch.nn.Embedding(CLASSES, WIDTH)
        self.body = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES, bias=bias)

    def forward(self, tokens):
        return self.head(torch.relu(self.body(self.table(tokens))))


LOSSES = {
    "view": lambda logits, y: cross_entropy(logits.view(-1, CLASSES), y.view(-1)),
    "inferred size": lambda logits, y: cross_entropy(logits.reshape(y.numel(), -1), y.reshape(-1)),
    "next token": lambda logits, y: cross_entropy(
        logits[..., :-1, :].contiguous().view(-1, logits.size(-1)), y[:, 1:].reshape(-1)
    ),
    "classes second": lambda logits, y: cross_entropy(logits.transpose(1, 2), y),
    "permuted": lambda logits, y: cross_entropy(logits.permute(0, 2, 1), y),
    "module": lambda logits, y: torch.nn.CrossEntropyLoss(label_smoothing=0.1)(
        logits.float().flatten(0, 1), y.flatten()
    ),
    "sum": lambda logits, y: cross_entropy(logits[0], y[0], reduction="sum") / 50,
}
WHOLE = {
    "accuracy": lambda logits, y: cross_entropy(logits.flatten(0, 1), y.flatten()) + (logits.argmax(-1) == y).sum() * 0,
    "scaled": lambda logits, y: cross_entropy(logits.flatten(0, 1) / 2, y.flatten()),
    "one class": lambda logits, y: cross_entropy(logits[..., :50].flatten(0, 1), y.flatten() % 50),
    "each": lambda logits, y: cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").mean(),
}


def program(loss, *, bias=False, autocast=False):
    torch.manual_seed(0)
    model = Language(bias=bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens, labels = torch.randint(0, CLASSES, (4, 16)), torch.randint(0, CLASSES, (4, 16))
    labels[0, 3:] = -100

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(model(tokens), labels)
        value.backward()
        optimizer.step()
        return value.item()

    return LiveProgram([model], [optimizer]), step


def flight(live, **given):
    return registry.get("flight", "chunked-loss").function(live, **given)


def witnessed(live, step):
    """Losses that are computed in an iteration."""
    counts = {}
    with Witness(live).watching(1, counts):
        step()
    return counts.get("losses", 0)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_program_trains_as_before_and_computes_a_loss_for_each_chunk(name, autocast):
    plain, plain_step = program(LOSSES[name], bias=name == "view", autocast=autocast)
    live, step = program(LOSSES[name], bias=name == "view", autocast=autocast)
    expected = [plain_step() for _ in range(5)]
    losses = [step()]
    with flight(live, num_chunks=3):
        losses += [step(), step()]  # the first one shows which layer it is
        assert 3 == witnessed(live, lambda: losses.append(step()))
    with flight(live, num_chunks=2):
        losses.append(step())

    assert expected == pytest.approx(losses, rel=1e-3 if autocast else 1e-5)
    for before, after in zip(plain.models[0].parameters(), live.models[0].parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=1e-2 if autocast else 1e-4, atol=1e-4)
    assert "forward" not in vars(live.models[0].head)
    assert torch._C._nn.cross_entropy_loss.__name__ == "cross_entropy_loss"


@pytest.mark.parametrize("name", WHOLE)
def test_what_reads_logits_gets_all_of_them(name):
    _, plain_step = program(WHOLE[name])
    live, step = program(WHOLE[name])
    expected = [plain_step() for _ in range(3)]
    with flight(live):
        losses = [step() for _ in range(3)]

    assert expected == pytest.approx(losses, rel=1e-5)


def test_logits_have_shape_type_and_place_before_they_are_computed():
    from windtunnel.flights.deferred_logits import DeferredLogits

    computed = []
    rows, weight = torch.randn(2, 3, WIDTH), torch.nn.Parameter(torch.randn(CLASSES, WIDTH))
    logits = DeferredLogits(rows, weight, None, 2, lambda: computed.append(1) or rows @ weight.T)

    assert ((2, 3, CLASSES), 3, torch.float32, "cpu") == (logits.shape, logits.dim(), logits.dtype, logits.device.type)
    assert logits.requires_grad
    assert [] == computed
    torch.testing.assert_close(rows @ weight.T + 1, logits + 1)
    assert logits[:, 0, :5].shape == (2, 5)
    assert [1] == computed


def test_a_language_model_flies_and_others_say_that_nothing_changed():
    tiny = {"batch_size": 2, "length": 16, "width": 32, "depth": 1, "vocabulary": 100}
    fly(WorkloadName("transformer", tiny), "chunked-loss:num_chunks=4", rule=BRIEF)

    with pytest.raises(FlightError, match="changed nothing in this program"):
        fly(WorkloadName("lstm", {"batch_size": 2}), "chunked-loss", rule=BRIEF)
    with pytest.raises(InputError, match="1 chunks change nothing"), flight(LiveProgram(), num_chunks=1):
        pass
